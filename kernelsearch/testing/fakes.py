"""A target that runs Python functions in this process, for tests of everything above a target.

It keeps the whole contract of a run: poisoned and guarded buffers, misalignment, inputs compared
afterwards, outputs in sinks. Kernels are functions that take what the plan's step lists, in order.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import LaunchError, WorkerError
from kernelsearch.measure import sample
from kernelsearch.records import (
    Binary,
    BufferSpec,
    CompileJob,
    Contender,
    Device,
    FillStep,
    LaunchPlan,
    RunReport,
    RunRequest,
    ShmRef,
    TimeReport,
    TimeRequest,
    digest,
)
from kernelsearch.shm import ALIGN, attach, numpy_dtype

Kernel = Callable[..., None]
GUARD = 0xC3
GUARD_BYTES = 512
_BOUNDARY = 256


class FakeTarget:
    """Compiles nothing: a binary is the names of its kernels.

    Args:
        kernels: functions by kernel name.
        name: ``cpu`` or ``cuda``: what it pretends to be.
        costs_us: time of one call by kernel name (default 10 microseconds).
    """

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        name: str = "cpu",
        costs_us: Mapping[str, float] | None = None,
    ) -> None:
        self.kernels, self.name = dict(kernels), name
        self.costs_us = dict(costs_us or {})
        facts = {"cores": 2, "simd_bytes": 32, "cache_line_bytes": 64, "l2_bytes": 1 << 20}
        self.device = Device(name, "fake device", "fake", facts, "0")

    def compile(self, job: CompileJob) -> Binary:
        return make_binary(job)

    def open(self) -> FakeRunner:
        return FakeRunner(self.kernels, self.costs_us)


def make_binary(job: CompileJob) -> Binary:
    """Return the binary of a job: its machine code is its source."""
    return Binary(
        key=job.key, job=job, image=job.source.encode(), code_hash=digest(job.source, job.kernels),
        symbols={k: k for k in job.kernels},
    )  # fmt: skip


class FakeRunner:
    """An ``Executable`` and a ``Runner`` at once: deadlines are accepted and never used.

    Args:
        kernels: functions by kernel name.
        costs_us: time of one call by kernel name.
    """

    def __init__(
        self, kernels: Mapping[str, Kernel], costs_us: Mapping[str, float] | None = None
    ) -> None:
        self.kernels, self.costs_us = dict(kernels), dict(costs_us or {})
        self.loaded: dict[str, Binary] = {}
        self.requests: list[RunRequest] = []
        self.restarts = 0

    def load(self, binary: Binary, deadline_s: float = 0.0) -> None:
        self.loaded[binary.key] = binary

    def unload(self, key: str) -> None:
        self.loaded.pop(key, None)

    def restart(self) -> None:
        self.loaded.clear()
        self.restarts += 1

    def ceilings(self) -> Mapping[str, float]:
        return {"dram_gbps": 1e6, "fp32_tflops": 1e3}

    def close(self) -> None:
        self.loaded.clear()

    def run(self, request: RunRequest, deadline_s: float = 0.0) -> RunReport:
        """Run the plan once and report what it touched."""
        self._need(request.binary)
        self.requests.append(request)
        started = time.perf_counter()
        memory = _Memory(request.buffers, request.plan, request.poison)
        self._execute(request.plan, memory)
        memory.deliver(request.buffers)
        guards, inputs = memory.touched(request.buffers)
        return RunReport(guards, inputs, time.perf_counter() - started)

    def time(self, request: TimeRequest, deadline_s: float = 0.0) -> TimeReport:
        """Give contenders the time their kernels are said to take, and run the captured calls."""
        for contender in request.contenders:
            self._need(contender.binary)
        cost = [self._cost(c) for c in request.contenders]
        rng = np.random.default_rng(request.seed)

        def timer(contender: int, calls: int) -> float:
            return cost[contender] * calls * float(rng.uniform(0.999, 1.001))

        taken = sample(timer, len(cost), request.settings, request.seed)
        guards: set[str] = set()
        inputs: set[str] = set()
        used = []
        for capture in request.captures:
            chosen = int(rng.integers(len(request.sets)))
            memory = _Memory(request.sets[chosen], request.contenders[0].plan, 0xFF)
            self._execute(request.contenders[0].plan, memory)
            memory.deliver(capture)
            broken, changed = memory.touched(request.sets[chosen])
            guards.update(broken)
            inputs.update(changed)
            used.append(chosen)
        return TimeReport(
            samples_us=taken.samples_us, end_to_end_us=tuple(cost),
            calls_per_sample=taken.calls_per_sample, captured_sets=tuple(used),
            cache=request.settings.cache, corrupted_guards=tuple(sorted(guards)),
            modified_inputs=tuple(sorted(inputs)),
        )  # fmt: skip

    def _need(self, binary: str) -> None:
        if binary not in self.loaded:
            raise WorkerError(f"binary {binary} must be loaded before it runs")

    def _cost(self, contender: Contender) -> float:
        kernels = [s.kernel for s in contender.plan.steps if not isinstance(s, FillStep)]
        return sum(self.costs_us.get(k, 10.0) for k in kernels) or 1.0

    def _execute(self, plan: LaunchPlan, memory: _Memory) -> None:
        for step in plan.steps:
            if isinstance(step, FillStep):
                memory.raw(step.buffer)[...] = step.value
                continue
            if step.kernel not in self.kernels:
                raise LaunchError(f"kernel {step.kernel} must be one of {sorted(self.kernels)}")
            args = [memory.view(a) if isinstance(a, str) else a.value for a in step.args]
            self.kernels[step.kernel](*args)


class _Memory:
    """Fresh buffers of one run, each between guard bands."""

    def __init__(self, buffers: tuple[BufferSpec, ...], plan: LaunchPlan, poison: int) -> None:
        scratch = [BufferSpec(w.name, w.dtype, w.shape, "workspace") for w in plan.workspaces]
        self.specs = {b.name: b for b in (*buffers, *scratch)}
        self.blocks: dict[str, NDArray[np.uint8]] = {}
        self.starts: dict[str, int] = {}
        for name, spec in self.specs.items():
            size = 2 * GUARD_BYTES + _BOUNDARY + spec.misalign + spec.nbytes
            block = np.full(size, GUARD, dtype=np.uint8)
            start = GUARD_BYTES + -(block.ctypes.data + GUARD_BYTES) % _BOUNDARY + spec.misalign
            self.blocks[name], self.starts[name] = block, start
            self.raw(name)[...] = poison if spec.source is None else _read(spec.source)

    def raw(self, name: str) -> NDArray[np.uint8]:
        start = self.starts[name]
        return self.blocks[name][start : start + self.specs[name].nbytes]

    def view(self, name: str) -> NDArray[Any]:
        spec = self.specs[name]
        array: NDArray[Any] = self.raw(name).view(numpy_dtype(spec.dtype)).reshape(spec.shape)
        return array

    def deliver(self, buffers: tuple[BufferSpec, ...]) -> None:
        for spec in buffers:
            if spec.sink is not None:
                _write(spec.sink, self.raw(spec.name))

    def touched(self, buffers: tuple[BufferSpec, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        guards = tuple(n for n in self.specs if not self._guarded(n))
        inputs = tuple(
            b.name
            for b in buffers
            if b.role == "in"
            and b.source is not None
            and not np.array_equal(self.raw(b.name), _read(b.source))
        )
        return guards, inputs

    def _guarded(self, name: str) -> bool:
        start, block = self.starts[name], self.blocks[name]
        before, after = block[:start], block[start + self.specs[name].nbytes :]
        return bool((before == GUARD).all() and (after == GUARD).all())


def _mapped(ref: ShmRef, *, writable: bool) -> tuple[mmap.mmap, int]:
    return attach(ref, writable=writable), ref.offset % ALIGN


def _read(ref: ShmRef) -> NDArray[np.uint8]:
    mapped, offset = _mapped(ref, writable=False)
    return np.frombuffer(mapped, dtype=np.uint8, count=ref.nbytes, offset=offset)


def _write(ref: ShmRef, data: NDArray[np.uint8]) -> None:
    mapped, offset = _mapped(ref, writable=True)
    target = np.frombuffer(mapped, dtype=np.uint8, count=ref.nbytes, offset=offset)
    target[...] = data
