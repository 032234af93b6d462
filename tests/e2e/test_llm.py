"""A study on the CPU that asks a model (a local server), from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernelsearch.resources import template_paths
from kernelsearch.study import StoredStudy
from tests.e2e.conftest import Command
from tests.support.messages_server import Step, messages_server

pytest.importorskip("anthropic")
KEY = "sk-secret-of-the-tests"
ANSWER = (
    "mutation: shorter_text\nrationale: a change of name only\ngain: 1.05\n\n"
    "<<<<<<< SEARCH\n{line}\n=======\n{line}\n    spare = 1 + cols\n>>>>>>> REPLACE\n"
)
OPTIONS = ("--target", "cpu", "--workloads", "rows=32,cols=64", "--no-templates", "--quiet",
           "--proposer", "llm", "--model", "claude-haiku-4-5", "--budget", "12")  # fmt: skip


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)


def naive() -> Path:
    return template_paths("rms_norm", "cpu")[0]


def test_a_model_is_told_asked_paid_and_its_kernel_judged(command: Command, tmp_path: Path) -> None:
    source = naive().read_text()
    line = next(x for x in source.splitlines() if x.startswith("def "))
    with messages_server([Step(text=ANSWER.format(line=line))]) as server:
        done = command("tune", "rms_norm", *OPTIONS, "--variant", naive(), "--spend", "0.5",
                       "--base-url", server.url, "--folder", tmp_path / "s", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert "is sent the sources" in done.err
    with StoredStudy(tmp_path / "s") as stored:
        children = [v for v in stored.archive.variants() if v.proposer == "llm"]
        events = stored.ledger.events()[0]
        exchanges = [e.data for e in events if e.kind == "exchange"]
        assert children[0].mutation == "shorter_text"
        assert stored.archive.evaluations_of(children[0].hash)
        prompt = json.loads(stored.ledger.get_blob(exchanges[0]["prompt"]))
        assert "rms_norm" in "".join(prompt["stable"])
        assert exchanges[0]["usd"] > 0
    shown = command("show", tmp_path / "s", "--json").json["models"]
    assert shown[0]["replies"] == len(exchanges)
    assert shown[0]["tokens_in"] == 2130 * len(exchanges)
    assert "US dollars" in command("show", tmp_path / "s").out
    kept = b"".join(p.read_bytes() for p in (tmp_path / "s").rglob("*") if p.is_file())
    assert KEY.encode() not in kept


def test_without_a_model_the_study_ends_and_says_why(command: Command, tmp_path: Path) -> None:
    refused = command("tune", "rms_norm", *OPTIONS[:-4], "--budget", "2", "--variant", naive())
    assert refused.code == 2
    assert "--model" in refused.err
    with messages_server([Step(401, text=f"bad {KEY}")]) as server:
        failed = command("tune", "rms_norm", *OPTIONS, "--variant", naive(), "--base-url",
                         server.url, "--folder", tmp_path / "s")  # fmt: skip
    assert failed.code == 2
    assert "HTTP 401" in failed.err
    assert KEY not in failed.err
    with StoredStudy(tmp_path / "s") as stored:
        assert stored.archive.count() >= 1


def test_an_answer_in_markdown_is_told(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    assert command("tune", "rms_norm", "--target", "cpu", "--workloads", "rows=32,cols=64",
                   "--no-templates", "--variant", naive(), "--proposer", "none", "--budget", "1",
                   "--folder", folder, "--quiet").code == 0  # fmt: skip
    asked = command("ask", folder, "--json").json["prompt"]
    assert "SEARCH" in asked
    told = command("prompt", folder, "--json").json
    assert told["stable_tokens"] < told["tokens"] <= 8000
    assert all(text in asked for text in told["stable"])
    assert "What was measured" in asked
    line = next(x for x in naive().read_text().splitlines() if x.startswith("def "))
    answer = tmp_path / "answer.md"
    answer.write_text(ANSWER.format(line=line))
    first = command("tell", folder, answer, "--json")
    again = command("tell", folder, answer, "--json")
    assert first.json["new"] is True, first.err
    assert again.json["new"] is False
    answer.write_text("I have no idea")
    refused = command("tell", folder, answer)
    assert refused.code == 2
    assert "holds no kernel" in refused.err
