"""Moves between candidates, and the benchmark that follows suggestions on a recorded space."""

from __future__ import annotations

import gzip
import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from kernelsearch.errors import SpecError
from kernelsearch.moves import LaunchFacts, follows
from kernelsearch.profile.ktt import read_ktt

BASE = LaunchFacts(256, 32, 1000, 32, 4096, 0, 0.5)


def changed(**values: float) -> LaunchFacts:
    fields = {n: getattr(BASE, n) for n in LaunchFacts.__slots__}
    return LaunchFacts(**{**fields, **values})


@pytest.mark.parametrize(
    ("direction", "values"),
    [
        ("more_work_per_thread", {"blocks": 500}),
        ("less_work_per_thread", {"blocks": 2000}),
        ("larger_blocks", {"threads": 512}),
        ("smaller_blocks", {"threads": 128}),
        ("higher_occupancy", {"occupancy": 0.8}),
        ("fewer_registers", {"registers": 24}),
        ("less_shared_memory", {"shared_bytes": 0}),
    ],
)
def test_a_direction_is_followed_or_not(direction: str, values: dict[str, float]) -> None:
    assert follows([direction], BASE, changed(**values)) > 0
    assert follows([direction], changed(**values), BASE) < 0


def test_a_gain_paid_with_warps_or_local_memory_is_none() -> None:
    more = changed(blocks=500)
    assert follows(["more_work_per_thread"], BASE, more) > 0
    assert follows(["more_work_per_thread"], BASE, changed(blocks=500, occupancy=0.2)) <= 0
    assert follows(["more_work_per_thread"], BASE, changed(blocks=500, local_bytes=64)) < 0


def test_directions_that_no_launch_shows_are_passed_over() -> None:
    assert follows(["coalesce", "fast_math"], BASE, changed(blocks=500)) == 0


# --- recorded spaces --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "diagnosis.py"
    spec = importlib.util.spec_from_file_location("diagnosis_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result(work: int, shared: float, time: float, status: str = "Ok") -> dict[str, object]:
    counter = "l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed"
    return {
        "Status": status,
        "Configuration": [{"Name": "WORK", "Value": work}],
        "ComputationResults": [{
            "Duration": time, "GlobalSize": {"X": 4096 // work, "Y": 1, "Z": 1},
            "LocalSize": {"X": 128, "Y": 1, "Z": 1},
            "CompilationData": {"RegistersCount": 32, "LocalMemorySize": 1024,
                                "PrivateMemorySize": 0},
            "ProfilingData": {"Counters": [{"Name": counter, "Value": shared}]},
        }],
    }  # fmt: skip


def write(path: Path, results: list[dict[str, object]]) -> Path:
    document = {"Metadata": {"Device": "NVIDIA GeForce RTX 2080 Ti", "TimeUnit": "Microseconds"},
                "Results": results}  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


def test_the_benchmark_sees_suggestions_that_lead_down_and_up(
    tmp_path: Path, benchmark: ModuleType
) -> None:
    shared = [result(w, 45.0, 100.0 / w) for w in (1, 2, 4, 8)]
    found = benchmark.measure(read_ktt(write(tmp_path / "down.json.gz", shared)), "all")
    assert found["labels"] == {"shared": 4}
    assert found["downhill_suggested"] == 1.0
    upside_down = [result(w, 45.0, 100.0 * w) for w in (1, 2, 4, 8)]
    found = benchmark.measure(read_ktt(write(tmp_path / "up.json.gz", upside_down)), "all")
    assert found["downhill_suggested"] == 0.0


def test_failed_and_impossible_configurations_are_left_out(tmp_path: Path) -> None:
    rows = [result(1, 45.0, 10.0), result(2, 45.0, 0.0), result(4, 45.0, 9.0, "CompilationFailed")]
    space = read_ktt(write(tmp_path / "a.json.gz", rows))
    assert (len(space.configurations), space.failed) == (1, 2)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"Metadata": {}, "Results": []}'])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(SpecError, match="not a KTT result file"):
        read_ktt(path)
