"""The CUDA target: compiles with NVRTC anywhere, runs and times on the device of this machine."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from kernelsearch import sandbox
from kernelsearch.errors import (
    RejectedError,
    ResourceLimitError,
    TargetUnavailableError,
    WorkerError,
)
from kernelsearch.protocols import SanitizedTarget
from kernelsearch.records import (
    Binary,
    CompileJob,
    Device,
    RunReport,
    RunRequest,
    TimeReport,
    TimeRequest,
)
from kernelsearch.targets.cuda_ceilings import measure_ceilings
from kernelsearch.targets.cuda_compile import compile_cuda, include_folders, nvrtc_version
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_crowd import SCHEDULES, Crowd
from kernelsearch.targets.cuda_device import architecture_device, probe_device
from kernelsearch.targets.cuda_inputs import InputStore
from kernelsearch.targets.cuda_load import LoadedBinary
from kernelsearch.targets.cuda_nvml import DeviceMonitor
from kernelsearch.targets.cuda_replicas import ReplicaCache
from kernelsearch.targets.cuda_run import Block, run_crowded, run_plan
from kernelsearch.targets.cuda_sanitize import sanitizers
from kernelsearch.targets.cuda_time import TimedRequest

Report = TypeVar("Report", RunReport, TimeReport)

# More than NVRTC needs for any source of the size that is admitted.
COMPILER_BYTES = 8 << 30


class CudaTarget:
    """Compiles for one architecture; runs where a device of that architecture is.

    Args:
        arch: compile for this architecture, also where there is no device (``sm_90a``); None
            takes the device's.
        ordinal: which device of the machine.
        cache_folder: where compiled programs are kept between processes; None keeps none.

    Raises:
        TargetUnavailableError: ``arch`` is None and no device answers.
        SpecError: ``arch`` is unknown and there is no device of it.
    """

    name = "cuda"
    schedules: ClassVar[tuple[str, ...]] = tuple(SCHEDULES)

    def __init__(
        self, arch: str | None = None, ordinal: int = 0, cache_folder: Path | str | None = None
    ) -> None:
        self.ordinal = ordinal
        self.cache_folder = None if cache_folder is None else str(cache_folder)
        self.missing = ""
        if arch is None:
            self.device = probe_device(ordinal)
            return
        try:
            found = probe_device(ordinal)
        except TargetUnavailableError as error:
            self.missing = str(error)
            self.device = architecture_device(arch)
            return
        if found.arch == arch:
            self.device = found
        else:
            self.missing = f"the device here is {found.name} ({found.arch}), not {arch}"
            self.device = architecture_device(arch)

    def compile(self, job: CompileJob) -> Binary:
        """Compile one candidate; needs no device."""
        if job.target != "cuda":
            raise RejectedError(
                f"the cuda target compiles .cu variants (got one for {job.target!r})"
            )
        return compile_cuda(job, self.cache_folder)

    def confine(self, memory_bytes: int) -> tuple[str, ...]:
        """Limit a process that only compiles: memory; no programs, networks, other processes."""
        nvrtc_version()  # whatever it takes to find and load the compiler comes first
        include_folders()
        done = []
        limit = sandbox.address_space() + min(memory_bytes, COMPILER_BYTES)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            done.append("memory")
        if sandbox.refuse_calls():
            done.append("driver_calls")
        return tuple(done)

    def sanitizers(self) -> Sequence[SanitizedTarget]:
        """Return this device under each tool of compute-sanitizer, for elites.

        Raises:
            TargetUnavailableError: there is no compute-sanitizer.
        """
        return sanitizers(self)

    def open(self) -> CudaExecutable:
        """Open the device in this process.

        Raises:
            TargetUnavailableError: there is no device of this architecture.
        """
        if self.missing:
            raise TargetUnavailableError(
                f"this cuda target only compiles (for {self.device.arch}): {self.missing}"
            )
        return CudaExecutable(self.device, self.ordinal, self.cache_folder)


class CudaExecutable:
    """Binaries loaded on an open device. After a lost context every call says so."""

    def __init__(self, device: Device, ordinal: int = 0, cache_folder: str | None = None) -> None:
        self._context = CudaContext(device, ordinal, cache_folder)
        self._loaded: dict[str, LoadedBinary] = {}
        self._store = InputStore(self._context)
        self._replicas = ReplicaCache(self._context, self._store)
        self._block = Block(self._context)
        self._monitor = DeviceMonitor(self._context.pci_bus_id)
        self._crowd: Crowd | None = None

    def load(self, binary: Binary) -> None:
        self._check_alive()
        self._loaded[binary.key] = LoadedBinary(self._context, binary)

    def unload(self, key: str) -> None:
        self._loaded.pop(key, None)

    def run(self, request: RunRequest) -> RunReport:
        """Run a plan once on fresh, poisoned, guarded buffers; outputs go to their sinks."""
        self._check_alive()
        loaded = self._get(request.binary)
        if not request.schedule:
            return self._with_room(
                lambda: run_plan(self._context, loaded, request, self._store, self._block)
            )
        if request.schedule not in SCHEDULES:
            known = ", ".join(SCHEDULES)
            raise WorkerError(f"the cuda target has no schedule {request.schedule!r} (has {known})")
        if self._crowd is None:
            self._crowd = Crowd(self._context)
        crowd = self._crowd
        return self._with_room(
            lambda: run_crowded(self._context, loaded, request, self._store, self._block, crowd)
        )

    def time(self, request: TimeRequest) -> TimeReport:
        """Time one or two binaries, interleaved; each in a module loaded anew (fresh state)."""
        self._check_alive()
        return self._with_room(lambda: self._time(request))

    def _time(self, request: TimeRequest) -> TimeReport:
        fresh = [
            LoadedBinary(self._context, self._get(c.binary).binary) for c in request.contenders
        ]
        with self._context.faults("preparing the inputs"):
            replicas = self._replicas.get(request.sets)
        report = TimedRequest(self._context, request, fresh, replicas, self._monitor).measure()
        if report.modified_inputs or report.corrupted_guards:
            self._replicas.drop(replicas)
        return report

    def _with_room(self, work: Callable[[], Report]) -> Report:
        """Do the work; where memory runs out, drop what is kept for later and try once more."""
        try:
            try:
                return work()
            except ResourceLimitError as error:
                if "free_bytes" not in error.evidence:
                    raise
            self._replicas.close()
            self._store.drop_unused()
            self._block.release()
            return work()
        except OSError as error:
            raise WorkerError(
                f"the shared memory of a request cannot be opened ({error}); its owner is gone"
            ) from error

    def confine(self, memory_bytes: int) -> tuple[str, ...]:
        """Give up programs, networks and other processes; the driver needs all the rest.

        The driver reserves address space at will, so that memory is not limited here.
        """
        del memory_bytes
        return ("driver_calls",) if sandbox.refuse_calls() else ()

    def probe(self) -> None:
        """Prove that the device computes (see ``CudaContext.probe``)."""
        self._check_alive()
        self._context.probe()

    def ceilings(self) -> dict[str, float]:
        """Measure the device's rates (a second or less)."""
        self._check_alive()
        return measure_ceilings(self._context)

    def close(self) -> None:
        """Give the device memory back."""
        self._loaded.clear()
        if not self._context.dead:
            self._replicas.close()
            self._store.close()
            self._block.release()
            if self._crowd is not None:
                self._crowd.close()

    def _get(self, key: str) -> LoadedBinary:
        if key not in self._loaded:
            raise WorkerError(f"binary {key} is not loaded; call load first")
        return self._loaded[key]

    def _check_alive(self) -> None:
        if self._context.dead:
            raise WorkerError(
                f"the device context was lost before ({self._context.dead}); restart the worker"
            )
