"""Open a study's ledger, and the Optuna storage at the same URL."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from kernelsearch.errors import StorageError, StudyError
from kernelsearch.store_base import (
    BUSY_TIMEOUT_S,
    Claim,
    Event,
    Ledger,
    Owner,
    Recorded,
    evaluation_key,
    is_network_file_system,
    key_of,
    make_folder,
    os_error,
)

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

__all__ = [
    "Claim", "Event", "Ledger", "Owner", "Recorded", "default_url", "evaluation_key", "key_of",
    "open_ledger", "optuna_storage",
]  # fmt: skip


def default_url(folder: Path) -> str:
    """Return the storage URL of a study folder: SQLite, or a journal where machines share it.

    A storage that lies there already is kept.
    """
    folder = folder.resolve()
    database, journal = folder / "study.db", folder / "study.journal"
    ledger = folder / "study.journal.ledger"
    shared = is_network_file_system(folder)
    if not database.exists() and (ledger.exists() or shared):
        return f"journal://{journal}"
    return f"sqlite:///{database}"


def open_ledger(
    url: str | None, folder: Path, *, create: bool, study: str | None = None,
    timeout_s: float = BUSY_TIMEOUT_S,
) -> Ledger:  # fmt: skip
    """Open the ledger of a study.

    Args:
        url: ``sqlite:///path``, ``journal:///path``, ``postgresql://...`` or ``mysql://...``; None
            for the default of the folder.
        folder: the study folder; blobs lie in it.
        create: create what is missing; otherwise a missing study is an error.
        study: the study's name in the storage; None for the only one there, or the folder's name.
        timeout_s: how long to wait for a locked SQLite file.

    Raises:
        StudyError: no such study, or a URL that is written wrongly.
        StorageError: the storage cannot be opened.
    """
    url = url or default_url(folder)
    try:
        if create:
            make_folder(folder.resolve())
    except OSError as error:
        raise os_error("create the study folder", folder, error) from error
    if url.startswith("journal:"):
        from kernelsearch.store_journal import JournalLedger

        return JournalLedger(url, folder, study, create=create)
    from kernelsearch.store_rdb import RdbLedger

    return RdbLedger(url, folder, study, create=create, timeout_s=timeout_s)


def optuna_storage(url: str) -> BaseStorage:
    """Open the Optuna storage at a ledger's URL (a mirror; never the truth).

    Raises:
        StorageError: Optuna cannot open it.
    """
    import optuna
    import sqlalchemy as sa

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if url.startswith("journal:"):
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        from kernelsearch.store_journal import journal_path

        path = journal_path(url)
        try:
            make_folder(path.parent)
            return JournalStorage(JournalFileBackend(str(path)))
        except OSError as error:
            raise os_error("open the Optuna journal", path, error) from error
    arguments = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    failure: Exception | None = None
    for attempt in range(5):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs=arguments)
        except (sa.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
            # Two processes that create the tables at once trip over each other; the second look
            # finds them.
            failure = error
            time.sleep(0.2 * (attempt + 1))
        except RuntimeError as error:
            raise StudyError(f"Optuna cannot use the storage {url}: {error}") from error
    raise StorageError(
        f"Optuna cannot open its tables in {url} ({failure}); check that the database answers "
        "and that you may write to it"
    ) from failure
