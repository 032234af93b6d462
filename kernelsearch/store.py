"""Open a study's ledger: choose the storage by its URL."""

from __future__ import annotations

from pathlib import Path

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

__all__ = [
    "Claim", "Event", "Ledger", "Owner", "Recorded", "default_url", "evaluation_key", "key_of",
    "open_ledger",
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
        return f"journal://{_quoted(journal)}"
    return f"sqlite:///{_quoted(database)}"


def _quoted(path: Path) -> str:
    """Return a path with the two signs quoted that mean something in the path of a URL."""
    return str(path).replace("%", "%25").replace("?", "%3F")


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
