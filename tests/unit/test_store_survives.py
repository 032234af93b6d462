"""The ledger after a power cut, a full disk, an emptied file, and an older version of itself."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kernelsearch.codec import is_sealed
from kernelsearch.errors import KernelSearchError, StorageError, StudyError
from kernelsearch.records import Evaluation, Timing
from kernelsearch.store import Claim, Ledger, Owner, Recorded, key_of, open_ledger
from kernelsearch.store_base import FORMAT, Stopwatch, without_secrets
from kernelsearch.store_optuna import OptunaMirror, VariantSummary, optuna_storage
from kernelsearch.study import StoredStudy
from tests.unit.test_store import BACKENDS, evaluation, reopen, url_of, variant

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "data" / "studies_format1.tar.gz"


def copy_of(folder: Path, name: str) -> Path:
    target = folder.with_name(name)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target)
    for index in target.glob("*-shm"):
        index.unlink()  # memory: nothing of it survives a loss of power
    return target


def long(n: int) -> Evaluation:
    return replace(evaluation(n), message="x" * 3000)


# --- loss of power ------------------------------------------------------------------------------


def test_a_log_cut_anywhere_in_the_last_commit_keeps_all_earlier_ones(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    log = folder / "study.db-wal"
    with open_ledger(None, folder, create=True) as ledger:
        for n in range(4):
            ledger.record(evaluation(n), Owner.here())
        before = log.stat().st_size
        ledger.record(evaluation(4), Owner.here())
        after = log.stat().st_size
        cut = copy_of(folder, "cut")
        whole = log.read_bytes()
    assert after > before
    frame = 24 + 4096
    # Each frame's edges, and some in between.
    edges = {e + d for e in range(before, after + 1, frame) for d in (-1, 0, 1, 23, 24, 25)}
    places = sorted(p for p in edges | set(range(before, after, 397)) if before <= p <= after)
    assert len(places) > 20
    for place in places:
        shutil.copy(folder / "study.db", cut / "study.db")
        (cut / "study.db-wal").write_bytes(whole[:place])
        with open_ledger(None, cut, create=False, study="study") as again:
            found = again.evaluations()[0]
        assert found[:4] == [evaluation(n) for n in range(4)], place
        assert len(found) == (5 if place == after else 4)


def test_a_checkpoint_cut_anywhere_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with open_ledger(None, folder, create=True) as ledger:
        for n in range(12):
            ledger.record(evaluation(n), Owner.here())
        cut = copy_of(folder, "cut")
        old = (cut / "study.db").read_bytes()
        log = (cut / "study.db-wal").read_bytes()
    new = (folder / "study.db").read_bytes()  # closing has moved the log into the file
    assert new != old
    assert len(log) > 4096
    for place in range(0, len(new) + 1, 2048):
        (cut / "study.db").write_bytes(new[:place] + old[place:])
        (cut / "study.db-wal").write_bytes(log)
        if place == 0 and not old:
            continue
        with open_ledger(None, cut, create=False, study="study") as again:
            assert again.evaluations()[0] == [evaluation(n) for n in range(12)], place


def test_a_half_written_commit_of_a_rollback_journal_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelsearch.store_rdb.is_network_file_system", lambda p: True)
    folder = tmp_path / "study"
    url = url_of("sqlite", folder)
    with open_ledger(url, folder, create=True) as ledger:
        for n in range(40):
            ledger.record(long(n), Owner.here())
    with contextlib.closing(sqlite3.connect(folder / "study.db", isolation_level=None)) as raw:
        raw.execute("PRAGMA cache_size=2")  # pages are written before the commit
        raw.execute("BEGIN IMMEDIATE")
        raw.execute("UPDATE ks_evaluation SET body = 'torn' || body")
        assert (folder / "study.db-journal").stat().st_size > 512
        assert b"torn{" in (folder / "study.db").read_bytes()
        cut = copy_of(folder, "cut")
    with open_ledger(url_of("sqlite", cut), cut, create=False, study="study") as again:
        assert again.evaluations()[0] == [long(n) for n in range(40)]


def test_a_journal_cut_anywhere_in_its_last_record_keeps_all_earlier_ones(tmp_path: Path) -> None:
    with reopen("journal", tmp_path, create=True) as ledger:
        for n in range(3):
            ledger.record(evaluation(n), Owner.here())
    (log,) = (tmp_path / "study.journal.ledger").glob("*/logs/*.jsonl")
    data = log.read_bytes()
    start = data[:-1].rindex(b"\n") + 1
    for place in range(start, len(data)):
        # A file system may also have kept the length and lost the content.
        for tail in (b"", bytes(len(data) - place)):
            log.write_bytes(data[:place] + tail)
            with reopen("journal", tmp_path) as again:
                assert again.evaluations()[0] == [evaluation(0), evaluation(1)]


def test_a_writer_torn_in_the_middle_does_not_hide_what_others_wrote_after(tmp_path: Path) -> None:
    with reopen("journal", tmp_path, create=True) as first, reopen("journal", tmp_path) as second:
        first.record(evaluation(0), Owner.here())
        second.record(evaluation(1), Owner.here())
        first.record(evaluation(2), Owner.here())
        logs = sorted(
            (tmp_path / "study.journal.ledger").glob("*/logs/*.jsonl"),
            key=lambda p: p.stat().st_size,
        )
        torn = logs[-1]
        torn.write_bytes(torn.read_bytes()[:-9])
        second.record(evaluation(3), Owner.here())
    with reopen("journal", tmp_path) as again:
        numbers = {e.candidate.values["BLOCK"] for e in again.evaluations()[0]}
        assert numbers == {0, 1, 3}
        # What was torn was never acknowledged, and can be claimed and recorded anew.
        assert again.record(evaluation(2), Owner.here()) is Recorded.RECORDED


def test_the_mirrors_journal_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    url = url_of("journal", tmp_path)
    for number in range(3):
        mirror = OptunaMirror(url, "s")
        mirror.variant(VariantSummary(variant(f"v{number}")))
        mirror.flush()
        mirror.close()
        log = tmp_path / "study.journal"
        log.write_bytes(log.read_bytes() + b'{"op_code": 4, "worker')
    assert len(optuna_storage(url).get_all_trials(0)) == 3


def test_a_blob_is_on_disk_before_its_name_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, replace_ = os.fsync, os.replace

    def fsync(fd: int) -> None:
        order.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        sync(fd)

    def rename(source: str, target: str) -> None:
        order.append("name")
        replace_(source, target)

    with open_ledger(None, tmp_path / "study", create=True) as ledger:
        ledger.put_blob(b"first")  # makes the folders
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", rename)
        (tmp_path / "study" / "blobs" / "af").mkdir(exist_ok=True)
        name = ledger.put_blob(b"second")
        assert order[-3:] == ["file", "name", "folder"]
        assert ledger.get_blob(name) == b"second"


# --- emptied, foreign and flipped ---------------------------------------------------------------


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """Return the folder of a study that was closed in peace."""
    folder = tmp_path / "begun"
    with open_ledger(None, folder, create=True) as ledger:
        ledger.write_settings({"operator": "rms_norm"})
        ledger.add_variant(variant())
        for n in range(6):
            ledger.record(evaluation(n), Owner.here())
    return folder


@pytest.mark.parametrize("how", ["empty", "missing", "no tables", "no tables left"])
@pytest.mark.parametrize("create", [True, False])
def test_an_emptied_study_is_not_begun_anew(begun: Path, how: str, create: bool) -> None:
    path = begun / "study.db"
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no tables":
        path.unlink()
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("VACUUM")
    else:
        with contextlib.closing(sqlite3.connect(path)) as raw:
            for (name,) in raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall():
                raw.execute(f"DROP TABLE {name}")
    size = path.stat().st_size if path.exists() else None
    with pytest.raises(StorageError, match=r"`kernelsearch repair .*begun`"):
        open_ledger(None, begun, create=create)
    assert (path.stat().st_size if path.exists() else None) == size


def test_the_log_of_an_emptied_database_is_not_thrown_away(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with open_ledger(None, folder, create=True) as ledger:
        ledger.record(evaluation(1), Owner.here())
        cut = copy_of(folder, "cut")
    (cut / "study.db").write_bytes(b"")
    log = (cut / "study.db-wal").read_bytes()
    with pytest.raises(StorageError, match=r"study\.db-wal.*kernelsearch repair"):
        open_ledger(None, cut, create=True)
    assert (cut / "study.db-wal").read_bytes() == log


def test_a_run_killed_before_it_began_is_no_loss(tmp_path: Path) -> None:
    (tmp_path / "study.db").touch()
    with open_ledger(None, tmp_path, create=True) as ledger:
        assert ledger.evaluations()[0] == []


def test_a_lost_copy_of_the_settings_is_written_again(begun: Path) -> None:
    copy = begun / "settings.json"
    whole = copy.read_bytes()
    for damage in (None, b"", b"\xff", whole[:-9]):
        copy.unlink() if damage is None else copy.write_bytes(damage)
        with open_ledger(None, begun, create=True) as ledger:
            ledger.write_settings({"operator": "rms_norm"})
        assert copy.read_bytes() == whole


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as raw:
        raw.execute("CREATE TABLE cookies (name)")
    before = (tmp_path / "study.db").read_bytes()
    with pytest.raises(StudyError, match=r"another program.*cookies.*another folder"):
        open_ledger(None, tmp_path, create=True)
    assert (tmp_path / "study.db").read_bytes() == before


def test_a_digit_that_the_disk_changed_is_noticed(begun: Path) -> None:
    path = begun / "study.db"
    data = path.read_bytes()
    assert data.count(b"[1.5,3.0]") >= 6
    path.write_bytes(data.replace(b"[1.5,3.0]", b"[1.2,3.0]", 1))
    with (
        open_ledger(None, begun, create=False) as ledger,
        pytest.raises(StorageError, match=r"evaluation .*checksum.*kernelsearch repair"),
    ):
        ledger.evaluations()
    folder = begun.with_name("journal")
    with reopen("journal", folder, create=True) as ledger:
        ledger.record(evaluation(1), Owner.here())
    (log,) = (folder / "study.journal.ledger").glob("*/logs/*.jsonl")
    log.write_bytes(log.read_bytes().replace(b"[1.5,3.0]", b"[1.2,3.0]"))
    with (
        reopen("journal", folder) as ledger,
        pytest.raises(StorageError, match=r"byte 0.*checksum.*kernelsearch repair"),
    ):
        ledger.evaluations()


# --- formats ------------------------------------------------------------------------------------


@pytest.fixture(params=["format1", "format1_journal"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a study that version 0.1 wrote before records had checksums."""
    with tarfile.open(OLD) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / str(request.param)


def formats(folder: Path) -> tuple[int, bool]:
    """Return a study's format on disk, and whether its evaluations are all sealed."""
    if (folder / "study.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "study.db")) as raw:
            (version,) = raw.execute("SELECT format FROM ks_study").fetchone()
            bodies = raw.execute("SELECT body FROM ks_evaluation").fetchall()
        return version, all(is_sealed(b) for (b,) in bodies)
    (home,) = (folder / "study.journal.ledger").iterdir()
    return json.loads((home / "study.json").read_text())["format"], True


def test_an_older_study_is_migrated_and_a_copy_kept(old: Path) -> None:
    assert formats(old)[0] == 1
    with StoredStudy(old) as stored:
        assert stored.archive.count() == 4
        assert len(stored.archive.variants()) == 4
        result = stored.result()
        assert result is not None
        assert result.variant_name == "naive"
        best = stored.archive.best()
        assert best is not None
        assert best.confirmed
        assert (best.ok, best.candidate.dtype) == (True, "float32")
    assert formats(old) == (FORMAT, True)
    (backup,) = old.rglob("*.format1")
    if backup.name.startswith("study.db"):
        with contextlib.closing(sqlite3.connect(backup)) as raw:
            assert raw.execute("SELECT format FROM ks_study").fetchone() == (1,)
            assert raw.execute("SELECT count(*) FROM ks_evaluation").fetchone() == (5,)
        assert (old / "settings.json").is_file()
    with open_ledger(None, old, create=True) as ledger:
        assert ledger.record(evaluation(99), Owner.here()) is Recorded.RECORDED
        assert len(ledger.evaluations()[0]) == 6


def test_a_migration_that_is_killed_is_done_again(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    if (old / "study.db").exists():
        place = "kernelsearch.store_rdb.RdbLedger._seal_all"
    else:
        place = "kernelsearch.store_journal.dumps"
    monkeypatch.setattr(place, killed)
    with pytest.raises(KeyboardInterrupt):
        open_ledger(None, old, create=False)
    assert formats(old)[0] == 1
    monkeypatch.undo()
    with open_ledger(None, old, create=False) as ledger:
        assert len(ledger.evaluations()[0]) == 5
    assert formats(old) == (FORMAT, True)


def test_an_older_study_in_a_read_only_folder_is_read_as_it_is(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p: p.read_bytes() for p in old.rglob("*") if p.is_file()}
    for module in ("store_rdb", "store_journal"):
        monkeypatch.setattr(f"kernelsearch.{module}.os.access", lambda path, mode: False)
    with StoredStudy(old) as stored:
        assert stored.archive.count() == 4
    assert {p: p.read_bytes() for p in old.rglob("*") if p.is_file()} == before


# --- clocks, hosts and links --------------------------------------------------------------------


def test_a_clock_set_back_neither_frees_nor_keeps_claims_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = replace(Owner.here(), host="elsewhere")
    with reopen("sqlite", tmp_path, create=True) as ledger:
        assert ledger.claim("k", far, 0.3) is Claim.CLAIMED
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        assert ledger.claim("k", Owner.here(), 60) is Claim.TAKEN  # it may well live
        time.sleep(0.4)
        assert ledger.claim("k", Owner.here(), 60) is Claim.CLAIMED
        # An owner that lives says so by the new clock.
        assert ledger.claim("l", far, 0.3) is Claim.CLAIMED
        ledger.heartbeat(far)
        assert ledger.claims()["l"] == far.id


def test_a_journal_whose_server_sets_its_clock_back(tmp_path: Path) -> None:
    far = replace(Owner.here(), host="elsewhere")
    with reopen("journal", tmp_path, create=True) as ledger:
        assert ledger.claim("k", far, 0.3) is Claim.CLAIMED
        (owner,) = (tmp_path / "study.journal.ledger").glob(f"*/owners/{far.id}.json")
        os.utime(owner, (time.time() + 3600,) * 2)
        assert ledger.claim("k", Owner.here(), 60) is Claim.TAKEN
        time.sleep(0.4)
        assert ledger.claim("k", Owner.here(), 60) is Claim.CLAIMED


def test_stopwatch() -> None:
    watch = Stopwatch()
    assert watch.age_s("a", 10.0, 15.0) == 5.0
    assert watch.age_s("a", 99.0, 15.0) == 0.0
    time.sleep(0.05)
    assert 0.05 <= watch.age_s("a", 99.0, 15.0) < 84.0
    assert watch.age_s("a", 100.0, 15.0) == 0.0


@pytest.mark.parametrize("backend", ["sqlite", "journal"])
def test_a_study_reached_through_a_link_is_the_same_study(backend: str, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    if backend == "journal":
        (real / "study.journal.ledger").mkdir(parents=True)
    with open_ledger(None, real, create=True) as ledger:
        link.symlink_to(real)
        with open_ledger(None, link, create=True) as other:
            assert other.url == ledger.url
            assert other.study == ledger.study == "real"
            here, there = Owner.here(), replace(Owner.here(), host="elsewhere")
            assert ledger.claim("k", here, 60) is Claim.CLAIMED
            assert other.claim("k", there, 60) is Claim.TAKEN
            assert other.claim("l", there, 60) is Claim.CLAIMED
            assert ledger.claims() == {"k": here.id, "l": there.id}
            assert other.record(evaluation(1), there) is Recorded.RECORDED
            assert ledger.evaluations()[0] == [evaluation(1)]


def test_two_hosts_share_the_work_and_one_of_them_dies(tmp_path: Path) -> None:
    with reopen("journal", tmp_path, create=True) as a, reopen("journal", tmp_path) as b:
        one, two = (replace(Owner.here(), host=h, started="1") for h in ("one", "two"))
        for n in range(6):
            first, second = (a, one), (b, two)
            ledger, owner = (first, second)[n % 2]
            assert ledger.claim(key_of(evaluation(n)), owner, 0.4) is Claim.CLAIMED
        with b.kept_alive(two, 0.1):
            time.sleep(0.6)
            freed = [
                n for n in range(6) if b.claim(key_of(evaluation(n)), two, 0.4).value != "taken"
            ]
        assert freed == [0, 2, 4]
        for n in range(6):
            assert b.record(evaluation(n), two) is Recorded.RECORDED
        # The one that was taken for dead comes back late with its own results.
        assert a.record(evaluation(0, us=9.0), one) is Recorded.DUPLICATE
        assert len(a.evaluations()[0]) == 6


# --- a full disk --------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 700 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=700k", "none", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("backend", ["sqlite", "journal"])
def test_a_disk_that_fills_up_loses_nothing(backend: str, small_disk: Path) -> None:
    folder = small_disk / "study"
    acknowledged: list[int] = []
    ballast = small_disk / "ballast"

    def fill(ledger: Ledger) -> None:
        for n in range(2000):
            ledger.record(long(n), Owner.here())
            acknowledged.append(n)

    with reopen(backend, folder, create=True) as ledger:
        ballast.write_bytes(bytes(300_000))
        with pytest.raises(StorageError) as caught:
            fill(ledger)
    kept = len(acknowledged)
    text = str(caught.value)
    assert "\n" not in text
    assert "full" in text
    assert "MB free in" in text
    assert str(folder) in text
    assert "INSERT" not in text
    ballast.unlink()
    assert kept > 5
    with reopen(backend, folder, create=True) as again:
        numbers = [e.candidate.values["BLOCK"] for e in again.evaluations()[0]]
        assert numbers[:kept] == list(range(kept))
        assert again.record(evaluation(5000), Owner.here()) is Recorded.RECORDED


@pytest.mark.parametrize("backend", ["sqlite", "journal"])
def test_a_mirror_on_a_full_disk_says_one_sentence(backend: str, small_disk: Path) -> None:
    url = url_of(backend, small_disk)
    optuna_storage(url)
    (small_disk / "ballast").write_bytes(bytes(small_disk_left(small_disk)))
    mirror = OptunaMirror(url, "s")
    for n in range(40):
        mirror.variant(VariantSummary(replace(variant(str(n)), mutation="m" * 900)))
    with pytest.raises(StorageError, match=r"safe in the ledger") as caught:
        mirror.flush()
    mirror.close()
    text = str(caught.value)
    assert "\n" not in text
    assert "full" in text
    assert "INSERT" not in text


def small_disk_left(place: Path) -> int:
    return shutil.disk_usage(place).free


# --- secrets ------------------------------------------------------------------------------------

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@db.invalid/studies",
        "postgresql://user:hun@ter/hunter2@db.invalid/studies",
        "postgresql:user:hunter2@db.invalid/studies",
        "postgresql://user:hunter2@db.invalid:notaport/studies",
        "mysql+nosuchdriver://user:hunter2@db.invalid/studies",
        "pigeon://user:hunter2@db.invalid/studies",
        "postgresql://db.invalid/studies?user=a&password=hunter2",
        "postgresql://db.invalid/studies?sslpassword=hunter2&passfile=/x",
        "://user:hunter2@",
        "sqlite:////nowhere/at/all/x.db?token=hunter2",
    ],
)
def test_no_message_holds_a_password(url: str, tmp_path: Path) -> None:
    with pytest.raises(KernelSearchError) as caught:
        open_ledger(url, tmp_path, create=False)
    assert PASSWORD not in str(caught.value)
    with pytest.raises(KernelSearchError) as told:
        optuna_storage(url)
    assert PASSWORD not in str(told.value)
    mirror = OptunaMirror(url, "s")
    mirror.variant(VariantSummary(variant()))
    with pytest.raises(StorageError) as failed:
        mirror.flush()
    mirror.close()
    assert PASSWORD not in str(failed.value)


def test_texts_without_secrets_stay_as_they_are() -> None:
    for text in (
        "sqlite:////home/a@b/study.db", "journal:///x:y/study.journal", "it is 12:30, a@b.c",
        "evaluation 00ff at byte 3: it is not JSON", "postgresql://user@host/db?sslmode=require",
    ):  # fmt: skip
        assert without_secrets(text) == text


def test_nothing_that_is_stored_or_shown_holds_the_environment(
    old: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from kernelsearch.cli.app import app
    from kernelsearch.cli.entry import main

    assert main is not None
    for name in ("ANTHROPIC_API_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "PLAIN_SETTING"):
        monkeypatch.setenv(name, PASSWORD)
    with open_ledger(None, old, create=True) as ledger:
        ledger.record(evaluation(7), Owner.here())
        ledger.confirm(key_of(evaluation(7)), [Timing("w", (1.0,))])
        ledger.add_event("e", {"a": 1})
        ledger.put_blob(b"x")
    for arguments in (["show", str(old)], ["show", str(old), "--json"], ["list", "--studies"]):
        with contextlib.suppress(SystemExit):
            app(arguments)
    out, err = capfd.readouterr()
    assert "naive" in out
    assert PASSWORD not in out + err
    for path in old.rglob("*"):
        assert not path.is_file() or PASSWORD.encode() not in path.read_bytes(), path


@pytest.mark.skipif("postgresql" not in BACKENDS, reason="no KERNELSEARCH_TEST_POSTGRES")
def test_a_database_server_keeps_no_url(tmp_path: Path) -> None:  # pragma: no cover
    url = url_of("postgresql", tmp_path)
    with reopen("postgresql", tmp_path, create=True) as ledger:
        ledger.write_settings({"operator": "rms_norm"})
        ledger.add_event("e", {})
        assert url not in json.dumps([ledger.read_settings(), [e.data for e in ledger.events()[0]]])
