"""An isolated process that runs candidates, may die at any moment, and is replaced when it does.

The parent starts ``python -m kernelsearch.worker_child`` (never a fork: threads and CUDA contexts
do not survive one, and never multiprocessing's re-import of the user's main script). Requests go down
as pickles, answers come back as checked JSON. Every call has a deadline; past it the whole process
group is killed.
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
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, BinaryIO

from kernelsearch import wire
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateTimeoutError,
    TargetUnavailableError,
    WorkerError,
)
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

START_DEADLINE_S = 120.0
MAX_LOADED = 48
STDERR_TAIL = 4000


class ChildProcess:
    """One child process and the pipe to it. Not thread-safe: one owner calls it."""

    def __init__(self, target: Target, *, opens_device: bool) -> None:
        self._target = target
        self._opens_device = opens_device
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._stderr: BinaryIO | None = None
        self.starts = 0

    @property
    def running(self) -> bool:
        return self._process is not None

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
        if self._process is not None and self._process.poll() is None:
            return
        self.kill()
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        environment = dict(os.environ)
        # The child needs no secrets; a candidate must not find any there.
        for name in [n for n in environment if n.endswith(("_API_KEY", "_TOKEN", "_SECRET"))]:
            del environment[name]
        root = str(Path(__file__).resolve().parent.parent)
        environment["PYTHONPATH"] = os.pathsep.join(
            p for p in (root, environment.get("PYTHONPATH", "")) if p
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kernelsearch.worker_child", str(theirs.fileno()),
                 str(os.getpid())],
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
        try:
            self._exchange("open", (self._target, self._opens_device), START_DEADLINE_S)
        except CandidateTimeoutError as error:
            raise WorkerError(
                f"the worker did not start within {START_DEADLINE_S:.0f} s"
            ) from error
        except CandidateCrashedError as error:
            raise WorkerError(f"the worker died while it started: {error}") from error
        except TargetUnavailableError:
            self.kill()
            raise

    def _exchange(self, method: str, payload: Any, deadline_s: float) -> Mapping[str, Any]:
        connection = self._connection
        assert connection is not None
        try:
            connection.send_bytes(pickle.dumps((method, payload)))
            if not connection.poll(deadline_s):
                self.kill()
                raise CandidateTimeoutError(
                    f"no answer within {deadline_s:.1f} s; the process was killed",
                    {"deadline_s": deadline_s, "stage": method},
                )
            message = connection.recv_bytes(wire.MAX_MESSAGE_BYTES)
        except (EOFError, ConnectionError, BrokenPipeError) as error:
            evidence = self._post_mortem(method)
            raise CandidateCrashedError(
                f"the worker process died ({evidence['cause']}) during {method}", evidence
            ) from error
        except OSError as error:
            self.kill()
            raise WorkerError(f"the worker's answer cannot be read ({error})") from error
        return wire.decode(message)

    def _post_mortem(self, method: str) -> dict[str, Any]:
        process = self._process
        assert process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        code = process.poll()
        if code is None:
            cause = "closed its pipe"
        elif code < 0:
            try:
                cause = signal.Signals(-code).name
            except ValueError:
                cause = f"signal {-code}"
        else:
            cause = f"exit code {code}"
        tail = self._stderr_tail()
        self.kill()
        return {"cause": cause, "stage": method, "stderr": tail}

    def _stderr_tail(self) -> str:
        if self._stderr is None:
            return ""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL))
        return self._stderr.read().decode(errors="replace")

    def kill(self) -> None:
        """End the child and its process group at once, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None


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
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._child.pid

    @property
    def starts(self) -> int:
        return self._child.starts

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
        if key in self._present:
            self._present.discard(key)
            with self._watched():
                self._child.call("unload", key, 30.0)

    def run(self, request: RunRequest, deadline_s: float) -> RunReport:
        self._ensure(request.binary, deadline_s)
        with self._exclusive(), self._watched():
            return wire.run_report(self._child.call("run", request, deadline_s))

    def time(self, request: TimeRequest, deadline_s: float) -> TimeReport:
        for contender in request.contenders:
            self._ensure(contender.binary, deadline_s)
        with self._exclusive(), self._watched():
            return wire.time_report(self._child.call("time", request, deadline_s))

    def restart(self) -> None:
        """End the worker; the next call starts a fresh one."""
        self._child.kill()
        self._present.clear()
        self.restarts += 1

    def close(self) -> None:
        self._child.kill()
        self._present.clear()
        self._wanted.clear()

    def _ensure(self, key: str, deadline_s: float) -> None:
        if not self._child.running:
            self._present.clear()
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
            self._child.kill()
            self._present.clear()
            raise
        except Exception as error:
            if getattr(error, "evidence", {}).get("sticky"):
                self._child.kill()
                self._present.clear()
            raise

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
                answer = self._child.call("compile", job, deadline_s)
            except CandidateTimeoutError as error:
                raise CandidateTimeoutError(
                    f"the compiler did not finish within {deadline_s:.0f} s",
                    {**error.evidence, "stage": "compile",
                     "elapsed_s": round(time.perf_counter() - started, 3)},
                ) from None  # fmt: skip
        return wire.binary(answer, job)

    def close(self) -> None:
        self._child.kill()
