"""Find how deep in loops each instruction of a listing lies: natural loops by dominators."""

from __future__ import annotations

from collections.abc import Sequence

Jump = tuple[int, int, bool]


def loop_depths(count: int, jumps: Sequence[Jump], ends: Sequence[int]) -> tuple[list[int], int]:
    """Return each instruction's loop depth, and how many loops there are.

    Args:
        count: of instructions, in order.
        jumps: (from, to, may also go on with the next instruction).
        ends: instructions that nothing follows (returns, exits).

    A jump backwards is a loop only where its target dominates it: what a compiler moves out of the
    way and lets jump back is none.
    """
    if count <= 0:
        return [], 0
    starts = sorted({0, *(t for _, t, _ in jumps), *(f + 1 for f, _, _ in jumps if f + 1 < count),
                     *(e + 1 for e in ends if e + 1 < count)})  # fmt: skip
    block_of = [0] * count
    for number, start in enumerate(starts):
        stop = starts[number + 1] if number + 1 < len(starts) else count
        block_of[start:stop] = [number] * (stop - start)
    after = _successors(starts, count, block_of, jumps, set(ends))
    bodies = _natural_loops(after)
    depth = [0] * len(starts)
    for body in bodies.values():
        for block in body:
            depth[block] += 1
    return [depth[b] for b in block_of], len(bodies)


def _successors(
    starts: Sequence[int], count: int, block_of: Sequence[int], jumps: Sequence[Jump],
    ends: set[int],
) -> list[set[int]]:  # fmt: skip
    after: list[set[int]] = [set() for _ in starts]
    falls = [True] * len(starts)
    lasts = [*(s - 1 for s in starts[1:]), count - 1]
    for source, target, goes_on in jumps:
        after[block_of[source]].add(block_of[target])
        if not goes_on:
            falls[block_of[source]] = False
    for number, last in enumerate(lasts):
        if falls[number] and last not in ends and number + 1 < len(starts):
            after[number].add(number + 1)
    return after


def _natural_loops(after: Sequence[set[int]]) -> dict[int, set[int]]:
    """Return the blocks of each loop by its header."""
    before: list[set[int]] = [set() for _ in after]
    for block, following in enumerate(after):
        for other in following:
            before[other].add(block)
    dominators = _dominators(after, before)
    bodies: dict[int, set[int]] = {}
    for block, following in enumerate(after):
        for header in following & dominators[block]:
            body = bodies.setdefault(header, {header})
            waiting = [block]
            while waiting:
                one = waiting.pop()
                if one not in body:
                    body.add(one)
                    waiting.extend(before[one])
    return bodies


def _dominators(after: Sequence[set[int]], before: Sequence[set[int]]) -> list[set[int]]:
    reached, waiting = {0}, [0]
    while waiting:
        for other in after[waiting.pop()] - reached:
            reached.add(other)
            waiting.append(other)
    everything = frozenset(reached)
    found: list[set[int]] = [set(everything) if b in reached else set() for b in range(len(after))]
    found[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in sorted(reached - {0}):
            parents = [found[p] for p in before[block] if p in reached]
            new = set.intersection(*parents) | {block} if parents else {block}
            if new != found[block]:
                found[block], changed = new, True
    return found
