"""Compile ahead of the device: a pool of killable compile processes behind futures."""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from kernelsearch.errors import WorkerError
from kernelsearch.locks import DeviceLock
from kernelsearch.protocols import Target
from kernelsearch.records import Binary, CompileJob
from kernelsearch.worker import CompileProcess

DEFAULT_DEADLINE_S = 60.0
ATTEMPTS = 3


class CompilePool:
    """Runs compile jobs in ``size`` child processes; identical jobs share one future.

    Any object with ``submit(job) -> Future[Binary]`` and ``close()`` can stand in its place, for
    example one that sends jobs to a ``concurrent.futures`` executor of a cluster.
    """

    def __init__(
        self, target: Target, size: int, lock: DeviceLock | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
    ) -> None:  # fmt: skip
        self._deadline_s = deadline_s
        self._idle: queue.SimpleQueue[CompileProcess] = queue.SimpleQueue()
        self._processes = [CompileProcess(target, lock) for _ in range(size)]
        for process in self._processes:
            self._idle.put(process)
        self._executor = ThreadPoolExecutor(size, thread_name_prefix="compile")
        self._guard = threading.Lock()
        self._futures: dict[str, Future[Binary]] = {}

    def submit(self, job: CompileJob) -> Future[Binary]:
        """Return the future binary of ``job``; a job seen before is not compiled again."""
        with self._guard:
            future = self._futures.get(job.key)
            if future is None or future.cancelled():
                future = self._executor.submit(self._compile, job)
                self._futures[job.key] = future
        return future

    def forget(self, job: CompileJob) -> None:
        """Drop the kept result of a job."""
        with self._guard:
            self._futures.pop(job.key, None)

    def _compile(self, job: CompileJob) -> Binary:
        process = self._idle.get()
        try:
            for _ in range(ATTEMPTS - 1):
                # A broken compiler process is no fault of the job: a fresh one has another go.
                with contextlib.suppress(WorkerError):
                    return process.compile(job, self._deadline_s)
            return process.compile(job, self._deadline_s)
        except WorkerError:
            self.forget(job)
            raise
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Cancel what waits and end the compilers."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        # The pool's threads still own the processes: end those first, tidy up when they are done.
        for process in self._processes:
            process.interrupt()
        self._executor.shutdown(wait=True)
        for process in self._processes:
            process.close()
