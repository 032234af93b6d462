"""Copies of the input sets on the device, for timed calls that each find their data cold."""

from __future__ import annotations

import random
import secrets
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from kernelsearch.errors import ResourceLimitError
from kernelsearch.records import BufferSpec
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_inputs import InputStore, Resident, identity
from kernelsearch.targets.cuda_layout import ALIGN, Item, Layout, lay_out
from kernelsearch.targets.cuda_load import Placed

GUARD_BYTES = 4096
MAX_REPLICAS = 64
# Replicas are made until they take this much together: enough calls for one sample of a fast
# kernel, and few calls where one call takes long anyway.
REPLICA_BYTES = 256 << 20
KEPT_SHARE = 0.4
# An input of this size is shared by the replicas of its set: reading it once evicts all of it.
SHARED_BYTES = 512 << 20

Sets = Sequence[tuple[BufferSpec, ...]]


@dataclass(frozen=True, slots=True)
class Replica:
    """The buffers of one call: ``set_index`` says which input set they hold."""

    set_index: int
    placed: dict[str, Placed]


class ReplicaSet:
    """All replicas of one group of input sets: inputs in one block, outputs in another.

    Outputs have the guard pattern as poison, so that one fill prepares those of many calls.
    """

    def __init__(self, context: CudaContext, store: InputStore, sets: Sets, count: int) -> None:
        self._context, self._store = context, store
        self._residents: dict[tuple[int, str], Resident] = {}
        self._blocks: list[int] = []
        try:
            self._place(sets, count)
        except ResourceLimitError:
            self.release()
            raise
        self.replicas = [self._replica(sets, n) for n in range(count)]
        self._read_only = {s.name for s in sets[0] if s.role == "in"}
        # What hot calls have in common, and what each has to itself, bytes.
        self.shared_bytes = sum(s.nbytes for specs in sets for s in specs if s.role == "in")
        self.own_bytes = sum(s.nbytes for s in sets[0] if s.role != "in")
        self._ends = self._prefix_ends(count)
        self._upload(sets, count)
        self._input_names = [s.name for s in self._in_layout.slots]
        self._expected: Any = context.hashes(self._input_regions())

    def _place(self, sets: Sets, count: int) -> None:
        for index, specs in enumerate(sets):
            for spec in specs:
                if _shared(spec):
                    resident = self._store.get(spec)
                    resident.pins += 1
                    self._residents[index, spec.name] = resident
        ins: list[Item] = []
        outs: list[Item] = []
        for number in range(count):
            for spec in sets[number % len(sets)]:
                item = Item(f"{number}:{spec.name}", spec.nbytes, spec.misalign)
                if spec.role != "in":
                    outs.append(item)
                elif not _shared(spec):
                    ins.append(item)
        originals = [
            Item(f"original {index}:{spec.name}", spec.nbytes)
            for index, specs in enumerate(sets)
            for spec in specs
            if spec.role == "inout"
        ]
        shuffle = random.Random(secrets.randbits(64))
        self._in_layout = lay_out(ins + originals, GUARD_BYTES, shuffle)
        self._out_layout = lay_out(outs, GUARD_BYTES, shuffle)
        self.nbytes = self._in_layout.nbytes + self._out_layout.nbytes
        for layout in (self._in_layout, self._out_layout):
            self._blocks.append(self._context.allocate(layout.nbytes))
        self._in_block, self._out_block = self._blocks
        self._starts = _starts(self._in_layout, self._in_block)
        self._starts.update(_starts(self._out_layout, self._out_block))

    def _replica(self, sets: Sets, number: int) -> Replica:
        index = number % len(sets)
        placed = {}
        for spec in sets[index]:
            resident = self._residents.get((index, spec.name))
            start = resident.pointer if resident else self._starts[f"{number}:{spec.name}"]
            placed[spec.name] = Placed(start, spec.nbytes, spec.dtype, spec.shape)
        return Replica(index, placed)

    def placed(self, number: int, *, hot: bool = False) -> dict[str, Placed]:
        """Return a call's buffers; hot calls on one set have its inputs in common."""
        own = self.replicas[number].placed
        first = self.replicas[self.replicas[number].set_index].placed
        return {n: first[n] if hot and n in self._read_only else p for n, p in own.items()}

    def _prefix_ends(self, count: int) -> list[int]:
        ends = [0] * count
        for slot in self._out_layout.slots:
            number = int(slot.name.split(":")[0])
            ends[number] = -(-slot.end // ALIGN) * ALIGN
        return ends

    def _upload(self, sets: Sets, count: int) -> None:
        context = self._context
        context.fill_guard(self._in_block, self._in_layout.nbytes)
        context.fill_guard(self._out_block, self._out_layout.nbytes)
        self._inouts: list[list[tuple[int, int, int]]] = [[] for _ in range(count)]
        for index, specs in enumerate(sets):
            for spec in specs:
                if spec.source is None or (index, spec.name) in self._residents:
                    continue
                own = [n for n in range(count) if n % len(sets) == index]
                if spec.role == "inout":
                    first = self._starts[f"original {index}:{spec.name}"]
                    for n in own:
                        to = self._starts[f"{n}:{spec.name}"]
                        self._inouts[n].append((to, first, spec.nbytes))
                elif own:
                    first = self._starts[f"{own[0]}:{spec.name}"]
                else:
                    continue
                context.upload(first, spec.source)
                if spec.role == "in":
                    for n in own[1:]:
                        context.copy_within(self._starts[f"{n}:{spec.name}"], first, spec.nbytes)

    def poison(self, count: int) -> None:
        """Poison the outputs of the first ``count`` replicas, and restore what is read as well."""
        self._context.fill_guard(self._out_block, self._ends[count - 1])
        for copies in self._inouts[:count]:
            for to, start, nbytes in copies:
                self._context.copy_within(to, start, nbytes)

    def _input_regions(self) -> list[tuple[int, int]]:
        return [(self._in_block + s.start, s.nbytes) for s in self._in_layout.slots]

    def inspect(self) -> tuple[list[str], list[str]]:
        """Return the names of damaged guards and of changed inputs."""
        context = self._context
        after = context.hashes(self._input_regions())
        changed = {
            _argument(name)
            for name, a, b in zip(self._input_names, self._expected, after, strict=True)
            if a != b
        }
        gaps = [(g.name, self._in_block + g.start, g.nbytes) for g in self._in_layout.gaps()]
        gaps += [(g.name, self._out_block + g.start, g.nbytes) for g in self._out_layout.gaps()]
        broken = context.broken([(start, nbytes) for _, start, nbytes in gaps])
        damaged = {_argument(n) for (n, _, _), bad in zip(gaps, broken, strict=True) if bad}
        modified, outside = self._store.check(list(self._residents.values()))
        return sorted(damaged.union(outside)), sorted(changed.union(modified))

    def release(self) -> None:
        for resident in self._residents.values():
            resident.pins -= 1
        self._residents.clear()
        while self._blocks:
            self._context.free(self._blocks.pop())


def _shared(spec: BufferSpec) -> bool:
    return spec.role == "in" and spec.source is not None and spec.nbytes >= SHARED_BYTES


def _argument(name: str) -> str:
    return name.split(":", 1)[-1]


def _starts(layout: Layout, block: int) -> dict[str, int]:
    return {s.name: block + s.start for s in layout.slots}


class ReplicaCache:
    """Keeps replica sets between candidates: their inputs are the same."""

    def __init__(self, context: CudaContext, store: InputStore) -> None:
        self._context, self._store = context, store
        self._budget = int(KEPT_SHARE * context.total_bytes)
        self._kept: OrderedDict[Hashable, ReplicaSet] = OrderedDict()

    def get(self, sets: Sets) -> ReplicaSet:
        """Return the replicas of these input sets, made anew if they are not kept."""
        key = tuple(tuple(_key(spec) for spec in specs) for specs in sets)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        footprint = max(sum(s.nbytes + 2 * GUARD_BYTES for s in specs) for specs in sets)
        count = min(MAX_REPLICAS, max(len(sets), REPLICA_BYTES // footprint))
        count = max(1, min(count, self._budget // footprint))
        self._make_room(count * footprint)
        made = ReplicaSet(self._context, self._store, sets, count)
        self._kept[key] = made
        return made

    def _make_room(self, nbytes: int) -> None:
        used = sum(r.nbytes for r in self._kept.values())
        while self._kept and used + nbytes > self._budget:
            oldest = self._kept.popitem(last=False)[1]
            used -= oldest.nbytes
            oldest.release()

    def drop(self, replicas: ReplicaSet) -> None:
        """Forget a set whose contents can no longer be trusted."""
        for key, kept in list(self._kept.items()):
            if kept is replicas:
                del self._kept[key]
                kept.release()

    def close(self) -> None:
        while self._kept:
            self._kept.popitem()[1].release()


def _key(spec: BufferSpec) -> Hashable:
    source = identity(spec.source) if spec.source is not None else None
    return (spec.name, spec.dtype, spec.shape, spec.role, spec.misalign, source)
