"""Which way a change of a candidate goes, by its launch facts: more work a thread, more warps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernelsearch.profile.occupancy import occupancy

WARP = 32
# A change that costs this share of the warps, or puts more into local memory, undoes what it gains.
TOLERATED_OCCUPANCY = 0.9
LOST_OCCUPANCY = 1.0
MORE_LOCAL = 1.5
FADING = 0.5


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """What is known of a candidate's launch before it runs.

    Args:
        threads / row: of a block, and along its first dimension; ``blocks``: of the grid.
        registers / shared_bytes / local_bytes: of a thread, a block, a thread.
        occupancy: theoretical, in [0, 1].
    """

    threads: int
    row: int
    blocks: int
    registers: int
    shared_bytes: int
    local_bytes: int
    occupancy: float

    @staticmethod
    def of(
        block: Sequence[int], grid: Sequence[int], registers: int, shared_bytes: int,
        local_bytes: int, sizes: Mapping[str, int], arch: str,
    ) -> LaunchFacts:  # fmt: skip
        """Build the facts of a launch; ``sizes`` are the device's (see ``occupancy``)."""
        threads, blocks = math.prod(block), math.prod(grid)
        full = occupancy(blocks, threads, registers, shared_bytes, sizes, arch)
        return LaunchFacts(
            threads, block[0], blocks, registers, shared_bytes, local_bytes,
            full.fraction if full is not None else 0.0,
        )  # fmt: skip


def _log_ratio(after: float, before: float) -> float:
    return math.log2(max(after, 1e-9) / max(before, 1e-9))


def _work(a: LaunchFacts, b: LaunchFacts) -> float:
    return _log_ratio(a.threads * a.blocks, b.threads * b.blocks)


# Each returns how far the change from ``a`` to ``b`` goes that way (0: not at all, negative: back).
_MEASURES: dict[str, Callable[[LaunchFacts, LaunchFacts], float]] = {
    "more_work_per_thread": _work,
    "reuse_in_registers": _work,
    "more_independent_work": _work,
    "more_loads_in_flight": lambda a, b: 0.5 * _work(a, b) + _log_ratio(b.occupancy, a.occupancy),
    "stage_in_shared": lambda a, b: float(b.shared_bytes > 0) - float(a.shared_bytes > 0),
    "reuse_in_shared": lambda a, b: _log_ratio(b.shared_bytes + 256, a.shared_bytes + 256),
    "less_work_per_thread": lambda a, b: -_work(a, b),
    "larger_blocks": lambda a, b: _log_ratio(b.threads, a.threads),
    "smaller_blocks": lambda a, b: _log_ratio(a.threads, b.threads),
    "more_blocks": lambda a, b: _log_ratio(b.blocks, a.blocks),
    "longer_rows_of_threads": lambda a, b: _log_ratio(min(b.row, WARP), min(a.row, WARP)),
    "fewer_registers": lambda a, b: _log_ratio(a.registers, b.registers),
    "less_shared_memory": lambda a, b: _log_ratio(a.shared_bytes + 256, b.shared_bytes + 256),
    "less_local_memory": lambda a, b: _log_ratio(a.local_bytes + 16, b.local_bytes + 16),
    "higher_occupancy": lambda a, b: _log_ratio(b.occupancy, a.occupancy),
}


def follows(directions: Sequence[str], before: LaunchFacts, after: LaunchFacts) -> float:
    """Return how well a change follows the directions of a diagnosis, the first weighing most.

    Zero or less: it does not follow them, or it pays with warps or local memory.
    """
    score, weight = 0.0, 1.0
    for direction in directions:
        measure = _MEASURES.get(direction)
        if measure is None:
            continue  # nothing of it shows in a launch
        score += weight * min(1.0, max(-1.0, measure(before, after)))
        weight *= FADING
    if after.occupancy < TOLERATED_OCCUPANCY * before.occupancy:
        score -= LOST_OCCUPANCY
    if after.local_bytes > before.local_bytes:
        score -= MORE_LOCAL
    return score
