"""Keep the threads of a timing on processors of their own, and notice who else was at work.

Read where the system tells it (Linux), left out where it does not: how long threads that could run
had to wait for a processor, what the hypervisor took away (steal), and how fast a few instructions
go, which shows clocks and neighbours on one core also where no clock can be read.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_TASKS = Path("/proc/self/task")
# Reading is not free: of many threads some tell enough, and the speed changes slowly.
WATCHED_THREADS = 16
PROBE_AGE_S = 5e-3
# Parts of the time of a whole request beyond which the machine counts as disturbed.
STEAL_LIMIT = 0.02
WAITING_LIMIT = 0.05
SPEED_LIMIT = 0.1


def thread_times() -> dict[int, int]:
    """Return how long each thread of this process has run, nanoseconds (empty: not known)."""
    times: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for folder in _TASKS.iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                times[int(folder.name)] = int((folder / "schedstat").read_text().split()[0])
    return times


def workers_since(before: dict[int, int]) -> list[int]:
    """Return the threads that have worked since ``before`` (of ``thread_times``), eldest first.

    The eldest calls kernels, and does its part of parallel loops. Others that belong to libraries
    sleep, and are none of ours.
    """
    return sorted(t for t, ns in thread_times().items() if ns > before.get(t, -1))


@contextlib.contextmanager
def pinned(threads: Sequence[int]) -> Iterator[bool]:
    """Give each thread a processor of its own; yields whether that could be done.

    With fewer processors than threads nothing is pinned.
    """
    before: dict[int, set[int]] = {}
    try:
        yield _pin(threads, before)
    finally:
        for thread, processors in before.items():
            # A thread may have ended meanwhile.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(thread, processors)


def _pin(threads: Sequence[int], before: dict[int, set[int]]) -> bool:
    try:
        processors = sorted(os.sched_getaffinity(0))
        if not threads or len(threads) > len(processors):
            return False
        for thread, processor in zip(threads, processors, strict=False):
            before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, {processor})
    except (OSError, AttributeError):
        return False
    return True


class Neighbours:
    """What others did while these threads were timed."""

    def __init__(self, threads: Sequence[int]) -> None:
        self._files: list[int] = []
        with contextlib.suppress(OSError):
            for thread in threads[:WATCHED_THREADS]:
                self._files.append(os.open(_TASKS / str(thread) / "schedstat", os.O_RDONLY))
        self._start = _jiffies()
        self._waited: list[int] = []
        self._since = 0
        self._wait_ns = self._timed_ns = 0
        self._running = 1.0
        self._speeds: list[float] = []
        self._probed_at = 0.0

    def begin(self) -> None:
        """Call it right before a batch is timed."""
        self._waited = self._delays()
        self._since = time.perf_counter_ns()

    def end(self) -> None:
        """Call it right after a batch."""
        passed = max(1, time.perf_counter_ns() - self._since)
        delays = self._delays()
        # The slowest thread decides how long a parallel loop takes.
        waited = max((b - a for a, b in zip(self._waited, delays, strict=True)), default=0)
        self._wait_ns += waited
        self._timed_ns += passed
        self._running = max(0.0, 1 - waited / passed)

    def clock(self) -> float:
        """Return the speed of the last batch's processor, as far as it ran at all (no unit)."""
        now = time.perf_counter()
        if now - self._probed_at > PROBE_AGE_S or not self._speeds:
            self._speeds.append(_speed())
            self._probed_at = now
        return self._running * self._speeds[-1]

    def report(self) -> dict[str, Any]:
        """Return shares of the time lost to others, and whether that is too much."""
        found: dict[str, Any] = {}
        bad = False
        if self._files and self._timed_ns:
            found["waiting"] = round(self._wait_ns / self._timed_ns, 4)
            bad = found["waiting"] > WAITING_LIMIT
        end = _jiffies()
        if self._start is not None and end is not None and end[1] > self._start[1]:
            found["steal"] = round((end[0] - self._start[0]) / (end[1] - self._start[1]), 4)
            bad = bad or found["steal"] > STEAL_LIMIT
        if len(self._speeds) > 2:
            low, middle, high = np.quantile(self._speeds, (0.1, 0.5, 0.9))
            found["speed_spread"] = round(float((high - low) / middle), 4)
            bad = bad or found["speed_spread"] > SPEED_LIMIT
        return {**found, "others": bad}

    def _delays(self) -> list[int]:
        """Return how long each thread has waited for a processor so far, nanoseconds."""
        delays = []
        for file in self._files:
            try:
                delays.append(int(os.pread(file, 80, 0).split()[1]))
            except (OSError, IndexError, ValueError):  # the thread has ended
                delays.append(0)
        return delays

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def _jiffies() -> tuple[int, int] | None:
    """Return stolen and all processor time of this machine since it was started."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        numbers = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        return numbers[7], sum(numbers[:8])
    return None


def _speed() -> float:
    """Return how often a fixed piece of work that needs no memory fits in a microsecond."""
    best = 1 << 60
    for _ in range(3):
        started = time.perf_counter_ns()
        sum(range(400))
        best = min(best, time.perf_counter_ns() - started)
    return 1000.0 / max(1, best)
