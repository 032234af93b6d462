"""The tables of a ledger in a database, and what a database driver's errors mean."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from kernelsearch.errors import StorageError
from kernelsearch.store_base import BUSY_TIMEOUT_S, damaged, free_space, without_secrets

# Beside ours in the same database.
OPTUNA_TABLES = {"studies", "trials", "alembic_version"}
_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_NAME = sa.String(191)
_KEY = sa.String(64)
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
META = sa.MetaData()
STUDY = sa.Table(
    "ks_study", META,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("settings", _LONG, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
)  # fmt: skip
VARIANT = sa.Table(
    "ks_variant", META,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("study", _NAME, nullable=False),
    sa.Column("hash", _KEY, nullable=False),
    sa.Column("body", _LONG, nullable=False),
    sa.UniqueConstraint("study", "hash", name="ks_variant_once"),
)  # fmt: skip
OWNER = sa.Table(
    "ks_owner", META,
    sa.Column("study", _NAME, primary_key=True),
    sa.Column("id", sa.String(120), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started", sa.String(64), nullable=False),
    sa.Column("beat", sa.Double, nullable=False),
)  # fmt: skip
CLAIM = sa.Table(
    "ks_claim", META,
    sa.Column("study", _NAME, primary_key=True),
    sa.Column("key", _KEY, primary_key=True),
    sa.Column("owner", sa.String(120), nullable=False),
    sa.Column("lease_s", sa.Double, nullable=False),
)  # fmt: skip
EVALUATION = sa.Table(
    "ks_evaluation", META,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("study", _NAME, nullable=False),
    sa.Column("key", _KEY, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("variant", _KEY, nullable=False),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("body", _LONG, nullable=False),
    sa.UniqueConstraint("study", "key", "revision", name="ks_evaluation_once"),
)  # fmt: skip
EVENT = sa.Table(
    "ks_event", META,
    sa.Column("id", _ID, primary_key=True, autoincrement=True),
    sa.Column("study", _NAME, nullable=False),
    sa.Column("kind", _KEY, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("body", _LONG, nullable=False),
)  # fmt: skip


def database_error(
    action: str, where: str, folder: Path, error: BaseException, timeout_s: float = BUSY_TIMEOUT_S
) -> StorageError:
    """Return one sentence for what a database driver says in many lines, without credentials.

    Args:
        action: what could not be done.
        where: the database, without credentials.
        folder: the study folder, whose disk may be full.
        error: of the driver or of SQLAlchemy.
        timeout_s: how long was waited for a lock.
    """
    origin = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    name = str(getattr(origin, "sqlite_errorname", "") or "")
    # The driver's own words only: SQLAlchemy adds the statement and its parameters.
    text = without_secrets(" ".join(str(origin).split()))[:300]
    if (
        name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))
        or "Could not decode" in text
        or (isinstance(origin, sqlite3.OperationalError) and text.startswith("no such "))
    ):
        return damaged(f"study storage {where}", text)
    full = f"the disk is full{free_space(folder)}: free space there, then resume the study"
    remedies = {
        "SQLITE_BUSY": f"another process has held it locked for {timeout_s:g} s: wait for "
        "it or end it, then resume",
        "SQLITE_LOCKED": "another connection holds it locked: wait for it, then resume",
        "SQLITE_READONLY": "it is read-only: use a study folder you can write to",
        "SQLITE_FULL": full,
        "SQLITE_CANTOPEN": "it cannot be opened: check that the folder exists and is writable",
        "SQLITE_PERM": "permission is missing: use a study folder you can write to",
        "SQLITE_IOERR": f"the disk reports an error or is full{free_space(folder)}: check it, "
        "then resume the study",
    }
    for prefix, remedy in remedies.items():
        if name.startswith(prefix):
            return StorageError(f"cannot {action} {where} ({text}); {remedy}")
    return StorageError(
        f"cannot {action} {where} ({text}); check that the database answers and that you may "
        "write to it"
    )
