"""Timing on rotating inputs, captures of timed calls, and facts about the processors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from kernelsearch.errors import LaunchError, NondeterministicError
from kernelsearch.records import BufferSpec, Contender, TimeReport, TimeRequest, TimingSettings
from kernelsearch.targets import cpu_device, cpu_noise, cpu_time
from kernelsearch.targets.cpu import CpuTarget
from tests.support.cpu_cases import SERIAL, Data, compiled, opened, variant

TARGET = CpuTarget()
QUICK = {"min_samples": 4, "max_samples": 6, "budget_s": 0.5, "min_sample_us": 20.0}


def timed(
    n: int, body: str = SERIAL, cache: str = "cold", captures: int = 2
) -> tuple[TimeReport, list[Data], list[Data]]:
    it, plain = variant(body), variant()
    binary, other = compiled(TARGET, it), compiled(TARGET, plain)
    sets = [Data(n, seed=1), Data(n, seed=2)]
    sinks = [Data(n) for _ in range(captures)]
    settings = TimingSettings(cache=cache, verify_calls=captures, **QUICK)  # type: ignore[arg-type]
    pairs = ((binary, it), (other, plain))
    request = TimeRequest(
        tuple(Contender(b.key, sets[0].request(b, v).plan) for b, v in pairs),
        tuple(s.specs for s in sets), tuple((s.specs[0],) for s in sinks), settings, 7,
    )  # fmt: skip
    return opened(TARGET, binary, other).time(request), sets, sinks


@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize("n", [64, 300_000])
def test_samples_and_captures(n: int, cache: str) -> None:
    report, sets, sinks = timed(n, cache=cache)
    assert report.cache == cache
    assert len(report.samples_us) == 2
    assert all(s > 0 for samples in report.samples_us for s in samples)
    assert report.corrupted_guards == ()
    assert len(report.captured_sets) == 2
    for used, sink in zip(report.captured_sets, sinks, strict=True):
        assert np.allclose(sink.y, sets[used].x * 3)
    assert report.conditions["cpus"] >= 1


def test_small_data_are_flushed_and_others_rotated_or_swept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert timed(64, cache="hot")[0].conditions["emptied"] == "hot"
    if cpu_time.flusher() is not None:
        assert timed(64)[0].conditions["emptied"] == "flush"
    monkeypatch.setattr(cpu_time, "flusher", lambda: None)
    monkeypatch.setitem(TARGET.device.facts, "l2_bytes", 1 << 20)  # type: ignore[arg-type]
    assert timed(64)[0].conditions["emptied"] == "sweep"
    assert timed(300_000)[0].conditions["emptied"] == "rotation"


def test_what_a_timing_says_of_the_machine() -> None:
    found = timed(64)[0].conditions
    assert found["threads"] >= 1
    assert isinstance(found["pinned"], bool)
    assert isinstance(found["disturbed"], bool)
    assert found["dropped"] >= 0


def test_a_disturbed_machine_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Half of the time that passed was stolen. Real counters may not move in so short a timing.
    read = itertools.count()
    monkeypatch.setattr(cpu_noise, "_jiffies", lambda: (50 * (n := next(read)), 100 * n))
    found = timed(64)[0].conditions
    assert found["steal"] == 0.5
    assert found["disturbed"] is True


def test_a_kernel_that_stops_working_is_caught_by_its_captures() -> None:
    report, sets, sinks = timed(64, "def scale(y, x, factor):\n    y[0] = x[0] * factor\n")
    assert np.isnan(sinks[0].y[1:]).all()
    assert report.captured_sets[0] in (0, 1)
    assert len(sets) == 2


def test_more_work_takes_longer() -> None:
    report, _, _ = timed(300_000, SERIAL.replace("x[i] *", "np.exp(np.sin(x[i])) *"))
    slow, fast = (float(np.median(s)) for s in report.samples_us)
    assert slow > 2 * fast


def test_kernels_that_raise_while_timed() -> None:
    with pytest.raises(LaunchError, match="raised ValueError"):
        timed(64, "def scale(y, x, factor):\n    y[:] = x[1:] * ELEM(factor)\n")


def test_buffers_that_are_changed_in_place_are_restored() -> None:
    from kernelsearch.operator import ErrorModel, Operator, Tensor
    from kernelsearch.shm import SharedBlock
    from kernelsearch.variant import parse_variant

    operator = Operator(
        name="double", doc="", arguments=(Tensor("x", "elem", ("n",), "inout"),),
        reference=lambda a, s, r: {"x": a["x"] * 2}, generate=lambda *a: {},
        workloads={}, error=ErrorModel(), flops="n", bytes="n",
    )  # fmt: skip
    it = parse_variant(
        '"""kernelsearch\nformat = 1\noperator = "double"\n[[launch]]\nkernel = "k"\n'
        'args = ["x"]\n"""\n\n\ndef k(x):\n    for i in range(x.shape[0]):\n        x[i] *= 2\n',
        "cpu", "double.py",
    )  # fmt: skip
    binary = TARGET.compile(it.compile_job({}, "float32", "", operator))
    block, out = SharedBlock(400), SharedBlock(400)
    block.array("float32", (100,))[:] = 1.5
    spec = BufferSpec("x", "float32", (100,), "inout", block.ref(0, 400), out.ref(0, 400))
    plan = it.plan({}, {"n": 100}, {}, {}, "float32")
    settings = TimingSettings(verify_calls=1, **QUICK)  # type: ignore[arg-type]
    executable = opened(TARGET, binary)
    executable.time(
        TimeRequest((Contender(binary.key, plan),), ((spec,),), ((spec,),), settings, 0)
    )
    assert (out.array("float32", (100,)) == 3.0).all()


def test_device_facts() -> None:
    device = TARGET.device
    assert device.target == "cpu"
    assert device.name
    assert device.driver.startswith("numba ")
    assert device.facts["cores"] >= 1
    assert device.facts["simd_bytes"] in (16, 32, 64)
    assert device.facts["l2_bytes"] >= 1 << 20
    assert device.facts["cache_line_bytes"] in (32, 64, 128, 256)


def test_a_container_quota_limits_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_device, "_quota", lambda: 0.5)
    assert cpu_device.usable_cores() == 1


@pytest.mark.slow
def test_ceilings_are_plausible() -> None:
    ceilings = TARGET.open().ceilings()
    assert 0.5 < ceilings["dram_gbps"] < 5000
    assert ceilings["peak_dram_gbps"] > ceilings["dram_gbps"]
    assert 1e-4 < ceilings["fp64_tflops"] <= 1.5 * ceilings["fp32_tflops"]


@pytest.mark.parametrize("deterministic", [True, False])
def test_calls_that_are_skipped_now_and_then(deterministic: bool) -> None:
    calls = itertools.count(1)

    def now_and_then(y: NDArray[np.float32], x: NDArray[np.float32], factor: float) -> None:
        if next(calls) % 13:
            y[:] = x * factor

    it = variant()
    binary, sets = compiled(TARGET, it), [Data(64, seed=1), Data(64, seed=2)]
    request = TimeRequest(
        (Contender(binary.key, sets[0].request(binary, it).plan),), tuple(s.specs for s in sets),
        (), TimingSettings(verify_calls=0, **QUICK), 7, deterministic,  # type: ignore[arg-type]
    )  # fmt: skip
    table = {"scale": now_and_then}
    if not deterministic:
        assert cpu_time.time_plans(request, [table], 1 << 16).samples_us[0]
        return
    with pytest.raises(NondeterministicError, match="not the same after all timed calls"):
        cpu_time.time_plans(request, [table], 1 << 16)
