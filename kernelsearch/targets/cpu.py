"""The CPU target: Numba source, compiled ahead and run in an isolated process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar

from kernelsearch.errors import SpecError
from kernelsearch.records import (
    Binary,
    CompileJob,
    Device,
    RunReport,
    RunRequest,
    TimeReport,
    TimeRequest,
)
from kernelsearch.targets.cpu_compile import compile_binary
from kernelsearch.targets.cpu_device import cpu_device, measure_ceilings
from kernelsearch.targets.cpu_guard import confine, watch
from kernelsearch.targets.cpu_load import LoadedBinary
from kernelsearch.targets.cpu_run import run_plan
from kernelsearch.targets.cpu_time import time_plans

# More than a compiler needs for any source of the size that is admitted.
COMPILER_BYTES = 4 << 30


@dataclass(frozen=True)
class CpuTarget:
    """Compiles and runs Numba candidates on this machine's processors. Picklable."""

    name: str = "cpu"
    device: Device = field(default_factory=cpu_device)
    # One thread: no iteration may wait for another. One more than processors: the loops are cut
    # elsewhere, and threads are stopped in the middle of things.
    schedules: ClassVar[tuple[str, ...]] = ("one_thread", "extra_thread")

    def compile(self, job: CompileJob) -> Binary:
        """Compile one candidate (see ``cpu_compile.compile_binary``)."""
        return compile_binary(job)

    def confine(self, memory_bytes: int) -> tuple[str, ...]:
        """Limit a process that only compiles (see ``cpu_guard.confine``)."""
        import numba  # noqa: F401 - what it needs comes on top

        _make_semaphore()
        return confine(min(memory_bytes, COMPILER_BYTES))

    def open(self) -> CpuExecutable:
        """Get this process ready to run kernels."""
        return CpuExecutable(self.device)


class CpuExecutable:
    """Loaded CPU binaries. One process, one thread calls it."""

    def __init__(self, device: Device) -> None:
        import numba

        known: Any = numba.config
        self._cores = max(1, min(device.facts["cores"], known.NUMBA_NUM_THREADS))
        self._threads = False
        self._cache_bytes = device.facts["l2_bytes"]
        self._loaded: dict[str, LoadedBinary] = {}
        watch()

    def load(self, binary: Binary) -> None:
        """Load a binary and keep it by its key."""
        self._start_threads()
        self._loaded[binary.key] = LoadedBinary(binary)

    def unload(self, key: str) -> None:
        """Forget a binary and all state it may have kept."""
        self._loaded.pop(key, None)

    def run(self, request: RunRequest) -> RunReport:
        """Run a plan once between guard pages."""
        loaded = self._find(request.binary)
        kernels = loaded.checked_kernels() if request.bounds_checked else loaded.kernels
        with _scheduled(request.schedule):
            return run_plan(request, kernels)

    def time(self, request: TimeRequest) -> TimeReport:
        """Time one or two plans, interleaved."""
        kernels = [self._find(c.binary).kernels for c in request.contenders]
        return time_plans(request, kernels, self._cache_bytes)

    def ceilings(self) -> dict[str, float]:
        """Measure what this machine can do."""
        self._start_threads()
        return measure_ceilings()

    def confine(self, memory_bytes: int) -> tuple[str, ...]:
        """Limit this process for good (see ``cpu_guard.confine``)."""
        _make_semaphore()
        # Threads that ran already would keep their access to files.
        return confine(memory_bytes, self._start_threads)

    def _start_threads(self) -> None:
        if not self._threads:
            import numba

            numba.set_num_threads(self._cores)
            self._threads = True

    def close(self) -> None:
        """Forget everything."""
        self._loaded.clear()

    def _find(self, key: str) -> LoadedBinary:
        if key not in self._loaded:
            raise SpecError(f"binary {key} is not loaded; call load before run or time")
        return self._loaded[key]


@contextlib.contextmanager
def _scheduled(schedule: str) -> Iterator[None]:
    """Run parallel loops as one of ``CpuTarget.schedules`` says ("": as usual)."""
    import numba

    usual = numba.get_num_threads()
    most: int = getattr(numba.config, "NUMBA_NUM_THREADS", usual)
    threads = {"": usual, "one_thread": 1, "extra_thread": most}
    if schedule not in threads:
        known = ", ".join(CpuTarget.schedules)
        raise SpecError(f"the cpu target has no schedule {schedule!r} (known: {known})")
    numba.set_num_threads(threads[schedule])
    try:
        yield
    finally:
        numba.set_num_threads(usual)


def _make_semaphore() -> None:
    """Make the lock of Numba's threads now: later its file cannot be created."""
    parallel: Any = import_module("numba.np.ufunc.parallel")
    parallel._set_init_process_lock()
