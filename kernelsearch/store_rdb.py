"""The ledger in a relational database: SQLite, or PostgreSQL or MySQL for many nodes.

SQLite runs in WAL mode with ``synchronous=FULL``: a commit is one fsync of the log instead of two
or three of journal and file, a reader (dashboard, ``show``) never blocks the writer, and a commit
that has returned survives ``kill -9`` and loss of power alike. WAL needs shared memory between the
processes, so on network file systems the rollback journal is used instead.

Every write runs in one transaction that holds the write lock of the study from its start (SQLite:
``BEGIN IMMEDIATE``; elsewhere: a row lock), so that rows become visible in the order of their ids
and a cursor never misses one.
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
from sqlalchemy.dialects import mysql

from kernelsearch.codec import decode, encode
from kernelsearch.errors import StorageError, StudyError
from kernelsearch.records import Evaluation, VariantRecord
from kernelsearch.store_base import (
    BUSY_TIMEOUT_S,
    Claim,
    Event,
    Ledger,
    Owner,
    Recorded,
    dumps,
    is_final,
    is_network_file_system,
    key_of,
    loads,
    make_folder,
    os_error,
)

FORMAT = 1
_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_NAME = sa.String(191)
_KEY = sa.String(64)
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_META = sa.MetaData()
_STUDY = sa.Table(
    "ks_study", _META,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("settings", _LONG, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)  # fmt: skip
_VARIANT = sa.Table(
    "ks_variant", _META,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("study", _NAME, nullable=False),
    sa.Column("hash", _KEY, nullable=False),
    sa.Column("body", _LONG, nullable=False),
    sa.UniqueConstraint("study", "hash", name="ks_variant_once"),
)  # fmt: skip
_OWNER = sa.Table(
    "ks_owner", _META,
    sa.Column("study", _NAME, primary_key=True),
    sa.Column("id", sa.String(120), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.String(64), nullable=False),
    sa.Column("beat", sa.Double, nullable=False),
)  # fmt: skip
_CLAIM = sa.Table(
    "ks_claim", _META,
    sa.Column("study", _NAME, primary_key=True),
    sa.Column("key", _KEY, primary_key=True),
    sa.Column("owner", sa.String(120), nullable=False),
    sa.Column("lease_s", sa.Double, nullable=False),
)  # fmt: skip
_EVALUATION = sa.Table(
    "ks_evaluation", _META,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("study", _NAME, nullable=False),
    sa.Column("key", _KEY, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("variant", _KEY, nullable=False),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("body", _LONG, nullable=False),
    sa.UniqueConstraint("study", "key", "revision", name="ks_evaluation_once"),
)  # fmt: skip
_EVENT = sa.Table(
    "ks_event", _META,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("study", _NAME, nullable=False),
    sa.Column("kind", _KEY, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("body", _LONG, nullable=False),
)  # fmt: skip


class RdbLedger(Ledger):
    """A ledger in a database that SQLAlchemy reaches."""

    def __init__(
        self, url: str, folder: Path, study: str | None, *, create: bool,
        timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:  # fmt: skip
        self.url, self.folder, self.timeout_s = url, folder, timeout_s
        try:
            self._url = sa.make_url(url)
        except sa.exc.ArgumentError as error:
            raise StudyError(
                f"storage URL {url!r} must look like sqlite:////path/study.db, "
                "journal:////path/study.journal, postgresql://host/db or mysql://host/db"
            ) from error
        self.sqlite = self._url.get_backend_name() == "sqlite"
        self.where = self._url.render_as_string(hide_password=True)
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
            if create:
                make_folder(path.parent)
            elif not path.is_file():
                raise StudyError(
                    f"there is no study at {path}; check the path, or start one with 'tune'"
                )
        except OSError as error:
            raise os_error("create the study folder", path.parent, error) from error

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
            elif cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
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
                    raise self._damaged(" ".join(str(verdict).split()))
        if create:
            try:
                with self._write(lock=False) as db:
                    _META.create_all(db)
            except StorageError:
                # Another process may have created the tables between our look and our try.
                with self._write(lock=False) as db:
                    _META.create_all(db)
        with self._read() as db:
            names = list(sa.inspect(db).get_table_names())
            if _STUDY.name not in names:
                raise StudyError(f"{self.where} holds no kernelsearch study; start one with 'tune'")
            known = list(db.scalars(sa.select(_STUDY.c.name).order_by(_STUDY.c.name)))
        if study is None:
            if len(known) > 1:
                raise StudyError(f"{self.where} holds {len(known)} studies: name one of {known}")
            study = known[0] if known else self.folder.resolve().name
        self.study = study
        if study not in known:
            if not create:
                raise StudyError(f"{self.where} has no study {study!r}; it has {known or 'none'}")
            with self._write(lock=False) as db:
                if db.scalar(sa.select(_STUDY.c.name).where(_STUDY.c.name == study)) is None:
                    db.execute(_STUDY.insert().values(
                        name=study, format=FORMAT, settings="", created=time.time()
                    ))  # fmt: skip
        with self._read() as db:
            version = db.scalar(sa.select(_STUDY.c.format).where(_STUDY.c.name == study))
        if version != FORMAT:
            raise StorageError(
                f"study {study!r} in {self.where} has format {version}, this version reads "
                f"{FORMAT}; open it with the version of kernelsearch that wrote it"
            )

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
                row = sa.select(_STUDY.c.name).where(_STUDY.c.name == self.study)
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

    def _sentence(self, action: str, error: Exception) -> StorageError:
        origin = error.orig if isinstance(error, sa.exc.DBAPIError) else error
        name = str(getattr(origin, "sqlite_errorname", "") or "")
        text = " ".join(str(origin).split())
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
            return self._damaged(text)
        remedies = {
            "SQLITE_BUSY": f"another process has held it locked for {self.timeout_s:g} s: wait for "
            "it or end it, then resume",
            "SQLITE_LOCKED": "another connection holds it locked: wait for it, then resume",
            "SQLITE_READONLY": "it is read-only: use a study folder you can write to",
            "SQLITE_FULL": "the disk is full: free space there, then resume the study",
            "SQLITE_CANTOPEN": "it cannot be opened: check that the folder exists and is writable",
            "SQLITE_PERM": "permission is missing: use a study folder you can write to",
            "SQLITE_IOERR": "the disk reports an error or is full: check it, then resume the study",
        }
        for prefix, remedy in remedies.items():
            if name.startswith(prefix):
                return StorageError(f"cannot {action} the study storage {self.where} ({text}); "
                                    f"{remedy}")  # fmt: skip
        return StorageError(
            f"cannot {action} the study storage {self.where} ({text}); "
            "check that the database answers and that you may write to it"
        )

    def _damaged(self, text: str) -> StorageError:
        return StorageError(
            f"study storage {self.where} is damaged ({text}); restore it from a copy, "
            "or save what is left with: sqlite3 study.db .recover"
        )

    # --- settings and variants --------------------------------------------------------------

    def read_settings(self) -> dict[str, Any]:
        with self._read() as db:
            text = db.scalar(sa.select(_STUDY.c.settings).where(_STUDY.c.name == self.study))
        return loads(text, f"settings of study {self.study!r}") if text else {}

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        text = dumps(settings)
        mine = _STUDY.c.name == self.study
        with self._write() as db:
            known = db.scalar(sa.select(_STUDY.c.settings).where(mine))
            if known and known != text:
                raise StudyError(
                    f"study {self.study!r} in {self.where} has other settings already; "
                    "they are written once: use another study name"
                )
            if not known:
                db.execute(_STUDY.update().where(mine).values(settings=text))

    def add_variant(self, record: VariantRecord) -> bool:
        mine = (_VARIANT.c.study == self.study) & (_VARIANT.c.hash == record.hash)
        body = encode(record)
        with self._write() as db:
            if db.scalar(sa.select(_VARIANT.c.id).where(mine)) is not None:
                return False
            db.execute(_VARIANT.insert().values(study=self.study, hash=record.hash, body=body))
        return True

    def variants(self) -> list[VariantRecord]:
        query = (
            sa.select(_VARIANT.c.hash, _VARIANT.c.body)
            .where(_VARIANT.c.study == self.study).order_by(_VARIANT.c.id)
        )  # fmt: skip
        with self._read() as db:
            rows = db.execute(query).all()
        return [decode(body, f"variant {name} in {self.where}") for name, body in rows]

    # --- claims -----------------------------------------------------------------------------

    def claim(self, key: str, owner: Owner, lease_s: float) -> Claim:
        mine = (_CLAIM.c.study == self.study) & (_CLAIM.c.key == key)
        with self._write(lazy=True) as db:
            if self._revision(db, key) is not None:
                return Claim.DONE
            now = self._now(db)
            held = db.execute(
                sa.select(_CLAIM.c.owner, _CLAIM.c.lease_s).where(mine)
            ).first()  # fmt: skip
            if held is not None:
                if self._lives(db, held.owner, held.lease_s, now):
                    return Claim.TAKEN
                db.execute(_CLAIM.delete().where(mine))
            self._beat(db, owner, now)
            db.execute(_CLAIM.insert().values(
                study=self.study, key=key, owner=owner.id, lease_s=lease_s
            ))  # fmt: skip
        return Claim.CLAIMED

    def heartbeat(self, owner: Owner) -> None:
        with self._write(lazy=True) as db:
            self._beat(db, owner, self._now(db))

    def release(self, key: str, owner: Owner) -> bool:
        mine = (_CLAIM.c.study == self.study) & (_CLAIM.c.key == key) & (_CLAIM.c.owner == owner.id)
        with self._write(lazy=True) as db:
            return db.execute(_CLAIM.delete().where(mine)).rowcount > 0

    def claims(self) -> dict[str, str]:
        query = sa.select(_CLAIM.c.key, _CLAIM.c.owner, _CLAIM.c.lease_s)
        with self._read() as db:
            now = self._now(db)
            rows = db.execute(query.where(_CLAIM.c.study == self.study)).all()
            return {k: o for k, o, lease_s in rows if self._lives(db, o, lease_s, now)}

    def _lives(self, db: sa.Connection, owner_id: str, lease_s: float, now: float) -> bool:
        row = db.execute(
            sa.select(_OWNER).where((_OWNER.c.study == self.study) & (_OWNER.c.id == owner_id))
        ).first()
        if row is None or now - row.beat > lease_s:
            return False
        return not Owner(row.id, row.host, row.pid, row.started).is_dead()

    def _beat(self, db: sa.Connection, owner: Owner, now: float) -> None:
        mine = (_OWNER.c.study == self.study) & (_OWNER.c.id == owner.id)
        if db.execute(_OWNER.update().where(mine).values(beat=now)).rowcount == 0:
            db.execute(_OWNER.insert().values(
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
                db.execute(_EVALUATION.insert().values(row))
            db.execute(
                _CLAIM.delete().where((_CLAIM.c.study == self.study) & (_CLAIM.c.key == key))
            )
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
            db.execute(_EVALUATION.insert().values(self._row(key, known + 1, evaluation)))

    def _row(self, key: str, revision: int, evaluation: Evaluation) -> dict[str, Any]:
        return {
            "study": self.study, "key": key, "revision": revision,
            "variant": evaluation.candidate.variant, "status": str(evaluation.status),
            "body": encode(evaluation),
        }  # fmt: skip

    def _revision(self, db: sa.Connection, key: str) -> int | None:
        mine = (_EVALUATION.c.study == self.study) & (_EVALUATION.c.key == key)
        found = db.scalar(sa.select(sa.func.max(_EVALUATION.c.revision)).where(mine))
        return None if found is None else int(found)

    def evaluations(self, since: str = "") -> tuple[list[Evaluation], str]:
        query = (
            sa.select(_EVALUATION.c.id, _EVALUATION.c.key, _EVALUATION.c.body)
            .where((_EVALUATION.c.study == self.study) & (_EVALUATION.c.id > int(since or 0)))
            .order_by(_EVALUATION.c.id)
        )
        with self._read() as db:
            rows = db.execute(query).all()
        found = [decode(r.body, f"evaluation {r.key} in {self.where}") for r in rows]
        return found, str(rows[-1].id) if rows else since

    def evaluation(self, key: str) -> Evaluation | None:
        query = (
            sa.select(_EVALUATION.c.body)
            .where((_EVALUATION.c.study == self.study) & (_EVALUATION.c.key == key))
            .order_by(_EVALUATION.c.revision.desc()).limit(1)
        )  # fmt: skip
        with self._read() as db:
            body = db.scalar(query)
        found: Evaluation | None = (
            None if body is None else decode(body, f"evaluation {key} in {self.where}")
        )
        return found

    # --- events -----------------------------------------------------------------------------

    def add_event(self, kind: str, data: Mapping[str, Any]) -> None:
        body = dumps(data)
        with self._write() as db:
            db.execute(_EVENT.insert().values(
                study=self.study, kind=kind, created=time.time(), body=body
            ))  # fmt: skip

    def events(self, since: str = "") -> tuple[list[Event], str]:
        query = (
            sa.select(_EVENT)
            .where((_EVENT.c.study == self.study) & (_EVENT.c.id > int(since or 0)))
            .order_by(_EVENT.c.id)
        )
        with self._read() as db:
            rows = db.execute(query).all()
        found = [
            Event(r.kind, loads(r.body, f"event {r.id} in {self.where}"), r.created) for r in rows
        ]
        return found, str(rows[-1].id) if rows else since

    def close(self) -> None:
        self._engine.dispose()


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
