"""The compile pool: one future a job, a hanging compiler costs only its own job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelsearch.dispatch import CompilePool
from kernelsearch.errors import CandidateTimeoutError, CompileError, KernelSearchError, WorkerError
from tests.support.fake_target import FakeTarget, job


@pytest.fixture
def pool() -> Iterator[CompilePool]:
    pool = CompilePool(FakeTarget(), size=2, deadline_s=20.0)
    yield pool
    pool.close()


def test_identical_jobs_share_one_future(pool: CompilePool, tmp_path: Path) -> None:
    note = tmp_path / "count"
    first = pool.submit(job(compile=f"count {note}"))
    assert pool.submit(job(compile=f"count {note}")) is first
    first.result(60)
    assert pool.submit(job(compile=f"count {note}")) is first
    assert len(note.read_text().splitlines()) == 1
    pool.forget(job(compile=f"count {note}"))
    pool.submit(job(compile=f"count {note}")).result(60)
    assert len(note.read_text().splitlines()) == 2
    pool.forget(job(compile="never submitted"))


def test_a_failure_is_the_futures(pool: CompilePool) -> None:
    bad = pool.submit(job(compile="raise CompileError"))
    good = pool.submit(job())
    with pytest.raises(CompileError):
        bad.result(60)
    assert good.result(60).symbols == {"kernel": "_Zkernel"}


def test_a_hanging_compiler_is_killed_and_the_others_go_on() -> None:
    pool = CompilePool(FakeTarget(), size=2, deadline_s=3.0)
    try:
        pool.submit(job(name="warm")).result(60)
        hanging = pool.submit(job(compile="hang"))
        others = [pool.submit(job(name=str(i))) for i in range(8)]
        for other in others:
            other.result(60)
        assert not hanging.done()
        with pytest.raises(CandidateTimeoutError):
            hanging.result(60)
        assert [pool.submit(job(name=f"after{i}")).result(60).key for i in range(2)]
    finally:
        pool.close()


def test_closing_ends_what_runs_and_cancels_what_waits() -> None:
    pool = CompilePool(FakeTarget(), size=1, deadline_s=60.0)
    pool.submit(job(name="warm")).result(60)
    running = pool.submit(job(compile="hang"))
    waiting = pool.submit(job(name="waiting"))
    time.sleep(0.3)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 10
    assert waiting.cancelled()
    with pytest.raises(KernelSearchError):
        running.result(5)


def test_a_broken_compiler_process_gets_another_go(pool: CompilePool, tmp_path: Path) -> None:
    assert pool.submit(job(compile=f"lie_once {tmp_path / 'lied'}")).result(60).image
    lying = job(compile="lie nonsense")
    first = pool.submit(lying)
    with pytest.raises(WorkerError):
        first.result(60)
    # What our own processes did wrong is not remembered against the job.
    assert pool.submit(lying) is not first


def test_a_cancelled_job_can_be_submitted_again() -> None:
    pool = CompilePool(FakeTarget(), size=1, deadline_s=60.0)
    try:
        pool.submit(job(compile="sleep 0.5"))
        waiting = pool.submit(job(name="again"))
        assert waiting.cancel()
        assert pool.submit(job(name="again")).result(60).image
    finally:
        pool.close()


def test_a_closed_pool_starts_no_process_for_late_work() -> None:
    pool = CompilePool(FakeTarget(), size=1)
    pool.close()
    with pytest.raises(RuntimeError):
        pool.submit(job())
