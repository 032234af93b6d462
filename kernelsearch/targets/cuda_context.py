"""One open device: its stream, plain memory operations, helper kernels, and what errors mean."""

from __future__ import annotations

import ctypes
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    LaunchError,
    MissingExtraError,
    ResourceLimitError,
    TargetUnavailableError,
    WorkerError,
)
from kernelsearch.records import CompileJob, Device, ShmRef
from kernelsearch.shm import attach
from kernelsearch.targets.cuda_compile import compile_cuda
from kernelsearch.targets.cuda_layout import GUARD_WORD
from kernelsearch.targets.cuda_transfer import LEAST_BYTES, Transfer

# A region is an address and a length in bytes. Both kernels read whole aligned words and mask what
# lies outside, so odd starts and lengths are fine inside a block of guarded memory.
_HELPERS = r"""
struct Region { unsigned long long start, bytes; };

__device__ unsigned long long mix(unsigned long long v) {
    v ^= v >> 31; v *= 0x7fb5d329728ea185ull; v ^= v >> 27; v *= 0x81dadef4bc2dd44dull;
    return v ^ (v >> 33);
}

__device__ unsigned long long keep(unsigned long long word, unsigned long long at,
                                   const Region& r) {
    unsigned long long mask = ~0ull;
    if (at < r.start) mask &= ~0ull << (8 * (r.start - at));
    const unsigned long long end = r.start + r.bytes;
    if (at + 8 > end) mask &= ~0ull >> (8 * (at + 8 - end));
    return word & mask;
}

__global__ void hash_regions(const Region* regions, unsigned long long seed,
                             unsigned long long* sums) {
    const Region r = regions[blockIdx.y];
    const unsigned long long first = r.start & ~7ull;
    const unsigned long long words = r.bytes ? (r.start + r.bytes - first + 7) / 8 : 0;
    unsigned long long sum = 0;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
         i < words; i += (unsigned long long)gridDim.x * blockDim.x) {
        const unsigned long long at = first + 8 * i;
        const unsigned long long word = keep(*(const unsigned long long*)at, at, r);
        sum += mix(word + mix(i + seed));
    }
    for (int step = 16; step; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
    if (threadIdx.x % 32 == 0 && sum) atomicAdd(sums + blockIdx.y, sum);
}

__global__ void check_regions(const Region* regions, unsigned long long expected,
                              unsigned* broken) {
    const Region r = regions[blockIdx.y];
    const unsigned long long first = r.start & ~7ull;
    const unsigned long long words = r.bytes ? (r.start + r.bytes - first + 7) / 8 : 0;
    bool bad = false;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
         i < words; i += (unsigned long long)gridDim.x * blockDim.x) {
        const unsigned long long at = first + 8 * i;
        bad |= keep(*(const unsigned long long*)at ^ expected, at, r) != 0;
    }
    if (bad) broken[blockIdx.y] = 1;
}

__global__ void sweep(const uint4* block, unsigned long long count, unsigned* sink) {
    unsigned folded = 0;
    for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
         i < count; i += (unsigned long long)gridDim.x * blockDim.x) {
        const uint4 v = block[i];
        folded |= (v.x ^ 1u) & (v.y ^ 2u) & (v.z ^ 4u) & (v.w ^ 8u);
    }
    if (folded == 0x9e3779b9u) *sink = folded;
}

__global__ void delay(unsigned nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}

__global__ void copy(uint4* to, const uint4* from, unsigned long long count) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    for (; i + 3 * stride < count; i += 4 * stride) {
        const uint4 a = from[i], b = from[i + stride], c = from[i + 2 * stride],
                    d = from[i + 3 * stride];
        to[i] = a; to[i + stride] = b; to[i + 2 * stride] = c; to[i + 3 * stride] = d;
    }
    for (; i < count; i += stride) to[i] = from[i];
}

extern __shared__ unsigned shared_words[];

// Volatile: nobody reads what is left behind here, except a kernel that must not.
__global__ void __launch_bounds__(1024) poison_shared(unsigned word, unsigned count) {
    volatile unsigned* words = shared_words;
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) words[i] = word;
}

// mail[0]: go; mail[1 + b]: block b has come. Host memory.
__global__ void __launch_bounds__(1024) occupy(volatile unsigned* mail, unsigned long long limit) {
    if (threadIdx.x == 0) {
        ((volatile unsigned*)shared_words)[0] = 1;
        mail[1 + blockIdx.x] = 1;
        __threadfence_system();
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
        do {
            __nanosleep(1000);
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        } while (!mail[0] && now - start < limit);
    }
    __syncthreads();
}

__global__ void nothing() {}
"""
_HELPER_NAMES = (
    "hash_regions", "check_regions", "sweep", "delay", "copy", "poison_shared", "occupy", "nothing",
)  # fmt: skip
_USE_ALL_SHARED = ("poison_shared", "occupy")
_RESOURCE_ERRORS = frozenset({
    "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "CUDA_ERROR_INVALID_CLUSTER_SIZE",
})  # fmt: skip
_TABLE_BYTES = 1 << 20
_PROBE_BYTES = 1 << 20
_MAX_REGIONS = _TABLE_BYTES // 32


def _api() -> tuple[Any, Any, type[Exception]]:
    """Return cuda.core, the driver's bindings and the exception that cuda.core raises."""
    try:
        import cuda.core as core
        from cuda.bindings import driver
        from cuda.core._utils.cuda_utils import CUDAError
    except ImportError as error:
        raise MissingExtraError("running CUDA kernels", "cuda", "cuda-core") from error
    return core, driver, CUDAError


class CudaContext:
    """The device, opened in this process. Not thread-safe.

    Raises:
        MissingExtraError: the CUDA packages are not installed.
        TargetUnavailableError: no device answers.
    """

    def __init__(self, device: Device, ordinal: int = 0, cache_folder: str | None = None) -> None:
        self.core, self.driver, self.error_type = _api()
        self.device = device
        self.dead = ""
        try:
            self.handle: Any = self.core.Device(ordinal)
            self.handle.set_current()
        except (self.error_type, RuntimeError) as error:
            raise TargetUnavailableError(
                f"CUDA device {ordinal} cannot be opened ({error})"
            ) from error
        self.stream: Any = self.handle.create_stream()
        self.raw: Any = self.stream.handle
        self.total_bytes = int(self.check(self.driver.cuMemGetInfo())[2])
        self.pci_bus_id = str(self.handle.pci_bus_id)
        self.l2_bytes = device.facts["l2_bytes"]
        self._kernels = self._load_helpers(cache_folder)
        self._table = self.allocate(_TABLE_BYTES)
        self._results = self.allocate(_TABLE_BYTES)
        self._sweep_bytes = 0
        self._sweep = 0
        self._seed = secrets.randbits(63)
        self._transfer = Transfer(self)

    # --- errors -----------------------------------------------------------------------------

    def check(self, answer: Any) -> tuple[Any, ...]:
        """Return a driver call's answer, its status first; raise if that is an error."""
        if int(answer[0]) != 0:
            raise self.error_type(f"{answer[0].name}: the driver refused the call")
        return tuple(answer)

    @contextmanager
    def faults(self, what: str) -> Iterator[None]:
        """Turn a device error into the candidate's failure, and notice a lost context."""
        if self.dead:
            raise WorkerError(
                f"the device context was lost before ({self.dead}); restart the worker"
            )
        try:
            yield
        except self.error_type as error:
            raise self._failure(what, error) from None

    def _failure(self, what: str, error: Exception) -> CandidateError:
        found = re.search(r"CUDA_ERROR_\w+", str(error))
        name = found[0] if found else str(error)[:200]
        evidence: dict[str, object] = {"error": name, "step": what}
        # An error that a fresh synchronisation reports again will not go away in this process.
        after = self.driver.cuCtxSynchronize()[0]
        if int(after) != 0:
            self.dead = name
            evidence["sticky"] = True
            return CandidateCrashedError(f"{what} ended in {name}", evidence)
        if name in _RESOURCE_ERRORS:
            return ResourceLimitError(f"{what} was refused: {name}", evidence)
        return LaunchError(f"{what} was refused: {name}", evidence)

    def sync(self) -> None:
        self.stream.sync()

    def probe(self) -> None:
        """Fill memory, let a kernel look at it, change it, and look again.

        Raises:
            WorkerError: the device computes, but wrongly.
            CandidateError: it answers with an error.
        """
        with self.faults("the health probe"):
            block = self.allocate(_PROBE_BYTES)
            try:
                self.fill_guard(block, _PROBE_BYTES)
                whole = not self.broken([(block, _PROBE_BYTES)])[0]
                self.fill_bytes(block + _PROBE_BYTES // 2, 0, 1)
                changed = bool(self.broken([(block, _PROBE_BYTES)])[0])
            finally:
                self.free(block)
        if not (whole and changed):
            raise WorkerError("the device does not read back what was written to its memory")

    # --- memory -----------------------------------------------------------------------------

    def allocate(self, nbytes: int, *, exact: bool = False) -> int:
        """Return the address of a new block of device memory.

        Args:
            nbytes: its size.
            exact: ask for just that much, so that tools know where it ends (else 256 or more).

        Raises:
            ResourceLimitError: there is not that much.
        """
        status, pointer = self.driver.cuMemAlloc(max(1 if exact else 256, nbytes))
        if int(status) == int(self.driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY):
            free = int(self.check(self.driver.cuMemGetInfo())[1])
            raise ResourceLimitError(
                f"the device has no {nbytes} bytes of memory left (free: {free})",
                {"wanted_bytes": nbytes, "free_bytes": free},
            )
        self.check((status,))
        return int(pointer)

    def free(self, pointer: int) -> None:
        self.check(self.driver.cuMemFree(pointer))

    def fill_bytes(self, pointer: int, value: int, nbytes: int, stream: Any = None) -> None:
        if nbytes:
            self.check(self.driver.cuMemsetD8Async(pointer, value, nbytes, stream or self.raw))

    def fill_guard(self, pointer: int, nbytes: int) -> None:
        """Fill a block (a multiple of four bytes, aligned) with the guard pattern."""
        if nbytes:
            self.check(self.driver.cuMemsetD32Async(pointer, GUARD_WORD, nbytes // 4, self.raw))

    def copy_within(self, to: int, start: int, nbytes: int) -> None:
        if nbytes:
            self.check(self.driver.cuMemcpyDtoDAsync(to, start, nbytes, self.raw))

    def upload(self, to: int, ref: ShmRef) -> None:
        """Copy from shared memory to the device."""
        if ref.nbytes:
            with _pages(ref, writable=False) as host:
                if ref.nbytes >= LEAST_BYTES:
                    self._transfer.upload(to, host)
                    return
                address = host.ctypes.data
                self.check(self.driver.cuMemcpyHtoDAsync(to, address, ref.nbytes, self.raw))
                self.sync()

    def download(self, ref: ShmRef, start: int) -> None:
        """Copy from the device to shared memory."""
        if ref.nbytes:
            with _pages(ref, writable=True) as host:
                if ref.nbytes >= LEAST_BYTES:
                    self._transfer.download(host, start)
                    return
                address = host.ctypes.data
                self.check(self.driver.cuMemcpyDtoHAsync(address, start, ref.nbytes, self.raw))
                self.sync()

    # --- helper kernels -----------------------------------------------------------------------

    def _load_helpers(self, cache_folder: str | None) -> dict[str, Any]:
        job = CompileJob("cuda", _HELPERS, _HELPER_NAMES, self.device.arch, "helpers.cu")
        binary = compile_cuda(job, cache_folder)
        module = self.core.ObjectCode.from_cubin(binary.image, name="helpers")
        self._helper_module = module
        kernels = {name: module.get_kernel(binary.symbols[name]) for name in _HELPER_NAMES}
        driver = self.driver
        kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        room = self.device.facts["max_shared_per_block"]
        here = driver.CUdevice(self.handle.device_id)
        for name in _USE_ALL_SHARED:
            self.check(driver.cuKernelSetAttribute(kind, room, kernels[name].handle, here))
        return kernels

    def helper(self, name: str, grid: tuple[int, int], *args: Any, stream: Any = None,
               threads: int = 256, shared: int = 0) -> None:  # fmt: skip
        """Launch one of our own kernels."""
        config = self.core.LaunchConfig(grid=(*grid, 1), block=(threads, 1, 1), shmem_size=shared)
        self.core.launch(stream or self.stream, config, self._kernels[name], *args)

    def _send_regions(self, regions: Sequence[tuple[int, int]]) -> int:
        if len(regions) > _MAX_REGIONS:
            raise WorkerError(f"{len(regions)} regions are more than {_MAX_REGIONS} at a time")
        table = np.array(regions, dtype=np.uint64)
        address = table.ctypes.data
        self.check(self.driver.cuMemcpyHtoDAsync(self._table, address, table.nbytes, self.raw))
        self.fill_bytes(self._results, 0, 8 * len(regions))
        largest = max(n for _, n in regions)
        return int(min(1024, max(1, -(-largest // (8 * 256 * 8)))))

    def hashes(self, regions: Sequence[tuple[int, int]]) -> NDArray[np.uint64]:
        """Return a hash of the contents of each region (address, bytes); waits for the device.

        The seed is secret and new in each process, so contents cannot be changed unnoticed.
        """
        sums = np.zeros(len(regions), dtype=np.uint64)
        if len(regions):
            blocks = self._send_regions(regions)
            self.helper("hash_regions", (blocks, len(regions)), self._table,
                        ctypes.c_uint64(self._seed), self._results)  # fmt: skip
            self._receive(sums)
        return sums

    def broken(self, regions: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
        """Return, for each region of guard bytes, whether something wrote there."""
        flags = np.zeros(len(regions), dtype=np.uint32)
        if len(regions):
            blocks = self._send_regions(regions)
            word = GUARD_WORD << 32 | GUARD_WORD
            self.helper("check_regions", (blocks, len(regions)), self._table,
                        ctypes.c_uint64(word), self._results)  # fmt: skip
            self._receive(flags)
        found: NDArray[np.bool_] = np.not_equal(flags, 0)
        return found

    def _receive(self, into: NDArray[Any]) -> None:
        self.check(
            self.driver.cuMemcpyDtoHAsync(into.ctypes.data, self._results, into.nbytes, self.raw)
        )
        self.sync()

    def poison_shared(self, value: int) -> None:
        """Fill the shared memory of every multiprocessor with one byte.

        A block takes all of it, so that each multiprocessor gets one block.
        """
        room = self.device.facts["max_shared_per_block"]
        word = value & 0xFF
        self.helper("poison_shared", (self.device.facts["sm_count"], 1),
                    ctypes.c_uint32(word * 0x01010101), ctypes.c_uint32(room // 4),
                    threads=1024, shared=room)  # fmt: skip

    def sweep_cache(self) -> None:
        """Read a block of more than twice the L2: nothing else stays in it, no dirty lines."""
        if not self._sweep:
            self._sweep_bytes = (2 * self.l2_bytes + (8 << 20)) // 4096 * 4096
            self._sweep = self.allocate(self._sweep_bytes)
            self.fill_bytes(self._sweep, 0, self._sweep_bytes)
        blocks = 8 * self.device.facts["sm_count"]
        self.helper("sweep", (blocks, 1), self._sweep, ctypes.c_uint64(self._sweep_bytes // 16),
                    self._results)  # fmt: skip

    def reset_persisting_lines(self) -> None:
        """Turn lines that a kernel asked to keep in the L2 back into ordinary ones."""
        # Devices without that feature answer with an error that means just this.
        self.driver.cuCtxResetPersistingL2Cache()

    def delay(self, microseconds: int) -> None:
        """Keep the device busy, so that what is queued next starts without a gap."""
        self.helper("delay", (1, 1), ctypes.c_uint32(1000 * microseconds), threads=32)


@contextmanager
def _pages(ref: ShmRef, *, writable: bool) -> Iterator[NDArray[np.uint8]]:
    """Map a shared block and yield its bytes in this process; no view of them may be kept."""
    mapping = attach(ref, writable=writable)
    view = np.frombuffer(mapping, dtype=np.uint8)
    # The last view unmaps the pages: the caller's may outlive this block by a moment.
    del mapping
    yield view[view.size - ref.nbytes :]
