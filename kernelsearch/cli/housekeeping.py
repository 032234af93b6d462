"""``clean``: give disk space back."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.studies import study_folders
from kernelsearch.errors import ArgumentError, StorageError
from kernelsearch.home import cache_folder

DAY_S = 86400.0


@app.command()
def clean(
    studies: Annotated[bool, typer.Option("--studies", help="Remove stored studies too.")] = False,
    older_than: Annotated[float, typer.Option(
        help="Only what has not changed for this many days.")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Remove compiled binaries and measured rates; with --studies, stored studies too."""
    if older_than < 0:
        raise ArgumentError(f"--older-than must be at least 0 days (got {older_than})")
    limit = time.time() - older_than * DAY_S
    doomed = [p for p in _cache_entries() if p.stat().st_mtime <= limit]
    if studies:
        doomed += [p for p in study_folders() if p.stat().st_mtime <= limit]
    size = sum(_size(p) for p in doomed)
    report = {"paths": [str(p) for p in doomed], "bytes": size, "removed": False}
    if doomed and not dry_run:
        if studies and not yes:
            if json_:
                raise ArgumentError("--json with --studies needs --yes: there is nobody to ask")
            for path in doomed:
                out.print(str(path), markup=False, highlight=False)
            typer.confirm(f"Remove {len(doomed)} entries ({size / 1e6:.1f} MB)?", abort=True)
        for path in doomed:
            _remove(path)
        report["removed"] = True
    if json_:
        emit_json(report)
        return
    verb = "removed" if report["removed"] else "would remove"
    out.print(f"{verb} {len(doomed)} entries, {size / 1e6:.1f} MB", highlight=False)


def _cache_entries() -> list[Path]:
    folder = cache_folder()
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.lstat().st_size for f in files)


def _remove(path: Path) -> None:
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise StorageError(f"cannot remove {path} ({error.strerror}); nothing after it was "
                           "removed") from error  # fmt: skip
