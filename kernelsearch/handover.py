"""What a child process is given: an environment, descriptors of shared blocks, processor time."""

from __future__ import annotations

import contextlib
import math
import os
import re
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelsearch.errors import WorkerError
from kernelsearch.records import BufferSpec, RunRequest, TimeRequest
from kernelsearch.shm import lent

# A shared block of this process, and whether the child writes to it.
Place = tuple[str, bool]

# What interpreters, loaders, thread pools and the CUDA driver read; nothing else is handed on.
_NEEDED = frozenset({
    "PATH", "HOME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
    "CONDA_PREFIX", "KERNELSEARCH_HOME", "XDG_CACHE_HOME",
})  # fmt: skip
_NEEDED_BEGINNINGS = (
    "LC_", "PYTHON", "NUMBA_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TBB_", "CUDA_",
    "NVIDIA_", "NVRTC_",
)  # fmt: skip
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
# An address with a password in it, a private key, well-known beginnings of access tokens.
_SECRET_VALUE = re.compile(
    r"://[^/\s]*:[^/\s]*@|-----BEGIN|\b(sk-|ghp_|gho_|github_pat_|glpat-|xox[a-z]-|AKIA|eyJ)\w{8}"
)
# Descriptors that follow a request in one go; the system allows 253.
_AT_ONCE = 200
# Starting threads and reading answers take some, and limits are whole seconds.
_CPU_SLACK_S = 2.0


def harmless_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a child needs, without those that look like secrets all the same.

    Args:
        environment: name = value, as in ``os.environ``.
    """
    return {
        name: value for name, value in environment.items()
        if (name in _NEEDED or name.startswith(_NEEDED_BEGINNINGS))
        and not _SECRET.search(name) and not _SECRET_VALUE.search(value)
    }  # fmt: skip


def limit_cpu_time(pid: int, deadline_s: float) -> None:
    """Let a child use no more processor time than a deadline allows on all processors.

    The deadline itself ends a child first, unless the parent is stopped meanwhile. Systems that
    refuse leave it at the deadline.
    """
    allowed = deadline_s * (os.cpu_count() or 1) + _CPU_SLACK_S
    with contextlib.suppress(OSError, ValueError, OverflowError):
        limit = math.ceil(_cpu_seconds(pid) + allowed)
        hard = resource.prlimit(pid, resource.RLIMIT_CPU)[1]
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_CPU, (limit, hard))


def _cpu_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def blocks_of(payload: Any) -> tuple[Place, ...]:
    """Return the shared blocks that a request names, each once."""
    specs: tuple[BufferSpec, ...] = ()
    if isinstance(payload, RunRequest):
        specs = payload.buffers
    elif isinstance(payload, TimeRequest):
        specs = tuple(s for group in (*payload.sets, *payload.captures) for s in group)
    places = [(s.source.path, False) for s in specs if s.source is not None]
    places += [(s.sink.path, True) for s in specs if s.sink is not None]
    return tuple(dict.fromkeys(places))


def send_blocks(channel: int, places: Sequence[Place]) -> None:
    """Send descriptors of blocks: for those that are only read, ones that cannot write.

    Args:
        channel: descriptor of a Unix stream socket; ``received_blocks`` reads from its other end.
        places: blocks of this process.
    """
    for start in range(0, len(places), _AT_ONCE):
        with contextlib.ExitStack() as stack:
            opened = []
            for path, writable in places[start : start + _AT_ONCE]:
                fd = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                opened.append(fd)
            with socket.socket(fileno=os.dup(channel)) as sender:
                socket.send_fds(sender, [b"\0"], opened)


@contextlib.contextmanager
def received_blocks(channel: socket.socket, places: Sequence[Place]) -> Iterator[None]:
    """Take the descriptors that follow a request, for ``shm.attach`` to use meanwhile.

    Raises:
        WorkerError: not all of them arrived.
    """
    descriptors: list[int] = []
    for start in range(0, len(places), _AT_ONCE):
        count = len(places[start : start + _AT_ONCE])
        descriptors += socket.recv_fds(channel, 1, count)[1]
    if len(descriptors) != len(places):
        for fd in descriptors:
            os.close(fd)
        raise WorkerError(
            f"{len(descriptors)} of {len(places)} shared blocks arrived; allow more open files "
            "(ulimit -n)"
        )
    with lent(dict(zip(places, descriptors, strict=True))):
        yield
