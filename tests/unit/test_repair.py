"""A damaged study gives up every intact record, and nothing that is not one."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path

import pytest

from kernelsearch.errors import KernelSearchError, StorageError, StudyError
from kernelsearch.records import Evaluation
from kernelsearch.repair import repair_study
from kernelsearch.store import Owner, key_of, open_ledger
from kernelsearch.store_pages import Pages
from tests.unit.test_store import evaluation, variant
from tests.unit.test_store_survives import copy_of, long

SETTINGS = {"operator": "rms_norm", "limits": [1, 2.5]}
COUNT = 60


def fill(folder: Path, url: str | None = None) -> None:
    with open_ledger(url, folder, create=True) as ledger:
        ledger.write_settings(SETTINGS)
        for n in range(5):
            ledger.add_variant(variant(f"v{n}"))
        for n in range(COUNT):
            ledger.record(long(n) if n % 3 else evaluation(n), Owner.here())
            ledger.add_event("e", {"n": n})


def original(n: int) -> Evaluation:
    return long(n) if n % 3 else evaluation(n)


ALL = {key_of(original(n)): original(n) for n in range(COUNT)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "study"
    fill(folder)
    return folder


@pytest.fixture
def study(whole: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(whole, tmp_path / "study")
    return tmp_path / "study"


def saved(folder: Path) -> dict[str, Evaluation]:
    with open_ledger(None, folder, create=False) as ledger:
        return {key_of(e): e for e in ledger.evaluations()[0]}


def test_an_intact_study_is_left_alone(study: Path) -> None:
    before = (study / "study.db").read_bytes()
    report = repair_study(study)
    assert (report.changed, report.evaluations, report.variants, report.events) == (
        False, COUNT, 5, COUNT,
    )  # fmt: skip
    assert (study / "study.db").read_bytes() == before


def test_the_pages_alone_hold_everything(study: Path) -> None:
    with contextlib.closing(sqlite3.connect(study / "study.db")) as raw:
        wanted = {b for (b,) in raw.execute("SELECT body FROM ks_evaluation")}
        wanted |= {b for (b,) in raw.execute("SELECT body FROM ks_event")}
    rows = list(Pages.read((study / "study.db").read_bytes()).table_rows())
    assert wanted <= {r.values[-1] for r in rows}


def test_a_lost_first_page_loses_only_what_was_on_it(study: Path) -> None:
    data = (study / "study.db").read_bytes()
    (study / "study.db").write_bytes(bytes(4096) + data[4096:])
    with pytest.raises(KernelSearchError, match="kernelsearch repair"):
        open_ledger(None, study, create=True)
    report = repair_study(study)
    assert (report.evaluations, report.variants, report.lost) == (COUNT, 5, ())
    assert saved(study) == ALL
    (backup,) = study.glob("damaged-*/study.db")
    assert backup.read_bytes() == bytes(4096) + data[4096:]
    with open_ledger(None, study, create=True) as ledger:
        assert ledger.read_settings() == SETTINGS
        assert [v.name for v in ledger.variants()] == [f"v{n}" for n in range(5)]
        assert [e.data["n"] for e in ledger.events()[0]] == list(range(COUNT))


@pytest.mark.parametrize("seed", range(12))
def test_random_damage(study: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = study / "study.db"
    data = bytearray(path.read_bytes())
    how = seed % 3
    if how == 0:  # a page is gone
        page = chance.randrange(len(data) // 4096) * 4096
        data[page : page + 4096] = bytes(4096)
    elif how == 1:  # bits fall over
        for _ in range(8):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    else:  # cut
        del data[chance.randrange(len(data)) :]
    path.write_bytes(data)
    report = repair_study(study)
    found = saved(study)
    assert found.items() <= ALL.items()
    lost = [x for x in report.lost if x.startswith("evaluation")]
    if how != 2:
        assert len(found) + len(lost) >= COUNT
        assert len(found) >= COUNT - 12
    assert repair_study(study).changed is False


def test_a_digit_changed_costs_that_record_alone(study: Path) -> None:
    path = study / "study.db"
    path.write_bytes(path.read_bytes().replace(b"[1.5,3.0]", b"[1.2,3.0]", 1))
    report = repair_study(study)
    assert len(report.lost) == 1
    assert len(saved(study)) == COUNT - 1
    assert saved(study).items() <= ALL.items()


def test_an_emptied_database_is_saved_from_its_log(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    with open_ledger(None, folder, create=True) as ledger:
        ledger.write_settings(SETTINGS)
        for n in range(9):
            ledger.record(evaluation(n), Owner.here())
        cut = copy_of(folder, "cut")
    (cut / "study.db").write_bytes(b"")
    assert repair_study(cut).evaluations == 9
    assert saved(cut) == {key_of(evaluation(n)): evaluation(n) for n in range(9)}


def test_a_new_folder_leaves_the_old_one_as_it_is(study: Path, tmp_path: Path) -> None:
    path = study / "study.db"
    path.write_bytes(path.read_bytes()[:-4096])
    before = {p: p.read_bytes() for p in study.rglob("*") if p.is_file()}
    report = repair_study(study, tmp_path / "new")
    assert report.folder == str(tmp_path / "new")
    assert saved(tmp_path / "new").items() <= ALL.items()
    assert {p: p.read_bytes() for p in study.rglob("*") if p.is_file()} == before
    with pytest.raises(StudyError, match="exists already"):
        repair_study(study, tmp_path / "new")


def test_a_foreign_file_is_not_taken_for_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"not a database at all " * 900)
    with pytest.raises(StorageError, match="kernelsearch repair"):
        open_ledger(None, tmp_path, create=True)
    with pytest.raises(StorageError, match="no record of kernelsearch"):
        repair_study(tmp_path)
    assert (tmp_path / "study.db").read_bytes() == b"not a database at all " * 900


def test_a_journal_loses_its_damaged_lines_alone(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    fill(folder, f"journal://{folder / 'study.journal'}")
    (log,) = folder.glob("*.ledger/*/logs/*.jsonl")
    log.write_bytes(log.read_bytes().replace(b"[1.5,3.0]", b"[1.2,3.0]", 1))
    torn = sorted(folder.glob("*.ledger/*/variants/*.json"))[0]
    torn.write_bytes(torn.read_bytes()[:-5])
    report = repair_study(folder)
    assert (report.evaluations, report.variants, len(report.lost)) == (COUNT - 1, 4, 2)
    assert saved(folder).items() <= ALL.items()
    assert list(folder.glob("damaged-*/study.journal.ledger/*/logs/*.jsonl"))
    assert repair_study(folder).changed is False


def test_a_database_cut_anywhere_is_read_or_names_repair(whole: Path, tmp_path: Path) -> None:
    data = (whole / "study.db").read_bytes()
    folder = tmp_path / "cut"
    folder.mkdir()
    (folder / "settings.json").write_bytes((whole / "settings.json").read_bytes())
    for place in sorted({*range(0, len(data), 9973), 1, 15, 16, 99, 100, 4095, 4096, 4097}):
        (folder / "study.db").write_bytes(data[:place])
        with pytest.raises(StorageError, match="kernelsearch repair"):
            open_ledger(None, folder, create=True)
        report = repair_study(folder, tmp_path / f"new{place}")
        assert report.settings
        assert saved(tmp_path / f"new{place}").items() <= ALL.items()


def test_a_study_that_somebody_works_on_is_not_repaired(study: Path) -> None:
    import subprocess
    import sys
    from dataclasses import replace

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        me = Owner.here()
        started = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        with open_ledger(None, study, create=True) as ledger:
            ledger.claim("k", replace(me, id="other", pid=other.pid, started=started), 60)
        path = study / "study.db"
        path.write_bytes(path.read_bytes().replace(b"[1.5,3.0]", b"[1.2,3.0]", 1))
        with open_ledger(None, study, create=True) as ledger, pytest.raises(StorageError):
            ledger.evaluations()
        with pytest.raises(StorageError, match=f"process {other.pid} .*still works"):
            repair_study(study)
        other.communicate(b"\n")
    assert repair_study(study).changed
