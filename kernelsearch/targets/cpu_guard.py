"""Confine the worker process, and leave a word about what was running if it dies."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import stat
import sys

MAX_FILE_BYTES = 16 << 20
_CLONE_NEWNET = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38


def confine(memory_bytes: int) -> tuple[str, ...]:
    """Take away from this process what a kernel does not need.

    Call it once, after Numba is imported. Limits that this system refuses are left out.

    Args:
        memory_bytes: how much more address space the process may use than it does now.

    Returns:
        The names of the limits in force.
    """
    done = []
    # Threads, libraries and LLVM have reserved address space already; only growth is limited.
    limits = [
        ("memory", resource.RLIMIT_AS, _address_space() + memory_bytes),
        ("core", resource.RLIMIT_CORE, 0),
        ("file_size", resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
    ]
    for name, which, value in limits:
        _, hard = resource.getrlimit(which)
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(which, (wanted, wanted))
            done.append(name)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            done.append("no_new_privileges")
        if libc.unshare(_CLONE_NEWNET) == 0:
            done.append("no_network")
    return tuple(done)


def _address_space() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 8 << 30


def watch() -> None:
    """Have a fatal signal write where it struck to stderr, which the parent keeps."""
    with contextlib.suppress(ValueError, OSError, AttributeError):
        faulthandler.enable(all_threads=False)


def last_words(text: str) -> None:
    """Replace what stderr holds by ``text``: the parent reads it if this process dies.

    Only where stderr is the private file a worker has; a terminal or a log is left alone.
    """
    try:
        kind = os.fstat(2)
        if not stat.S_ISREG(kind.st_mode) or kind.st_nlink:
            return
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
        os.write(2, text.encode(errors="replace")[:3000] + b"\n")
    except OSError:
        return
