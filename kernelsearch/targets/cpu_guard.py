"""Confine the worker process, and leave a word about what was running if it dies."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

from kernelsearch import sandbox, sandbox_files
from kernelsearch.sandbox_calls import machine_calls

MAX_FILE_BYTES = 16 << 20
MAX_OPEN_FILES = 1024
MAX_MORE_THREADS = 4096
_CLONE_NEWNET = 0x40000000
_PR_SET_NO_NEW_PRIVS = 38


def confine(memory_bytes: int, prepare: Callable[[], None] | None = None) -> tuple[str, ...]:
    """Take away from this process what a kernel does not need.

    Call it once, after Numba is imported and before threads are started. What this system does not
    offer or refuses is left out.

    Args:
        memory_bytes: how much more address space the process may use than it does now.
        prepare: starts what reserves memory that is not the candidate's (threads); called when
            files are out of reach and memory is not yet limited.

    Returns:
        The names of the limits in force.
    """
    done = []
    # An import would write its cached bytecode, and the folder a program was started in is not
    # readable any more.
    sys.dont_write_bytecode = True
    _name_refused_calls()
    threads = _threads_of_user()
    files = sandbox_files.restrict_files(sandbox_files.readable_paths())
    if files:
        done.append("files")
    if prepare is not None:
        prepare()
    # Threads, libraries and LLVM have reserved address space already; only growth is limited.
    limits = [
        ("memory", resource.RLIMIT_AS, sandbox.address_space() + memory_bytes),
        ("core", resource.RLIMIT_CORE, 0),
        ("file_size", resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        ("open_files", resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        # Counts all processes and threads of this user, whose others may come and go.
        ("processes", resource.RLIMIT_NPROC, threads + MAX_MORE_THREADS),
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
    if sandbox.drop_capabilities(keep_reading=files):
        done.append("no_capabilities")
    if sandbox.restrict_calls():
        done.append("system_calls")
    # The parent sets this one for each request.
    done.append("cpu_time")
    return tuple(done)


# Writes the number of the refused call (bytes 24 to 27 of what a handler is told) to stderr, then
# makes a call that ends the process by SIGSYS whoever handles that: setting a handler for SIGSYS.
_HANDLER = """
@text = internal global [{length} x i8] c"{text}0000\\0A"
declare i64 @write(i32, ptr, i64)
declare i64 @syscall(i64, i64, i64, i64, i64)
declare void @_exit(i32)

define void @refused(i32 %signal, ptr %info, ptr %context) {{
entry:
  %place = getelementptr i8, ptr %info, i64 24
  %number = load i32, ptr %place
  br label %digit
digit:
  %at = phi i64 [ {last}, %entry ], [ %next, %digit ]
  %rest = phi i32 [ %number, %entry ], [ %left, %digit ]
  %value = urem i32 %rest, 10
  %left = udiv i32 %rest, 10
  %byte = trunc i32 %value to i8
  %sign = add i8 %byte, 48
  %spot = getelementptr i8, ptr @text, i64 %at
  store i8 %sign, ptr %spot
  %next = sub i64 %at, 1
  %more = icmp uge i64 %next, {first}
  br i1 %more, label %digit, label %tell
tell:
  %written = call i64 @write(i32 2, ptr @text, i64 {length})
  %ended = call i64 @syscall(i64 {sigaction}, i64 {sigsys}, i64 0, i64 0, i64 8)
  call void @_exit(i32 159)
  ret void
}}
"""
_SA_SIGINFO = 4
_kept: list[Any] = []


def _name_refused_calls() -> None:
    """Have a refused system call named on stderr before it ends the process, where possible."""
    known = machine_calls()
    if known is None or sys.platform != "linux":
        return
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    first = len(sandbox.REFUSED)
    text = _HANDLER.format(
        text=sandbox.REFUSED, length=first + 5, first=first, last=first + 3,
        sigaction=known[1]["rt_sigaction"], sigsys=sandbox.SIGSYS,
    )  # fmt: skip
    try:
        module = llvm.parse_assembly(text)
    except RuntimeError:
        return  # an LLVM with typed pointers: the process ends without a word
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _kept.append(engine)
    # struct sigaction: handler, 1024 bits of mask, flags, restorer
    action = struct.pack("@P128siP", engine.get_function_address("refused"), b"", _SA_SIGINFO, 0)
    ctypes.CDLL(None).sigaction(sandbox.SIGSYS, action, None)


def _threads_of_user() -> int:
    """Return how many threads the processes of this user have, as far as they can be seen."""
    count, user = 0, os.getuid()
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == user:
                    count += os.stat(f"/proc/{entry.name}/task").st_nlink - 2
    return count


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
