"""Read an answer: a whole variant file, or edits of the parent's; say what is wrong with it.

Two forms are read. As data (a tool call)::

    {"mutation": "...", "rationale": "...", "predicted_gain": 1.2,
     "edits": [{"search": "...", "replace": "..."}], "source": ""}

and as text, with a head of ``mutation:``, ``rationale:`` and ``gain:`` lines, followed by edit
blocks or by one fenced block with a whole file::

    <<<<<<< SEARCH
    lines of the parent
    =======
    lines to put there
    >>>>>>> REPLACE
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelsearch.errors import AnswerError

MAX_EDITS = 40
MAX_GAIN = 1000.0
_EDIT = re.compile(
    r"^<{5,9} ?SEARCH[ \t]*\n(?P<search>.*?)(?:^|(?<=\n))={5,9}[ \t]*\n(?P<replace>.*?)"
    r"(?:^|(?<=\n))>{5,9} ?REPLACE[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_BLOCK = re.compile(
    r"^(?P<marks>`{3,})[^\n`]*\n(?P<body>.*?)^(?P=marks)[ \t]*$", re.DOTALL | re.MULTILINE
)
_HEAD = re.compile(
    r"^[ \t>*_-]*(?P<name>mutation|rationale|gain|predicted_gain)[*_]*[ \t]*[:=][ \t*_]*"
    r"(?P<value>[^\n]*)$",
    re.IGNORECASE | re.MULTILINE,
)
_WORD = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the one place where ``search`` stands in the parent."""

    search: str
    replace: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was understood, not yet applied.

    Args:
        mutation: short name of the change.
        rationale: why it should help.
        gain: predicted parent time / child time, None where none was given.
        edits: of the parent's text; empty where ``source`` is given.
        source: a whole variant file; empty where edits are given.
    """

    mutation: str
    rationale: str
    gain: float | None
    edits: tuple[Edit, ...] = ()
    source: str = ""


def read_data(data: Mapping[str, Any]) -> Answer:
    """Read an answer from the input of a tool call.

    Raises:
        AnswerError: a field is missing or of the wrong kind.
    """
    source = data.get("source") or ""
    if not isinstance(source, str):
        raise AnswerError(f"source must be text (got {type(source).__name__})")
    raw = data.get("edits") or []
    if not isinstance(raw, list):
        raise AnswerError(f"edits must be a list (got {type(raw).__name__})")
    edits = []
    for number, item in enumerate(raw, 1):
        if not isinstance(item, Mapping) or not all(
            isinstance(item.get(k), str) for k in ("search", "replace")
        ):
            raise AnswerError(
                f"edit {number} must have the texts search and replace (got {item!r})"
            )
        edits.append(Edit(item["search"], item["replace"]))
    return _checked(Answer(
        _name(data.get("mutation")), _sentence(data.get("rationale")),
        _gain(data.get("predicted_gain")), tuple(edits), source,
    ))  # fmt: skip


def read_text(text: str) -> Answer:
    """Read an answer from plain text (Markdown).

    Raises:
        AnswerError: it holds neither edits nor a file, or both, or a block is not closed.
    """
    text = text.replace("\r\n", "\n")
    edits = tuple(
        Edit(m["search"].removesuffix("\n"), m["replace"].removesuffix("\n"))
        for m in _EDIT.finditer(text)
    )
    opened = len(re.findall(r"^<{5,9} ?SEARCH[ \t]*$", text, re.MULTILINE))
    if opened != len(edits):
        raise AnswerError(
            f"{opened} edit blocks begin but {len(edits)} are complete; each is <<<<<<< SEARCH, "
            "the lines, =======, the new lines, >>>>>>> REPLACE, with every mark on its own line"
        )
    files = [] if edits else [m["body"] for m in _BLOCK.finditer(text) if _is_file(m["body"])]
    if len(files) > 1:
        raise AnswerError(f"holds {len(files)} whole variant files; give exactly one")
    if not edits and not files and _is_file(text.strip()):
        files = [text.strip() + "\n"]
    first = min((m.start() for m in (*_EDIT.finditer(text), *_BLOCK.finditer(text))),
                default=len(text))  # fmt: skip
    head = {m["name"].lower(): m["value"].strip() for m in _HEAD.finditer(text[:first])}
    return _checked(Answer(
        _name(head.get("mutation")), _sentence(head.get("rationale")),
        _gain(head.get("gain") or head.get("predicted_gain")), edits, files[0] if files else "",
    ))  # fmt: skip


def applied(answer: Answer, parent: str) -> str:
    """Return the new variant's text.

    Args:
        answer: what was read.
        parent: the text that the answerer was shown.

    Raises:
        AnswerError: an edit does not match exactly one place, or nothing changes.
    """
    if answer.source:
        text = answer.source
    else:
        text = parent
        for number, edit in enumerate(answer.edits, 1):
            text = _replaced(text, edit, number)
    if _squeezed(text) == _squeezed(parent):
        raise AnswerError("changes nothing: the result is the parent itself")
    return text


def _checked(answer: Answer) -> Answer:
    if answer.edits and answer.source:
        raise AnswerError("gives both edits and a whole file; give one of them")
    if not answer.edits and not answer.source:
        raise AnswerError(
            "holds no kernel: give edit blocks of the parent, or one whole variant file that "
            "begins with its kernelsearch metadata"
        )
    if len(answer.edits) > MAX_EDITS:
        raise AnswerError(f"has {len(answer.edits)} edits; at most {MAX_EDITS}, or a whole file")
    for number, edit in enumerate(answer.edits, 1):
        if not edit.search.strip():
            raise AnswerError(f"edit {number} searches for nothing; quote the lines it replaces")
    return answer


def _replaced(text: str, edit: Edit, number: int) -> str:
    found = _places(text, edit.search)
    if not found:
        found = _loose_places(text, edit.search)
    if len(found) == 1:
        begin, end = found[0]
        return f"{text[:begin]}{edit.replace}{text[end:]}"
    if found:
        lines = ", ".join(str(text.count("\n", 0, b) + 1) for b, _ in found[:6])
        raise AnswerError(
            f"edit {number}: its search text stands in {len(found)} places (lines {lines}); quote "
            "more lines around the one that is meant"
        )
    raise AnswerError(f"edit {number}: {_nearest(text, edit.search)}")


def _places(text: str, search: str) -> list[tuple[int, int]]:
    """Return where ``search`` stands, as whole text; overlapping ones are found too."""
    wanted = search.strip("\n")
    found, at = [], text.find(wanted)
    while at >= 0:
        found.append((at, at + len(wanted)))
        at = text.find(wanted, at + 1)
    return found


def _loose_places(text: str, search: str) -> list[tuple[int, int]]:
    """Return where lines stand that differ from ``search`` only in white space around them."""
    wanted = [line.strip() for line in search.strip("\n").split("\n")]
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    bare = [line.strip() for line in lines]
    size = len(wanted)
    return [
        (starts[i], starts[i + size] - 1)
        for i in range(len(lines) - size + 1) if bare[i : i + size] == wanted
    ]  # fmt: skip


def _nearest(text: str, search: str) -> str:
    first = next(line for line in search.split("\n") if line.strip()).strip()
    lines = [line.strip() for line in text.split("\n")]
    near = difflib.get_close_matches(first, lines, n=1, cutoff=0.6)
    if not near:
        return f"the parent has no line like {first[:100]!r}; quote its lines exactly"
    number = lines.index(near[0]) + 1
    if near[0] == first:
        return (
            f"line {number} of the parent is {first[:100]!r}, but the lines after it are not those "
            "of the search text; quote them exactly"
        )
    return (
        f"no such lines in the parent; its line {number} is {near[0][:100]!r}, "
        f"the search text says {first[:100]!r}"
    )


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _is_file(text: str) -> bool:
    return bool(re.match(r'\s*(?:/\*\s*kernelsearch\b|[rR]?"""\s*kernelsearch\b)', text))


def _name(value: object) -> str:
    words = _WORD.sub("_", str(value or "")).strip("_").lower()
    return words[:60].rstrip("_") or "unnamed"


def _sentence(value: object) -> str:
    return " ".join(str(value or "").split())[:1000]


def _gain(value: object) -> float | None:
    """Return a predicted gain; anything that is no sensible ratio counts as none given."""
    if isinstance(value, str):
        match = re.search(r"\d+(?:\.\d+)?", value)
        value = float(match[0]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 < value <= MAX_GAIN else None
