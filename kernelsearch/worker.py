"""An isolated process that runs candidates, may die at any moment, and is replaced when it does.

The parent starts ``python -m kernelsearch.worker_child`` (never a fork: threads and CUDA contexts
do not survive one, and never multiprocessing's re-import of the user's main script). Requests go
down as pickles, answers come back as checked JSON. Every call has a deadline; past it the whole
process group is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO, Self

from kernelsearch import wire
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    CandidateTimeoutError,
    CheatedError,
    KernelSearchError,
    SickDeviceError,
    TargetUnavailableError,
    WorkerError,
)
from kernelsearch.handover import blocks_of, harmless_environment, limit_cpu_time, send_blocks
from kernelsearch.locks import DeviceLock
from kernelsearch.protocols import Target
from kernelsearch.records import (
    Binary,
    CompileJob,
    RunReport,
    RunRequest,
    TimeReport,
    TimeRequest,
)
from kernelsearch.sandbox import refused_call

START_DEADLINE_S = 120.0
MAX_LOADED = 48
UNLOAD_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 2.0
# A device that a worker died on proves that it still computes before anything else runs there.
PROBE_DEADLINE_S = 30.0
PROBES = 3
PROBE_WAIT_S = 2.0
STDERR_TAIL = 4000
ALIVE = "closed its pipe"
# The word of a child that leaves the limit on its processor time to this process.
CPU_TIME = "cpu_time"


class ChildProcess:
    """One child process and the pipe to it. One owner calls it; any thread may ``interrupt``."""

    def __init__(self, target: Target, *, opens_device: bool) -> None:
        self._target = target
        self._opens_device = opens_device
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._stderr: BinaryIO | None = None
        self._closed = False
        self.starts = 0
        self.confinement: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        """Whether the child is alive (one that was killed while it was idle is not)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def call(self, method: str, payload: Any, deadline_s: float) -> Mapping[str, Any]:
        """Send a request and return the decoded answer.

        Raises:
            CandidateTimeoutError: no answer within ``deadline_s`` seconds; the child was killed.
            CandidateCrashedError: the child died while it worked on this request.
            WorkerError: the child cannot be started, or answered nonsense.
        """
        self.start()
        return self._exchange(method, payload, deadline_s)

    def start(self) -> None:
        """Start the child if there is none."""
        if self.running:
            return
        self.kill()
        if self._closed:
            raise WorkerError("the worker was closed while work was still waiting for it")
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        environment = harmless_environment(os.environ)
        if self._target.name == "cpu":
            # Threads of a library that no kernel uses would be there before files are locked away.
            environment["OPENBLAS_NUM_THREADS"] = environment["MKL_NUM_THREADS"] = "1"
        # Numba's code depends on the hash seed: with one seed, equal sources give equal code.
        environment["PYTHONHASHSEED"] = "0"
        # One thread more than are used, for those who are run with an extra one.
        threads = len(os.sched_getaffinity(0)) + 1
        environment.setdefault("NUMBA_NUM_THREADS", str(threads))
        root = str(Path(__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(
            p for p in (root, environment.get("PYTHONPATH", "")) if p
        )
        # A target may have its process run by a tool that watches it; that one is its parent then.
        launcher: tuple[str, ...] = getattr(self._target, "launcher", ())
        parent = "0" if launcher else str(os.getpid())
        try:
            self._process = subprocess.Popen(
                [*launcher, sys.executable, "-m", "kernelsearch.worker_child",
                 str(theirs.fileno()), parent],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=self._stderr,
                start_new_session=True, env=environment,
            )  # fmt: skip
        except OSError as error:
            ours.close()
            raise WorkerError(f"cannot start a worker process ({error.strerror})") from error
        finally:
            theirs.close()
        self._connection = Connection(ours.detach())
        self.starts += 1
        self.confinement = ()
        try:
            answer = self._exchange("open", (self._target, self._opens_device), START_DEADLINE_S)
            self.confinement = wire.confinement(answer)
        except CandidateTimeoutError as error:
            raise WorkerError(
                f"the worker did not start within {START_DEADLINE_S:.0f} s"
            ) from error
        except CandidateCrashedError as error:
            raise WorkerError(f"the worker died while it started: {error}") from error
        except CheatedError as error:
            # Nothing of a candidate's has run yet.
            self.kill()
            raise WorkerError(
                f"the limits of the worker do not suit this system: {error}; run "
                "`kernelsearch doctor` and report what it prints"
            ) from error
        except KernelSearchError:
            self.kill()
            raise

    def _exchange(self, method: str, payload: Any, deadline_s: float) -> Mapping[str, Any]:
        connection = self._connection
        assert connection is not None
        answered = False
        try:
            with _Deadline(self._process, deadline_s) as deadline:
                if CPU_TIME in self.confinement and self._process is not None:
                    limit_cpu_time(self._process.pid, deadline_s)
                # The child may not open files of this process: it is handed what it has to map.
                blocks = blocks_of(payload)
                connection.send_bytes(pickle.dumps((method, payload, blocks)))
                send_blocks(connection.fileno(), blocks)
                message = connection.recv_bytes(wire.MAX_MESSAGE_BYTES)
            answered = True
        except (EOFError, OSError) as error:
            if deadline.passed:
                raise CandidateTimeoutError(
                    f"no answer within {deadline_s:.1f} s; the process was killed",
                    {"deadline_s": deadline_s, "stage": method},
                ) from None
            evidence = self._post_mortem(method)
            _accuse(evidence, method)
            if evidence["cause"] == ALIVE and not isinstance(error, EOFError):
                raise WorkerError(f"the worker's answer cannot be read ({error})") from error
            raise CandidateCrashedError(
                f"the worker process died ({evidence['cause']}) during {method}", evidence
            ) from error
        finally:
            # Whatever ended it (Ctrl-C too): an answer still to come would be taken for the next.
            if not answered:
                self.kill()
        try:
            return wire.decode(message)
        except TargetUnavailableError as error:
            if method == "open":
                raise
            # Only a process that has run nothing is believed that there is no device.
            raise WorkerError(f"the worker lost its device during {method}: {error}") from error

    def _post_mortem(self, method: str) -> dict[str, Any]:
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        code = process.poll()
        if code is None:
            cause = ALIVE
        elif code < 0:
            try:
                cause = signal.Signals(-code).name
            except ValueError:
                cause = f"signal {-code}"
        else:
            cause = f"exit code {code}"
        tail = self._stderr_tail()
        return {"cause": cause, "stage": method, "stderr": tail}

    def _stderr_tail(self) -> str:
        if self._stderr is None:
            return ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL))
        return self._stderr.read().decode(errors="replace")

    def interrupt(self) -> None:
        """End the child for good; a call that waits for it fails. For other threads than the owner.

        Files are left to the owner, who may be reading them.
        """
        self._closed = True
        process = self._process
        if process is not None:
            _kill_group(process)

    def close(self) -> None:
        """End the child: an idle one goes by itself when its pipe closes, any other is killed."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            limit: float = getattr(self._target, "closing_s", CLOSE_DEADLINE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=limit)
        self.kill()

    def kill(self) -> None:
        """End the child and its process group at once, if there is one."""
        if self._process is not None:
            _kill_group(self._process)
            self._process.wait()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None


def _accuse(evidence: dict[str, Any], method: str) -> None:
    """Raise what a death proves against the candidate beyond having crashed."""
    if evidence["cause"] == "SIGSYS":
        call = refused_call(evidence["stderr"])
        evidence["system_call"] = call
        raise CheatedError(
            f"the process made a system call that no kernel needs ({call or 'unnamed'}) and was "
            f"ended during {method}",
            evidence,
        )
    if evidence["cause"] == "SIGXCPU":
        raise CandidateTimeoutError(
            f"the process used up its processor time during {method}", evidence
        )


class _Deadline:
    """Kills a process group when time is up, whatever its pipe is doing then.

    Waiting for the first byte would not do: a child can hang in the middle of its answer.
    """

    def __init__(self, process: subprocess.Popen[bytes] | None, deadline_s: float) -> None:
        self._process = process
        self._guard = threading.Lock()
        self._over = False
        self.passed = False
        self._timer = threading.Timer(min(deadline_s, threading.TIMEOUT_MAX), self._kill)
        self._timer.daemon = True

    def _kill(self) -> None:
        with self._guard:
            if not self._over and self._process is not None:
                self.passed = True
                _kill_group(self._process)

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._over = True
        self._timer.cancel()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child that was started in a session of its own, with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


class IsolatedRunner:
    """A ``protocols.Runner`` whose device lives in a child process.

    Holds the device's lock while a kernel runs, so that two studies on one device do not disturb
    each other's timings; waiting for the lock does not count against a deadline.
    """

    def __init__(self, target: Target, lock: DeviceLock | None = None) -> None:
        self._child = ChildProcess(target, opens_device=True)
        self._lock = lock
        self._wanted: OrderedDict[str, Binary] = OrderedDict()
        self._present: set[str] = set()
        self._device = target.device.name
        self._checked_starts = 0
        self._sick = ""
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._child.pid

    @property
    def starts(self) -> int:
        return self._child.starts

    def confinement(self) -> tuple[str, ...]:
        """Start the worker if there is none, and return the names of the limits it runs under."""
        self._ready()
        return self._child.confinement

    def load(self, binary: Binary, deadline_s: float) -> None:
        self._wanted[binary.key] = binary
        self._wanted.move_to_end(binary.key)
        while len(self._wanted) > MAX_LOADED:
            old, _ = self._wanted.popitem(last=False)
            self._drop(old)
        self._ensure(binary.key, deadline_s)

    def unload(self, key: str) -> None:
        self._wanted.pop(key, None)
        self._drop(key)

    def _drop(self, key: str) -> None:
        if key not in self._present or not self._child.running:
            self._present.discard(key)
            return
        self._present.discard(key)
        try:
            self._child.call("unload", key, UNLOAD_DEADLINE_S)
        except (CandidateError, WorkerError):
            # Whoever is loaded next is innocent of this: it gets a fresh process.
            self._forget()

    def run(self, request: RunRequest, deadline_s: float) -> RunReport:
        self._ensure(request.binary, deadline_s)
        with self._exclusive(), self._watched():
            return wire.run_report(self._child.call("run", request, deadline_s))

    def time(self, request: TimeRequest, deadline_s: float) -> TimeReport:
        for contender in request.contenders:
            self._ensure(contender.binary, deadline_s)
        with self._exclusive(), self._watched():
            report = wire.time_report(self._child.call("time", request, deadline_s))
            if len(report.samples_us) != len(request.contenders):
                raise WorkerError(
                    f"the worker timed {len(report.samples_us)} of {len(request.contenders)} "
                    "contenders"
                )
            return report

    def ceilings(self) -> dict[str, float]:
        """Measure the device's rates in the worker."""
        self._ready()
        with self._exclusive():
            answer = self._child.call("ceilings", None, START_DEADLINE_S)
        return wire.rates(answer)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Hold the device for work of another process; not while this one runs something."""
        return self._exclusive()

    def restart(self) -> None:
        """End the worker; the next call starts a fresh one."""
        self._forget()
        self.restarts += 1

    def close(self) -> None:
        self._child.close()
        self._present.clear()
        self._wanted.clear()

    def _ready(self) -> None:
        """Have a worker on a device that computes.

        Whatever ended the last worker may have left the device unusable, and the next candidate
        must not be blamed for that.

        Raises:
            SickDeviceError: the device fails its probe again and again; it is not used any more.
        """
        if self._sick:
            raise SickDeviceError(self._sick)
        if self._child.running:
            return
        self._present.clear()
        if not self._checked_starts:
            self._child.start()
            self._checked_starts = self._child.starts
            return
        for attempt in range(PROBES):
            time.sleep(PROBE_WAIT_S * attempt)
            try:
                with self._exclusive():
                    self._child.call("probe", None, PROBE_DEADLINE_S)
            except (CandidateError, WorkerError, TargetUnavailableError) as error:
                self._child.kill()
                reason = str(error)
            else:
                self._checked_starts = self._child.starts
                return
        self._sick = (
            f"the device {self._device} failed its health probe {PROBES} times after its worker "
            f"had ended ({reason}); it is not used any more. Look at it (`nvidia-smi -q` for a "
            "GPU), reset it or choose another"
        )
        raise SickDeviceError(self._sick)

    def _ensure(self, key: str, deadline_s: float) -> None:
        self._ready()
        if key in self._present:
            return
        if key not in self._wanted:
            raise WorkerError(f"binary {key} was never loaded; call load first")
        with self._watched():
            self._child.call("load", self._wanted[key], deadline_s)
        self._present.add(key)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Forget what was loaded when the child dies or loses its device."""
        try:
            yield
        except (CandidateTimeoutError, CandidateCrashedError, WorkerError):
            self._forget()
            raise
        except CandidateError as error:
            if error.evidence.get("sticky"):
                self._forget()
            raise

    def _forget(self) -> None:
        """End the worker, and with it all that it had loaded."""
        self._child.kill()
        self._present.clear()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        with self._lock.exclusive():
            yield


class CompileProcess:
    """A child that only compiles, with a deadline for each job (compilers can loop for ever)."""

    def __init__(self, target: Target, lock: DeviceLock | None = None) -> None:
        self._child = ChildProcess(target, opens_device=False)
        self._lock = lock if target.name == "cpu" else None

    def compile(self, job: CompileJob, deadline_s: float) -> Binary:
        """Compile one job in the child.

        Raises:
            CandidateError: it does not compile, takes longer than ``deadline_s``, or kills the
                compiler.
        """
        started = time.perf_counter()
        # On the CPU a compiler would disturb a timing: it shares the cores.
        guard = self._lock.shared() if self._lock is not None else contextlib.nullcontext()
        with guard:
            try:
                return wire.binary(self._child.call("compile", job, deadline_s), job)
            except WorkerError:
                # Whoever answers nonsense is not asked again.
                self._child.kill()
                raise
            except CandidateTimeoutError as error:
                raise CandidateTimeoutError(
                    f"the compiler did not finish within {deadline_s:.0f} s",
                    {**error.evidence, "stage": "compile",
                     "elapsed_s": round(time.perf_counter() - started, 3)},
                ) from None  # fmt: skip

    def interrupt(self) -> None:
        """End the compiler for good, from any thread; a job that runs in it fails."""
        self._child.interrupt()

    def close(self) -> None:
        self._child.close()
