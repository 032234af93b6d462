"""Shipped headers folded back to the ``#include`` lines they came from: a shorter text to read.

A parsed CUDA variant holds the text of every header it includes. A model or a person needs the
names; what they write is expanded again when it is parsed.
"""

from __future__ import annotations

import re

from kernelsearch.errors import VariantError
from kernelsearch.resources import include_folder
from kernelsearch.variant import parse_variant

# The innermost header of a text: no other begins inside it.
_REGION = re.compile(
    r'^#line 1 "(?P<name>[^"\n]+)"\n(?:(?!#line 1 ")[^\n]*\n)*?#line (?!1 ")\d+ "[^"\n]*"$',
    re.MULTILINE,
)


def folded(source: str, language: str) -> str:
    """Return a variant's source with its headers as includes, where that is the same variant.

    A header that a mutation has changed is no shipped one any more: such a source comes back as it
    is.
    """
    if language != "cuda" or '#line 1 "' not in source:
        return source
    short = source
    while (match := _REGION.search(short)) is not None:
        name = match["name"]
        if not (include_folder() / name).is_file():
            return source
        short = f'{short[: match.start()]}#include "{name}"{short[match.end() :]}'
    try:
        same = parse_variant(short, language).hash == parse_variant(source, language).hash
    except VariantError:
        return source
    return short if same else source


def headers_of(source: str) -> tuple[str, ...]:
    """Return the names of the shipped headers that a folded source includes, in order."""
    names = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', source, re.MULTILINE)
    return tuple(dict.fromkeys(names))
