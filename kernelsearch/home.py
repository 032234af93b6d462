"""Where studies, compiler caches and locks live: ``KERNELSEARCH_HOME`` or the XDG cache."""

from __future__ import annotations

import os
from pathlib import Path

from kernelsearch.errors import StorageError


def home() -> Path:
    """Return the folder for studies, caches and locks (not created)."""
    given = os.environ.get("KERNELSEARCH_HOME")
    if given:
        return Path(given).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base.absolute() / "kernelsearch"


def studies_folder() -> Path:
    """Return the folder that studies are created in by default."""
    return home() / "studies"


def cache_folder() -> Path:
    """Return the folder of compiled binaries and device measurements."""
    return home() / "cache"


def lock_path(device_key: str) -> Path:
    """Return the lock file of a device."""
    return home() / "locks" / f"{device_key}.lock"


def ensure_folder(path: Path) -> Path:
    """Create ``path`` with its parents, so that they survive a loss of power.

    Raises:
        StorageError: it cannot be created or written to.
    """
    try:
        missing = [p for p in (path, *path.parents) if not p.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for created in missing:
            fd = os.open(created.parent, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(fd)
            os.close(fd)
    except OSError as error:
        raise StorageError(
            f"cannot create the folder {path} ({error.strerror}); choose another with "
            "--folder, or set KERNELSEARCH_HOME to one you can write to"
        ) from error
    if not os.access(path, os.W_OK):
        raise StorageError(
            f"the folder {path} is read-only; choose another with --folder, or set "
            "KERNELSEARCH_HOME to one you can write to"
        )
    return path
