"""The lineage tree: a row a variant, the best line of descent straight down, others branch off."""

from __future__ import annotations

from collections.abc import Sequence

from kernelsearch.report.charts import shade
from kernelsearch.report.collect import Report, VariantRow
from kernelsearch.report.svg import Chart
from kernelsearch.report.words import plain, short, speedup

PITCH, INDENT = 22.0, 20.0
Place = tuple[float, float]


def tree(report: Report) -> str:
    """Draw the lineage of a study."""
    rows = _rows(report)
    widest = max((column for _, column in rows), default=0)
    chart = Chart(widest * INDENT + 330, len(rows) * PITCH + 8)
    places = {
        v.number: (12 + column * INDENT, 14 + i * PITCH) for i, (v, column) in enumerate(rows)
    }
    way = set(report.path)
    # The winner's line last: it lies on top.
    for variant, _ in sorted(rows, key=lambda r: r[0].number in way):
        if variant.parent is not None:
            (a, b), (c, d) = places[variant.parent], places[variant.number]
            kind = "branch way" if variant.number in way else "branch"
            chart.line([(a, b), (a, d), (c, d)], kind)
    for variant, _ in rows:
        _node(chart, variant, places[variant.number], report)
    return chart.svg("Lineage of the variants", "tree")


def _rows(report: Report) -> list[tuple[VariantRow, int]]:
    """Return the variants from top to bottom with their columns.

    A variant's best child stays in its column and comes last, so that the line to it passes what
    branches off: however long a line of descent is, it needs one column.
    """
    children: dict[int | None, list[VariantRow]] = {}
    for variant in report.variants:
        children.setdefault(variant.parent, []).append(variant)
    reach: dict[int, float] = {}
    for variant in reversed(report.variants):
        below = (reach.get(c.number, 0.0) for c in children.get(variant.number, ()))
        reach[variant.number] = max((variant.speedup or 0.0, *below))

    def ranked(rows: Sequence[VariantRow]) -> list[VariantRow]:
        return sorted(rows, key=lambda v: (-reach[v.number], v.number))

    rows: list[tuple[VariantRow, int]] = []
    waiting = [(v, 0) for v in reversed(ranked(children.get(None, [])))]
    while waiting:
        variant, column = waiting.pop()
        rows.append((variant, column))
        best, *others = ranked(children.get(variant.number, [])) or (None,)
        if best is not None:
            waiting.append((best, column))
        waiting += [(v, column + 1) for v in reversed(others) if v is not None]
    return rows


def _node(chart: Chart, variant: VariantRow, place: Place, report: Report) -> None:
    step = shade(variant.speedup, report)
    words = plain(variant.mutation or variant.name)
    state = plain(variant.status) if variant.speedup is None else speedup(variant.speedup)
    winner = variant.number == report.winner
    kind = f"leaf {'bad' if step is None else f'c{step}'}{' winner' if winner else ''}"
    chart.item(*place, short(variant.name), kind, variant.number, variant.depth + 1,
               f"{words}  {state}{'  (winner)' if winner else ''}")  # fmt: skip
