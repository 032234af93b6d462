"""Recordings of other tuners are read as they are meant, and replays charge what was recorded."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from kernelsearch.cli.app import app
from kernelsearch.cli.entry import main  # noqa: F401  (registers the commands)
from kernelsearch.errors import SpecError, StorageError
from kernelsearch.replay.recording import Recording, read_recording
from kernelsearch.replay.simulate import (
    fair_budget,
    needed,
    random_expectation,
    reached,
    replay,
    score,
)
from kernelsearch.replay.write import write_t4, write_wisdom

CHOICES = {"bx": [16, 32, 48, 64, 96, 128], "ty": [1, 2, 4, 8], "mode": ["plain", "wide"]}


def milliseconds(bx: int, ty: int, mode: str) -> float | str:
    if bx * ty > 512:
        return "InvalidConfig"
    steps = abs(math.log2(bx / 64)) + abs(math.log2(ty / 4)) + (bx % 32 != 0)
    return 1.0 + 0.3 * steps + (0.2 if mode == "plain" else 0.0)


def cache() -> dict[str, Any]:
    entries = {}
    for values in itertools.product(*CHOICES.values()):
        bx, ty, mode = values
        if bx == 16 and ty == 8:
            continue  # breaks a constraint: not recorded
        entries[",".join(map(str, values))] = {
            **dict(zip(CHOICES, values, strict=True)), "time": milliseconds(bx, ty, mode),
            "compile_time": 1500.0, "verification_time": 0, "benchmark_time": 500.0,
        }  # fmt: skip
    return {
        "device_name": "Device", "kernel_name": "k", "tune_params_keys": list(CHOICES),
        "tune_params": CHOICES, "objective": "time", "cache": entries,
    }  # fmt: skip


def saved(path: Path, document: Any) -> Path:
    text = document if isinstance(document, str) else json.dumps(document)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    return read_recording(saved(tmp_path / "toy.json.gz", cache()))


def test_a_kernel_tuner_cache_is_read(recording: Recording) -> None:
    assert (recording.name, recording.device, recording.unit) == ("toy", "Device", "ms")
    assert recording.space.size == 46
    assert recording.best == 1.0
    assert int(np.isnan(recording.time).sum()) == 4
    assert recording.cost.tolist() == [2.0] * 46
    rows = recording.space.rows
    assert rows is not None
    for row, time in zip(rows, recording.time, strict=True):
        expected = milliseconds(**recording.space.params(row))  # type: ignore[arg-type]
        assert math.isnan(time) if isinstance(expected, str) else time == expected


def test_a_cache_without_its_end_is_read(tmp_path: Path) -> None:
    whole = json.dumps(cache())
    assert whole.endswith("}}}")
    cut = read_recording(saved(tmp_path / "open.json", whole[:-2] + ",\n"))
    assert cut.space.size == 46


def test_t4_comes_back_as_it_was_written(recording: Recording, tmp_path: Path) -> None:
    write_t4(recording, tmp_path / "toy.t4.json")
    again = read_recording(tmp_path / "toy.t4.json")
    assert again.space.size == recording.space.size
    assert np.array_equal(np.sort(again.time), np.sort(recording.time), equal_nan=True)
    assert again.cost.sum() == recording.cost.sum()
    with pytest.raises(StorageError, match="cannot be written"):
        write_t4(recording, tmp_path / "no" / "folder.json")


def test_wisdom_holds_the_best(recording: Recording, tmp_path: Path) -> None:
    write_wisdom(recording, tmp_path / "k.wisdom", "k", [4096])
    again = read_recording(tmp_path / "k.wisdom")
    assert again.space.params((0, 0, 0)) == {"bx": 64, "ty": 4, "mode": "wide"}
    assert again.best == 1.0
    (tmp_path / "note.wisdom").write_text("# made by hand\n" + (tmp_path / "k.wisdom").read_text())
    assert read_recording(tmp_path / "note.wisdom").device == "Device"


def test_ktt_results_are_read(tmp_path: Path) -> None:
    def result(bx: int, status: str, *durations: float) -> dict[str, Any]:
        return {
            "Configuration": [{"Name": "BX", "Value": bx}, {"Name": "HALF", "Value": 0.5}],
            "Status": status,
            "ComputationResults": [{"Duration": d, "Overhead": 1000.0} for d in durations],
        }

    document = {
        "Metadata": {"TimeUnit": "Microseconds", "Device": "D"},
        "Results": [result(1, "Ok", 100.0, 50.0), result(2, "CompilationFailed")],
    }
    found = read_recording(saved(tmp_path / "ktt.json", document))
    assert found.unit == "us"
    assert found.best == 150.0
    assert np.isnan(found.time).tolist() == [False, True]
    assert found.cost.tolist() == pytest.approx([2e-3 + 7 * 150e-6, 0.0])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", '{"cache": {}, "tune_params_keys": [], "tune_params": {}}',
     '{"results": []}', '{"Metadata": {}}', "\x00\xff"],
)  # fmt: skip
def test_what_is_no_recording_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(SpecError, match=r"x\.json"):
        read_recording(saved(tmp_path / "x.json", text))
    with pytest.raises(SpecError, match=r"none\.json"):
        read_recording(tmp_path / "none.json")


def test_a_replay_charges_every_configuration_once(recording: Recording) -> None:
    for method in ("guide", "random"):
        run = replay(recording, method, seed=1, budget=1000)
        assert len(run.times) == 46
        assert run.times[-1] == recording.best
        assert run.seconds.tolist() == [2.0 * n for n in range(1, 47)]
        assert (np.diff(run.times) <= 0).all()


def test_the_expectation_of_random_search_is_exact(recording: Recording) -> None:
    expected = random_expectation(recording, 46)
    slowest = float(np.nanmax(recording.time))
    filled = np.where(np.isnan(recording.time), slowest, recording.time)
    assert expected[0] == pytest.approx(filled.mean())
    assert expected[-1] == recording.best
    rng = np.random.default_rng(0)
    drawn = np.array([rng.permutation(filled)[:5].min() for _ in range(20_000)])
    assert expected[4] == pytest.approx(drawn.mean(), rel=0.01)


def test_random_search_scores_nothing_and_the_guide_more(recording: Recording) -> None:
    expected = random_expectation(recording, 46)
    assert 1 < fair_budget(recording, expected) < 46
    chance = score(recording, [replay(recording, "random", s, 40) for s in range(500)], expected)
    guided = [replay(recording, "guide", s, 40) for s in range(5)]
    assert abs(chance) < 0.12
    assert score(recording, guided, expected) > chance
    assert reached(recording, guided, 40).max() == 1.0
    assert (needed(recording, guided, 0.5) <= 10).all()


def test_compare_on_the_command_line(tmp_path: Path) -> None:
    path = str(saved(tmp_path / "toy.json", cache()))
    run = CliRunner().invoke(app, ["compare", path, "-n", "12", "--seeds", "2", "-m", "random"])
    assert run.exit_code == 0, run.output
    assert "46 configurations, 4 failed" in run.output
    run = CliRunner().invoke(
        app, ["compare", path, "-n", "12", "--seeds", "2", "-m", "random", "--json",
              "--plot", str(tmp_path / "c.svg")],
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    row = json.loads(run.stdout)["spaces"]["toy"]["random"]
    assert row["recorded_s"] == 24.0
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")
    run = CliRunner().invoke(app, ["compare", path, path])
    assert isinstance(run.exception, SpecError)
    run = CliRunner().invoke(app, ["compare", path, "-n", "2", "--plot", str(tmp_path / "c.txt")])
    assert isinstance(run.exception, SpecError)
