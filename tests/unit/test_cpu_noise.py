"""Threads on processors of their own, what others did meanwhile, and caches emptied by hand."""

from __future__ import annotations

import itertools
import os
import platform
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from kernelsearch.targets import cpu_noise
from kernelsearch.targets.cpu_flush import flusher
from kernelsearch.targets.cpu_noise import Neighbours, pinned, thread_times, workers_since

SELF = threading.get_native_id()


def test_a_thread_is_pinned_and_set_free_again() -> None:
    before = os.sched_getaffinity(0)
    with pinned([SELF]) as done:
        assert done
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before


def test_more_threads_than_processors_stay_free() -> None:
    before = os.sched_getaffinity(0)
    with pinned([SELF] * (len(before) + 1)) as done:
        assert not done
        assert os.sched_getaffinity(0) == before


def test_a_thread_that_has_ended_is_no_failure() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.native_id is not None
    # The interpreter's thread ends a moment before the system's.
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.001)
    with pinned([thread.native_id]) as done:
        assert not done


def spin(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def test_only_threads_that_work_are_counted() -> None:
    stop = threading.Event()
    asleep = threading.Thread(target=stop.wait)
    busy = threading.Thread(target=spin, args=(stop,))
    asleep.start()
    time.sleep(0.01)
    before = thread_times()
    if not before:
        stop.set()
        pytest.skip("the system does not say how long threads have run")
    busy.start()
    time.sleep(0.05)
    found = workers_since(before)
    stop.set()
    busy.join()
    asleep.join()
    assert busy.native_id in found
    assert asleep.native_id not in found


def watched(
    monkeypatch: pytest.MonkeyPatch, *, delays: int = 0, steal: int = 0, speed: float = 1.0
) -> dict[str, object]:
    """Return the report on ten batches of 1 ms with that much disturbance in them."""
    now = itertools.count(0, 1_000_000)
    waits = itertools.count(0, delays)
    ticks = iter([(0, 0), (steal, 1000)])
    speeds = itertools.cycle([1.0, speed])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now))
    monkeypatch.setattr(cpu_noise, "PROBE_AGE_S", 0.0)
    monkeypatch.setattr(cpu_noise, "_jiffies", lambda: next(ticks))
    monkeypatch.setattr(cpu_noise, "_speed", lambda: next(speeds))
    neighbours = Neighbours([SELF])
    monkeypatch.setattr(neighbours, "_delays", lambda: [next(waits)])
    for _ in range(10):
        neighbours.begin()
        neighbours.end()
        neighbours.clock()
    found = neighbours.report()
    neighbours.close()
    return found


def test_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = watched(monkeypatch)
    assert found["others"] is False
    assert found["steal"] == found["speed_spread"] == 0


@pytest.mark.parametrize(
    ("what", "key", "share"),
    [({"delays": 200_000}, "waiting", 0.2), ({"steal": 50}, "steal", 0.05),
     ({"speed": 0.5}, "speed_spread", 0.667)],
)  # fmt: skip
def test_what_disturbs(
    monkeypatch: pytest.MonkeyPatch, what: dict[str, int], key: str, share: float
) -> None:
    found = watched(monkeypatch, **what)  # type: ignore[arg-type]
    assert found["others"] is True
    if key in found:  # systems without schedstat know nothing of waiting
        assert found[key] == pytest.approx(share, abs=0.01)


def test_the_clock_is_that_of_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that waited for half of its time counts as one at half the speed."""
    monkeypatch.setattr(cpu_noise, "_speed", lambda: 2.0)
    now = iter([0, 1_000_000])
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(now))
    neighbours = Neighbours([SELF])
    waits = iter([0, 500_000])
    monkeypatch.setattr(neighbours, "_delays", lambda: [next(waits)])
    neighbours.begin()
    neighbours.end()
    assert neighbours.clock() == pytest.approx(1.0)
    neighbours.close()


def test_a_system_that_says_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(cpu_noise, "_TASKS", tmp_path / "none")
    monkeypatch.setattr(cpu_noise, "_jiffies", lambda: None)
    neighbours = Neighbours([SELF])
    neighbours.begin()
    neighbours.end()
    assert neighbours.clock() > 0
    assert neighbours.report() == {"others": False}
    assert thread_times() == {}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 can flush lines")
def test_flushing_changes_nothing_but_the_caches() -> None:
    flush = flusher()
    assert flush is not None
    data = np.arange(100_000, dtype=np.int64)
    start = data.ctypes.data
    flush([(start, data.nbytes), (start + 24, 1), (start, 0)])
    flush([])
    np.testing.assert_array_equal(data, np.arange(100_000))
