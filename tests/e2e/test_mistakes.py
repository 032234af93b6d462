"""Common mistakes at the command line: each message says what is wrong and what to do next."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.support.synthetic_study import make_study

TUNE = ("tune", "rms_norm", "--target", "cpu")

MISTAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "misspelt operator": (("tune", "rmsnorm"), ("'rmsnorm'", "did you mean 'rms_norm'")),
    "a kernel for an operator": (("bench", "k.cu"), ("kernelsearch import k.cu",)),
    "gpu for cuda": (("tune", "rms_norm", "--target", "gpu"), ("cuda is an NVIDIA GPU",)),
    "a budget in words": ((*TUNE, "--budget", "10 minutes"), ("200,10m",)),
    "a dtype of another library": ((*TUNE, "--dtype", "fp16"), ("float32, float64", "--dtype")),
    "half a workload": ((*TUNE, "--workloads", "rows=4"), ("lacks cols", "rows=4,cols=N")),
    "semicolon for comma": ((*TUNE, "--workloads", "rows=4;cols=5"), ("rows=4,cols=N", "';'")),
    "no such workload set": ((*TUNE, "--workloads", "big"), ("large, paper, smoke",)),
    "a proposer misspelt": ((*TUNE, "--proposer", "rule"), ("did you mean 'rules'",)),
    "a model without a name": ((*TUNE, "--proposer", "llm"), ("--model",)),
    "a variant without its block": ((*TUNE, "--variant", "k.cu"), ("docs/variants.md", "new NAME")),
    "a file that is not there": (("verify", "missing.cu"), ("missing.cu", "check the path")),
    "no study yet": (("show", "mine"), ("begin one with `kernelsearch tune",)),
    "a folder without a study": (("resume", "."), ("list --studies",)),
    "a study file that is none": (("tune", "s.toml"), ("line 1", "docs/studies.md")),
    "an answer that is not there": (("tell", "study", "a.py", "--trust"), ("check the path",)),
    "a study of another operator": (
        ("tune", "softmax", "--target", "cpu", "--folder", "study"), ("another --folder",)
    ),
    "an unknown variant": (("show", "study", "--variant", "nave"), ("did you mean 'naive'",)),
    "an option misspelt": ((*TUNE, "--budgets", "5"), ("--budget",)),
    "an unknown command": (("optimise", "rms_norm"), ("kernelsearch -h",)),
    "an export of nothing": (("export",), ("name studies", "--variant")),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_message_says_what_to_do(
    name: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    make_study(tmp_path / "study", 12, 3)
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    (tmp_path / "s.toml").write_text("nope\n")
    arguments, says = MISTAKES[name]
    told = command(*arguments)
    assert told.code == 2
    assert not told.out
    for words in says:
        assert words in told.err
    assert "Traceback" not in told.err
    assert len(told.err) < 900


def test_nothing_is_left_behind_by_a_mistake(
    command: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.cu").write_text("__global__ void k() {}\n")
    assert command(*TUNE, "--variant", "k.cu").code == 2
    assert not list(home.glob("studies/*"))
    assert "no studies yet" in command("list", "--studies").out


def test_no_driver_names_the_doctor(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a CUDA device here")
    monkeypatch.setattr(sys, "argv", [])
    told = command("tune", "rms_norm", "--target", "cuda")
    assert told.code == 2
    assert "kernelsearch doctor" in told.err or "pip install 'kernelsearch[cuda]'" in told.err


def test_names_that_look_like_markup_are_shown_as_they_are(
    command: Command, tmp_path: Path
) -> None:
    made = make_study(tmp_path / "s", hostile="[/] [red]x")
    for arguments in (("show", made.folder), ("history", made.folder), ("explain", made.folder),
                      ("show", made.folder, "--variant", made.variants[-1].hash)):  # fmt: skip
        told = command(*arguments)
        assert told.code == 0, told.err
    assert "[/] [red]x" in command("show", made.folder, "--variant", made.variants[-1].hash).out
