"""Run a plan while most of the device is taken, so that its blocks come one after the other.

A kernel whose result depends on the order of its blocks, or that waits for blocks which are not
resident yet, shows itself when few multiprocessors are left for it. The others are held by blocks
that take all shared memory of one each and wait for a word in the host's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator

import numpy as np

from kernelsearch.errors import CandidateTimeoutError, WorkerError
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_load import BoundCall, launch

# Name = the part of the multiprocessors that is left; at least one.
SCHEDULES = {"one_sm": 0.0, "half_device": 0.5}
# The holders go by themselves after this, whatever becomes of this process.
HOLD_LIMIT_S = 60.0
ARRIVAL_LIMIT_S = 5.0
LEAST_LIMIT_S = 1.0
LEAVE_LIMIT_S = 5.0
# A plan may take so many times what it takes when all multiprocessors and caches are its own.
PATIENCE = 3.0
_POLL_S = 1e-4
_WORD = 4


class Crowd:
    """Blocks that hold multiprocessors. Nothing is allocated or freed while they do."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._stream = context.handle.create_stream()
        self._sms = int(context.device.facts["sm_count"])
        nbytes = _WORD * (self._sms + 1)
        flags = context.driver.CU_MEMHOSTALLOC_DEVICEMAP
        self._address = int(context.check(context.driver.cuMemHostAlloc(nbytes, flags))[1])
        words = (ctypes.c_uint32 * (self._sms + 1)).from_address(self._address)
        # Word 0 tells the holders to go; the others say that a holder has come.
        self._mail = np.ctypeslib.as_array(words)

    def run(self, call: BoundCall, schedule: str, calm_s: float) -> None:
        """Run all steps of a call beside the crowd, and wait for them.

        Args:
            call: bound to its buffers, and run before: loading code waits for an idle device.
            schedule: one of ``SCHEDULES``.
            calm_s: how long it takes alone.

        Raises:
            CandidateTimeoutError: it does not get on with the multiprocessors that are left.
            CandidateError: a launch ends in a device error.
            WorkerError: the crowd does not get its multiprocessors.
        """
        context = self._context
        free = max(1, int(SCHEDULES[schedule] * self._sms))
        limit = max(LEAST_LIMIT_S, PATIENCE * self._sms / free * calm_s)
        with self._held(self._sms - free):
            for step in call:
                with context.faults(step.label):
                    launch(context, (step,))
                    done = self._wait(time.perf_counter() + limit)
                if not done:
                    raise CandidateTimeoutError(
                        f"{step.label} does not end within {limit:.1f} s when {free} of "
                        f"{self._sms} multiprocessors are free (alone the call takes "
                        f"{calm_s * 1e3:.2f} ms): it waits for blocks that are not resident; "
                        "launch it as a cooperative kernel, or do not wait for other blocks",
                        {"step": step.label, "free_sms": free, "limit_s": limit, "calm_s": calm_s},
                    )

    def _wait(self, until: float) -> bool:
        """Return whether the work that was queued is done in time."""
        context = self._context
        busy = int(context.driver.CUresult.CUDA_ERROR_NOT_READY)
        while True:
            status = context.driver.cuStreamQuery(context.raw)[0]
            if int(status) != busy:
                context.check((status,))
                return True
            if time.perf_counter() > until:
                return False
            time.sleep(_POLL_S)

    @contextlib.contextmanager
    def _held(self, blocks: int) -> Iterator[None]:
        if blocks <= 0:
            yield
            return
        context = self._context
        self._mail[:] = 0
        room = int(context.device.facts["max_shared_per_block"])
        context.helper(
            "occupy", (blocks, 1), ctypes.c_uint64(self._address),
            ctypes.c_uint64(int(HOLD_LIMIT_S * 1e9)), stream=self._stream, threads=1024,
            shared=room,
        )  # fmt: skip
        try:
            until = time.perf_counter() + ARRIVAL_LIMIT_S
            while int(self._mail[1 : blocks + 1].sum()) < blocks:
                if time.perf_counter() > until:
                    held = int(self._mail[1 : blocks + 1].sum())
                    raise WorkerError(
                        f"only {held} of {blocks} multiprocessors could be held within "
                        f"{ARRIVAL_LIMIT_S:.0f} s: something else runs on the device"
                    )
                time.sleep(_POLL_S)
            yield
        finally:
            self._mail[0] = 1
            # Whatever waited for room finds it now. If it hangs even so, the worker's deadline ends
            # it.
            self._wait(time.perf_counter() + LEAVE_LIMIT_S)
            self._stream.sync()

    def close(self) -> None:
        """Give the pinned memory back."""
        if self._address:
            self._context.check(self._context.driver.cuMemFreeHost(self._address))
            self._address = 0
