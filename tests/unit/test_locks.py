"""The device lock: exclusive across processes and threads, shared among compilers, never stale."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernelsearch.errors import StorageError
from kernelsearch.locks import DeviceLock

HOLDER = """
import sys, time
from pathlib import Path
from kernelsearch.locks import DeviceLock
with getattr(DeviceLock(Path(sys.argv[1])), sys.argv[2])():
    print("held", flush=True)
    time.sleep(600)
"""

COUNTER = """
import sys
from pathlib import Path
from kernelsearch.locks import DeviceLock
lock, counter = DeviceLock(Path(sys.argv[1])), Path(sys.argv[2])
for _ in range(200):
    with lock.exclusive():
        counter.write_text(str(int(counter.read_text()) + 1))
"""


def hold(path: Path, how: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), how], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.stdout.close()
    return process


def taken(path: Path, how: str, seconds: float = 0.5) -> bool:
    """Whether another thread can take the lock within a moment."""
    got = threading.Event()

    def take() -> None:
        with getattr(DeviceLock(path), how)():
            got.set()

    threading.Thread(target=take, daemon=True).start()
    return got.wait(seconds)


@pytest.mark.parametrize(
    ("held", "asked", "possible"),
    [("exclusive", "exclusive", False), ("exclusive", "shared", False),
     ("shared", "exclusive", False), ("shared", "shared", True)],
)  # fmt: skip
def test_who_may_hold_it_together(tmp_path: Path, held: str, asked: str, possible: bool) -> None:
    path = tmp_path / "locks" / "device.lock"
    process = hold(path, held)
    try:
        assert taken(path, asked) is possible
    finally:
        process.kill()
        process.wait()
    # A holder that is killed leaves nothing behind.
    assert taken(path, "exclusive", 10)


def test_two_processes_never_overlap(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNTER, str(tmp_path / "lock"), str(counter)]
    for process in [subprocess.Popen(command) for _ in range(3)]:
        assert process.wait(60) == 0
    assert counter.read_text() == "600"


def test_threads_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    with lock.exclusive():
        assert not taken(lock.path, "exclusive", 0.2)


def test_it_is_released_after_an_error(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(KeyError), lock.exclusive():
            raise KeyError("x")
    assert len(os.listdir("/proc/self/fd")) == before
    started = time.monotonic()
    with lock.exclusive():
        assert time.monotonic() - started < 1


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="set KERNELSEARCH_HOME"),
        DeviceLock(tmp_path / "file" / "lock").exclusive(),
    ):
        pass


def test_a_worker_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    with lock.exclusive():
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
    try:
        assert taken(lock.path, "exclusive", 10)
    finally:
        child.kill()
        child.wait()
