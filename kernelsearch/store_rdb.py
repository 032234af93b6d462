"""The ledger in a relational database: SQLite, or PostgreSQL or MySQL for many nodes.

SQLite runs in WAL mode with ``synchronous=FULL``: a commit is one fsync of the log instead of two
or three of journal and file, a reader (dashboard, ``show``) never blocks the writer, and a commit
that has returned survives ``kill -9`` and loss of power alike. WAL needs shared memory between the
processes, so on network file systems the rollback journal is used instead.

Every write runs in one transaction that holds the write lock of the study from its start (SQLite:
``BEGIN IMMEDIATE``; elsewhere: a row lock), so that rows become visible in the order of their ids
and a cursor never misses one.

What is written is sealed with a checksum (``codec.seal``): SQLite has none, and a digit that the
disk has changed would pass for a measurement. Format 1 had no seals; it is migrated when opened.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa

from kernelsearch.codec import decode, encode, is_sealed, seal, unseal
from kernelsearch.errors import StorageError, StudyError
from kernelsearch.records import Evaluation, VariantRecord
from kernelsearch.store_base import (
    BUSY_TIMEOUT_S,
    FORMAT,
    SETTINGS_COPY,
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
    is_network_file_system,
    key_of,
    loads,
    make_folder,
    os_error,
    sync_folder,
    without_secrets,
    write_durably,
)
from kernelsearch.store_tables import (
    CLAIM,
    EVALUATION,
    EVENT,
    META,
    OPTUNA_TABLES,
    OWNER,
    STUDY,
    VARIANT,
    database_error,
)


class RdbLedger(Ledger):
    """A ledger in a database that SQLAlchemy reaches."""

    def __init__(
        self, url: str, folder: Path, study: str | None, *, create: bool,
        timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.url, self.folder, self.timeout_s = url, folder, timeout_s
        self._stopwatch = Stopwatch()
        try:
            self._url = sa.make_url(url)
        except (sa.exc.ArgumentError, ValueError):  # no URL, or a port that is no number
            raise StudyError(
                f"storage URL {without_secrets(url)!r} must look like sqlite:////path/study.db, "
                "journal:////path/study.journal, postgresql://host/db or mysql://host/db"
            ) from None
        self.sqlite = self._url.get_backend_name() == "sqlite"
        # Not as SQLAlchemy has understood it: a password with an "@" or "/" is cut wrongly.
        self.where = without_secrets(url)
        if self.sqlite:
            self._check_file(create)
        self._engine = self._open_engine(create)
        try:
            self._prepare(study, create)
        except BaseException:
            self._engine.dispose()
            raise

    # --- opening ----------------------------------------------------------------------------

    def _check_file(self, create: bool) -> None:
        name = self._url.database
        if not name or name == ":memory:":
            raise StudyError(
                "a ledger must lie in a file (got sqlite in memory); "
                "give a URL like sqlite:////path/study.db"
            )
        path = Path(name)
        try:
            if path.is_file() and path.stat().st_size == 0:
                # Before SQLite looks: it removes the log of an empty database.
                self._check_not_emptied(path)
            if create:
                make_folder(path.parent)
                if not path.exists():
                    self._check_not_emptied(path)
            elif not path.is_file():
                self._check_not_emptied(path)
                raise StudyError(
                    f"there is no study at {path}; check the path, or start one with 'tune'"
                )
        except OSError as error:
            raise os_error("create the study folder", path.parent, error) from error

    def _check_not_emptied(self, path: Path) -> None:
        """Raise ``StorageError`` if a study had begun whose database is gone or empty."""
        traces = [SETTINGS_COPY] if self._copy_path().is_file() else []
        log = path.with_name(path.name + "-wal")
        if log.is_file() and log.stat().st_size > 0:
            traces.append(log.name)
        if path.parent.resolve() == self.folder.resolve():
            traces += [n for n in ("blobs", "inbox/taken") if _holds_files(self.folder / n)]
        if traces:
            raise StorageError(
                f"{path} is missing or empty, but a study had begun there (it left "
                f"{' and '.join(traces)}): its records are lost; save what is left with "
                f"`kernelsearch repair {self.folder}`, or move the folder away to begin anew"
            )

    def _copy_path(self) -> Path:
        """Return the file that keeps a copy of the settings beside the database."""
        return Path(self._url.database or "").parent / SETTINGS_COPY

    def _readable(self, create: bool) -> sa.URL:
        """Return the URL, so changed that a study in a folder nobody may write to can be read.

        SQLite keeps its index of the log beside the database and would fail to make it there.
        """
        path = Path(self._url.database or "").absolute()
        if create or os.access(path.parent, os.W_OK):
            return self._url
        query = {"mode": "ro", "uri": "true"}
        if not path.with_name(path.name + "-wal").exists():
            query["immutable"] = "1"
        return self._url.set(database=f"file:{quote(str(path))}", query=query)

    def _open_engine(self, create: bool) -> sa.Engine:
        try:
            if not self.sqlite:
                return sa.create_engine(self._url, pool_pre_ping=True)
            engine = sa.create_engine(
                self._readable(create), connect_args={"timeout": self.timeout_s}
            )
        except ModuleNotFoundError as error:
            package = {"psycopg2": "psycopg2-binary", "MySQLdb": "mysqlclient"}
            name = package.get(error.name or "", error.name)
            raise StudyError(
                f"storage {self.where} needs the package {name!r}, which is not installed; "
                f"install it with: pip install {name}"
            ) from error
        except sa.exc.NoSuchModuleError as error:
            raise StudyError(
                f"storage URL {self.where!r} names a database that is not known; use sqlite, "
                "journal, postgresql or mysql"
            ) from error
        wal = not is_network_file_system(Path(self._url.database or "/"))

        def connected(connection: Any, record: Any) -> None:
            del record
            # The driver's own transaction control begins too late (at the first write).
            connection.isolation_level = None
            cursor = connection.cursor()
            if not create:
                pass  # the file keeps the mode it was created with
            elif not wal:
                cursor.execute("PRAGMA journal_mode=DELETE")
            elif cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal" and _is_ours(cursor):
                _retry_locked(cursor, "PRAGMA journal_mode=WAL", self.timeout_s)
            cursor.execute("PRAGMA synchronous=FULL")
            cursor.close()

        def begun(connection: sa.Connection) -> None:
            options = connection.get_execution_options()
            if options.get("ks_read", False):
                connection.exec_driver_sql("BEGIN")
                return
            # A claim that loss of power takes away is only made again; kill -9 takes none.
            lazy = wal and options.get("ks_lazy", False)
            connection.exec_driver_sql(f"PRAGMA synchronous={'NORMAL' if lazy else 'FULL'}")
            connection.exec_driver_sql("BEGIN IMMEDIATE")

        sa.event.listen(engine, "connect", connected)
        sa.event.listen(engine, "begin", begun)
        return engine

    def _prepare(self, study: str | None, create: bool) -> None:
        if self.sqlite:
            with self._read() as db:
                verdict = db.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if verdict != "ok":
                    raise damaged(f"study storage {self.where}", str(verdict))
                names = list(sa.inspect(db).get_table_names())
            if STUDY.name not in names:
                self._check_not_emptied(Path(self._url.database or ""))
                if names and not OPTUNA_TABLES & set(names):
                    raise StudyError(
                        f"{self.where} is the database of another program (its tables: "
                        f"{', '.join(names[:5])}); use another folder or URL"
                    )
        if create:
            try:
                with self._write(lock=False) as db:
                    META.create_all(db)
            except StorageError:
                # Another process may have created the tables between our look and our try.
                with self._write(lock=False) as db:
                    META.create_all(db)
        with self._read() as db:
            names = list(sa.inspect(db).get_table_names())
            if STUDY.name not in names:
                raise StudyError(f"{self.where} holds no kernelsearch study; start one with 'tune'")
            known = list(db.scalars(sa.select(STUDY.c.name).order_by(STUDY.c.name)))
        if study is None:
            if len(known) > 1:
                raise StudyError(f"{self.where} holds {len(known)} studies: name one of {known}")
            study = known[0] if known else self.folder.resolve().name
        self.study = study
        if study not in known:
            if not create:
                raise StudyError(f"{self.where} has no study {study!r}; it has {known or 'none'}")
            with self._write(lock=False) as db:
                if db.scalar(sa.select(STUDY.c.name).where(STUDY.c.name == study)) is None:
                    db.execute(STUDY.insert().values(
                        name=study, format=FORMAT, settings="", created=time.time()
                    ))  # fmt: skip
        self._bring_up_to_date()

    # --- formats ----------------------------------------------------------------------------

    def _bring_up_to_date(self) -> None:
        """Migrate an older format; refuse a newer one.

        Raises:
            StorageError: the format is newer than this version of kernelsearch.
        """
        version = self._version()
        if version > FORMAT or version < 1:
            raise StorageError(
                f"study {self.study!r} in {self.where} has format {version}, this version reads "
                f"formats up to {FORMAT}; open it with the version of kernelsearch that wrote it"
            )
        if version == FORMAT:
            return
        if self.sqlite:
            path = Path(self._url.database or "")
            if not os.access(path.parent, os.W_OK):
                return  # it can be read as it is, and nothing will be written
            self._back_up(path, path.with_name(f"{path.name}.format{version}"))
        with self._write() as db:
            # Another process may have done it since we looked; what is sealed is left alone.
            self._seal_all(db)
            db.execute(
                STUDY.update().where(STUDY.c.name == self.study).values(format=FORMAT)
            )  # fmt: skip
        self._copy_settings()

    def _version(self) -> int:
        with self._read() as db:
            found = db.scalar(sa.select(STUDY.c.format).where(STUDY.c.name == self.study))
        if type(found) is not int:
            raise damaged(f"study storage {self.where}", f"its format is {found!r}")
        return found

    def _back_up(self, path: Path, backup: Path) -> None:
        """Copy the whole database, with what its log holds, unless the copy is there already."""
        if backup.exists():
            return
        fresh = backup.with_name(backup.name + f".{os.getpid()}.new")
        try:
            with self._translated("back up"):
                source, copy = sqlite3.connect(path), sqlite3.connect(fresh)
                try:
                    source.backup(copy)
                finally:
                    copy.close()
                    source.close()
            with open(fresh, "rb") as file:
                os.fsync(file.fileno())
            os.replace(fresh, backup)
            sync_folder(backup.parent)
        except OSError as error:
            raise os_error("back up the study in", backup, error) from error
        finally:
            fresh.unlink(missing_ok=True)

    def _seal_all(self, db: sa.Connection) -> None:
        """From format 1 to 2: give every record its checksum."""
        for table in (VARIANT, EVALUATION, EVENT):
            rows = db.execute(
                sa.select(table.c.id, table.c.body).where(table.c.study == self.study)
            ).all()
            changed = [
                {"row": r.id, "text": seal(r.body)} for r in rows
                # What is no JSON object is damaged, and is left for ``repair``.
                if isinstance(r.body, str) and r.body.endswith("}") and not is_sealed(r.body)
            ]  # fmt: skip
            if changed:
                db.execute(
                    table.update().where(table.c.id == sa.bindparam("row"))
                    .values(body=sa.bindparam("text")), changed,
                )  # fmt: skip
        mine = STUDY.c.name == self.study
        text = db.scalar(sa.select(STUDY.c.settings).where(mine))
        if text and not is_sealed(text):
            db.execute(STUDY.update().where(mine).values(settings=seal(text)))

    # --- transactions -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        with (
            self._translated("read"),
            self._engine.connect().execution_options(ks_read=True) as db,
            db.begin(),
        ):
            yield db

    @contextlib.contextmanager
    def _write(self, *, lock: bool = True, lazy: bool = False) -> Iterator[sa.Connection]:
        with (
            self._translated("write to"),
            self._engine.connect().execution_options(ks_lazy=lazy) as db,
            db.begin(),
        ):
            if lock and not self.sqlite:
                # Serialises the writers of a study: ids become visible in their order.
                row = sa.select(STUDY.c.name).where(STUDY.c.name == self.study)
                db.execute(row.with_for_update())
            yield db

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise self._sentence(action, error) from error
        except sqlite3.Error as error:
            raise self._sentence(action, error) from error
        except sa.exc.TimeoutError as error:
            raise StorageError(
                f"cannot {action} {self.where}: no connection became free; use fewer threads"
            ) from error
        except UnicodeDecodeError as error:
            raise damaged(f"study storage {self.where}", str(error)) from error

    def _sentence(self, action: str, error: Exception) -> StorageError:
        return database_error(f"{action} the study storage", self.where, self.folder, error,
                              self.timeout_s)  # fmt: skip

    # --- settings and variants --------------------------------------------------------------

    def read_settings(self) -> dict[str, Any]:
        with self._read() as db:
            text = db.scalar(sa.select(STUDY.c.settings).where(STUDY.c.name == self.study))
        where = f"settings of study {self.study!r} in {self.where}"
        return {} if text is None or text == "" else loads(text, where)

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        text = dumps(settings)
        mine = STUDY.c.name == self.study
        with self._write() as db:
            known = db.scalar(sa.select(STUDY.c.settings).where(mine))
            if known and unseal(known, f"settings of study {self.study!r}") != text:
                raise StudyError(
                    f"study {self.study!r} in {self.where} has other settings already; "
                    "they are written once: use another study name"
                )
            if not known:
                db.execute(STUDY.update().where(mine).values(settings=seal(text)))
        self._copy_settings()

    def _copy_settings(self) -> None:
        """Keep a copy of the settings beside an SQLite file, also as proof that a study began."""
        if not self.sqlite:
            return
        path = self._copy_path()
        settings = self.read_settings()
        if not settings:
            return
        try:
            known = loads(path.read_text(encoding="utf-8"), str(path)) if path.exists() else {}
        except (StorageError, UnicodeDecodeError):
            known = {}  # a damaged copy is replaced
        if known.get(self.study) == settings:
            return
        try:
            write_durably(path, seal(dumps({**known, self.study: settings})).encode())
        except OSError as error:
            raise os_error("write the settings to", path, error) from error

    def add_variant(self, record: VariantRecord) -> bool:
        mine = (VARIANT.c.study == self.study) & (VARIANT.c.hash == record.hash)
        body = seal(encode(record))
        with self._write() as db:
            if db.scalar(sa.select(VARIANT.c.id).where(mine)) is not None:
                return False
            db.execute(VARIANT.insert().values(study=self.study, hash=record.hash, body=body))
        return True

    def variants(self) -> list[VariantRecord]:
        query = (
            sa.select(VARIANT.c.hash, VARIANT.c.body)
            .where(VARIANT.c.study == self.study).order_by(VARIANT.c.id)
        )  # fmt: skip
        with self._read() as db:
            rows = db.execute(query).all()
        return [decode(body, f"variant {name} in {self.where}") for name, body in rows]

    # --- claims -----------------------------------------------------------------------------

    def claim(self, key: str, owner: Owner, lease_s: float) -> Claim:
        mine = (CLAIM.c.study == self.study) & (CLAIM.c.key == key)
        with self._write(lazy=True) as db:
            if self._revision(db, key) is not None:
                return Claim.DONE
            now = self._now(db)
            held = db.execute(
                sa.select(CLAIM.c.owner, CLAIM.c.lease_s).where(mine)
            ).first()  # fmt: skip
            if held is not None:
                if self._lives(db, held.owner, held.lease_s, now):
                    return Claim.TAKEN
                db.execute(CLAIM.delete().where(mine))
            self._beat(db, owner, now)
            db.execute(CLAIM.insert().values(
                study=self.study, key=key, owner=owner.id, lease_s=lease_s
            ))  # fmt: skip
        return Claim.CLAIMED

    def heartbeat(self, owner: Owner) -> None:
        with self._write(lazy=True) as db:
            self._beat(db, owner, self._now(db))

    def release(self, key: str, owner: Owner) -> bool:
        mine = (CLAIM.c.study == self.study) & (CLAIM.c.key == key) & (CLAIM.c.owner == owner.id)
        with self._write(lazy=True) as db:
            return db.execute(CLAIM.delete().where(mine)).rowcount > 0

    def claims(self) -> dict[str, str]:
        query = sa.select(CLAIM.c.key, CLAIM.c.owner, CLAIM.c.lease_s)
        with self._read() as db:
            now = self._now(db)
            rows = db.execute(query.where(CLAIM.c.study == self.study)).all()
            return {k: o for k, o, lease_s in rows if self._lives(db, o, lease_s, now)}

    def _lives(self, db: sa.Connection, owner_id: str, lease_s: float, now: float) -> bool:
        row = db.execute(
            sa.select(OWNER).where((OWNER.c.study == self.study) & (OWNER.c.id == owner_id))
        ).first()
        if row is None or self._stopwatch.age_s(owner_id, row.beat, now) > lease_s:
            return False
        return not Owner(row.id, row.host, row.pid, row.started).is_dead()

    def _beat(self, db: sa.Connection, owner: Owner, now: float) -> None:
        mine = (OWNER.c.study == self.study) & (OWNER.c.id == owner.id)
        if db.execute(OWNER.update().where(mine).values(beat=now)).rowcount == 0:
            db.execute(OWNER.insert().values(
                study=self.study, id=owner.id, host=owner.host, pid=owner.pid,
                started=owner.started, beat=now,
            ))  # fmt: skip

    def _now(self, db: sa.Connection) -> float:
        """Return the server's time: the clocks of nodes differ."""
        if self.sqlite:
            return time.time()
        if self._url.get_backend_name() == "postgresql":
            return float(db.execute(
                sa.text("SELECT EXTRACT(EPOCH FROM clock_timestamp())")
            ).scalar_one())  # fmt: skip
        return float(db.execute(sa.text("SELECT UNIX_TIMESTAMP(NOW(6))")).scalar_one())

    # --- evaluations ------------------------------------------------------------------------

    def record(self, evaluation: Evaluation, owner: Owner) -> Recorded:
        key = key_of(evaluation)
        if not is_final(evaluation):
            self.release(key, owner)
            return Recorded.RELEASED
        row = self._row(key, 0, evaluation)
        with self._write() as db:
            known = self._revision(db, key)
            if known is None:
                db.execute(EVALUATION.insert().values(row))
            db.execute(CLAIM.delete().where((CLAIM.c.study == self.study) & (CLAIM.c.key == key)))
        return Recorded.RECORDED if known is None else Recorded.DUPLICATE

    def revise(self, key: str, evaluation: Evaluation) -> None:
        if key_of(evaluation) != key or not is_final(evaluation):
            raise StorageError(
                f"a revision must be a final evaluation of the same candidate, device and "
                f"settings (got key {key_of(evaluation)} for {key}); record it as its own"
            )
        with self._write() as db:
            known = self._revision(db, key)
            if known is None:
                raise StorageError(f"evaluation {key} is not recorded; record it before revising")
            db.execute(EVALUATION.insert().values(self._row(key, known + 1, evaluation)))

    def _row(self, key: str, revision: int, evaluation: Evaluation) -> dict[str, Any]:
        return {
            "study": self.study, "key": key, "revision": revision,
            "variant": evaluation.candidate.variant, "status": str(evaluation.status),
            "body": seal(encode(evaluation)),
        }  # fmt: skip

    def _revision(self, db: sa.Connection, key: str) -> int | None:
        mine = (EVALUATION.c.study == self.study) & (EVALUATION.c.key == key)
        found = db.scalar(sa.select(sa.func.max(EVALUATION.c.revision)).where(mine))
        return None if found is None else int(found)

    def evaluations(self, since: str = "") -> tuple[list[Evaluation], str]:
        query = (
            sa.select(EVALUATION.c.id, EVALUATION.c.key, EVALUATION.c.body)
            .where((EVALUATION.c.study == self.study) & (EVALUATION.c.id > int(since or 0)))
            .order_by(EVALUATION.c.id)
        )
        with self._read() as db:
            rows = db.execute(query).all()
        found = [decode(r.body, f"evaluation {r.key} in {self.where}") for r in rows]
        return found, str(rows[-1].id) if rows else since

    def evaluation(self, key: str) -> Evaluation | None:
        query = (
            sa.select(EVALUATION.c.body)
            .where((EVALUATION.c.study == self.study) & (EVALUATION.c.key == key))
            .order_by(EVALUATION.c.revision.desc()).limit(1)
        )  # fmt: skip
        with self._read() as db:
            body = db.scalar(query)
        found: Evaluation | None = (
            None if body is None else decode(body, f"evaluation {key} in {self.where}")
        )
        return found

    # --- events -----------------------------------------------------------------------------

    def add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        body = seal(dumps(data))
        with self._write() as db:
            db.execute(EVENT.insert().values(
                study=self.study, kind=kind, created=time.time(), body=body
            ))  # fmt: skip

    def events(self, since: str = "") -> tuple[list[Event], str]:
        query = (
            sa.select(EVENT)
            .where((EVENT.c.study == self.study) & (EVENT.c.id > int(since or 0)))
            .order_by(EVENT.c.id)
        )
        with self._read() as db:
            rows = db.execute(query).all()
        found = [
            Event(r.kind, loads(r.body, f"event {r.id} in {self.where}"), r.created) for r in rows
        ]
        return found, str(rows[-1].id) if rows else since

    def write_all(self, contents: Contents) -> None:
        if contents.settings:
            self.write_settings(contents.settings)
        revisions: dict[str, int] = {}
        rows = []
        for evaluation in contents.evaluations:
            key = key_of(evaluation)
            revisions[key] = revisions.get(key, -1) + 1
            rows.append(self._row(key, revisions[key], evaluation))
        variants = [
            {"study": self.study, "hash": r.hash, "body": seal(encode(r))}
            for r in contents.variants
        ]
        events = [
            {"study": self.study, "kind": e.kind, "created": e.created,
             "body": seal(dumps(e.data))} for e in contents.events
        ]  # fmt: skip
        with self._write() as db:
            for table, values in ((VARIANT, variants), (EVALUATION, rows), (EVENT, events)):
                if values:
                    db.execute(table.insert(), values)

    def close(self) -> None:
        self._engine.dispose()


def _is_ours(cursor: Any) -> bool:
    """Tell whether a database is new, or holds tables of ours or of Optuna."""
    tables = {n for (n,) in cursor.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return not tables or bool(tables & (OPTUNA_TABLES | {STUDY.name}))


def _holds_files(folder: Path) -> bool:
    return folder.is_dir() and any(p.is_file() for p in folder.rglob("*"))


def _retry_locked(cursor: Any, statement: str, timeout_s: float) -> None:
    """Run a statement that SQLite refuses at once, without waiting, while others are reading."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            cursor.execute(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY" or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
