"""The ledger as plain files, for file systems that several nodes share and no database can lock.

Beside the journal that Optuna writes (``study.journal``) lies ``study.journal.ledger/<study>/``::

    study.json              format and settings, written once
    variants/<hash>.json    one file a variant, created whole or not at all
    claims/<key>.<n>        held claims; the highest n counts, so a takeover is one exclusive create
    owners/<id>.json        who claims; its modification time is the heartbeat
    logs/<id>.jsonl         what one process recorded: one fsynced JSON line a record

Every process appends to its own log only: no two writers share a file and no lock is needed. A
line counts once its newline is there; a process that was killed leaves at most one torn last line.
Variants, settings and lines end with a checksum (``codec.seal``); those of format 1 have none.
Where two processes did record one key (a lease ran out while its holder still worked), every reader
keeps the same one. Ages are judged by the file server's clock, as the clocks of nodes differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from kernelsearch.codec import (
    BROKEN,
    decode,
    encode,
    from_json,
    plain,
    seal,
    to_json,
    unplain,
    unseal,
)
from kernelsearch.errors import StorageError, StudyError
from kernelsearch.records import Evaluation, VariantRecord
from kernelsearch.store_base import (
    FORMAT,
    NO_LINKS,
    Claim,
    Contents,
    Event,
    Ledger,
    Owner,
    Recorded,
    Stopwatch,
    damaged,
    dumps,
    is_final,
    key_of,
    loads,
    make_folder,
    os_error,
    sync_folder,
    write_durably,
)


@dataclass(slots=True)
class _Known:
    """One evaluation as read: enough to decide which of two with one key counts."""

    revision: int
    rank: tuple[float, str]
    place: tuple[str, int, int]


@dataclass(slots=True)
class _State:
    """What has been read of all logs so far."""

    offsets: dict[str, int] = field(default_factory=dict)
    known: dict[str, _Known] = field(default_factory=dict)
    evaluations: list[tuple[str, tuple[str, int, int]]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class JournalLedger(Ledger):
    """A ledger in append-only files."""

    def __init__(self, url: str, folder: Path, study: str | None, *, create: bool) -> None:
        self.url, self.folder = url, folder
        path = journal_path(url)
        self.root = path.with_name(path.name + ".ledger")
        self._lock = threading.RLock()
        self._state = _State()
        self._log_fd = -1
        self._log_number = 0
        self._owners: dict[str, Owner] = {}
        self._stopwatch = Stopwatch()
        # Names this process's own log; it is no claim's owner.
        self._writer = Owner.here().id.replace("/", "_")
        with self._translated("open", self.root):
            self.study = self._choose(study, create)
            self.home = self.root / quote(self.study, safe="")
            if create:
                for name in ("variants", "claims", "owners", "logs"):
                    make_folder(self.home / name)
            self._prepare(create)

    def _choose(self, study: str | None, create: bool) -> str:
        known = [unquote(p.name) for p in self.root.iterdir()] if self.root.is_dir() else []
        if study is None and len(known) > 1:
            raise StudyError(f"{self.root} holds {len(known)} studies: name one of {sorted(known)}")
        chosen = study or (known[0] if known else self.folder.resolve().name)
        if chosen not in known and not create:
            raise StudyError(
                f"there is no study {chosen!r} in {self.root}; check the path, or start one "
                "with 'tune'"
            )
        return chosen

    def _prepare(self, create: bool) -> None:
        path = self.home / "study.json"
        if create and not path.exists():
            # Settings come later; a file of their own keeps both writes exclusive.
            write_durably(path, dumps({"format": FORMAT}).encode(), exclusive=True)
        if not path.is_file():
            raise damaged(f"study {self.study!r} in {self.root}", f"{path.name} is missing")
        version = loads(_text(path), str(path)).get("format")
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise StorageError(
                f"study {self.study!r} in {self.root} has format {version}, this version reads "
                f"formats up to {FORMAT}; open it with the version of kernelsearch that wrote it"
            )
        if version < FORMAT and os.access(self.home, os.W_OK):
            self._migrate(path, version)

    def _migrate(self, path: Path, version: int) -> None:
        """From format 1 to 2: lines may carry checksums; those that are there stay as they are."""
        backup = path.with_name(f"{path.name}.format{version}")
        write_durably(backup, path.read_bytes(), exclusive=True)
        write_durably(path, dumps({"format": FORMAT}).encode())

    @contextlib.contextmanager
    def _translated(self, action: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise os_error(action, path, error) from error

    # --- settings and variants --------------------------------------------------------------

    def read_settings(self) -> dict[str, Any]:
        path = self.home / "settings.json"
        with self._translated("read the settings", path):
            return loads(_text(path), str(path)) if path.exists() else {}

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        path = self.home / "settings.json"
        text = dumps(settings)
        with self._translated("write the settings", path):
            if write_durably(path, seal(text).encode(), exclusive=True):
                return
            if unseal(_text(path), str(path)) != text:
                raise StudyError(
                    f"study {self.study!r} in {self.root} has other settings already; "
                    "they are written once: use another study name"
                )

    def add_variant(self, record: VariantRecord) -> bool:
        path = self.home / "variants" / f"{quote(record.hash, safe='')}.json"
        with self._translated("write the variant", path):
            if path.exists():
                return False
            return write_durably(path, seal(encode(record)).encode(), exclusive=True)

    def variants(self) -> list[VariantRecord]:
        folder = self.home / "variants"
        with self._translated("read the variants", folder):
            paths = [p for p in folder.glob("*.json") if not p.name.startswith(".")]
            found = [decode(_text(p), str(p)) for p in paths]
        return sorted(found, key=lambda r: (r.created, r.hash))

    # --- claims -----------------------------------------------------------------------------

    def claim(self, key: str, owner: Owner, lease_s: float) -> Claim:
        folder = self.home / "claims"
        with self._lock, self._translated("claim a candidate in", folder):
            if self._recorded(key) is not None:
                return Claim.DONE
            held = self._generations(key)
            if held and self._lives(held[-1][1]):
                return Claim.TAKEN
            self._beat(owner)
            number = held[-1][0] + 1 if held else 0
            path = folder / f"{key}.{number}"
            if not self._create(path, f"{owner.id}\n{lease_s!r}\n".encode()):
                return Claim.TAKEN
            # The holder before us may have recorded it between our look and our create.
            if self._recorded(key) is not None:
                self._unlink(path)
                return Claim.DONE
            # Or the stale claim was freed and the candidate claimed afresh. Both may give way.
            if any(p != path and self._lives(p) for _, p in self._generations(key)):
                self._unlink(path)
                return Claim.TAKEN
            return Claim.CLAIMED

    def _create(self, path: Path, data: bytes) -> bool:
        """Create a claim file with its content; False if it exists.

        Not synced: a claim that loss of power takes away is only made again.
        """
        fresh = path.with_name(f".new-{quote(self._writer, safe='')}")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        self._unlink(fresh)
        try:
            self._write_new(fresh, flags, data)
            # A link fails where the name exists, and whoever sees the claim sees its content.
            os.link(fresh, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # No hard links here: whoever is killed before the write leaves a claim without owner.
            try:
                self._write_new(path, flags, data)
            except FileExistsError:
                return False
        finally:
            self._unlink(fresh)
        return True

    @staticmethod
    def _write_new(path: Path, flags: int, data: bytes) -> None:
        fd = os.open(path, flags, 0o644)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)

    def heartbeat(self, owner: Owner) -> None:
        with self._lock, self._translated("write the heartbeat in", self.home / "owners"):
            self._beat(owner)

    def release(self, key: str, owner: Owner) -> bool:
        with self._lock, self._translated("release a claim in", self.home / "claims"):
            held = self._generations(key)
            if not held or self._content(held[-1][1])[0] != owner.id:
                return False
            self._drop(held)
            return True

    def claims(self) -> dict[str, str]:
        folder = self.home / "claims"
        with self._lock, self._translated("read the claims in", folder):
            highest: dict[str, tuple[int, Path]] = {}
            for path in folder.glob("[!.]*"):
                key, _, number = path.name.rpartition(".")
                if number.isdecimal():
                    highest[key] = max(highest.get(key, (-1, path)), (int(number), path))
            return {
                k: self._content(path)[0] for k, (_, path) in highest.items() if self._lives(path)
            }

    def _generations(self, key: str) -> list[tuple[int, Path]]:
        found = []
        for path in (self.home / "claims").glob(f"{key}.*"):
            number = path.name.rpartition(".")[2]
            if number.isdecimal():  # anything else was not put there by us
                found.append((int(number), path))
        return sorted(found)

    def _drop(self, held: list[tuple[int, Path]]) -> None:
        # Lowest first: while any is left, the highest of them is still the one that counts.
        for _, path in held:
            self._unlink(path)

    @staticmethod
    def _unlink(path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()

    @staticmethod
    def _content(path: Path) -> tuple[str, float]:
        """Return owner id and lease of a claim ("" while they are not written yet, or damaged)."""
        try:
            owner_id, lease, _ = path.read_text(encoding="utf-8").split("\n")
            return owner_id, float(lease)
        except (FileNotFoundError, ValueError):
            return "", 0.0

    def _lives(self, path: Path) -> bool:
        """Tell whether a claim file still holds, judging times by the file server's clock."""
        owner_id, lease_s = self._content(path)
        try:
            if not owner_id:
                return self._server_time() - path.stat().st_mtime < 10.0
            file = self._owner_path(owner_id)
            beat = file.stat().st_mtime
            if owner_id not in self._owners:
                self._owners[owner_id] = _owner(_text(file), file)
        except (FileNotFoundError, StorageError):
            # Who holds it cannot be told any more; at worst the candidate is measured twice.
            return False
        if self._owners[owner_id].is_dead():
            return False
        return self._stopwatch.age_s(owner_id, beat, self._server_time()) <= lease_s

    def _owner_path(self, owner_id: str) -> Path:
        return self.home / "owners" / f"{quote(owner_id, safe='')}.json"

    def _beat(self, owner: Owner) -> None:
        path = self._owner_path(owner.id)
        try:
            os.utime(path)
        except FileNotFoundError:
            data = {"id": owner.id, "host": owner.host, "pid": owner.pid, "started": owner.started}
            write_durably(path, dumps(data).encode())

    def _server_time(self) -> float:
        path = self.home / "owners" / f".clock-{quote(self._writer, safe='')}"
        path.touch()
        return path.stat().st_mtime

    # --- records ----------------------------------------------------------------------------

    def record(self, evaluation: Evaluation, owner: Owner) -> Recorded:
        key = key_of(evaluation)
        if not is_final(evaluation):
            self.release(key, owner)
            return Recorded.RELEASED
        with self._lock, self._translated("record an evaluation in", self.home):
            known = self._recorded(key)
            held = self._generations(key)
            if known is None:
                self._append_evaluation(key, 0, evaluation)
            self._drop(held)
            return Recorded.RECORDED if known is None else Recorded.DUPLICATE

    def revise(self, key: str, evaluation: Evaluation) -> None:
        if key_of(evaluation) != key or not is_final(evaluation):
            raise StorageError(
                f"a revision must be a final evaluation of the same candidate, device and "
                f"settings (got key {key_of(evaluation)} for {key}); record it as its own"
            )
        with self._lock, self._translated("record a revision in", self.home):
            known = self._recorded(key)
            if known is None:
                raise StorageError(f"evaluation {key} is not recorded; record it before revising")
            self._append_evaluation(key, known.revision + 1, evaluation)

    def _append_evaluation(self, key: str, revision: int, evaluation: Evaluation) -> None:
        body = to_json(evaluation)
        line = {"kind": "evaluation", "key": key, "revision": revision, "at": time.time()}
        self._append({**line, "body": body})

    def _append(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
        data = (seal(text) + "\n").encode()
        try:
            if self._log_fd < 0:
                self._open_log()
            view = memoryview(data)
            while view:
                view = view[os.write(self._log_fd, view) :]
            os.fsync(self._log_fd)
        except OSError:
            # The line may be there in part: it ends this log, the next one starts afresh.
            self._close_log()
            raise

    def _open_log(self) -> None:
        path = self.home / "logs" / f"{quote(self._writer, safe='')}-{self._log_number}.jsonl"
        self._log_number += 1
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        self._log_fd = os.open(path, flags, 0o644)
        sync_folder(path.parent)

    def _close_log(self) -> None:
        if self._log_fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._log_fd)
            self._log_fd = -1

    def _recorded(self, key: str) -> _Known | None:
        self._refresh()
        return self._state.known.get(key)

    def _refresh(self) -> None:
        """Read what all logs have gained."""
        folder = self.home / "logs"
        for entry in sorted(os.scandir(folder), key=lambda e: e.name):
            seen = self._state.offsets.get(entry.name, 0)
            # A size asked by name may be stale on NFS; opening the file asks the server again.
            with open(entry.path, "rb") as file:
                if os.fstat(file.fileno()).st_size <= seen:
                    continue
                file.seek(seen)
                data = file.read()
            for line in data[: data.rfind(b"\n") + 1].splitlines(keepends=True):
                self._take(entry.name, seen, line)
                seen += len(line)
            self._state.offsets[entry.name] = seen

    def _take(self, log: str, offset: int, line: bytes) -> None:
        where = f"{self.home / 'logs' / log} at byte {offset}"
        try:
            document = _document(line, where)
            kind, at = document["kind"], float(document["at"])
            if kind == "evaluation":
                self._take_evaluation(document, log, offset, len(line), at)
            elif kind == "event":
                self._state.events.append(event_of(document))
            else:
                raise StorageError(
                    f"{where} holds a record of kind {kind!r}, which this version does not know; "
                    "open it with a newer version of kernelsearch"
                )
        except BROKEN as error:
            raise damaged(where, f"{type(error).__name__}: {error}") from error

    def _take_evaluation(
        self, document: dict[str, Any], log: str, offset: int, length: int, at: float
    ) -> None:
        key, revision = str(document["key"]), int(document["revision"])
        mine = _Known(revision, (at, log), (log, offset, length))
        known = self._state.known.get(key)
        if known is not None:
            newer = revision > known.revision
            earlier = revision == known.revision and mine.rank < known.rank
            if not (newer or earlier):
                return
        self._state.known[key] = mine
        self._state.evaluations.append((key, mine.place))

    def _load(self, place: tuple[str, int, int]) -> Evaluation:
        log, offset, length = place
        path = self.home / "logs" / log
        with open(path, "rb") as file:
            file.seek(offset)
            line = file.read(length)
        where = f"{path} at byte {offset}"
        found: Evaluation = from_json(_document(line, where).get("body", {}), where)
        return found

    def evaluations(self, since: str = "") -> tuple[list[Evaluation], str]:
        with self._lock, self._translated("read the evaluations in", self.home):
            self._refresh()
            # The order is this object's own: a cursor is good for the ledger that gave it.
            fresh = self._state.evaluations[int(since or 0) :]
            return [self._load(p) for _, p in fresh], str(len(self._state.evaluations))

    def evaluation(self, key: str) -> Evaluation | None:
        with self._lock, self._translated("read an evaluation in", self.home):
            known = self._recorded(key)
            return None if known is None else self._load(known.place)

    # --- events -----------------------------------------------------------------------------

    def add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        body = plain(dict(data))
        with self._lock, self._translated("write an event in", self.home):
            self._append({"kind": "event", "name": kind, "at": time.time(), "body": body})

    def events(self, since: str = "") -> tuple[list[Event], str]:
        with self._lock, self._translated("read the events in", self.home):
            self._refresh()
            found = self._state.events[int(since or 0) :]
            return sorted(found, key=lambda e: e.created), str(len(self._state.events))

    def write_all(self, contents: Contents) -> None:
        if contents.settings:
            self.write_settings(contents.settings)
        for record in contents.variants:
            self.add_variant(record)
        revisions: dict[str, int] = {}
        with self._lock, self._translated("write the records in", self.home):
            for evaluation in contents.evaluations:
                key = key_of(evaluation)
                revisions[key] = revisions.get(key, -1) + 1
                self._append_evaluation(key, revisions[key], evaluation)
            for event in contents.events:
                body = plain(dict(event.data))
                self._append(
                    {"kind": "event", "name": event.kind, "at": event.created, "body": body}
                )

    def close(self) -> None:
        with self._lock:
            self._close_log()


def event_of(document: Mapping[str, Any]) -> Event:
    """Return the event in a line of a log; raises one of ``BROKEN`` where it holds none."""
    data = unplain(document["body"])
    if not isinstance(document["name"], str) or not isinstance(data, dict):
        raise TypeError("an event needs a name and an object")
    return Event(document["name"], data, float(document["at"]))


def log_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the ended lines of a log with their offsets; a torn last one was never acknowledged."""
    at = 0
    for line in data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]:
        yield at, line + b"\n"
        at += len(line) + 1


def usable_line(line: bytes) -> bool:
    """Tell whether a line of a log is an intact record of this version."""
    try:
        document = _document(line, "line")
        float(document["at"])
        if document["kind"] == "event":
            event_of(document)
        elif document["kind"] == "evaluation":
            found: Evaluation = from_json(document["body"], "line")
            return key_of(found) == document["key"] and int(document["revision"]) >= 0
        else:
            return False
    except (StorageError, *BROKEN):
        return False
    return True


def _document(line: bytes, where: str) -> dict[str, Any]:
    """Return the object that a line of a log holds.

    Raises:
        StorageError: it holds none, or its checksum is wrong.
    """
    try:
        found = json.loads(unseal(line.decode("utf-8").rstrip("\n"), where))
    except (ValueError, RecursionError) as error:
        raise damaged(where, str(error)) from error
    if not isinstance(found, dict):
        raise damaged(where, "it is no JSON object")
    return found


def _text(path: Path) -> str:
    """Return the text of a file of ours.

    Raises:
        StorageError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged(str(path), str(error)) from error


def _owner(text: str, path: Path) -> Owner:
    data = loads(text, str(path))
    try:
        owner = Owner(**data)
    except TypeError as error:
        raise damaged(str(path), str(error)) from error
    if type(owner.pid) is not int:
        raise damaged(str(path), f"its pid is {owner.pid!r}")
    return owner


def journal_path(url: str) -> Path:
    """Return the file a journal URL names."""
    path = unquote(url.removeprefix("journal://"))
    if not path.startswith("/") or path.endswith("/"):
        raise StudyError(
            f"a journal URL must name a file by its full path (got {url!r}); "
            "write journal:///full/path/study.journal"
        )
    return Path(path)
