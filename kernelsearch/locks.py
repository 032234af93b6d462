"""One lock a device: timings of two studies on one device never overlap.

An advisory file lock, so that it vanishes with its holder. CPU compilers take it shared, timings
exclusive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kernelsearch.errors import StorageError


class DeviceLock:
    """A lock file shared by all processes of this user on this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device alone."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the device together with other shared holders."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def _held(self, how: int) -> Iterator[None]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageError(
                f"cannot open the device lock {self.path} ({error.strerror}); "
                "set KERNELSEARCH_HOME to a folder you can write to"
            ) from error
        try:
            while True:
                try:
                    fcntl.flock(fd, how)
                    break
                except OSError as error:
                    if error.errno != errno.EINTR:
                        raise
            yield
        finally:
            os.close(fd)
