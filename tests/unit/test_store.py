"""The ledger keeps what it has acknowledged, gives work to one owner, and says what is wrong."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelsearch.errors import StorageError, StudyError
from kernelsearch.records import Candidate, Evaluation, Status, Timing, VariantRecord
from kernelsearch.store import (
    Claim,
    Ledger,
    Owner,
    Recorded,
    default_url,
    evaluation_key,
    key_of,
    open_ledger,
)
from kernelsearch.store_base import file_system
from kernelsearch.store_optuna import OptunaMirror, VariantSummary, optuna_storage

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ["sqlite", "journal"]
if os.environ.get("KERNELSEARCH_TEST_POSTGRES"):
    BACKENDS.append("postgresql")


def url_of(backend: str, folder: Path) -> str:
    if backend == "postgresql":
        return os.environ["KERNELSEARCH_TEST_POSTGRES"]
    suffix = {"sqlite": "study.db", "journal": "study.journal"}[backend]
    return f"{backend}:///{folder / suffix}"


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def ledger(backend: str, tmp_path: Path) -> Iterator[Ledger]:
    with reopen(backend, tmp_path, create=True) as opened:
        yield opened


def reopen(backend: str, folder: Path, *, create: bool = False) -> Ledger:
    return open_ledger(url_of(backend, folder), folder, create=create, study=name_of(folder))


def evaluation(n: int = 0, *, us: float = 1.5) -> Evaluation:
    candidate = Candidate("v1", (("BLOCK", n), ("MODE", "wide")), "float32")
    timings = (Timing("rows=1,cols=64", (us, us * 2)),)
    return Evaluation(candidate, Status.OK, timings=timings, device="dev", settings="set")


def variant(name: str = "v1") -> VariantRecord:
    return VariantRecord(name, "rms_norm", "cuda", "/* é\0 */", name=name, created=time.time())


# --- the ordinary life of a study ---------------------------------------------------------------


def test_a_study_comes_back(ledger: Ledger, backend: str, tmp_path: Path) -> None:
    ledger.write_settings({"operator": "rms_norm", "limits": [1, 2.5]})
    assert ledger.add_variant(variant("a"))
    assert ledger.add_variant(variant("b"))
    assert not ledger.add_variant(variant("a"))
    me = Owner.here()
    e = evaluation()
    assert ledger.claim(key_of(e), me, 60) is Claim.CLAIMED
    assert ledger.record(e, me) is Recorded.RECORDED
    ledger.add_event("best", {"us": 1.5, "pair": (1, 2)})
    with reopen(backend, tmp_path) as again:
        assert again.read_settings() == {"operator": "rms_norm", "limits": [1, 2.5]}
        assert [v.name for v in again.variants()] == ["a", "b"]
        assert again.variants()[0].source == variant().source
        assert again.evaluations()[0] == [e]
        assert again.evaluation(key_of(e)) == e
        assert [(x.kind, x.data) for x in again.events()[0]] == [
            ("best", {"us": 1.5, "pair": (1, 2)})
        ]
        assert again.claims() == {}


def test_settings_are_written_once(ledger: Ledger) -> None:
    assert ledger.read_settings() == {}
    ledger.write_settings({"a": 1})
    ledger.write_settings({"a": 1})
    with pytest.raises(StudyError, match="other settings already"):
        ledger.write_settings({"a": 2})
    assert ledger.read_settings() == {"a": 1}


def test_the_key_is_of_variant_params_dtype_device_and_settings() -> None:
    c = Candidate("v", (("A", 1),), "float32")
    keys = {
        evaluation_key(x, d, s)
        for x in (c, replace(c, variant="w"), replace(c, params=()), replace(c, dtype="float64"))
        for d in ("d", "e")
        for s in ("s", "t")
    }
    assert len(keys) == 16


def test_claims(ledger: Ledger) -> None:
    me, other = Owner.here(), Owner.here()
    assert ledger.claim("k", me, 60) is Claim.CLAIMED
    assert ledger.claim("k", other, 60) is Claim.TAKEN
    assert ledger.claim("k", me, 60) is Claim.TAKEN
    assert ledger.claims() == {"k": me.id}
    assert not ledger.release("k", other)
    assert ledger.release("k", me)
    assert not ledger.release("k", me)
    assert ledger.claim("k", other, 60) is Claim.CLAIMED


def test_a_recorded_candidate_is_done_and_a_second_record_is_refused(ledger: Ledger) -> None:
    me = Owner.here()
    first, second = evaluation(us=1.0), evaluation(us=2.0)
    assert ledger.record(first, me) is Recorded.RECORDED
    assert ledger.record(second, me) is Recorded.DUPLICATE
    assert ledger.claim(key_of(first), me, 60) is Claim.DONE
    assert ledger.evaluations()[0] == [first]


def test_infrastructure_errors_only_release(ledger: Ledger) -> None:
    me = Owner.here()
    failed = replace(evaluation(), status=Status.INFRASTRUCTURE_ERROR, timings=())
    assert ledger.claim(key_of(failed), me, 60) is Claim.CLAIMED
    assert ledger.record(failed, me) is Recorded.RELEASED
    assert ledger.evaluations()[0] == []
    assert ledger.claim(key_of(failed), me, 60) is Claim.CLAIMED
    with pytest.raises(StorageError, match="final"):
        ledger.revise(key_of(failed), failed)


def test_a_lease_without_heartbeat_runs_out(ledger: Ledger) -> None:
    # An owner of another host: whether it lives can only be told by its heartbeat.
    gone = replace(Owner.here(), host="elsewhere")
    assert ledger.claim("k", gone, 0.3) is Claim.CLAIMED
    assert ledger.claim("k", Owner.here(), 60) is Claim.TAKEN
    time.sleep(0.2)
    ledger.heartbeat(gone)
    time.sleep(0.2)
    assert ledger.claim("k", Owner.here(), 60) is Claim.TAKEN
    time.sleep(0.2)
    assert ledger.claims() == {}
    me = Owner.here()
    assert ledger.claim("k", me, 60) is Claim.CLAIMED
    assert ledger.claims() == {"k": me.id}
    assert not ledger.release("k", gone)


def test_kept_alive(ledger: Ledger) -> None:
    far = replace(Owner.here(), host="elsewhere")
    assert ledger.claim("k", far, 0.3) is Claim.CLAIMED
    with ledger.kept_alive(far, 0.05):
        time.sleep(0.5)
        assert ledger.claims() == {"k": far.id}


def test_a_dead_process_frees_its_claims_at_once(ledger: Ledger) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    dead = replace(Owner.here(), pid=child.pid)
    assert ledger.claim("k", dead, 3600) is Claim.CLAIMED
    assert ledger.claim("k", Owner.here(), 3600) is Claim.CLAIMED


def test_a_pid_that_is_used_again_is_another_process() -> None:
    me = Owner.here()
    assert not me.is_dead()
    assert replace(me, started="1").is_dead()
    assert not replace(me, started="1", host="elsewhere").is_dead()


def test_the_late_holder_of_a_lost_lease_is_told(ledger: Ledger) -> None:
    slow = replace(Owner.here(), host="elsewhere")
    e = evaluation()
    assert ledger.claim(key_of(e), slow, 0.05) is Claim.CLAIMED
    time.sleep(0.1)
    me = Owner.here()
    assert ledger.claim(key_of(e), me, 60) is Claim.CLAIMED
    assert ledger.record(e, me) is Recorded.RECORDED
    assert ledger.record(evaluation(us=9.0), slow) is Recorded.DUPLICATE
    assert ledger.evaluation(key_of(e)) == e


def test_cursors_and_revisions(ledger: Ledger, backend: str, tmp_path: Path) -> None:
    me = Owner.here()
    assert ledger.evaluations()[0] == []
    ledger.record(evaluation(1), me)
    _, cursor = ledger.evaluations()
    assert ledger.evaluations(cursor) == ([], cursor)
    ledger.record(evaluation(2), me)
    confirmed = ledger.confirm(key_of(evaluation(1)), [Timing("rows=1,cols=64", (7.0,))])
    assert confirmed.confirmed
    fresh, cursor = ledger.evaluations(cursor)
    assert fresh == [evaluation(2), confirmed]
    again = ledger.confirm(key_of(evaluation(1)), [Timing("rows=1,cols=64", (8.0,))])
    assert ledger.evaluations(cursor)[0] == [again]
    with reopen(backend, tmp_path) as other:
        assert other.evaluation(key_of(evaluation(1))) == again
        latest = {key_of(e): e for e in other.evaluations()[0]}
        assert latest == {key_of(e): e for e in (again, evaluation(2))}
    with pytest.raises(StorageError, match="not recorded"):
        ledger.confirm("nothing", [Timing("w", (1.0,))])
    ledger.add_event("a", {})
    seen, where = ledger.events()
    assert [e.kind for e in seen] == ["a"]
    assert ledger.events(where)[0] == []


def test_two_handles_see_each_other(ledger: Ledger, backend: str, tmp_path: Path) -> None:
    with reopen(backend, tmp_path) as other:
        _, cursor = other.evaluations()
        ledger.record(evaluation(1), Owner.here())
        fresh, cursor = other.evaluations(cursor)
        assert fresh == [evaluation(1)]
        other.record(evaluation(2), Owner.here())
        assert len(ledger.evaluations()[0]) == 2


def test_blobs(ledger: Ledger, tmp_path: Path) -> None:
    name = ledger.put_blob(b"log\0")
    assert ledger.put_blob(b"log\0") == name
    assert ledger.get_blob(name) == b"log\0"
    assert not list(tmp_path.glob("blobs/*/.new-*"))
    path = tmp_path / "blobs" / name[:2] / name
    path.write_bytes(b"lie")
    with pytest.raises(StorageError, match="damaged"):
        ledger.get_blob(name)
    path.unlink()
    with pytest.raises(StorageError, match="cannot read the blob"):
        ledger.get_blob(name)
    with pytest.raises(StorageError, match="SHA-256"):
        ledger.get_blob("../etc/passwd")


def test_optuna_shares_the_storage(ledger: Ledger, backend: str, tmp_path: Path) -> None:
    import optuna

    storage = optuna_storage(url_of(backend, tmp_path))
    name = name_of(tmp_path) + "/mirror"
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    ledger.record(evaluation(), Owner.here())
    again = optuna.load_study(storage=optuna_storage(ledger.url), study_name=name)
    assert len(again.trials) == 1
    with reopen(backend, tmp_path) as other:
        assert len(other.evaluations()[0]) == 1


def test_the_mirror_holds_every_evaluation_once(
    ledger: Ledger, backend: str, tmp_path: Path
) -> None:
    import optuna

    tunables = {"BLOCK": (1, 2, 3), "MODE": ("wide", "slim")}
    failed = replace(evaluation(3), status=Status.WRONG, timings=(), message="off by one")
    record = variant("v1")
    for _ in range(2):  # the second time round is a resume
        mirror = OptunaMirror(ledger.url, name_of(tmp_path))
        mirror.variant(VariantSummary(record))
        mirror.evaluation(evaluation(1), tunables, 2.0)
        mirror.evaluation(evaluation(2), tunables, 3.0)
        mirror.evaluation(failed, tunables, None)
        mirror.variant(VariantSummary(record, "ok", 2.0, 3.0, 3, finished=True))
        mirror.variant(VariantSummary(record, "ok", 2.0, 3.0, 3, finished=True))
        mirror.flush()
        mirror.close()
    storage = optuna_storage(ledger.url)
    inner = optuna.load_study(storage=storage, study_name=name_of(tmp_path) + "/v1")
    assert [t.state.name for t in inner.trials] == ["COMPLETE", "COMPLETE", "FAIL"]
    assert inner.best_params == {"BLOCK": 2, "MODE": "wide"}
    assert inner.trials[2].user_attrs["message"] == "off by one"
    outer = optuna.load_study(storage=storage, study_name=name_of(tmp_path))
    assert outer.trials[0].user_attrs["hash"] == "v1"
    assert outer.trials[0].value == 3.0
    assert len(outer.trials) == 1
    mirror = OptunaMirror(ledger.url, name_of(tmp_path))
    mirror.variant(VariantSummary(record, "ok", 1.0, 6.0, 4, finished=True))
    mirror.flush()
    mirror.close()
    assert outer.trials[-1].user_attrs["supersedes"] == 0
    assert outer.best_value == 6.0


def test_a_mirror_that_fails_is_told_at_the_flush(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    mirror = OptunaMirror(f"sqlite:///{tmp_path}/file/x.db", "s")
    mirror.variant(VariantSummary(variant()))
    with pytest.raises(StorageError, match="safe in the ledger"):
        mirror.flush()
    mirror.variant(VariantSummary(variant("b")))
    mirror.close()


# --- opening ------------------------------------------------------------------------------------


def test_default_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_url(tmp_path) == f"sqlite:///{tmp_path}/study.db"
    monkeypatch.setattr("kernelsearch.store.is_network_file_system", lambda p: True)
    assert default_url(tmp_path) == f"journal://{tmp_path}/study.journal"
    with open_ledger(None, tmp_path, create=True):
        monkeypatch.undo()
        assert default_url(tmp_path) == f"journal://{tmp_path}/study.journal"
    (tmp_path / "study.db").touch()
    assert default_url(tmp_path).startswith("sqlite:")
    assert file_system(Path("/proc")) == "proc"


def test_a_missing_study_is_said_and_nothing_is_created(backend: str, tmp_path: Path) -> None:
    folder = tmp_path / "none"
    with pytest.raises(StudyError, match=r"(there is|holds|has) no "):
        reopen(backend, folder)
    assert not folder.exists()


@pytest.mark.parametrize("backend", ["sqlite", "journal"])
def test_studies_by_name(backend: str, tmp_path: Path) -> None:
    url = url_of(backend, tmp_path)
    with open_ledger(url, tmp_path, create=True) as first:
        assert first.study == tmp_path.name
    with open_ledger(url, tmp_path, create=False) as first:
        assert first.study == tmp_path.name
    with open_ledger(url, tmp_path, create=True, study="a/b") as second:
        second.add_variant(variant())
    with pytest.raises(StudyError, match="name one of"):
        open_ledger(url, tmp_path, create=False)
    with pytest.raises(StudyError, match="no study"):
        open_ledger(url, tmp_path, create=False, study="c")
    with open_ledger(url, tmp_path, create=False, study=tmp_path.name) as first:
        assert first.variants() == []
    with open_ledger(url, tmp_path, create=False, study="a/b") as second:
        assert len(second.variants()) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "must look like"),
        ("sqlite://", "must lie in a file"),
        ("pigeon://x/y", "not known"),
        ("journal:///x/", "full path"),
        ("journal://x", "full path"),
    ],
)
def test_bad_urls(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=message):
        open_ledger(url, tmp_path, create=True)


def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StudyError, match=r"pip install psycopg2-binary") as caught:
        open_ledger("postgresql+psycopg2://u:secret@h/d", tmp_path, create=True)
    assert "secret" not in str(caught.value)


# --- a broken world -----------------------------------------------------------------------------


def test_sqlite_waits_for_a_lock_and_then_says_so(tmp_path: Path) -> None:
    url = url_of("sqlite", tmp_path)
    with open_ledger(url, tmp_path, create=True, timeout_s=0.3) as ledger:
        blocker = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        started = time.monotonic()
        with pytest.raises(StorageError, match=r"locked for 0\.3 s.*then resume"):
            ledger.record(evaluation(), Owner.here())
        assert time.monotonic() - started >= 0.25
        assert ledger.evaluations()[0] == []  # readers are not blocked
        blocker.execute("COMMIT")
        blocker.close()
        assert ledger.record(evaluation(), Owner.here()) is Recorded.RECORDED


def test_sqlite_is_durable(tmp_path: Path) -> None:
    with open_ledger(None, tmp_path, create=True) as ledger, ledger._read() as db:  # type: ignore[attr-defined]
        assert db.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert db.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_sqlite_on_a_network_file_system_uses_no_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelsearch.store_rdb.is_network_file_system", lambda p: True)
    url = url_of("sqlite", tmp_path)
    with open_ledger(url, tmp_path, create=True) as ledger, ledger._read() as db:  # type: ignore[attr-defined]
        assert db.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


def test_a_full_disk_is_said(tmp_path: Path) -> None:
    with open_ledger(None, tmp_path, create=True) as ledger:
        with ledger._read() as db:  # type: ignore[attr-defined]
            # Pooled: the next write uses this same connection.
            pages = db.exec_driver_sql("PRAGMA page_count").scalar()
            db.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        big = replace(evaluation(), message="x" * 100_000)
        with pytest.raises(StorageError, match=r"disk is full \(.* MB free in .*\): free space"):
            ledger.record(big, Owner.here())
        assert ledger.evaluations()[0] == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_a_journal_that_cannot_write_says_why_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with reopen("journal", tmp_path, create=True) as ledger:
        ledger.record(evaluation(1), Owner.here())
        real = os.write

        def torn(fd: int, data: Any) -> int:
            real(fd, bytes(data)[:10])
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "write", torn)
        with pytest.raises(StorageError, match=r"cannot record an evaluation in .*; "):
            ledger.record(evaluation(2), Owner.here())
        monkeypatch.undo()
        assert ledger.record(evaluation(2), Owner.here()) is Recorded.RECORDED
        with reopen("journal", tmp_path) as again:
            assert again.evaluations()[0] == [evaluation(1), evaluation(2)]


def test_a_full_disk_leaves_no_half_blob(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"disk is full \(.* MB free"):
        ledger.put_blob(b"x")
    assert not [p for p in tmp_path.glob("blobs/**/*") if p.is_file()]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("backend", ["sqlite", "journal"])
def test_a_read_only_folder_is_said(backend: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StorageError, match="write to"):
            open_ledger(url_of(backend, tmp_path), tmp_path, create=True)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize("backend", ["sqlite", "journal"])
def test_a_file_in_the_way_is_said(backend: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "study"
    with pytest.raises(StorageError, match=r"cannot create the study folder"):
        open_ledger(url_of(backend, folder), folder, create=True)


def test_a_read_only_database_is_said(tmp_path: Path) -> None:
    with open_ledger(None, tmp_path, create=True) as ledger:
        with ledger._read() as db:  # type: ignore[attr-defined]
            db.exec_driver_sql("PRAGMA query_only=ON")
        with pytest.raises(StorageError, match="read-only: use a study folder"):
            ledger.add_variant(variant())


def test_a_study_in_a_read_only_folder_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a study? #1 %41"  # a name that a file URI must quote
    with open_ledger(None, folder, create=True) as ledger:
        ledger.record(evaluation(1), Owner.here())
        before = sorted(p.name for p in folder.iterdir())
        monkeypatch.setattr("kernelsearch.store_rdb.os.access", lambda path, mode: False)
        with open_ledger(None, folder, create=False) as reader:  # beside a writer
            assert reader.evaluations()[0] == [evaluation(1)]
            with pytest.raises(StorageError, match="read-only: use a study folder"):
                reader.record(evaluation(2), Owner.here())
        assert sorted(p.name for p in folder.iterdir()) == before
    with open_ledger(None, folder, create=False) as reader:  # alone
        assert reader.evaluations()[0] == [evaluation(1)]
    assert [p.name for p in folder.iterdir()] == ["study.db"]


@pytest.mark.parametrize("offset", [0, 4096])
def test_a_damaged_database_is_said(tmp_path: Path, offset: int) -> None:
    with open_ledger(None, tmp_path, create=True) as ledger:
        for n in range(50):
            ledger.record(evaluation(n), Owner.here())
    path = tmp_path / "study.db"
    data = bytearray(path.read_bytes())
    data[offset : offset + 12288] = b"\xa5" * 12288
    path.write_bytes(bytes(data))
    with pytest.raises(StorageError, match=r"damaged .*restore it.*`kernelsearch repair`"):
        open_ledger(None, tmp_path, create=False)


def test_a_damaged_journal_is_said(tmp_path: Path) -> None:
    with reopen("journal", tmp_path, create=True) as ledger:
        ledger.record(evaluation(1), Owner.here())
        ledger.record(evaluation(2), Owner.here())
    (log,) = (tmp_path / "study.journal.ledger").glob("*/logs/*.jsonl")
    data = log.read_bytes()
    log.write_bytes(data[:20] + b"\xff" + data[21:])
    with reopen("journal", tmp_path) as again, pytest.raises(StorageError, match="at byte 0 is"):
        again.evaluations()
    log.write_bytes(data[:-5])  # torn: the last line was never acknowledged
    with reopen("journal", tmp_path) as again:
        assert again.evaluations()[0] == [evaluation(1)]
    log.write_bytes(b'{"kind":"dream","at":0}\n')
    with reopen("journal", tmp_path) as again, pytest.raises(StorageError, match="newer version"):
        again.evaluations()


def test_another_format_is_refused(tmp_path: Path) -> None:
    with open_ledger(None, tmp_path, create=True) as ledger, ledger._write() as db:  # type: ignore[attr-defined]
        db.exec_driver_sql("UPDATE ks_study SET format = 9")
    with pytest.raises(StorageError, match="format 9, this version reads formats up to 2"):
        open_ledger(None, tmp_path, create=False)
    with reopen("journal", tmp_path, create=True):
        pass
    (head,) = (tmp_path / "study.journal.ledger").glob("*/study.json")
    head.write_text('{"format":9}')
    with pytest.raises(StorageError, match="format 9, this version reads formats up to 2"):
        reopen("journal", tmp_path)


def test_journal_readers_agree_on_a_double_record(tmp_path: Path) -> None:
    with (
        reopen("journal", tmp_path, create=True) as a,
        reopen("journal", tmp_path, create=False) as b,
    ):
        first, second = evaluation(us=1.0), evaluation(us=2.0)
        # Both have looked before either has written.
        a._append_evaluation(key_of(first), 0, first)  # type: ignore[attr-defined]
        b._append_evaluation(key_of(second), 0, second)  # type: ignore[attr-defined]
        assert a.evaluation(key_of(first)) == b.evaluation(key_of(first)) == first


def test_journal_claims_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reopen("journal", tmp_path, create=True) as ledger:

        def link(source: Any, target: Any) -> None:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

        monkeypatch.setattr(os, "link", link)
        me = Owner.here()
        assert ledger.claim("k", me, 60) is Claim.CLAIMED
        assert ledger.claim("k", Owner.here(), 60) is Claim.TAKEN
        assert ledger.claims() == {"k": me.id}
        assert ledger.release("k", me)
        assert ledger.add_variant(variant())
        assert not ledger.add_variant(variant())
        ledger.write_settings({"a": 1})
        with pytest.raises(StudyError, match="other settings"):
            ledger.write_settings({"a": 2})


def test_a_claim_file_without_content_runs_out(tmp_path: Path) -> None:
    with reopen("journal", tmp_path, create=True) as ledger:
        (folder,) = (tmp_path / "study.journal.ledger").glob("*/claims")
        empty = folder / "k.0"
        empty.touch()
        assert ledger.claim("k", Owner.here(), 60) is Claim.TAKEN
        os.utime(empty, (1, 1))
        assert ledger.claim("k", Owner.here(), 60) is Claim.CLAIMED


# --- processes that die and processes that race -------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from kernelsearch.store import Owner, Claim, key_of, open_ledger
from tests.unit.test_store import evaluation
url, folder, study, first, stride, count = sys.argv[1:]
ledger = open_ledger(url, Path(folder), create=True, study=study)
me = Owner.here()
print("ready", flush=True)
for n in range(int(first), int(first) + int(stride) * int(count), int(stride)):
    e = evaluation(n)
    if ledger.claim(key_of(e), me, 3600) is Claim.CLAIMED:
        print("claimed", n, flush=True)
        blob = ledger.put_blob(str(n).encode())
        print(ledger.record(e, me), n, blob, flush=True)
"""


def start(backend: str, folder: Path, first: int, stride: int, count: int) -> Any:
    place = [url_of(backend, folder), str(folder), name_of(folder)]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *place, str(first), str(stride), str(count)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def test_kill_nine_loses_nothing_that_was_acknowledged(backend: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    acknowledged: dict[int, str] = {}
    for round_ in range(10):
        writer = start(backend, tmp_path, 1000 * round_, 1, 1000)
        lines = []
        if round_ % 4 == 0:  # dies anywhere, perhaps while it creates the tables
            time.sleep(rng.uniform(0.3, 0.9))
        else:
            while not (lines and lines[-1].startswith("recorded")):
                lines.append(writer.stdout.readline())
                assert lines[-1], writer.stderr.read()
            time.sleep(rng.uniform(0.0, 0.1))
        writer.send_signal(signal.SIGKILL)
        out, _ = writer.communicate()
        for line in [*lines, *out.splitlines()]:
            if line.startswith("recorded"):
                _, n, blob = line.split()
                acknowledged[int(n)] = blob
    with reopen(backend, tmp_path, create=True) as ledger:
        found = ledger.evaluations()[0]
        numbers = [e.candidate.values["BLOCK"] for e in found]
        assert len(numbers) == len(set(numbers))
        assert set(acknowledged) <= set(numbers)
        assert len(acknowledged) >= 7
        for n, blob in acknowledged.items():
            assert ledger.get_blob(blob) == str(n).encode()
        # The dead hold nothing: what they had claimed can be claimed at once.
        assert ledger.claims() == {}
        me = Owner.here()
        for n in range(0, 8000, 500):
            expected = Claim.DONE if n in numbers else Claim.CLAIMED
            assert ledger.claim(key_of(evaluation(n)), me, 60) is expected


def test_racing_processes_share_the_work(backend: str, tmp_path: Path) -> None:
    with reopen(backend, tmp_path, create=True) as ledger:
        writers = [start(backend, tmp_path, 0, 1, 60) for _ in range(3)]
        lines = [w.communicate(timeout=60) for w in writers]
        assert [w.returncode for w in writers] == [0, 0, 0], lines
        claimed = [x for out, _ in lines for x in out.splitlines() if x.startswith("claimed")]
        recorded = [x for out, _ in lines for x in out.splitlines() if x.startswith("recorded")]
        assert len(claimed) == len(set(claimed)) == 60
        assert len(recorded) == 60
        assert len(ledger.evaluations()[0]) == 60


def test_racing_takeovers_have_one_winner(backend: str, tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    child.wait()
    dead = replace(Owner.here(), pid=child.pid)
    with reopen(backend, tmp_path, create=True) as ledger:
        for n in range(20):
            assert ledger.claim(key_of(evaluation(n)), dead, 3600) is Claim.CLAIMED
        writers = [start(backend, tmp_path, 0, 1, 20) for _ in range(3)]
        lines = [w.communicate(timeout=60) for w in writers]
        claimed = [x for out, _ in lines for x in out.splitlines() if x.startswith("claimed")]
        assert len(claimed) == len(set(claimed)) == 20, lines


def test_the_log_is_json_lines(tmp_path: Path) -> None:
    with reopen("journal", tmp_path, create=True) as ledger:
        ledger.record(evaluation(1), Owner.here())
        ledger.add_event("e", {})
    (log,) = (tmp_path / "study.journal.ledger").glob("*/logs/*.jsonl")
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds == ["evaluation", "event"]
