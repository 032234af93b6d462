"""Output of the command line: people read Rich on a terminal, programs read one JSON document."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kernelsearch.report.words import clean
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


def coloured(text: str, style: str = "") -> Text:
    """Return a text for people that is shown as it is: names may look like Rich's markup."""
    return Text(clean(text), style=style)


class PlainTable(Table):
    """A table whose texts are no markup: what candidates write is among them."""

    def add_row(
        self, *cells: RenderableType | None, style: Any = None, end_section: bool = False
    ) -> None:
        """Add a row; a cell that is text is shown as it is."""
        plain = (coloured(c) if isinstance(c, str) else c for c in cells)
        super().add_row(*plain, style=style, end_section=end_section)


def table(title: str, *columns: str) -> PlainTable:
    """Return an empty table; columns that start with ``>`` are right-aligned."""
    result = PlainTable(title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        right = column.startswith(">")
        result.add_column(
            column.removeprefix(">"), justify="right" if right else "left", overflow="fold"
        )
    return result
