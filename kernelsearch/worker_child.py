"""The child side of ``worker.py``: open the target, then answer requests until the pipe closes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import Any

from kernelsearch import wire
from kernelsearch.errors import KernelSearchError, WorkerError
from kernelsearch.handover import received_blocks
from kernelsearch.protocols import Executable, Target

_PR_SET_PDEATHSIG = 1
# Enough for any compiler cache; a flood of messages must not fill the disk.
MAX_FILE_BYTES = 1 << 30
# Of this machine's memory, what a candidate may take before it is its own failure.
MEMORY_SHARE = 0.75


def main(arguments: list[str]) -> int:
    """Serve requests on the pipe whose file descriptor is ``arguments[0]``."""
    _die_with_parent(int(arguments[1]))
    _limit_harm()
    connection = Connection(int(arguments[0]))
    # The same pipe, for descriptors; made now, because questions about sockets are refused later.
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, os.dup(int(arguments[0])))
    server = _Server()
    while True:
        try:
            request = connection.recv_bytes()
        except (EOFError, ConnectionError):
            return 0
        # The parent is trusted: it pickles what it wants done.
        method, payload, blocks = pickle.loads(request)
        try:
            with received_blocks(channel, blocks):
                answer = wire.encode_answer(server.serve(method, payload))
        except KernelSearchError as error:
            answer = wire.encode_failure(error)
        except MemoryError:
            answer = wire.encode_failure(_memory_error(method))
        connection.send_bytes(answer)


class _Server:
    def __init__(self) -> None:
        self._target: Target | None = None
        self._executable: Executable | None = None

    def serve(self, method: str, payload: Any) -> Any:
        if method == "open":
            self._target, opens_device = payload
            if opens_device:
                assert self._target is not None
                self._executable = self._target.open()
            # A compiler has less to give up, and can be made to grow without end as well.
            confine = getattr(self._executable or self._target, "confine", None)
            if getattr(self._target, "launcher", ()):
                confine = None  # a tool in this process needs what would be given up
            names = confine(int(MEMORY_SHARE * _physical_memory())) if confine is not None else None
            return {"confined": list(names or ())}
        if method == "compile":
            assert self._target is not None
            return self._target.compile(payload)
        executable = self._executable
        if executable is None:
            raise WorkerError(f"{method} was asked of a worker that opened no device")
        match method:
            case "load":
                return executable.load(payload)
            case "unload":
                return executable.unload(payload)
            case "run":
                return executable.run(payload)
            case "time":
                return executable.time(payload)
            case "ceilings":
                return executable.ceilings()
            case "probe":
                probe = getattr(executable, "probe", None)
                return probe() if probe is not None else None
        raise WorkerError(f"unknown request {method!r}")


def _limit_harm() -> None:
    """Write no core dump and no endless file; be the first to go when memory runs out."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = MAX_FILE_BYTES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILE_BYTES)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _physical_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _memory_error(method: str) -> KernelSearchError:
    from kernelsearch.errors import ResourceLimitError

    return ResourceLimitError(f"the worker ran out of memory during {method}", {"stage": method})


def _die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent goes, however it goes (0: any parent)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
