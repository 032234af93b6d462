"""Untrusted text in a prompt: cleaned, shortened, and fenced so that it cannot end its own fence.

Compiler logs, source comments and operator files are written by others. Whatever they say is data
for a model, never a part of its instructions.
"""

from __future__ import annotations

import re
import unicodedata

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_MARKS = re.compile(r"`{3,}")
# Format characters hide or reorder what a person would read.
_HIDDEN = ("Cc", "Cf", "Cs", "Co")


def cleaned(text: str) -> str:
    """Return text without terminal escapes, control characters and invisible formatting."""
    plain = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(c for c in plain if c in "\n\t" or unicodedata.category(c) not in _HIDDEN)


def shortened(text: str, limit: int, tail: float = 0.4) -> str:
    """Return at most about ``limit`` characters: beginning and end, with what is missing said.

    Args:
        text: any text.
        limit: characters to keep.
        tail: share of them that comes from the end.
    """
    if len(text) <= limit:
        return text
    end = int(limit * tail)
    left_out = len(text) - limit
    finish = text[-end:] if end else ""
    return f"{text[: limit - end]}\n[... {left_out} characters left out ...]\n{finish}"


def fenced(text: str, language: str = "", limit: int | None = None) -> str:
    """Return text as a Markdown code block whose fence is longer than any inside."""
    body = cleaned(text).strip("\n")
    if limit is not None:
        body = shortened(body, limit)
    longest = max((len(m) for m in _MARKS.findall(body)), default=2)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{body}\n{marks}"


def one_line(text: str, limit: int = 200) -> str:
    """Return text on one line that is safe in a list or a table cell."""
    line = " ".join(cleaned(text).split()).replace("|", "\\|").replace("`", "'")
    return line if len(line) <= limit else line[: limit - 3] + "..."
