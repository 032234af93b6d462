"""The filters as programs, and the looser one in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from kernelsearch import sandbox
from kernelsearch.sandbox_calls import _MACHINES
from kernelsearch.sandbox_files import readable_paths

ALLOW, REFUSE, TRAP, KILL = 0x7FFF0000, 0x00050001, 0x00030000, 0x80000000


def run(program: list[tuple[int, int, int, int]], arch: int, number: int, *arguments: int) -> int:
    """Interpret a filter as the kernel does."""
    data = {0: number, 4: arch}
    for i, value in enumerate(arguments):
        data[16 + 8 * i], data[20 + 8 * i] = value & 0xFFFFFFFF, value >> 32
    at = accumulator = 0
    while True:
        code, yes, no, constant = program[at]
        at += 1
        match code:
            case 0x20:
                accumulator = data.get(constant, 0)
            case 0x15:
                at += yes if accumulator == constant else no
            case 0x35:
                at += yes if accumulator >= constant else no
            case 0x45:
                at += yes if accumulator & constant else no
            case 0x06:
                return constant


@pytest.mark.parametrize("machine", sorted(_MACHINES))
def test_what_the_strict_filter_answers(machine: str) -> None:
    arch, numbers = _MACHINES[machine]
    program = sandbox.filter_program(arch, numbers, 77)
    assert len(program) < 4096

    def ask(name: str, *arguments: int) -> int:
        return run(program, arch, numbers[name], *arguments)

    assert ask("mmap") == ask("futex") == ask("read") == ALLOW
    assert ask("clone", 0x3D0F00) == ALLOW
    assert ask("clone", 17) == TRAP
    assert ask("openat", 0, 0, 0) == ALLOW
    assert ask("openat", 0, 0, os.O_RDWR) == ask("openat", 0, 0, os.O_CREAT) == REFUSE
    assert ask("kill", 77, 6) == ALLOW
    assert ask("kill", 78, 6) == ask("kill", (1 << 32) - 1, 9) == TRAP
    assert ask("prlimit64", 0, 7, 0) == ALLOW
    assert ask("prlimit64", 0, 7, 1 << 40) == ask("prlimit64", 0, 7, 4) == TRAP
    assert ask("rt_sigaction", 31) == KILL
    assert ask("rt_sigaction", 11) == ALLOW
    assert ask("socket", 2) == TRAP
    assert run(program, arch, 9999) == REFUSE
    assert run(program, 1, numbers["read"]) == KILL


@pytest.mark.parametrize("machine", sorted(_MACHINES))
def test_what_the_filter_beside_a_driver_answers(machine: str) -> None:
    arch, numbers = _MACHINES[machine]
    program = sandbox.driver_program(arch, numbers)
    for name in ("execve", "ptrace", "mount", "io_uring_setup"):
        assert run(program, arch, numbers[name]) == REFUSE
    for name in ("ioctl", "mmap", "clone", "openat"):
        assert run(program, arch, numbers[name]) == ALLOW
    assert [run(program, arch, numbers["socket"], f) for f in (1, 2, 10)] == [
        ALLOW, REFUSE, REFUSE,
    ]  # fmt: skip
    assert run(program, 1, numbers["ioctl"]) == KILL


@pytest.mark.skipif(not sandbox.offered()["seccomp"], reason="this system offers no seccomp")
def test_the_filter_beside_a_driver_in_a_process() -> None:
    script = """
    import os, socket, threading
    from kernelsearch.sandbox import refuse_calls
    assert refuse_calls()
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.socket(family)
        except PermissionError:
            continue
        raise SystemExit("a socket was opened")
    try:
        os.execv("/bin/true", ["true"])
    except PermissionError:
        pass
    threading.Thread(target=print, args=("threads start",)).start()
    socket.socketpair()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "threads start" in done.stdout


def test_private_folders_are_not_readable() -> None:
    paths = {os.path.realpath(p) for p in readable_paths()}
    home = os.path.realpath(os.path.expanduser("~"))
    assert not any(home == p or home.startswith(p.rstrip("/") + "/") for p in paths)
    assert os.path.realpath(os.getcwd()) not in paths
    assert os.path.realpath(os.environ["KERNELSEARCH_HOME"]) not in paths
