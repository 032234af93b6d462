"""Save what is intact of a damaged study, and say what is lost.

Every record carries a checksum, and none is ever changed or removed once it is written: whatever
is found with its checksum right belongs to the study. A database is read twice, through SQLite and
page by page (``store_pages``), and written anew; of a journal the damaged lines and files are taken
out. What was there before is kept in a folder ``damaged-<time>`` beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from kernelsearch.codec import decode, is_sealed
from kernelsearch.errors import KernelSearchError, StorageError, StudyError
from kernelsearch.records import Evaluation, VariantRecord
from kernelsearch.store import Event, Ledger, Owner, default_url, key_of, open_ledger
from kernelsearch.store_base import (
    SETTINGS_COPY,
    Contents,
    dumps,
    loads,
    os_error,
    sync_folder,
    write_durably,
)
from kernelsearch.store_journal import log_lines, usable_line
from kernelsearch.store_pages import PageRow, Pages

# A heartbeat of another machine that is younger may be of a process that still runs.
ALIVE_S = 120.0
_COLUMNS = {
    "ks_variant": "id, study, hash, body",
    "ks_evaluation": "id, study, key, revision, variant, status, body",
    "ks_event": "id, study, kind, created, body",
}


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair found.

    Args:
        folder: the study that can be used now.
        changed: False if nothing was damaged, so that nothing was done.
        settings: the study's settings are there; without them it cannot be resumed.
        variants / evaluations / events: how many were saved.
        lost: what was there and could not be saved, one phrase each.
        backup: where the files lie as they were ("" if they are untouched).
    """

    folder: str
    changed: bool
    settings: bool
    variants: int
    evaluations: int
    events: int
    lost: tuple[str, ...] = ()
    backup: str = ""


@dataclass(slots=True)
class _Found:
    """What has been found of one study; evaluations by row id."""

    settings: dict[str, Any] = field(default_factory=dict)
    variants: dict[int, VariantRecord] = field(default_factory=dict)
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    events: dict[int, Event] = field(default_factory=dict)

    def contents(self) -> Contents:
        return Contents(
            self.settings, [v for _, v in sorted(self.variants.items())],
            [e for _, e in sorted(self.evaluations.items())],
            [e for _, e in sorted(self.events.items())],
        )  # fmt: skip


def repair_study(folder: Path, output: Path | None = None) -> RepairReport:
    """Repair the study in a folder.

    Args:
        folder: the study's folder.
        output: write what was saved to this new folder, and change nothing in the old one; None to
            repair in place.

    Raises:
        StudyError: there is no study, or ``output`` exists.
        StorageError: nothing of a study can be found, a process still works on it, or files cannot
            be written.
    """
    if output is not None and output.exists():
        raise StudyError(f"{output} exists already; give a new folder with --output")
    intact = _intact(folder)
    if intact is not None:
        return intact
    if default_url(folder).startswith("journal:"):
        if output is not None:
            shutil.copytree(folder, output)
        return _repair_journal(output or folder, keep=output is None)
    return _repair_database(folder, output)


def _intact(folder: Path) -> RepairReport | None:
    """Return the report of a study in which nothing is damaged, else None."""
    try:
        with open_ledger(None, folder, create=False) as ledger:
            return _report(ledger, folder, changed=False)
    except StorageError:
        return None


def _report(
    ledger: Ledger, folder: Path, *, changed: bool, lost: tuple[str, ...] = (), backup: str = ""
) -> RepairReport:
    return RepairReport(
        str(folder), changed, bool(ledger.read_settings()), len(ledger.variants()),
        len(ledger.evaluations()[0]), len(ledger.events()[0]), lost, backup,
    )  # fmt: skip


# --- a database ---------------------------------------------------------------------------------


def _repair_database(folder: Path, output: Path | None) -> RepairReport:
    database = folder / "study.db"
    files = [p for s in ("", "-wal", "-journal") if (p := Path(f"{database}{s}")).is_file()]
    try:
        place = folder if output is None else output.parent
        with tempfile.TemporaryDirectory(prefix=".repair-", dir=place) as name:
            work = Path(name)
            rows = _read_rows(files, work)
            studies, lost = _sorted_out(rows, folder)
            if not studies:
                raise StorageError(
                    f"{database} holds no record of kernelsearch that can be read, and no copy of "
                    "its settings is left; nothing was changed: restore it from a copy"
                )
            if output is None:
                _check_unused(rows)
            fresh = work / "fresh"
            for study, found in studies.items():
                with open_ledger(f"sqlite:///{quote(str(fresh))}/study.db", fresh, create=True,
                                 study=study) as ledger:  # fmt: skip
                    ledger.write_all(found.contents())
            backup = _put_in_place(folder, files, fresh, output)
    except OSError as error:
        raise os_error("repair the study in", folder, error) from error
    where = output or folder
    first = next(iter(studies))
    with open_ledger(None, where, create=False, study=first) as ledger:
        return _report(ledger, where, changed=True, lost=lost, backup=backup)


def _put_in_place(folder: Path, files: list[Path], fresh: Path, output: Path | None) -> str:
    """Move the new database to where it is wanted; return where the old one is kept."""
    if output is not None:
        for name in ("blobs", "inbox"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, fresh / name)
        os.rename(fresh, output)
        sync_folder(output.parent)
        return ""
    backup = _backup_folder(folder)
    for file in files:
        shutil.copy2(file, backup / file.name)
        with open(backup / file.name, "rb") as copy:
            os.fsync(copy.fileno())
    sync_folder(backup)
    # The old log must not meet the new database: SQLite would write the one into the other.
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{folder / 'study.db'}{suffix}").unlink(missing_ok=True)
    os.replace(fresh / "study.db", folder / "study.db")
    sync_folder(folder)
    return str(backup)


def _backup_folder(folder: Path) -> Path:
    name = time.strftime("damaged-%Y%m%dT%H%M%S", time.gmtime())
    for number in range(1000):
        backup = folder / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            backup.mkdir()
            return backup
    raise StorageError(f"{folder} holds a thousand folders called {name}; remove some")


@dataclass(slots=True)
class _Rows:
    """Raw rows by table: those of SQLite first, then those of the pages."""

    tables: dict[str, list[PageRow]] = field(default_factory=dict)
    studies: list[tuple[Any, ...]] = field(default_factory=list)
    owners: list[tuple[Any, ...]] = field(default_factory=list)
    # What an index names: table and id, with what is known of it.
    named: dict[tuple[str, int], str] = field(default_factory=dict)


def _read_rows(files: list[Path], work: Path) -> _Rows:
    rows = _Rows({t: [] for t in _COLUMNS})
    for file in files:
        shutil.copy2(file, work / file.name)
    contents = {f.name: f.read_bytes() for f in files}
    # On a copy: opening it writes the log into the file, or undoes a half-written commit.
    with contextlib.closing(sqlite3.connect(work / "study.db")) as raw:
        raw.text_factory = lambda data: data.decode(errors="replace")
        for table, columns in _COLUMNS.items():
            for row in _rows_until_damage(raw, f"SELECT {columns} FROM {table} ORDER BY id"):
                if isinstance(row[0], int):
                    rows.tables[table].append(PageRow(row[0], (None, *row[1:])))
        rows.studies += _rows_until_damage(
            raw, "SELECT name, format, settings, created FROM ks_study"
        )
        rows.owners += _rows_until_damage(
            raw, "SELECT study, id, host, pid, started, beat FROM ks_owner"
        )
    pages = Pages.read(contents.get("study.db", b""), contents.get("study.db-wal", b""))
    for page_row in pages.table_rows():
        _take(rows, page_row)
    for entry in pages.index_rows():
        match entry:
            case (str(), str(key), int(revision), int(number)):
                rows.named["ks_evaluation", number] = f"{key}, revision {revision}"
            case (str(), str(name), int(number)):
                rows.named["ks_variant", number] = name
    return rows


def _rows_until_damage(raw: sqlite3.Connection, query: str) -> Iterator[tuple[Any, ...]]:
    with contextlib.suppress(sqlite3.Error):
        yield from raw.execute(query)


def _take(rows: _Rows, row: PageRow) -> None:
    """Sort a row from a page into the table whose columns it has."""
    match row.values:
        case (None, str(), str(), str()):
            rows.tables["ks_variant"].append(row)
        case (None, str(), str(), int(), str(), str(), str()):
            rows.tables["ks_evaluation"].append(row)
        case (None, str(), str(), int() | float(), str()):
            rows.tables["ks_event"].append(row)
        case (str(), int(), str(), int() | float()):
            rows.studies.append(row.values)


def _sorted_out(rows: _Rows, folder: Path) -> tuple[dict[str, _Found], tuple[str, ...]]:
    """Return what is intact, by study, and what is lost."""
    studies: dict[str, _Found] = {}
    # Only studies of format 1 had records without a checksum; elsewhere such a one is a stale copy.
    old = {row[0] for row in rows.studies if row[1] == 1}
    for owner, settings in _settings_texts(rows, folder):
        with contextlib.suppress(StorageError):
            found = studies.setdefault(owner, _Found())
            found.settings = found.settings or loads(settings, "settings")
    lost: list[str] = []
    for table, candidates in rows.tables.items():
        good: set[int] = set()
        for row in candidates:
            name, text = row.values[1], row.values[-1]
            if row.id in good or not isinstance(name, str) or not isinstance(text, str):
                continue
            if not is_sealed(text) and name not in old:
                continue
            with contextlib.suppress(StorageError):
                if _keep(studies.setdefault(name, _Found()), table, row, text):
                    good.add(row.id)
        seen = {r.id for r in candidates} | {i for t, i in rows.named if t == table}
        for number in sorted(set(range(1, _last(seen) + 1)) - good):
            what = rows.named.get((table, number), "")
            lost.append(f"{table.removeprefix('ks_')} {number}{f' ({what})' if what else ''}")
    lost += [f"settings of {name}" for name, found in studies.items() if not found.settings]
    kept = {n: f for n, f in studies.items()
            if f.settings or f.variants or f.evaluations or f.events}  # fmt: skip
    return kept, tuple(lost)


def _last(seen: set[int]) -> int:
    """Return the last id: rows are numbered from 1 without gaps, so one far off is damage."""
    last = 0
    for number in sorted(i for i in seen if i > 0):
        if number - last > max(1000, len(seen)):
            break
        last = number
    return last


def _settings_texts(rows: _Rows, folder: Path) -> Iterator[tuple[str, str]]:
    for name, _, text, _ in rows.studies:
        if isinstance(name, str) and isinstance(text, str) and text:
            yield name, text
    try:
        copies = loads((folder / SETTINGS_COPY).read_text(encoding="utf-8"), SETTINGS_COPY)
    except (FileNotFoundError, UnicodeDecodeError, StorageError):
        return
    for name, settings in copies.items():
        if isinstance(settings, Mapping):
            yield name, dumps(settings)


def _keep(found: _Found, table: str, row: PageRow, text: str) -> bool:
    """Keep a row if its content is whole and belongs under its key."""
    if table == "ks_variant":
        record = decode(text)
        if not isinstance(record, VariantRecord) or record.hash != row.values[2]:
            return False
        found.variants[row.id] = record
    elif table == "ks_evaluation":
        evaluation = decode(text)
        if not isinstance(evaluation, Evaluation) or key_of(evaluation) != row.values[2]:
            return False
        found.evaluations[row.id] = evaluation
    else:
        kind, created = row.values[2], row.values[3]
        if not isinstance(kind, str) or not isinstance(created, int | float):
            return False
        found.events[row.id] = Event(kind, loads(text, "event"), float(created))
    return True


def _check_unused(rows: _Rows) -> None:
    for row in rows.owners:
        with contextlib.suppress(TypeError, ValueError):
            _check_owner(Owner(str(row[1]), str(row[2]), int(row[3]), str(row[4])), float(row[5]))


def _check_owner(owner: Owner, beat: float) -> None:
    """Raise ``StorageError`` if a process may still work on the study."""
    here = owner.host == Owner.here().host
    runs = not owner.is_dead() if here else time.time() - beat < ALIVE_S
    if runs and owner.pid != os.getpid():
        raise StorageError(
            f"process {owner.pid} ({owner.id}) still works on the study; end it, then repair"
        )


# --- a journal ----------------------------------------------------------------------------------


def _repair_journal(folder: Path, *, keep: bool) -> RepairReport:
    """Take what is damaged out of the files of a journal; each file is changed at once or not."""
    root = folder / "study.journal.ledger"
    lost: list[str] = []
    try:
        for path in root.glob("*/owners/*.json"):
            with contextlib.suppress(StorageError, UnicodeDecodeError, TypeError):
                owner = Owner(**loads(path.read_text(encoding="utf-8"), str(path)))
                _check_owner(owner, path.stat().st_mtime)
        backup = _backup_folder(folder)
        shutil.copytree(root, backup / root.name)
        homes = [h for h in root.iterdir() if h.is_dir()]
        for home in homes:
            lost += _clean_home(home)
        mirror = folder / "study.journal"
        if mirror.is_file() and not _is_json_lines(mirror):
            # It is written again from the ledger when the study is resumed.
            os.replace(mirror, backup / mirror.name)
        if not keep:
            shutil.rmtree(backup)
    except OSError as error:
        raise os_error("repair the study in", folder, error) from error
    if not homes:
        raise StorageError(f"{root} holds no study; restore it from a copy")
    with open_ledger(None, folder, create=True) as ledger:
        return _report(
            ledger, folder, changed=True, lost=tuple(lost), backup=str(backup) if keep else ""
        )


def _clean_home(home: Path) -> Iterator[str]:
    for name in ("variants", "claims", "owners", "logs"):
        (home / name).mkdir(exist_ok=True)
    for path in (home / "study.json", home / "settings.json", *home.glob("variants/*.json"),
                 *home.glob("owners/*.json")):  # fmt: skip
        if path.is_file() and not _is_readable(path):
            path.unlink()
            if path.name != "study.json" and path.parent.name != "owners":
                yield f"{path.parent.name if path.parent != home else 'file'} {path.name}"
    for path in home.glob("logs/*.jsonl"):
        lines = list(log_lines(path.read_bytes()))
        good = [line for _, line in lines if usable_line(line)]
        if len(good) < len(lines):
            yield from (f"line at byte {at} of {path.name}"
                        for at, line in lines if not usable_line(line))  # fmt: skip
            write_durably(path, b"".join(good))


def _is_readable(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
        if path.parent.name == "variants":
            return isinstance(decode(text, str(path)), VariantRecord)
        loads(text, str(path))
    except (KernelSearchError, UnicodeDecodeError):
        return False
    return True


def _is_json_lines(path: Path) -> bool:
    try:
        for line in path.read_bytes().splitlines():
            json.loads(line)
    except ValueError:
        return False
    return True
