"""Copy large blocks between shared memory and the device: pinned pieces, several threads.

A plain copy from pageable memory runs on one core. Here each thread has a stream and a pinned
buffer of its own and moves every n-th piece, so that page faults and host copies overlap.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 8 << 20
THREADS = 6
# Below this a plain copy is as fast.
LEAST_BYTES = 8 << 20


class Transfer:
    """Pinned buffers and threads, made at the first large copy."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._pool: ThreadPoolExecutor | None = None
        self._current: Any = None
        self._lanes: list[tuple[Any, int, NDArray[np.uint8]]] = []

    def _prepare(self) -> None:
        import ctypes

        context = self._context
        self._current = context.check(context.driver.cuCtxGetCurrent())[1]
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="transfer")
        for _ in range(THREADS):
            pointer = int(context.check(context.driver.cuMemAllocHost(PIECE_BYTES))[1])
            memory = memoryview((ctypes.c_ubyte * PIECE_BYTES).from_address(pointer))
            stream = context.handle.create_stream()
            self._lanes.append((stream, pointer, np.frombuffer(memory, dtype=np.uint8)))

    def download(self, host: NDArray[np.uint8], start: int) -> None:
        """Copy from the device to host memory; the device's work is waited for first."""
        self._move(host, start, up=False)

    def upload(self, to: int, host: NDArray[np.uint8]) -> None:
        """Copy from host memory to the device, complete on return."""
        self._move(host, to, up=True)

    def _move(self, host: NDArray[np.uint8], pointer: int, *, up: bool) -> None:
        self._context.sync()
        if self._pool is None:
            self._prepare()
        assert self._pool is not None
        work = [self._pool.submit(self._lane, lane, host, pointer, up) for lane in range(THREADS)]
        # All must have ended before the first error is raised: they use the caller's memory.
        errors = [w.exception() for w in work]
        for error in errors:
            if error is not None:
                raise error

    def _lane(self, lane: int, host: NDArray[np.uint8], pointer: int, up: bool) -> None:
        context = self._context
        context.check(context.driver.cuCtxSetCurrent(self._current))
        stream, pinned, staging = self._lanes[lane]
        for at in range(lane * PIECE_BYTES, host.size, THREADS * PIECE_BYTES):
            size = min(PIECE_BYTES, host.size - at)
            if up:
                staging[:size] = host[at : at + size]
                copied = context.driver.cuMemcpyHtoDAsync(pointer + at, pinned, size, stream.handle)
            else:
                copied = context.driver.cuMemcpyDtoHAsync(pinned, pointer + at, size, stream.handle)
            context.check(copied)
            stream.sync()
            if not up:
                host[at : at + size] = staging[:size]
        # A kernel can reach pinned memory: no earlier result may be found there.
        staging[:] = 0
