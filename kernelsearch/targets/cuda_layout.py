"""Place buffers in one block of memory with guard bands between them: pure arithmetic."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALIGN = 256
# Read as float32, float64, float16 or bfloat16 this is NaN, so a guard that is read and used shows.
GUARD_WORD = 0xFFF5FFF5


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be placed: ``misalign`` bytes past a 256-byte boundary."""

    name: str
    nbytes: int
    misalign: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """Where an item lies, relative to the start of the block."""

    name: str
    start: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.start + self.nbytes


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of guard bytes and the buffer it lies next to."""

    name: str
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """All slots of a block, in address order, and the block's size (a multiple of 256)."""

    slots: tuple[Slot, ...]
    nbytes: int

    def gaps(self) -> Iterator[Gap]:
        """Yield every stretch that belongs to no buffer, halved between its two neighbours."""
        at, before = 0, ""
        for slot in self.slots:
            yield from _halves(at, slot.start, before, slot.name)
            at, before = slot.end, slot.name
        if before:
            yield Gap(before, at, self.nbytes - at)


def lay_out(items: Sequence[Item], guard: int, shuffle: random.Random | None = None) -> Layout:
    """Place items with at least ``guard`` bytes before and after each.

    Args:
        items: what to place; the order is kept.
        guard: least bytes of guard band.
        shuffle: adds a random number of 256-byte steps to each gap, so that no kernel can tell
            where the buffers of another call lie.
    """
    slots: list[Slot] = []
    at = 0
    for item in items:
        extra = ALIGN * shuffle.randrange(16) if shuffle is not None else 0
        start = _round_up(at + guard + extra) + item.misalign
        slots.append(Slot(item.name, start, item.nbytes))
        at = start + item.nbytes
    return Layout(tuple(slots), _round_up(at + guard))


def _round_up(value: int) -> int:
    return -(-value // ALIGN) * ALIGN


def _halves(start: int, end: int, before: str, after: str) -> Iterator[Gap]:
    middle = start if not before else (start + end) // 2
    if middle > start:
        yield Gap(before, start, middle - start)
    if end > middle:
        yield Gap(after, middle, end - middle)
