"""Output of the command line: people read Rich on a terminal, programs read one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from kernelsearch.wire import jsonable

out = Console(soft_wrap=True)
errors = Console(stderr=True, soft_wrap=True)


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the command line asks for JSON (also where it could not be parsed)."""
    return "--json" in arguments


def emit_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(jsonable(value), indent=1) + "\n")
    sys.stdout.flush()


def microseconds(value: float | None) -> str:
    """Return a time for people."""
    if value is None:
        return "-"
    if value >= 1e6:
        return f"{value / 1e6:.3g} s"
    if value >= 1e3:
        return f"{value / 1e3:.4g} ms"
    return f"{value:.4g} us"


def percent(value: float | None) -> str:
    """Return a fraction for people."""
    return "-" if value is None else f"{100 * value:.0f} %"


def ratio(value: float | None) -> str:
    """Return a speed-up for people."""
    return "-" if value is None else f"{value:.2f}x"


def table(title: str, *columns: str) -> Table:
    """Return an empty table; columns that start with ``>`` are right-aligned."""
    result = Table(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        right = column.startswith(">")
        result.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    return result
