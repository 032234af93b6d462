"""A CPU target whose candidates are plain Python: what a kernel could do that beat the allow-list.

The real worker, the real confinement, the real channel; only ``run`` executes the job's source in
the confined process. What it binds to ``said`` comes back; an ``OSError`` comes back as its name.
"""

from __future__ import annotations

import ctypes
import errno
import io
import mmap
import os
import resource
import signal
import socket
import struct
import threading
from dataclasses import dataclass
from typing import Any

from kernelsearch.records import Binary, CompileJob, RunReport, RunRequest, digest
from kernelsearch.targets.cpu import CpuExecutable, CpuTarget

# Imported here, because a confined process cannot read the folder that tests are started in.
_TOOLS: dict[str, Any] = {
    "ctypes": ctypes, "errno": errno, "io": io, "mmap": mmap, "os": os, "resource": resource,
    "signal": signal, "socket": socket, "struct": struct, "threading": threading,
}  # fmt: skip


def libc_call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call by number; raise what the kernel answers."""
    libc = ctypes.CDLL(None, use_errno=True)
    got = int(libc.syscall(ctypes.c_long(number), *(
        ctypes.c_long(a) if isinstance(a, int) else a for a in arguments
    )))  # fmt: skip
    if got < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got


@dataclass(frozen=True)
class EscapeTarget(CpuTarget):
    """Runs the source of a job as Python."""

    def compile(self, job: CompileJob) -> Binary:
        return Binary(key=job.key, job=job, image=job.source.encode(),
                      code_hash=digest(job.source), symbols={})  # fmt: skip

    def open(self) -> EscapeExecutable:
        return EscapeExecutable(self.device)


class EscapeExecutable(CpuExecutable):
    """Keeps sources instead of machine code."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._sources: dict[str, str] = {}

    def load(self, binary: Binary) -> None:
        self._sources[binary.key] = binary.image.decode()

    def unload(self, key: str) -> None:
        self._sources.pop(key, None)

    def run(self, request: RunRequest) -> RunReport:
        names: dict[str, Any] = {**_TOOLS, "call": libc_call, "said": "done"}
        try:
            exec(compile(self._sources[request.binary], "escape", "exec"), names)
        except OSError as error:
            names["said"] = "refused " + errno.errorcode.get(error.errno or 0, str(error))
        except RuntimeError as error:
            names["said"] = f"refused {error}"
        except ValueError as error:
            names["said"] = f"refused {error}"
        return RunReport(modified_inputs=(str(names["said"]),), elapsed_s=0.001)
