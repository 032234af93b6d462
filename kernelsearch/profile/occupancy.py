"""Theoretical occupancy of a launch: what limits it, how many waves it takes, how long the tail."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
# How registers and shared memory are handed out (CUDA's occupancy tables).
_REGISTERS_A_WARP = 256
_SHARED_UNIT = 128
_RESERVED_SHARED = 1024  # of every block, from sm_80 on
_MAX_BLOCKS = {"sm_75": 16, "sm_86": 16, "sm_87": 16, "sm_89": 24, "sm_110": 24, "sm_120": 24,
               "sm_121": 24}  # fmt: skip
_MOST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full one launch keeps the device.

    Args:
        blocks_per_sm / warps_per_sm: resident at once, at most.
        fraction: resident warps / the most the SM holds.
        limiter: ``registers``, ``shared``, ``threads``, ``blocks`` (an SM's slots) or ``grid``
            (there are fewer blocks than would fit).
        waves: blocks / blocks that run at once on the whole device.
        idle_fraction: share of the SMs' time in whole waves in which no block runs on them.
    """

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    limiter: str
    waves: float
    idle_fraction: float


def occupancy(
    blocks: int, threads: int, registers: int, shared_bytes: int,
    facts: Mapping[str, int], arch: str,
) -> Occupancy | None:  # fmt: skip
    """Return the occupancy of a launch, None where the device's sizes are not known.

    Args:
        blocks: in the grid.
        threads: in a block.
        registers: of a thread.
        shared_bytes: of a block, static and dynamic.
        facts: ``max_threads_per_sm``, ``regs_per_sm``, ``max_shared_per_sm``, ``sm_count``.
        arch: such as ``sm_90a``.
    """
    needed = ("max_threads_per_sm", "regs_per_sm", "max_shared_per_sm", "sm_count")
    if any(facts.get(n, 0) <= 0 for n in needed) or threads <= 0 or blocks <= 0:
        return None
    warps = -(-threads // WARP)
    most_warps = facts["max_threads_per_sm"] // WARP
    family = arch.rstrip("af")
    limits = {
        "threads": most_warps // warps,
        "blocks": _MAX_BLOCKS.get(family, _MOST_BLOCKS),
        "registers": _by_registers(warps, registers, facts["regs_per_sm"]),
        "shared": _by_shared(shared_bytes, facts["max_shared_per_sm"], _number(family)),
    }
    limiter = min(limits, key=lambda k: limits[k])
    fit = limits[limiter]
    if fit <= 0:
        return Occupancy(0, 0, 0.0, limiter, math.inf, 1.0)
    sms = facts["sm_count"]
    waves = blocks / (fit * sms)
    resident = min(fit, -(-blocks // sms))
    if resident < fit:
        limiter = "grid"
    # Blocks go to the emptiest SM: the fullest one has ceil(blocks / sms) of them in turn.
    longest = -(-blocks // sms)
    return Occupancy(
        resident, resident * warps, min(1.0, resident * warps / most_warps), limiter, waves,
        1.0 - blocks / (longest * sms),
    )  # fmt: skip


def _by_registers(warps: int, registers: int, available: int) -> int:
    if registers <= 0:
        return _MOST_BLOCKS
    a_warp = -(-registers * WARP // _REGISTERS_A_WARP) * _REGISTERS_A_WARP
    return available // a_warp // warps


def _by_shared(shared: int, available: int, number: int) -> int:
    if shared <= 0:
        return _MOST_BLOCKS
    reserved = _RESERVED_SHARED if number >= 80 else 0
    return available // (-(-shared // _SHARED_UNIT) * _SHARED_UNIT + reserved)


def _number(family: str) -> int:
    digits = family.removeprefix("sm_")
    return int(digits) if digits.isdigit() else 0
