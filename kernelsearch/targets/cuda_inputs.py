"""Keep large inputs on the device between requests, and notice when somebody changed them."""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from kernelsearch.records import BufferSpec, ShmRef
from kernelsearch.shm import attach
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_layout import Gap, Item, Layout, lay_out

GUARD_BYTES = 1 << 16
RESIDENT_SHARE = 0.3
_SAMPLE_BYTES = 4096
_SAMPLES = 64


@dataclass(slots=True)
class Resident:
    """An input on the device between guard bands, with the hash of its contents.

    ``pins`` counts who relies on its address; a pinned copy is not dropped.
    """

    name: str
    ref: ShmRef
    block: int
    layout: Layout
    expected: int = 0
    pins: int = 0

    @property
    def pointer(self) -> int:
        return self.block + self.layout.slots[0].start

    @property
    def region(self) -> tuple[int, int]:
        return self.pointer, self.layout.slots[0].nbytes

    def gaps(self) -> list[tuple[Gap, tuple[int, int]]]:
        return [(g, (self.block + g.start, g.nbytes)) for g in self.layout.gaps()]


def identity(ref: ShmRef) -> Hashable:
    """Return a key that changes when the block behind ``ref`` is another one, or was rewritten.

    A path may be used again for another block, so the block's inode and a sample of its contents
    belong to the key (all of it up to 256 KiB).
    """
    facts = os.stat(ref.path)
    return (ref.path, facts.st_dev, facts.st_ino, ref.offset, ref.nbytes, _sample(ref))


def _sample(ref: ShmRef) -> int:
    if not ref.nbytes:
        return 0
    mapping = attach(ref, writable=False)
    with memoryview(mapping) as view:
        start = len(view) - ref.nbytes
        if ref.nbytes <= _SAMPLE_BYTES * _SAMPLES:
            value = zlib.crc32(view[start:])
        else:
            value = 0
            step = (ref.nbytes - _SAMPLE_BYTES) // (_SAMPLES - 1)
            for i in range(_SAMPLES):
                at = start + i * step
                value = zlib.crc32(view[at : at + _SAMPLE_BYTES], value)
    mapping.close()
    return value


class InputStore:
    """Device-resident copies of inputs, least recently used out first."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._budget = int(RESIDENT_SHARE * context.total_bytes)
        self._kept: OrderedDict[Hashable, Resident] = OrderedDict()

    def get(self, spec: BufferSpec) -> Resident:
        """Return the device copy of a buffer's source, uploading it if it is not there."""
        assert spec.source is not None
        key = (identity(spec.source), spec.misalign)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        context = self._context
        layout = lay_out([Item(spec.name, spec.nbytes, spec.misalign)], GUARD_BYTES)
        self.make_room(layout.nbytes)
        resident = Resident(spec.name, spec.source, context.allocate(layout.nbytes), layout)
        self._fill(resident)
        self._kept[key] = resident
        return resident

    def _fill(self, resident: Resident) -> None:
        context = self._context
        context.fill_guard(resident.block, resident.layout.nbytes)
        context.upload(resident.pointer, resident.ref)
        resident.expected = int(context.hashes([resident.region])[0])

    def make_room(self, nbytes: int) -> None:
        """Drop copies nobody uses until ``nbytes`` more fit the budget."""
        used = sum(r.layout.nbytes for r in self._kept.values())
        for key, resident in list(self._kept.items()):
            if used + nbytes <= self._budget:
                break
            if not resident.pins:
                used -= resident.layout.nbytes
                self._context.free(resident.block)
                del self._kept[key]

    def check(self, residents: Sequence[Resident]) -> tuple[list[str], list[str]]:
        """Return the names of changed inputs and of damaged guards; send those inputs again."""
        context = self._context
        hashes = context.hashes([r.region for r in residents])
        modified = [r for r, got in zip(residents, hashes, strict=True) if int(got) != r.expected]
        gaps = [(r, region) for r in residents for _, region in r.gaps()]
        broken = context.broken([region for _, region in gaps])
        damaged = [r for (r, _), bad in zip(gaps, broken, strict=True) if bad]
        for resident in residents:
            if any(resident is r for r in (*modified, *damaged)):
                self._fill(resident)
        return sorted({r.name for r in modified}), sorted({r.name for r in damaged})

    def drop_unused(self) -> None:
        """Drop every copy that nobody relies on at the moment."""
        self.make_room(self._budget)

    def close(self) -> None:
        while self._kept:
            self._context.free(self._kept.popitem()[1].block)
