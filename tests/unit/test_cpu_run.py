"""Run between guard pages: poison, canaries, bounds, and a process that dies with a message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kernelsearch.errors import CandidateCrashedError, LaunchError
from kernelsearch.records import BufferSpec, FillStep, LaunchPlan, RunRequest
from kernelsearch.shm import SharedBlock
from kernelsearch.targets.cpu import CpuTarget
from kernelsearch.targets.cpu_memory import Arena, GuardedBuffer
from kernelsearch.worker import IsolatedRunner
from tests.support.cpu_cases import SERIAL, Data, compiled, opened, page_elements, variant

TARGET = CpuTarget()
WIDE = SERIAL.replace("range(x.shape[0])", "range(x.shape[0] + BEYOND)")
TUNE = "[tunables]\nBEYOND = [1, 40, 1000000]"


@pytest.mark.parametrize("n", [0, 1, 3, 1024, 5000])
@pytest.mark.parametrize("poison", [0xFF, 0x5A])
@pytest.mark.parametrize("misalign", [0, 4])
def test_honest_kernels_pass(n: int, poison: int, misalign: int) -> None:
    binary = compiled(TARGET, variant())
    data = Data(n, misalign=misalign)
    report = opened(TARGET, binary).run(data.request(binary, variant(), poison))
    assert report.corrupted_guards == ()
    assert data.right()
    assert report.elapsed_s >= 0


def test_outputs_are_poisoned() -> None:
    it = variant("def scale(y, x, factor):\n    y[0] = x[0] * factor\n")
    binary = compiled(TARGET, it)
    data = Data(5)
    executable = opened(TARGET, binary)
    executable.run(data.request(binary, it, 0xFF))
    assert np.isnan(data.y[1:]).all()
    executable.run(data.request(binary, it, 0x5A))
    assert (data.y[1:].view(np.uint32) == 0x5A5A5A5A).all()


def test_a_short_step_past_the_end_is_seen_on_the_canary() -> None:
    it = variant(WIDE.replace("x[i] *", "x[0] *"), TUNE)
    binary = compiled(TARGET, it, BEYOND=1)
    # Even poison puts the buffer against the front wall: what follows it is canary.
    report = opened(TARGET, binary).run(Data(10).request(binary, it, 0x5A))
    assert report.corrupted_guards == ("y",)


def test_bounds_checks_name_what_happened() -> None:
    it = variant(WIDE, TUNE)
    binary = compiled(TARGET, it, BEYOND=1)
    with pytest.raises(CandidateCrashedError) as caught:
        opened(TARGET, binary).run(Data(10).request(binary, it, bounds=True))
    assert "out of bounds" in str(caught.value.evidence["bounds"])
    assert caught.value.evidence["step"] == "kernel scale"
    good = compiled(TARGET, variant())
    data = Data(10)
    opened(TARGET, good).run(data.request(good, variant(), bounds=True))
    assert data.right()


@pytest.mark.parametrize("beyond", [1, 1_000_000])
def test_a_fault_kills_the_worker_and_is_explained(beyond: int) -> None:
    it = variant(WIDE, TUNE)
    bad, good = compiled(TARGET, it, BEYOND=beyond), compiled(TARGET, variant())
    data = Data(page_elements())
    runner = IsolatedRunner(TARGET)
    try:
        runner.load(bad, 60)
        with pytest.raises(CandidateCrashedError) as caught:
            runner.run(data.request(bad, it, 0xFF), 60)
        assert caught.value.evidence["cause"] == "SIGSEGV"
        assert "was running kernel scale with y float32 (1024,)" in str(caught.value.evidence)
        runner.load(good, 60)
        runner.run(data.request(good, variant()), 60)
        assert data.right()
    finally:
        runner.close()


def test_kernels_that_raise_are_launch_errors() -> None:
    it = variant("def scale(y, x, factor):\n    y[:] = x[1:] * ELEM(factor)\n")
    binary = compiled(TARGET, it)
    with pytest.raises(LaunchError, match="raised ValueError"):
        opened(TARGET, binary).run(Data(10).request(binary, it))


def test_fill_steps_and_unknown_names() -> None:
    executable = TARGET.open()
    binary = compiled(TARGET, variant())
    executable.load(binary)
    data = Data(8)
    executable.run(RunRequest(binary.key, LaunchPlan((FillStep("y", 0),)), data.specs))
    assert (data.y == 0).all()
    with pytest.raises(LaunchError, match="'z'"):
        executable.run(RunRequest(binary.key, LaunchPlan((FillStep("z", 0),)), data.specs))


def test_buffers_lie_against_the_wall_that_is_asked_for() -> None:
    spec = BufferSpec("a", "float32", (3,), "out")
    for at_end in (True, False):
        buffer = GuardedBuffer(spec, 0xFF, at_end=at_end)
        assert (buffer.stop == buffer.region.nbytes) is at_end
        assert (buffer.start == 0) is not at_end
        assert buffer.intact()
        buffer.region.raw(20, 21).fill(0)
        assert not buffer.intact()
        buffer.close()


def test_arenas_keep_alignment_and_notice_writes_between() -> None:
    block = SharedBlock(400)
    specs = (
        BufferSpec("y", "float32", (100,), "out", misalign=4),
        BufferSpec("x", "float32", (100,), "in", source=block.ref(0, 400)),
        BufferSpec("z", "float64", (0,), "in"),
    )
    arena = Arena(specs, 0xFF)
    assert arena.arrays["y"].ctypes.data % 256 == 4
    assert arena.arrays["x"].ctypes.data % 256 == 0
    assert arena.corrupted() == set()
    after = arena.arrays["y"].ctypes.data + 400 - arena.region.address
    arena.region.raw(after, after + 1).fill(0)
    assert arena.corrupted() == {"y"}
    arena.close()


def test_confined_process_keeps_computing_and_cannot_grow() -> None:
    code = """
import os
import numpy as np
from kernelsearch.shm import lent
from kernelsearch.handover import blocks_of
from tests.support.cpu_cases import *
t = CpuTarget(); b = compiled(t, variant()); e = opened(t, b); d = Data(10)
request = d.request(b, variant())
# Files cannot be opened later: descriptors come from outside, as a worker gets them.
given = {(p, w): os.open(p, os.O_RDWR if w else os.O_RDONLY) for p, w in blocks_of(request)}
done = e.confine(1 << 28)
assert {"memory", "core", "file_size", "open_files"} <= set(done), done
with lent(given):
    e.run(request)
assert d.right()
try:
    np.ones(1 << 28)
except MemoryError:
    print("limited")
"""
    root = Path(__file__).resolve().parents[2]
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=120
    )
    assert answer.stdout.strip() == "limited", answer.stderr
