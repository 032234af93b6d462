"""Commands that look at a study: ``diff``, ``history``, ``watch``, ``dashboard``, ``show``."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernelsearch.records import Candidate, Evaluation, Status
from kernelsearch.store import Owner, open_ledger
from tests.e2e.conftest import Command
from tests.support.synthetic_study import Made, make_study


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_study(tmp_path / "study")


# --- diff ---------------------------------------------------------------------------------------


def test_two_variants_of_a_study(command: Command, made: Made) -> None:
    told = command("diff", f"{made.folder}:naive", made.folder, "--json").json
    assert made.result is not None
    assert told["a"]["name"] == "naive"
    assert told["b"]["name"] == made.result.variant_name
    assert told["diff"].startswith("--- naive\n+++ ")
    child = next(v for v in made.variants if v.parent)
    same = command("diff", f"{made.folder}:{child.parent}", f":{child.hash[:8]}")
    assert f"+// step {made.variants.index(child)}:" in same.out
    assert not [line for line in same.out.splitlines() if line.startswith("-/")]


def test_times_are_compared_where_both_have_them(command: Command, made: Made) -> None:
    told = command("diff", f"{made.folder}:naive", made.folder).out
    assert "rows=4096,cols=4096" in told
    assert "A / B" in told
    assert "the sources are the same" in command("diff", made.folder, made.folder).out


def test_files_and_studies(command: Command, made: Made, tmp_path: Path) -> None:
    file = tmp_path / "mine.cu"
    file.write_text(made.variants[0].source + "// mine\n")
    told = command("diff", f"{made.folder}:naive", file)
    assert "+// mine" in told.out
    assert "A / B" not in told.out


@pytest.mark.parametrize(("a", "b", "says"), [
    ("{study}", "missing.cu", "missing.cu"),
    ("{study}:nave", "{study}", "did you mean 'naive'"),
    ("mine.cu", ":naive", "STUDY:naive"),
    ("nowhere", "{study}", "name its folder"),
])  # fmt: skip
def test_a_side_that_is_not_there(command: Command, made: Made, tmp_path: Path, a: str, b: str,
                                  says: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.cu").write_text("x")
    told = command("diff", a.format(study=made.folder), b.format(study=made.folder))
    assert told.code == 2
    assert says in told.err


# --- history ------------------------------------------------------------------------------------


def test_history_tells_each_new_best(command: Command, made: Made) -> None:
    steps = command("history", made.folder, "--json").json["history"]
    assert [s["speedup"] for s in steps] == sorted({s["speedup"] for s in steps})
    for before, after in itertools.pairwise(steps):
        assert after["step"] == pytest.approx(after["speedup"] / before["speedup"])
    every = command("history", made.folder, "--all", "--json").json["history"]
    assert len(every) == 60
    assert [e["number"] for e in every if e["best"]] == [s["number"] for s in steps]
    assert len(command("history", made.folder, "--all", "--last", 7, "--json").json["history"]) == 7
    assert "naive" in command("history", made.folder).out


def test_history_shows_names_as_they_are(command: Command, tmp_path: Path) -> None:
    made = make_study(tmp_path / "s", hostile="[bold]x[/]\x1b[31m")
    told = command("history", made.folder, "--all")
    assert told.code == 0
    assert "\x1b" not in told.out


# --- show ---------------------------------------------------------------------------------------


def test_the_best_so_far_is_shown_before_it_is_confirmed(command: Command, tmp_path: Path) -> None:
    made = make_study(tmp_path / "s", confirmed=False)
    best = max((e for e in made.evaluations if e.ok), key=lambda e: -e.timings[0].median_us)
    source = next(v.source for v in made.variants if v.hash == best.candidate.variant)
    assert command("show", made.folder, "--source", "--best").out.strip() == source.strip()
    assert command("show", made.folder, "--best", "--variant", "naive").code == 2


def test_no_source_is_a_sentence(command: Command, made: Made, tmp_path: Path) -> None:
    from kernelsearch.store_base import Contents

    folder = tmp_path / "nothing"
    folder.mkdir()
    with open_ledger(None, made.folder, create=False) as old:
        settings = old.read_settings()
    with open_ledger(None, folder, create=True) as ledger:
        ledger.write_all(Contents(settings, made.variants, (), ()))
    told = command("show", folder, "--source")
    assert told.code == 2
    assert "resume" in told.err
    assert command("show", folder).code == 0
    assert command("history", folder).code == 0


# --- watch --------------------------------------------------------------------------------------


def test_one_look(command: Command, made: Made) -> None:
    told = command("watch", made.folder, "--once", "--json").json
    assert told["candidates"] == 60
    assert told["running"] is False
    assert "no process is at work" in command("watch", made.folder).out


def test_watching_ends_with_the_result(command: Command, tmp_path: Path) -> None:
    """A thread plays the run: it claims, records, and confirms, while the command watches."""
    made = make_study(tmp_path / "s", confirmed=False)
    result = make_study(tmp_path / "other").result
    assert result is not None

    def run() -> None:
        with open_ledger(None, made.folder, create=False) as ledger:
            owner = Owner.here()
            ledger.claim("a-key", owner, 60.0)
            time.sleep(0.6)
            known = made.evaluations[0]
            ledger.record(Evaluation(
                Candidate(made.variants[0].hash, (("VEC", 4),), "float32"), Status.CRASHED,
                "it crashed", device=known.device, settings=known.settings, created=time.time(),
            ), owner)  # fmt: skip
            ledger.release("a-key", owner)
            time.sleep(0.6)
            ledger.add_event("result", result.to_json())

    thread = threading.Thread(target=run)
    thread.start()
    told = command("watch", made.folder, "--interval", "0.1")
    thread.join()
    assert told.code == 0
    assert "61 candidates" in told.err
    assert "over naive" in told.out


@pytest.mark.parametrize("arguments", [("--interval", "0"), ("--interval", "nan"), ("--json",)])
def test_what_cannot_be_watched(command: Command, made: Made, arguments: tuple[str, ...]) -> None:
    assert command("watch", made.folder, *arguments).code == 2


# --- dashboard ----------------------------------------------------------------------------------


def test_every_variant_has_a_note_and_its_source(
    command: Command, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    from optuna_dashboard.artifact._backend import list_trial_artifacts

    from kernelsearch.store_optuna import OptunaMirror, VariantSummary

    served: list[Any] = []
    monkeypatch.setattr(dashboard, "run_server", lambda *given: served.append(given))
    assert "mirror" in command("dashboard", made.folder).err
    with open_ledger(None, made.folder, create=False) as ledger:
        mirror = OptunaMirror(ledger.url, made.folder.name)
    for record in made.variants:
        mirror.variant(VariantSummary(record, "ok", 3.0, 2.0, 5, finished=True))
    mirror.flush()
    mirror.close()
    for _ in range(2):
        told = command("dashboard", made.folder, "--port", "8111")
        assert told.code == 0, told.err
    assert "12 variants: http://localhost:8111/" in told.out
    storage, host, port, store = served[-1]
    assert (host, port) == ("localhost", 8111)
    study = storage.get_study_id_from_name(made.folder.name)
    attrs = storage.get_study_system_attrs(study)
    for trial, record in zip(storage.get_all_trials(study), made.variants, strict=True):
        (file,) = list_trial_artifacts(attrs, trial.system_attrs, trial)
        assert store.open_reader(file["artifact_id"]).read().decode() == record.source
        assert file["filename"] == f"{record.hash}.cu"
        noted = [str(v) for k, v in attrs.items() if k.startswith("dashboard:")]
        assert any(record.name.replace("_", "\\_") in text for text in noted)


def test_without_the_package_a_sentence_names_the_extra(
    command: Command, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    told = command("dashboard", made.folder)
    assert told.code == 2
    assert "kernelsearch[dashboard]" in told.err
