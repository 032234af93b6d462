"""Take from this process, for good, the system calls and capabilities that a kernel never needs.

A seccomp filter leaves only the calls that memory, threads and answers need (``restrict_calls``),
or, beside a device driver, refuses only the most dangerous ones (``refuse_calls``). Descriptors
that are open already stay usable. Nothing here can be undone, by us or by what runs here later.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import struct
import sys
from collections.abc import Iterable, Mapping

from kernelsearch.sandbox_calls import call_name, machine_calls
from kernelsearch.sandbox_files import landlock_version

# What the handler of a refused call writes before the process dies (see ``cpu_guard``).
REFUSED = "refused system call "
SIGSYS = 31

# --- system calls -------------------------------------------------------------------------------

# Memory, threads, time, reading, and writing to what is open: what Python, Numba and LLVM do while
# they compile and compute.
_ALLOWED = """
    futex sched_yield clock_gettime clock_getres gettimeofday time nanosleep clock_nanosleep
    read write readv writev pread64 pwrite64 lseek close close_range dup dup2 dup3 recvmsg
    fstat stat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 getcwd chdir fchdir
    getdents getdents64 readlink readlinkat fadvise64 readahead umask poll ppoll select
    pselect6 brk mmap munmap mprotect mremap madvise msync mincore membarrier get_mempolicy
    rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait sigaltstack restart_syscall exit
    exit_group set_tid_address set_robust_list get_robust_list rseq arch_prctl getpid gettid getppid
    getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid getpriority
    uname sysinfo getrusage times getcpu getrandom getrlimit capget sched_getaffinity
    sched_setaffinity sched_getparam sched_getscheduler sched_get_priority_max
    sched_get_priority_min
"""
# Nothing of ours makes these: whoever does is ended by SIGSYS, and the call is named.
_KILLED = """
    execve execveat fork vfork ptrace process_vm_readv process_vm_writev process_madvise
    process_mrelease kcmp pidfd_open pidfd_getfd pidfd_send_signal tkill rt_sigqueueinfo
    rt_tgsigqueueinfo mount umount2 move_mount open_tree fsopen fsmount fsconfig fspick
    mount_setattr pivot_root chroot setns unshare bpf perf_event_open userfaultfd add_key
    request_key keyctl io_uring_setup io_uring_enter io_uring_register init_module finit_module
    delete_module kexec_load kexec_file_load reboot swapon swapoff sethostname setdomainname
    settimeofday clock_settime clock_adjtime adjtimex acct quotactl syslog vhangup fanotify_init
    open_by_handle_at name_to_handle_at setuid setgid setreuid setregid setresuid setresgid
    setgroups setfsuid setfsgid capset seccomp setrlimit iopl ioperm modify_ldt unlink unlinkat
    rename renameat renameat2 link linkat symlink symlinkat mkdir mkdirat rmdir mknod mknodat chmod
    fchmod fchmodat fchmodat2 chown fchown lchown fchownat truncate setxattr bind listen accept
    accept4 connect socketpair setsid setpgid move_pages migrate_pages
"""
# What a driver and a runtime compiler never make once they have started: refused with an error, so
# that whoever tries out of habit goes on. io_uring would open sockets past the filter.
_REFUSED_BESIDE_DRIVER = """
    execve execveat ptrace process_vm_readv process_vm_writev pidfd_getfd mount umount2 move_mount
    open_tree fsopen fsmount fsconfig fspick mount_setattr pivot_root chroot setns unshare bpf
    add_key request_key keyctl io_uring_setup init_module finit_module delete_module kexec_load
    kexec_file_load reboot swapon swapoff sethostname setdomainname settimeofday clock_settime
    clock_adjtime adjtimex acct quotactl vhangup fanotify_init open_by_handle_at iopl ioperm
    modify_ldt
"""
# IPv4, IPv6, raw packets, Bluetooth, hosts of virtual machines.
_NETWORKS = (2, 10, 17, 31, 40)
_CLONE_THREAD = 0x10000
# write-only, read-write, create, truncate (the same on both processors)
_OPEN_WRITES = 0o1 | 0o2 | 0o100 | 0o1000
_AF_UNIX = 1
# Duplicate, close-on-exec and status flags; owners and signals of a descriptor are not among them.
_FCNTL = (0, 1, 2, 3, 4, 1030)
# Terminal or not, close-on-exec and its opposite, bytes waiting, blocking.
_IOCTL = (0x5401, 0x5451, 0x5450, 0x541B, 0x5421)
# Names of threads and of mappings.
_PRCTL = (15, 16, 0x53564D41)

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_DO_ALLOW, _DO_KILL, _DO_TRAP, _DO_REFUSE = 0x7FFF0000, 0x80000000, 0x00030000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000
_ARCH_X86_64 = 0xC000003E
_SET_MODE_FILTER, _FLAG_TSYNC = 1, 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_GET_SECCOMP = 21

Instruction = tuple[int, int, int, int]


def _return(action: int) -> Instruction:
    return (_RETURN, 0, 0, action)


def _load_argument(index: int) -> Instruction:
    # The low half: both processors are little-endian, and flags and numbers fit 32 bits.
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _among(index: int, values: Iterable[int], yes: int, no: int) -> list[Instruction]:
    """Return code that does ``yes`` if an argument is one of ``values``, else ``no``."""
    code = [_load_argument(index)]
    for value in values:
        code += [(_JUMP_EQUAL, 0, 1, value), _return(yes)]
    return [*code, _return(no)]


def _with_bits(index: int, bits: int, yes: int, no: int) -> list[Instruction]:
    """Return code that does ``yes`` if an argument has any of ``bits``, else ``no``."""
    return [_load_argument(index), (_JUMP_ANY, 0, 1, bits), _return(yes), _return(no)]


def _rules(pid: int) -> dict[str, list[Instruction]]:
    refuse = _DO_REFUSE | _EPERM
    rules = {name: [_return(_DO_ALLOW)] for name in _ALLOWED.split()}
    rules |= {name: [_return(_DO_TRAP)] for name in _KILLED.split()}
    rules |= {
        # Flags of clone3 lie in memory, where a filter cannot look: callers fall back on clone.
        "clone3": [_return(_DO_REFUSE | _ENOSYS)],
        "clone": _with_bits(0, _CLONE_THREAD, _DO_ALLOW, _DO_TRAP),
        "open": _with_bits(1, _OPEN_WRITES, refuse, _DO_ALLOW),
        "openat": _with_bits(2, _OPEN_WRITES, refuse, _DO_ALLOW),
        "openat2": [_return(_DO_REFUSE | _ENOSYS)],
        "creat": [_return(refuse)],
        "fcntl": _among(1, _FCNTL, _DO_ALLOW, refuse),
        "ioctl": _among(1, _IOCTL, _DO_ALLOW, refuse),
        "prctl": _among(0, _PRCTL, _DO_ALLOW, refuse),
        # A process may end itself (abort), and no other.
        "kill": _among(0, [pid], _DO_ALLOW, _DO_TRAP),
        "tgkill": _among(0, [pid], _DO_ALLOW, _DO_TRAP),
        # Reading limits is harmless: the pointer to new ones must be null, in both halves.
        "prlimit64": [
            _load_argument(2), (_JUMP_EQUAL, 1, 0, 0), _return(_DO_TRAP),
            (_LOAD, 0, 0, _ARGUMENTS + 8 * 2 + 4), (_JUMP_EQUAL, 1, 0, 0), _return(_DO_TRAP),
            _return(_DO_ALLOW),
        ],
        # Last words are written anew into stderr.
        "ftruncate": _among(0, [2], _DO_ALLOW, refuse),
        # Whoever replaces the handler that names refused calls dies without it.
        "rt_sigaction": _among(0, [SIGSYS], _DO_KILL, _DO_ALLOW),
        # The C library asks a local daemon for names; nothing of ours speaks to a network.
        "socket": _among(0, [_AF_UNIX], refuse, _DO_TRAP),
    }  # fmt: skip
    return rules


def filter_program(arch: int, numbers: Mapping[str, int], pid: int) -> list[Instruction]:
    """Return the strict filter as BPF instructions ``(code, if true, if false, constant)``.

    Args:
        arch: the processor's AUDIT_ARCH; calls through any other interface kill.
        numbers: of its system calls, by name.
        pid: of the process that will install it.
    """
    return _assembled(arch, numbers, _rules(pid), _DO_REFUSE | _EPERM)


def driver_program(arch: int, numbers: Mapping[str, int]) -> list[Instruction]:
    """Return the filter for a process with a device driver in it (see ``filter_program``)."""
    refuse = _DO_REFUSE | _EPERM
    rules = {name: [_return(refuse)] for name in _REFUSED_BESIDE_DRIVER.split()}
    rules["socket"] = _among(0, _NETWORKS, refuse, _DO_ALLOW)
    return _assembled(arch, numbers, rules, _DO_ALLOW)


def _assembled(
    arch: int, numbers: Mapping[str, int], rules: Mapping[str, list[Instruction]], otherwise: int
) -> list[Instruction]:
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH), (_JUMP_EQUAL, 1, 0, arch), _return(_DO_KILL), (_LOAD, 0, 0, _NUMBER),
    ]  # fmt: skip
    if arch == _ARCH_X86_64:
        # The same numbers with this bit are the calls of a second interface.
        code += [(_JUMP_AT_LEAST, 0, 1, _X32), _return(_DO_KILL)]
    for name, rule in rules.items():
        if name in numbers:
            code += [(_JUMP_EQUAL, 0, len(rule), numbers[name]), *rule]
    return [*code, _return(otherwise)]


def restrict_calls() -> bool:
    """Leave every thread of this process only what a kernel needs; whether that could be done.

    A call that no kernel needs ends the process by SIGSYS; others that are not allowed fail.
    """
    known = machine_calls()
    return known is not None and _install(filter_program(*known, os.getpid()), known[1])


def refuse_calls() -> bool:
    """Refuse programs, networks, other processes and mounts; whether that could be done.

    For processes with a device driver, which needs far more calls than a kernel on the CPU.
    """
    known = machine_calls()
    return known is not None and _install(driver_program(*known), known[1])


def _install(program: list[Instruction], numbers: Mapping[str, int]) -> bool:
    if sys.platform != "linux":
        return False
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in program)
    held = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: a length, and a pointer behind padding
    header = struct.pack("@HP", len(program), ctypes.addressof(held))
    libc = _libc()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    done: int = libc.syscall(
        ctypes.c_long(numbers["seccomp"]), ctypes.c_ulong(_SET_MODE_FILTER),
        ctypes.c_ulong(_FLAG_TSYNC), header,
    )  # fmt: skip
    return done == 0


def refused_call(stderr: str) -> str:
    """Return the name of the call that the handler wrote of last, "" if it wrote of none."""
    found = re.findall(rf"{REFUSED}(\d+)", stderr)
    return call_name(int(found[-1])) if found else ""


# --- privileges ---------------------------------------------------------------------------------

_CAPABILITY_VERSION = 0x20080522
_CAP_DAC_READ_SEARCH = 1 << 2


def drop_capabilities(*, keep_reading: bool) -> bool:
    """Give up every capability for good; whether that could be done.

    Args:
        keep_reading: keep reading files of others, for where Landlock says which.
    """
    if sys.platform != "linux":
        return False
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    libc = _libc()
    if libc.capget(header, held) != 0:
        return False
    kept = _CAP_DAC_READ_SEARCH if keep_reading else 0
    permitted = struct.unpack("=6I", held.raw)[1] & kept
    wanted = struct.pack("=6I", permitted, permitted, 0, 0, 0, 0)
    done: int = libc.capset(header, wanted)
    return done == 0


def address_space() -> int:
    """Return how many bytes of addresses this process uses: limits are set above that."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 8 << 30


def offered() -> dict[str, str]:
    """Return layer = what this system offers of it, "" where it offers nothing."""
    version = landlock_version()
    seccomp = sys.platform == "linux" and _libc().prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) >= 0
    known = machine_calls() is not None
    return {
        "seccomp": platform.machine() if seccomp and known else "",
        "landlock": f"version {version}" if version else "",
    }


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
