"""Ask before a file from elsewhere is run: operator files are Python."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from kernelsearch.errors import SpecError
from kernelsearch.home import ensure_folder, home
from kernelsearch.operators_io import is_shipped


def require_trust(path: Path, given: bool) -> None:
    """Return if ``path`` may be run: shipped, trusted before, ``--trust`` given, or a yes.

    Raises:
        SpecError: it may not.
    """
    path = path.resolve()
    if is_shipped(path) or str(path) in _trusted():
        return
    if given:
        remember_trust(path)
        return
    if not sys.stdin.isatty():
        raise SpecError(
            f"{path} is not shipped with kernelsearch and running it runs its code; "
            "look at it, then give --trust"
        )
    typer.echo(f"{path} is not shipped with kernelsearch. Using it runs the Python code in it.")
    if not typer.confirm("Do you trust this file?"):
        raise SpecError(f"{path} is not trusted; nothing was run")
    remember_trust(path)


def remember_trust(path: Path) -> None:
    """Note that the user trusts a file (one they wrote themselves, say)."""
    known = _trusted()
    if str(path) in known:
        return
    ensure_folder(home())
    _store().write_text(json.dumps(sorted([*known, str(path)]), indent=1), encoding="utf-8")


def _store() -> Path:
    return home() / "trusted.json"


def _trusted() -> list[str]:
    try:
        value = json.loads(_store().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [str(v) for v in value] if isinstance(value, list) else []
