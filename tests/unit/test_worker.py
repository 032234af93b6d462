"""The worker survives whatever a candidate does, and says what it was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelsearch import worker
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    CandidateTimeoutError,
    CompileError,
    LaunchError,
    ResourceLimitError,
    SickDeviceError,
    TargetUnavailableError,
    WorkerError,
)
from kernelsearch.locks import DeviceLock
from kernelsearch.records import (
    BufferSpec,
    Contender,
    LaunchPlan,
    RunRequest,
    TimeRequest,
    TimingSettings,
)
from kernelsearch.shm import SharedBlock
from kernelsearch.worker import ChildProcess, CompileProcess, IsolatedRunner
from tests.support.fake_target import FakeTarget, job

DEADLINE = 60.0
PLAN = LaunchPlan(())


@pytest.fixture
def runner() -> Iterator[IsolatedRunner]:
    runner = IsolatedRunner(FakeTarget())
    yield runner
    runner.close()


def load(runner: IsolatedRunner, **behaviour: str) -> RunRequest:
    """Load a candidate that behaves as told and return the request that runs it."""
    binary = FakeTarget().compile(job(**behaviour))
    runner.load(binary, DEADLINE)
    return RunRequest(binary.key, PLAN, ())


def time_request(key: str, *more: str) -> TimeRequest:
    settings = TimingSettings(min_sample_us=1.0, budget_s=0.2)
    contenders = tuple(Contender(k, PLAN) for k in (key, *more))
    return TimeRequest(contenders, ((),), ((), ()), settings, 0)


def use(runner: IsolatedRunner, **behaviour: str) -> None:
    """Load, run and time a candidate."""
    request = load(runner, **behaviour)
    runner.run(request, DEADLINE)
    runner.time(time_request(request.binary), DEADLINE)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_an_honest_candidate_runs_and_is_timed(runner: IsolatedRunner) -> None:
    request = load(runner)
    assert runner.run(request, DEADLINE).elapsed_s == 0.001
    report = runner.time(time_request(request.binary), DEADLINE)
    assert set(report.samples_us[0]) == {10.0}
    assert report.captured_sets == (0, 0)
    assert runner.starts == 1


def test_outputs_come_back_through_shared_memory(runner: IsolatedRunner) -> None:
    request = load(runner)
    with SharedBlock(3 * 4096) as block:
        block.array("uint8", (5,), 4096)[:] = [1, 2, 3, 4, 255]
        source, sink = block.ref(4096, 5), block.ref(8192, 5)
        buffers = (
            BufferSpec("x", "uint8", (5,), "in", source=source),
            BufferSpec("y", "uint8", (5,), "out", sink=sink),
        )
        runner.run(RunRequest(request.binary, PLAN, buffers), DEADLINE)
        assert block.array("uint8", (5,), 8192).tolist() == [2, 3, 4, 5, 0]
        runner.run(RunRequest(request.binary, PLAN, buffers[1:], poison=0x5A), DEADLINE)
        assert block.array("uint8", (5,), 8192).tolist() == [0x5A] * 5


def test_more_blocks_than_go_over_at_once(runner: IsolatedRunner) -> None:
    request = load(runner)
    with contextlib.ExitStack() as stack:
        blocks = [stack.enter_context(SharedBlock(4096)) for _ in range(300)]
        sinks = tuple(
            BufferSpec(f"y{i}", "uint8", (4,), "out", sink=b.ref(0, 4))
            for i, b in enumerate(blocks)
        )
        for poison in (0x11, 0x22, 0x33, 0x44):  # more than a process may have open in all
            runner.run(RunRequest(request.binary, PLAN, sinks, poison=poison), DEADLINE)
            assert all((b.array("uint8", (4,)) == poison).all() for b in blocks)


@pytest.mark.parametrize("stage", ["load", "run", "time"])
@pytest.mark.parametrize(
    ("behaviour", "cause"),
    [("segv", "SIGSEGV"), ("abort", "SIGABRT"), ("exit 0", "exit code 0"),
     ("exit 3", "exit code 3")],
)  # fmt: skip
def test_death_is_the_candidates_and_the_next_one_runs(
    runner: IsolatedRunner, stage: str, behaviour: str, cause: str
) -> None:
    good = load(runner)
    with pytest.raises(CandidateCrashedError) as caught:
        use(runner, **{stage: behaviour})
    assert caught.value.evidence["cause"] == cause
    assert caught.value.evidence["stage"] == stage
    # The innocent one was loaded before the crash: it is loaded again without being asked.
    runner.run(good, DEADLINE)
    assert runner.starts == 2


@pytest.mark.parametrize("behaviour", ["hang", "spin", "half"])
def test_a_hang_ends_at_its_deadline(runner: IsolatedRunner, behaviour: str) -> None:
    good = load(runner)
    bad = load(runner, run=behaviour)
    pid = runner.pid
    assert pid is not None
    started = time.monotonic()
    with pytest.raises(CandidateTimeoutError, match=r"0\.5 s") as caught:
        runner.run(bad, 0.5)
    assert time.monotonic() - started < 5
    assert caught.value.evidence["stage"] == "run"
    assert not alive(pid)
    runner.run(good, DEADLINE)


def test_the_whole_process_group_is_killed(runner: IsolatedRunner, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    bad = load(runner, run=f"spawn_and_hang {note}")
    with pytest.raises(CandidateTimeoutError):
        runner.run(bad, 3.0)
    grandchild = int(note.read_text())
    assert eventually(lambda: not alive(grandchild))


@pytest.mark.parametrize(
    "name",
    ["RejectedError", "CompileError", "LaunchError", "ResourceLimitError", "CandidateCrashedError",
     "CandidateTimeoutError", "WrongResultError", "NondeterministicError", "CheatedError"],
)  # fmt: skip
def test_every_candidate_error_keeps_its_class(runner: IsolatedRunner, name: str) -> None:
    bad = load(runner, run=f"raise {name}")
    with pytest.raises(CandidateError) as caught:
        runner.run(bad, DEADLINE)
    assert type(caught.value).__name__ == name
    assert str(caught.value) == f"{name} on request"
    runner.run(load(runner), DEADLINE)


def test_an_ordinary_failure_keeps_the_worker(runner: IsolatedRunner) -> None:
    bad = load(runner, run="raise LaunchError")
    pid = runner.pid
    with pytest.raises(LaunchError):
        runner.run(bad, DEADLINE)
    assert runner.pid == pid


def test_a_sticky_error_costs_the_worker(runner: IsolatedRunner) -> None:
    good = load(runner)
    bad = load(runner, run="sticky")
    with pytest.raises(LaunchError):
        runner.run(bad, DEADLINE)
    runner.run(good, DEADLINE)
    assert runner.starts == 2


def test_a_memory_storm_is_a_resource_limit() -> None:
    runner = IsolatedRunner(FakeTarget(memory_bytes=1 << 30))
    try:
        bad = load(runner, run="leak")
        with pytest.raises((ResourceLimitError, CandidateCrashedError)):
            runner.run(bad, DEADLINE)
        runner.run(load(runner), DEADLINE)
    finally:
        runner.close()


@pytest.mark.parametrize("probing", ["raise WorkerError", "raise LaunchError", "hang", "segv"])
def test_a_device_that_stays_sick_is_not_used_any_more(
    monkeypatch: pytest.MonkeyPatch, probing: str
) -> None:
    monkeypatch.setattr(worker, "PROBE_DEADLINE_S", 0.5)
    monkeypatch.setattr(worker, "PROBE_WAIT_S", 0.0)
    runner = IsolatedRunner(FakeTarget(probing=probing))
    try:
        good = load(runner)
        runner.run(good, DEADLINE)  # a first worker has nothing to prove
        with pytest.raises(CandidateCrashedError):
            use(runner, run="segv")
        with pytest.raises(SickDeviceError, match="Fake 1 failed its health probe 3 times"):
            runner.run(good, DEADLINE)
        starts = runner.starts
        assert starts == 1 + worker.PROBES
        assert runner.pid is None
        for again in (lambda: runner.run(good, DEADLINE), lambda: load(runner), runner.ceilings):
            with pytest.raises(SickDeviceError):
                again()
        assert runner.starts == starts
    finally:
        runner.close()


def test_a_device_that_recovers_is_used_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker, "PROBE_WAIT_S", 0.0)
    runner = IsolatedRunner(FakeTarget(probing=f"lie_once {tmp_path / 'lied'}"))
    try:
        good = load(runner)
        with pytest.raises(CandidateCrashedError):
            use(runner, run="abort")
        monkeypatch.setattr(worker, "PROBE_DEADLINE_S", 1.0)
        assert runner.run(good, DEADLINE).elapsed_s == 0.001
        assert runner.starts == 3
    finally:
        runner.close()


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_floods_of_text_are_harmless(runner: IsolatedRunner, stream: str) -> None:
    flood = load(runner, run=f"flood {stream}", time="exit 1")
    assert runner.run(flood, DEADLINE).elapsed_s == 0.001
    with pytest.raises(CandidateCrashedError) as caught:
        runner.time(time_request(flood.binary), DEADLINE)
    assert len(str(caught.value.evidence["stderr"])) <= worker.STDERR_TAIL


@pytest.mark.parametrize(
    "answer",
    ["not json", "[]", "{}", '{"value": 3}', '{"value": {"elapsed_s": NaN}}', "\xff", "[" * 100_000,
     '{"value": {"corrupted_guards": [1], "modified_inputs": [], "elapsed_s": 1}}',
     '{"error": "SystemExit", "message": "boo"}', '{"error": ["x"]}'],
)  # fmt: skip
def test_lies_are_the_workers_failure_not_ours(runner: IsolatedRunner, answer: str) -> None:
    good = load(runner)
    bad = load(runner, run=f"lie {answer}")
    with pytest.raises(WorkerError):
        runner.run(bad, DEADLINE)
    runner.run(good, DEADLINE)


def test_an_announced_giant_answer_is_refused(runner: IsolatedRunner) -> None:
    bad = load(runner, run="huge")
    with pytest.raises(WorkerError, match="cannot be read"):
        runner.run(bad, DEADLINE)
    assert runner.pid is None


def test_a_bug_of_ours_leaves_its_traceback(runner: IsolatedRunner) -> None:
    bad = load(runner, run="bug")
    with pytest.raises(CandidateCrashedError) as caught:
        runner.run(bad, DEADLINE)
    assert "a bug of ours" in str(caught.value.evidence["stderr"])


def test_a_worker_killed_while_idle_is_replaced_and_nobody_is_blamed(
    runner: IsolatedRunner,
) -> None:
    request = load(runner)
    assert runner.pid is not None
    os.kill(runner.pid, signal.SIGKILL)
    # Its first thread is gone before its last one: only then does the system say that it ended.
    assert eventually(lambda: not runner._child.running)
    assert runner.run(request, DEADLINE).elapsed_s == 0.001
    assert runner.starts == 2


def test_no_secret_reaches_the_child(
    runner: IsolatedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ["ANTHROPIC_API_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PGPASSWORD",
               "my_secret", "SSH_AUTH_SOCK", "DATABASE_URL", "TOKEN"]  # fmt: skip
    for name in secrets:
        monkeypatch.setenv(name, "hush")
    monkeypatch.setenv("HARMLESS", "1")
    monkeypatch.setenv("OMP_PROC_BIND", "false")
    monkeypatch.setenv("CUDA_API_KEY", "hush")
    monkeypatch.setenv("PYTHON_INDEX", "https://me:hush@example.org")
    names = runner.run(load(runner, run="environment"), DEADLINE).modified_inputs
    assert {"PATH", "OMP_PROC_BIND"} <= set(names)
    assert not {"HARMLESS", "CUDA_API_KEY", "PYTHON_INDEX"} & set(names)
    assert not set(secrets) & set(names)


def test_the_child_limits_its_harm(runner: IsolatedRunner) -> None:
    facts = runner.run(load(runner, run="facts"), DEADLINE).modified_inputs
    assert "core=0" in facts
    assert "session=True" in facts
    assert "oom=1000" in facts
    assert "confined=True" in facts


def test_restart_gives_a_fresh_process_with_everything_loaded(runner: IsolatedRunner) -> None:
    request = load(runner)
    before = runner.pid
    runner.restart()
    assert runner.pid is None
    runner.run(request, DEADLINE)
    assert runner.pid not in (None, before)
    assert runner.restarts == 1


def test_closing_lets_an_idle_worker_go_by_itself(runner: IsolatedRunner, tmp_path: Path) -> None:
    note = tmp_path / "left"
    runner.run(load(runner, run=f"at_exit {note}"), DEADLINE)
    pid = runner.pid
    runner.close()
    assert note.read_text() == "went by itself"
    assert pid is not None
    assert not alive(pid)
    runner.close()


def test_closing_kills_a_worker_that_does_not_go(
    runner: IsolatedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "CLOSE_DEADLINE_S", 0.2)
    runner.run(load(runner, run="stay"), DEADLINE)
    pid = runner.pid
    started = time.monotonic()
    runner.close()
    assert time.monotonic() - started < 5
    assert pid is not None
    assert not alive(pid)


def test_a_binary_never_loaded_is_our_error(runner: IsolatedRunner) -> None:
    with pytest.raises(WorkerError, match="never loaded"):
        runner.run(RunRequest("unknown", PLAN, ()), DEADLINE)


def test_unload_forgets_and_a_hang_in_it_blames_nobody(
    runner: IsolatedRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "UNLOAD_DEADLINE_S", 0.3)
    good = load(runner)
    bad = load(runner, unload="hang")
    runner.unload(bad.binary)
    with pytest.raises(WorkerError):
        runner.run(bad, DEADLINE)
    runner.run(good, DEADLINE)
    runner.unload("unknown")


def test_only_so_many_stay_loaded(runner: IsolatedRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_LOADED", 2)
    first = load(runner, name="1")
    load(runner, name="2")
    load(runner, name="3")
    with pytest.raises(WorkerError, match="never loaded"):
        runner.run(first, DEADLINE)


def test_two_contenders_are_both_present_after_a_crash(runner: IsolatedRunner) -> None:
    a, b = load(runner, name="a"), load(runner, name="b")
    with pytest.raises(CandidateCrashedError):
        load(runner, load="segv")
    report = runner.time(time_request(a.binary, b.binary), DEADLINE)
    assert len(report.samples_us) == 2


@pytest.mark.parametrize(
    ("opening", "error"),
    [("raise TargetUnavailableError", TargetUnavailableError), ("exit 1", WorkerError),
     ("raise WorkerError", WorkerError), ("raise LaunchError", LaunchError),
     ("raise CheatedError", WorkerError)],
)  # fmt: skip
def test_a_device_that_does_not_open(opening: str, error: type[Exception]) -> None:
    runner = IsolatedRunner(FakeTarget(opening=opening))
    for _ in range(2):  # the second try starts a process of its own
        with pytest.raises(error):
            load(runner)
        assert runner.pid is None
    assert runner.starts == 2


def test_a_device_that_opens_too_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "START_DEADLINE_S", 1.0)
    runner = IsolatedRunner(FakeTarget(opening="hang"))
    with pytest.raises(WorkerError, match="did not start within 1 s"):
        load(runner)


def test_unknown_requests_are_refused() -> None:
    child = ChildProcess(FakeTarget(), opens_device=True)
    try:
        with pytest.raises(WorkerError, match="unknown request"):
            child.call("dance", None, DEADLINE)
    finally:
        child.kill()
    compiler = ChildProcess(FakeTarget(), opens_device=False)
    try:
        with pytest.raises(WorkerError, match="opened no device"):
            compiler.call("run", None, DEADLINE)
    finally:
        compiler.kill()


def test_the_device_lock_is_held_while_a_candidate_runs(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    runner = IsolatedRunner(FakeTarget(), lock)
    try:
        request = load(runner)
        order: list[str] = []
        with lock.exclusive():
            other = threading.Thread(target=lambda: (runner.run(request, 5.0), order.append("ran")))
            other.start()
            time.sleep(0.3)
            order.append("released")
        other.join(10)
        assert order == ["released", "ran"]
    finally:
        runner.close()


def test_ctrl_c_leaves_no_stale_answer() -> None:
    """An answer that arrives after an interrupt must not be taken for the next request's."""
    script = textwrap.dedent(
        """
        import os, signal, threading
        from kernelsearch.records import LaunchPlan, RunRequest
        from kernelsearch.worker import IsolatedRunner
        from tests.support.fake_target import FakeTarget, job
        runner, target = IsolatedRunner(FakeTarget()), FakeTarget()
        slow, facts = target.compile(job(run="sleep 1")), target.compile(job(run="facts"))
        for binary in (slow, facts):
            runner.load(binary, 60)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            runner.run(RunRequest(slow.key, LaunchPlan(()), ()), 60)
            raise SystemExit("was not interrupted")
        except KeyboardInterrupt:
            pass
        report = runner.run(RunRequest(facts.key, LaunchPlan(()), ()), 60)
        assert report.modified_inputs, report
        runner.close()
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_worker_dies_with_a_parent_that_is_killed() -> None:
    script = textwrap.dedent(
        """
        import time
        from kernelsearch.worker import IsolatedRunner
        from tests.support.fake_target import FakeTarget, job
        runner = IsolatedRunner(FakeTarget())
        runner.load(FakeTarget().compile(job()), 60)
        print(runner.pid, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(lambda: not alive(pid))


def test_compiling_in_a_child() -> None:
    compiler = CompileProcess(FakeTarget())
    try:
        binary = compiler.compile(job(), DEADLINE)
        assert binary == FakeTarget().compile(job())
        with pytest.raises(CompileError):
            compiler.compile(job(compile="raise CompileError"), DEADLINE)
        with pytest.raises(CandidateTimeoutError, match="compiler did not finish") as caught:
            compiler.compile(job(compile="hang"), 0.5)
        assert caught.value.evidence["stage"] == "compile"
        with pytest.raises(CandidateCrashedError) as crashed:
            compiler.compile(job(compile="segv"), DEADLINE)
        assert crashed.value.evidence["stage"] == "compile"
        assert compiler.compile(job(), DEADLINE).symbols == {"kernel": "_Zkernel"}
    finally:
        compiler.close()


def test_a_cpu_compiler_waits_for_timings(tmp_path: Path) -> None:
    lock = DeviceLock(tmp_path / "lock")
    compiler = CompileProcess(FakeTarget(name="cpu"), lock)
    try:
        compiler.compile(job(), DEADLINE)
        order: list[str] = []
        with lock.exclusive():
            other = threading.Thread(
                target=lambda: (compiler.compile(job(), 5.0), order.append("compiled"))
            )
            other.start()
            time.sleep(0.3)
            order.append("released")
        other.join(10)
        assert order == ["released", "compiled"]
    finally:
        compiler.close()
