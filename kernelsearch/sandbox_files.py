"""Take from this process, for good, files that a kernel never needs: Landlock, where it is offered.

Needs no privileges and no dependency. Descriptors that are open already stay usable. It holds for
the calling thread and those it starts later, not for threads that run already.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from kernelsearch.home import home

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
# Every right that a version knows is taken away.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_NETWORK_BIND_CONNECT = 0b11
_SCOPE_SOCKETS_SIGNALS = 0b11
_O_PATH = 0o10000000
_PR_SET_NO_NEW_PRIVS = 38

_SYSTEM = (
    "/usr", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime", "/dev/null",
    "/dev/zero", "/dev/urandom", "/dev/random", "/proc/self", "/proc/cpuinfo", "/proc/meminfo",
    "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system", "/sys/kernel/mm/transparent_hugepage", "/sys/fs/cgroup",
)  # fmt: skip


def landlock_version() -> int:
    """Return the version of Landlock that this kernel offers, 0 if it offers none."""
    if sys.platform != "linux":
        return 0
    version: int = _libc().syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG)
    )
    return max(0, version)


def restrict_files(readable: Iterable[Path | str]) -> bool:
    """Leave only reading below ``readable``.

    Version 4 and later also takes away connecting to ports, version 6 signals to other processes;
    every version takes away looking into processes outside. Paths that do not exist are left out.

    Returns:
        Whether the kernel offers that.
    """
    version = landlock_version()
    if not version:
        return False
    attributes = struct.pack("=Q", _RIGHTS[max(v for v in _RIGHTS if v <= version)])
    if version >= 4:
        attributes += struct.pack("=Q", _NETWORK_BIND_CONNECT)
    if version >= 6:
        attributes += struct.pack("=Q", _SCOPE_SOCKETS_SIGNALS)
    libc = _libc()
    ruleset: int = libc.syscall(
        ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(len(attributes)),
        ctypes.c_uint32(0),
    )  # fmt: skip
    if ruleset < 0:
        return False
    try:
        for path in readable:
            _allow_reading(libc, ruleset, path)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        done: int = libc.syscall(
            ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint32(0)
        )
        return done == 0
    finally:
        os.close(ruleset)


def _allow_reading(libc: ctypes.CDLL, ruleset: int, path: Path | str) -> None:
    try:
        opened = os.open(path, _O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = _READ_FILE | (_READ_FOLDER if os.path.isdir(path) else 0)
        rule = struct.pack("=Qi", rights, opened)
        libc.syscall(
            ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), rule,
            ctypes.c_uint32(0),
        )  # fmt: skip
    finally:
        os.close(opened)


def readable_paths() -> list[str]:
    """Return what an interpreter may still have to read: itself, libraries, facts of the machine.

    The current folder, a checkout that this package lies in, and folders that hold the user's home
    or this package's are not among them, whatever the module path says: they hold what a kernel
    must not see.
    """
    package = Path(__file__).resolve().parent
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    installed = set(sysconfig.get_paths().values())
    private = {os.path.realpath(os.getcwd()), str(package.parent)}
    folders |= {p for p in sys.path if p and os.path.realpath(p) not in private} | installed
    folders |= {os.path.dirname(p) for p in _mapped_files()}
    hidden = [os.path.realpath(os.path.expanduser("~")), str(home().resolve())]
    kept = [p for p in sorted(folders)
            if not any(_holds(os.path.realpath(p), h) for h in hidden)]  # fmt: skip
    return [*_SYSTEM, *kept, str(package), *(f"{package.parent}/{n}" for n in _DATA)]


# Shipped files, which lie beside the package in a checkout.
_DATA = ("operators", "templates", "studies")


def _holds(folder: str, inner: str) -> bool:
    """Whether ``inner`` is ``folder`` or lies below it."""
    return inner == folder or inner.startswith(folder.rstrip("/") + "/")


def _mapped_files() -> set[str]:
    """Return the libraries that are loaded: others from their folders may follow."""
    found: set[str] = set()
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if path and not path.endswith(" (deleted)"):
                found.add("/" + path)
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
