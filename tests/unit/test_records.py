"""Records check themselves, hash stably and compute what they promise."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.records import (
    DTYPE_BYTES,
    BufferSpec,
    Candidate,
    CompileJob,
    Device,
    Evaluation,
    LaunchPlan,
    Status,
    Timing,
    WorkspaceSpec,
    digest,
    dtype_bytes,
    frozen_params,
    geometric_mean,
)
from kernelsearch.shm import numpy_dtype

CANDIDATE = Candidate("v", (("A", 1),), "float32")


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=30))
def test_the_median_is_a_median(samples: list[float]) -> None:
    median = Timing("w", tuple(samples)).median_us
    assert sum(s < median for s in samples) <= len(samples) / 2
    assert sum(s > median for s in samples) <= len(samples) / 2


@pytest.mark.parametrize("samples", [(), (0.0,), (-1.0,), (math.nan,), (math.inf,), (1.0, 0.0)])
def test_times_must_be_possible(samples: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="samples_us"):
        Timing("w", samples)


def test_timings_belong_to_ok_and_to_nothing_else() -> None:
    timing = Timing("w", (2.0, 4.0))
    ok = Evaluation(CANDIDATE, Status.OK, timings=(timing,))
    assert ok.ok
    assert ok.times_us() == {"w": 3.0}
    assert not Evaluation(CANDIDATE, Status.WRONG).ok
    with pytest.raises(ValueError, match="exactly when status is ok"):
        Evaluation(CANDIDATE, Status.OK)
    with pytest.raises(ValueError, match="exactly when status is ok"):
        Evaluation(CANDIDATE, Status.WRONG, timings=(timing,))


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=10))
def test_the_geometric_mean_lies_between(values: list[float]) -> None:
    mean = geometric_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean([1 / v for v in values]) == pytest.approx(1 / mean)


def test_the_geometric_mean_of_nothing() -> None:
    with pytest.raises(ValueError, match="at least one"):
        geometric_mean([])


def test_keys_are_the_same_in_every_process() -> None:
    code = (
        "from kernelsearch.records import *;"
        "print(Candidate('v', (('A', 1),), 'float32').key, digest({'b': 1, 'a': (2, 'x')}),"
        "CompileJob('cuda', 'src', ('k',), 'sm_90', options=(('o', (1, 2)),)).key)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
    ).stdout.split()  # fmt: skip
    job = CompileJob("cuda", "src", ("k",), "sm_90", options=(("o", (1, 2)),))
    assert told == [CANDIDATE.key, digest({"b": 1, "a": (2, "x")}), job.key]


def test_keys_tell_things_apart() -> None:
    keys = {
        Candidate("v", (("A", 1),), "float32").key, Candidate("v", (("A", "1"),), "float32").key,
        Candidate("v", (("A", 1),), "bfloat16").key, Candidate("w", (("A", 1),), "float32").key,
        Candidate("v", (), "float32").key,
    }  # fmt: skip
    assert len(keys) == 5
    device = Device("cuda", "H200", "sm_90a", {"sm_count": 132}, "570", {"dram_gbps": 4000.0})
    assert device.key != dataclasses.replace(device, driver="580").key
    assert device.key != dataclasses.replace(device, facts={"sm_count": 66}).key
    # A bandwidth measured anew does not make it another device.
    assert device.key == dataclasses.replace(device, ceilings={"dram_gbps": 4100.0}).key


def test_params_have_one_frozen_form() -> None:
    assert frozen_params({"B": 2, "A": "x"}) == frozen_params({"A": "x", "B": 2})
    assert Candidate("v", frozen_params({"B": 2, "A": "x"}), "f").values == {"A": "x", "B": 2}


@pytest.mark.parametrize("dtype", sorted(DTYPE_BYTES))
def test_every_dtype_has_its_numpy_size(dtype: str) -> None:
    assert numpy_dtype(dtype).itemsize == dtype_bytes(dtype)


def test_sizes_in_bytes() -> None:
    plan = LaunchPlan((), (WorkspaceSpec("a", "float32", (3, 5)), WorkspaceSpec("b", "int8", (7,))))
    assert plan.workspace_bytes == 67
    assert LaunchPlan(()).workspace_bytes == 0
    assert BufferSpec("x", "bfloat16", (3, 0, 5), "in").nbytes == 0
    assert BufferSpec("x", "bfloat16", (), "in").nbytes == 2


def test_records_are_frozen_and_travel() -> None:
    evaluation = Evaluation(CANDIDATE, Status.CRASHED, "died", {"cause": "SIGSEGV"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluation.status = Status.OK  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(evaluation)) == evaluation
    assert f"{Status.TIMED_OUT}" == "timed_out"
