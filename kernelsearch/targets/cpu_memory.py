"""Memory for arguments between pages that fault when they are touched.

A region is mapped as ``no access | data | no access``. Data lie against one of the two walls; the
rest of their pages is filled with a known byte and compared afterwards.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import ResourceLimitError
from kernelsearch.records import BufferSpec, ShmRef
from kernelsearch.shm import ALIGN, attach, numpy_dtype

PAGE = mmap.PAGESIZE
LARGE = 4 << 20
HUGE = 2 << 20
GAP = 256
_PROT_NONE = 0
_RW = mmap.PROT_READ | mmap.PROT_WRITE


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.restype = pointer
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    for name, types in (
        ("munmap", [pointer, size]),
        ("mprotect", [pointer, size, number]),
        ("madvise", [pointer, size, number]),
    ):
        function = getattr(libc, name)
        function.restype, function.argtypes = number, types
    return libc


class Region:
    """Anonymous memory with an inaccessible page before and after it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(PAGE, -(-nbytes // PAGE) * PAGE)
        large = self.nbytes >= LARGE
        self._length = self.nbytes + 2 * PAGE + (HUGE if large else 0)
        self._base = _libc().mmap(
            None, self._length, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        if self._base in (None, ctypes.c_void_p(-1).value):
            code = ctypes.get_errno()
            raise ResourceLimitError(
                f"no memory for {nbytes} bytes of arguments ({os.strerror(code)}); use smaller "
                "workloads or a larger memory limit",
                {"bytes": nbytes, "errno": errno.errorcode.get(code, str(code))},
            )
        start = self._base + PAGE
        # What NumPy does for large arrays: huge pages, so that timings meet what a caller will.
        self.address = -(-start // HUGE) * HUGE if large else start
        self._protect(self.address, self.nbytes, _RW)
        if large and hasattr(mmap, "MADV_HUGEPAGE"):
            _libc().madvise(self.address, self.nbytes, mmap.MADV_HUGEPAGE)
        self._bytes: Any = (ctypes.c_uint8 * self.nbytes).from_address(self.address)

    def _protect(self, address: int, nbytes: int, how: int) -> None:
        if _libc().mprotect(address, nbytes, how) != 0:
            code = ctypes.get_errno()
            raise ResourceLimitError(
                f"cannot set the protection of {nbytes} bytes ({os.strerror(code)})",
                {"errno": errno.errorcode.get(code, str(code))},
            )

    def array(self, dtype: str, shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        """Return a view; it must not be used after ``close``."""
        return np.ndarray(shape, numpy_dtype(dtype), buffer=self._bytes, offset=offset)

    def raw(self, start: int, stop: int) -> NDArray[np.uint8]:
        return np.ndarray((stop - start,), np.uint8, buffer=self._bytes, offset=start)

    def read_only(self, start: int, stop: int) -> None:
        """Make whole pages unwritable."""
        self._protect(self.address + start, stop - start, mmap.PROT_READ)

    def writable(self, start: int, stop: int) -> None:
        """Make whole pages writable again."""
        self._protect(self.address + start, stop - start, _RW)

    def close(self) -> None:
        """Give the memory back."""
        if self._base is not None:
            _libc().munmap(self._base, self._length)
            self._base = None


class GuardedBuffer:
    """One argument against one wall of its own region.

    With ``at_end`` the byte after the last element faults, otherwise the byte before the first
    (unless the buffer is misaligned on purpose).
    """

    def __init__(self, spec: BufferSpec, poison: int, *, at_end: bool) -> None:
        self.spec = spec
        self.region = Region(spec.nbytes + spec.misalign)
        self._canary = (poison ^ 0x5A) & 0xFF
        at_end = at_end and not spec.misalign
        self.start = self.region.nbytes - spec.nbytes if at_end else spec.misalign
        self.stop = self.start + spec.nbytes
        self.region.raw(0, self.start).fill(self._canary)
        self.region.raw(self.stop, self.region.nbytes).fill(self._canary)
        self.data = self.region.raw(self.start, self.stop)
        self.array = self.region.array(spec.dtype, spec.shape, self.start)
        if spec.source is None:
            self.data.fill(poison)
        else:
            copy_in(spec.source, self.data)
        if spec.role == "in":
            self.region.read_only(0, self.region.nbytes)

    def intact(self) -> bool:
        """Tell whether the rest of the buffer's pages is as it was."""
        before = self.region.raw(0, self.start)
        after = self.region.raw(self.stop, self.region.nbytes)
        return bool((before == self._canary).all() and (after == self._canary).all())

    def close(self) -> None:
        del self.array, self.data
        self.region.close()


class Arena:
    """All arguments of one timed call in one region: inputs first, on pages of their own.

    Buffers start 256-byte aligned (plus their misalignment), with a gap of known bytes between.
    """

    def __init__(self, specs: Sequence[BufferSpec], poison: int, stagger: int = 0) -> None:
        self._canary = (poison ^ 0x5A) & 0xFF
        inputs = [s for s in specs if s.role == "in"]
        others = [s for s in specs if s.role != "in"]
        at = GAP + stagger
        places: list[tuple[BufferSpec, int]] = []
        at = self._place(inputs, at, places)
        self._inputs_end = at = -(-at // PAGE) * PAGE if inputs else 0
        at = self._place(others, at + GAP + stagger, places)
        self.region = Region(at)
        self.region.raw(0, self.region.nbytes).fill(self._canary)
        self.arrays: dict[str, NDArray[Any]] = {}
        self._spans: list[tuple[str, int, int]] = []
        for spec, start in places:
            self.arrays[spec.name] = self.region.array(spec.dtype, spec.shape, start)
            self._spans.append((spec.name, start, start + spec.nbytes))
            if spec.source is not None:
                copy_in(spec.source, self.raw(spec.name))
        if self._inputs_end:
            self.region.read_only(0, self._inputs_end)

    @staticmethod
    def _place(specs: Sequence[BufferSpec], at: int, places: list[tuple[BufferSpec, int]]) -> int:
        for spec in specs:
            start = -(-at // GAP) * GAP + spec.misalign
            places.append((spec, start))
            at = start + spec.nbytes + GAP
        return at

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of one buffer."""
        start, stop = next((a, b) for n, a, b in self._spans if n == name)
        return self.region.raw(start, stop)

    def corrupted(self) -> set[str]:
        """Return the buffers whose gap before or after has changed."""
        bad = set()
        edges = [0, *(edge for _, a, b in self._spans for edge in (a, b)), self.region.nbytes]
        names = [n for n, _, _ in self._spans]
        for index in range(len(names) + 1):
            gap = self.region.raw(edges[2 * index], edges[2 * index + 1])
            if not (gap == self._canary).all():
                bad.add(names[max(0, index - 1)])
        return bad

    def close(self) -> None:
        self.arrays.clear()
        self.region.close()


def copy_in(source: ShmRef, into: NDArray[np.uint8]) -> None:
    """Fill ``into`` from a shared block."""
    if not into.nbytes:
        return
    mapped = attach(source, writable=False)
    view = np.frombuffer(mapped, np.uint8, into.nbytes, source.offset % ALIGN)
    into[:] = view
    del view
    mapped.close()


def copy_out(data: NDArray[np.uint8], sink: ShmRef) -> None:
    """Write ``data`` to a shared block."""
    if not data.nbytes:
        return
    mapped = attach(sink, writable=True)
    view = np.frombuffer(mapped, np.uint8, data.nbytes, sink.offset % ALIGN)
    view[:] = data
    del view
    mapped.close()
