"""Choose workloads for an imported operator: small, odd, and large enough to fill a device."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from kernelsearch.errors import ExpressionError
from kernelsearch.expressions import Expression
from kernelsearch.importing.contract import Imported, TensorFact
from kernelsearch.records import DTYPE_BYTES

LARGE_BYTES = 1 << 28
LARGE_TERMS = 1 << 38
SMALL = (67, 35, 19, 13, 11, 7, 5, 3)
HELDOUT = ((1, 1, 1, 1), (2, 3, 5, 7), (129, 61, 33, 17), (1009, 257, 31, 5))
# An offsets' total (non-zeros, edges), for each element of what they run over.
PER_ROW = 8


def choose_sizes(imported: Imported, given: Mapping[str, int]) -> dict[str, list[dict[str, int]]]:
    """Return workload sets: ``smoke``, ``heldout`` and ``large``.

    Args:
        imported: what was derived; its checks hold on every workload.
        given: sizes that the user fixed (for ``large``).
    """
    symbols = imported.symbols
    free = [s for s in symbols if s not in imported.derived]
    smoke = _legal(imported, dict(zip(free, SMALL * 3, strict=False)))
    heldout = []
    for row in HELDOUT:
        sizes = _legal(imported, dict(zip(free, row * 4, strict=False)))
        if sizes is not None and sizes not in heldout:
            heldout.append(sizes)
    large = _legal(imported, {**_large(imported, free), **imported.defaults, **given})
    return {
        "smoke": [smoke] if smoke is not None else [],
        "heldout": [h for h in heldout if h != smoke],
        "large": [large] if large is not None else [],
    }


def _large(imported: Imported, free: list[str]) -> dict[str, int]:
    """Return the largest equal power of two whose arrays and work stay affordable."""
    best = dict.fromkeys(free, 64)
    for exponent in range(6, 29):
        sizes = _legal(imported, dict.fromkeys(free, 1 << exponent))
        if sizes is None:
            continue
        try:
            nbytes = sum(_elements(t, sizes) * DTYPE_BYTES[t.dtype] for t in imported.tensors)
            outputs = max(_elements(t, sizes) for t in imported.tensors if t.role != "in")
            terms = Expression.parse(imported.terms).integer(sizes)
        except ExpressionError:
            break
        if nbytes > LARGE_BYTES or outputs * max(1, terms) > LARGE_TERMS:
            break
        best = {s: sizes[s] for s in free}
    return best


def _elements(tensor: TensorFact, sizes: Mapping[str, int]) -> int:
    return math.prod(Expression.parse(s).integer(dict(sizes)) for s in tensor.shape)


def _legal(imported: Imported, sizes: dict[str, int]) -> dict[str, int] | None:
    """Return the sizes with derived ones added, raised until the checks hold; None: they do not."""
    free = [s for s in imported.symbols if s not in imported.derived]
    sizes = {s: max(1, sizes.get(s, 64)) for s in free}
    for check in imported.checks:
        expression = Expression.parse(check)
        own = [s for s in free if s in expression.names]
        match = _divisor(check)
        for name in own:
            if match is not None and match > 1:
                sizes[name] = -(-sizes[name] // match) * match
        limited = re.fullmatch(r"(\w+) <= (\d+)", check)
        if limited is not None and limited[1] in sizes:
            sizes[limited[1]] = min(sizes[limited[1]], int(limited[2]))
    whole = {s: sizes.get(s, 1) for s in imported.symbols}
    for name in imported.derived:
        rows = [
            Expression.parse(t.shape[0]).integer({**whole, name: 1})
            for t in imported.tensors if t.values == "offsets" and t.limit == name
        ]  # fmt: skip
        whole[name] = PER_ROW * max(rows, default=1)
    try:
        held = all(Expression.parse(c).truth(dict(whole)) for c in imported.checks)
    except ExpressionError:
        held = False
    return whole if held else None


def _divisor(check: str) -> int | None:
    tail = check.partition("%")[2].partition("==")[0].strip(" ()")
    try:
        return Expression.parse(tail).integer({})
    except ExpressionError:
        return None
