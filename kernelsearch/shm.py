"""Shared memory blocks that a child process can open by path and that vanish with their owner.

On Linux a block is a memfd, opened by others through ``/proc/<pid>/fd/<n>``: nothing is left behind
when the owner is killed. Elsewhere it is an unlinked-on-close temporary file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import StorageError
from kernelsearch.records import ShmRef

ALIGN = 4096
# Close on exec, and let its size be fixed.
_MEMFD = getattr(os, "MFD_CLOEXEC", 0) | getattr(os, "MFD_ALLOW_SEALING", 0)
_serials = itertools.count()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype of one of our dtype names (bfloat16 through ml_dtypes)."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class SharedBlock:
    """A growable-once block of shared memory owned by this process."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(ALIGN, -(-nbytes // ALIGN) * ALIGN)
        self._file: str | None = None
        self._name = f"{os.getpid()}-{next(_serials)}"
        try:
            if hasattr(os, "memfd_create"):
                self._fd = os.memfd_create("kernelsearch", _MEMFD)
                self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
            else:  # pragma: no cover - not Linux
                self._fd, self._file = tempfile.mkstemp(prefix="kernelsearch-")
                self.path = self._file
            os.ftruncate(self._fd, self.nbytes)
            _fix_size(self._fd)
            self._map = mmap.mmap(self._fd, self.nbytes)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.ENOSPC):
                raise StorageError(
                    f"no memory for a shared block of {self.nbytes} bytes ({error.strerror}); "
                    "use smaller workloads or free memory"
                ) from error
            raise

    def array(self, dtype: str, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """Return a writable view of part of the block."""
        count = int(np.prod(shape, dtype=np.int64))
        flat = np.frombuffer(self._map, dtype=numpy_dtype(dtype), count=count, offset=offset)
        return flat.reshape(shape)

    def ref(self, offset: int, nbytes: int) -> ShmRef:
        """Return a reference to part of the block.

        Raises:
            ValueError: the part does not lie inside the block.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(
                f"bytes {offset} to {offset + nbytes} are not inside a block of {self.nbytes} bytes"
            )
        return ShmRef(self.path, offset, nbytes, self._name)

    def close(self) -> None:
        """Give the memory back once no view of it is alive."""
        if self._fd < 0:
            return
        # While a view is alive the mapping stays; it goes when the last view does.
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._fd)
        self._fd = -1
        if self._file is not None:  # pragma: no cover - not Linux
            os.unlink(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _fix_size(fd: int) -> None:
    """Forbid shrinking: whoever cut a block would kill the owner at its next access."""
    # Kernels without sealing, and temporary files, leave it at that.
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


# Descriptors received from the owner, by path and whether they can be written.
_lent: dict[tuple[str, bool], int] = {}


@contextlib.contextmanager
def lent(descriptors: Mapping[tuple[str, bool], int]) -> Iterator[None]:
    """Have ``attach`` use these descriptors; they are closed afterwards.

    For a process that may not open files of others.
    """
    _lent.update(descriptors)
    try:
        yield
    finally:
        for key, fd in descriptors.items():
            _lent.pop(key, None)
            os.close(fd)


def attach(ref: ShmRef, *, writable: bool) -> mmap.mmap:
    """Map the whole pages that hold ``ref`` in this process (``ref.offset`` is page-aligned)."""
    received = _lent.get((ref.path, writable))
    flags = os.O_RDWR if writable else os.O_RDONLY
    fd = os.open(ref.path, flags) if received is None else received
    try:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        start = ref.offset // ALIGN * ALIGN
        length = max(1, ref.offset - start + ref.nbytes)
        return mmap.mmap(fd, length, access=access, offset=start)
    finally:
        if received is None:
            os.close(fd)
