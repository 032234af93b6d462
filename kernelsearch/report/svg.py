"""A small kit to draw charts as SVG text: scales, axes and marks, styled by the page's classes.

Everything that comes from a study goes through ``escape``; numbers are rounded to a tenth of a
pixel, which keeps two thousand points small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape as escape_markup

from kernelsearch.report.words import clean

Point = tuple[float, float]
THOUSANDS_FROM = 1e4


def escape(text: str, quote: bool = False) -> str:
    """Return a text of a study's as markup that shows it."""
    return escape_markup(clean(text), quote)


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps data from ``low`` to ``high`` onto pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(f"a scale must rise (got {self.low} to {self.high}, log={self.log})")

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, 1e-300))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """Return about ``count`` round values inside the scale."""
        return _log_ticks(self.low, self.high, count) if self.log else _ticks(
            self.low, self.high, count
        )  # fmt: skip


def spread(
    values: Sequence[float], start: float, end: float, *, log: bool = False, zero: bool = False
) -> Scale:
    """Return a scale that holds all values with a little room around them.

    Args:
        values: any numbers; those that are not finite are left out.
        start: pixel of the least.
        end: pixel of the greatest.
        log: logarithmic: of positive numbers only.
        zero: begin at zero (linear scales).
    """
    good = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(good), max(good)) if good else (0.5 if log else 0.0, 1.0)
    if log:
        room = max(1.06, (high / low) ** 0.06)
        return Scale(low / room, high * room, start, end, log=True)
    low = min(low, 0.0) if zero else low
    room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return Scale(low if zero and low >= 0 else low - room, high + room, start, end)


def _ticks(low: float, high: float, count: int) -> list[float]:
    raw = (high - low) / max(1, count)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(s * size for s in (1, 2, 2.5, 5, 10) if s * size >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    found = []
    while (value := first * step) <= high * (1 + 1e-12) + step * 1e-9:
        found.append(value)
        first += 1
    return found


def _log_ticks(low: float, high: float, count: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
        found = [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]
        if len(found) <= count + 1:
            break
    if len(found) > count + 1:
        found = found[:: math.ceil(len(found) / count)]
    # A range without a round number in it is marked as a linear one.
    return found if len(found) > 1 else _ticks(low, high, count)


def number(value: float) -> str:
    """Return a number for an axis: short, with thousands as k, M, G and T."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, scale, sign in (
        (1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (THOUSANDS_FROM, 1e3, "k"),
    ):  # fmt: skip
        if size >= limit:
            return f"{value / scale:.3g}{sign}"
    return f"{value:.0f}" if size >= 1000 else f"{value:.3g}"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


@dataclass
class Chart:
    """One chart under construction; ``svg`` returns it.

    Args:
        width / height: pixels at which its letters have their size.
        left / right / top / bottom: room around the plot.
    """

    width: float
    height: float
    left: float = 52
    right: float = 14
    top: float = 12
    bottom: float = 40
    _parts: list[str] = field(default_factory=list)

    @property
    def across(self) -> tuple[float, float]:
        """Pixels of the plot's left and right edge."""
        return self.left, self.width - self.right

    @property
    def upward(self) -> tuple[float, float]:
        """Pixels of the plot's lower and upper edge."""
        return self.height - self.bottom, self.top

    def axes(
        self, x: Scale, y: Scale, x_label: str, y_label: str,
        x_format: Callable[[float], str] = number, y_format: Callable[[float], str] = number,
    ) -> None:  # fmt: skip
        """Draw grid, ticks and labels."""
        low, high = self.upward
        room = max(2, int((self.width - self.left - self.right) / 70))
        for value in y.ticks(5):
            place = y(value)
            self.line([(self.left, place), (self.width - self.right, place)], "grid")
            self.text(self.left - 6, place + 4, y_format(value), "tick end")
        for value in x.ticks(min(8, room)):
            place = x(value)
            self.line([(place, low), (place, low + 4)], "axis")
            self.text(place, low + 17, x_format(value), "tick middle")
        self.line([(self.left, low), (self.width - self.right, low)], "axis")
        self.text((self.left + self.width - self.right) / 2, self.height - 4, x_label,
                  "label middle")  # fmt: skip
        middle = (low + high) / 2
        self._parts.append(
            f'<text class="label middle" transform="translate(13 {_px(middle)}) rotate(-90)">'
            f"{escape(y_label)}</text>"
        )

    def line(self, points: Sequence[Point], kind: str) -> None:
        """Draw a line through points."""
        if points:
            way = "L".join(f"{_px(x)} {_px(y)}" for x, y in points)
            self._parts.append(f'<path class="{kind}" d="M{way}"/>')

    def steps(self, points: Sequence[Point], kind: str, until: float) -> None:
        """Draw a line that keeps its height until the next point, and the last one to ``until``."""
        if not points:
            return
        (x, y), *rest = points
        way = f"M{_px(x)} {_px(y)}" + "".join(f"H{_px(a)}V{_px(b)}" for a, b in rest)
        self._parts.append(f'<path class="{kind}" d="{way}H{_px(until)}"/>')

    def dots(self, points: Sequence[Point], kind: str) -> None:
        """Draw many small dots as one element (round ends of lines without length)."""
        if points:
            way = "".join(f"M{_px(x)} {_px(y)}h0" for x, y in points)
            self._parts.append(f'<path class="{kind}" d="{way}"/>')

    def mark(
        self, x: float, y: float, title: str, kind: str, *, variant: int | None = None,
        radius: float = 4.5,
    ) -> None:  # fmt: skip
        """Draw a dot that says what it is, and leads to a variant if one is given."""
        dot = (
            f'<circle class="{kind}" cx="{_px(x)}" cy="{_px(y)}" r="{_px(radius)}">'
            f"<title>{escape(title)}</title></circle>"
        )
        if variant is None:
            self._parts.append(dot)
            return
        name = escape(title, quote=True)
        self._parts.append(f'<a href="#v{variant}" aria-label="{name}">{dot}</a>')

    def item(
        self, x: float, y: float, title: str, kind: str, variant: int, level: int, words: str
    ) -> None:
        """Draw a node of a tree: a dot and words that lead to a variant."""
        name = escape(title)
        self._parts.append(
            f'<a role="treeitem" href="#v{variant}" id="t{variant}" tabindex="-1" '
            f'aria-level="{level}"><title>{name}</title><rect class="row" x="{_px(x - 10)}" '
            f'y="{_px(y - 11)}" width="{_px(self.width - x + 6)}" height="22"/>'
            f'<circle class="{kind}" cx="{_px(x)}" cy="{_px(y)}" r="6"/>'
            f'<text class="tick start" x="{_px(x + 12)}" y="{_px(y + 4)}">{escape(words)}</text>'
            f"</a>"
        )

    def bar(self, x: float, y: float, width: float, height: float, kind: str, title: str) -> None:
        """Draw a bar."""
        self._parts.append(
            f'<rect class="{kind}" x="{_px(x)}" y="{_px(y)}" width="{_px(max(width, 0.5))}" '
            f'height="{_px(height)}"><title>{escape(title)}</title></rect>'
        )

    def curve(self, start: Point, end: Point, thickness: float, kind: str, title: str) -> None:
        """Draw a band from the left to the right."""
        (a, b), (c, d) = start, end
        middle = _px((a + c) / 2)
        self._parts.append(
            f'<path class="{kind}" stroke-width="{_px(thickness)}" d="M{_px(a)} {_px(b)}'
            f'C{middle} {_px(b)} {middle} {_px(d)} {_px(c)} {_px(d)}">'
            f"<title>{escape(title)}</title></path>"
        )

    def text(self, x: float, y: float, words: str, kind: str) -> None:
        """Write words; ``end``, ``middle`` or ``start`` in ``kind`` anchors them."""
        self._parts.append(f'<text class="{kind}" x="{_px(x)}" y="{_px(y)}">{escape(words)}</text>')

    def svg(self, title: str, kind: str = "chart") -> str:
        """Return the drawing; ``title`` tells those who do not see it what it shows."""
        role = "tree" if kind == "tree" else "group"
        return (
            f'<svg class="{escape(kind, quote=True)}" viewBox="0 0 {_px(self.width)} '
            f'{_px(self.height)}" width="{_px(self.width)}" height="{_px(self.height)}" '
            f'role="{role}" aria-label="{escape(title, quote=True)}">{"".join(self._parts)}</svg>'
        )
