"""Hardware counters of a kernel under one set of names, whatever tool and release wrote them.

A counter that is missing, not a number, negative or impossible is left out and its name is kept
with the reason; it is never taken for zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WARP = 32.0
SECTOR_BYTES = 32.0
# Percentages pass 100 a little where the tool replays a kernel for several passes.
MOST_PERCENT = 125.0

# Our name: ncu's names, the first that is there counts. Shares come as percentages.
SHARES: dict[str, tuple[str, ...]] = {
    "use_dram": ("dram__throughput.avg.pct_of_peak_sustained_elapsed",
                 "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
    "use_l2": ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
               "lts__throughput.avg.pct_of_peak_sustained_elapsed"),
    "use_l1": ("l1tex__throughput.avg.pct_of_peak_sustained_active",
               "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"),
    "use_shared": ("l1tex__data_pipe_lsu_wavefronts_mem_shared.avg.pct_of_peak_sustained_elapsed",),
    "use_fp32": ("smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
                 "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
                 "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active"),
    "use_fp64": ("smsp__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
                 "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active",
                 "sm__pipe_fp64_cycles_active.avg.pct_of_peak_sustained_active"),
    "use_sfu": ("smsp__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
                "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"),
    "use_tensor": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
                   "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"),
    "use_integer": ("sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
                    "smsp__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
                    "sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active"),
    "use_lsu": ("smsp__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
                "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active"),
    "use_issue": ("smsp__issue_active.avg.pct_of_peak_sustained_active",
                  "sm__inst_issued.avg.pct_of_peak_sustained_active"),
    "achieved_occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
    "sm_active": ("smsp__cycles_active.avg.pct_of_peak_sustained_elapsed",
                  "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"),
}  # fmt: skip
COUNTS: dict[str, tuple[str, ...]] = {
    "duration_ns": ("gpu__time_duration.sum", "gpu__time_duration.avg"),
    "dram_read_bytes": ("dram__bytes_read.sum",),
    "dram_write_bytes": ("dram__bytes_write.sum",),
    "l2_read_sectors": ("lts__t_sectors_op_read.sum",),
    "l2_write_sectors": ("lts__t_sectors_op_write.sum",),
    "l2_atomic_sectors": ("lts__t_sectors_op_atom.sum",),
    "l2_reduce_sectors": ("lts__t_sectors_op_red.sum",),
    "local_load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",),
    "local_store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",),
    "load_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",),
    "load_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",),
    "store_requests": ("l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",),
    "store_sectors": ("l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",),
    "shared_load_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",),
    "shared_store_wavefronts": ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",),
    "shared_conflicts": ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",),
    "memory_instructions": ("smsp__sass_thread_inst_executed_op_memory_pred_on.sum",),
    "load_bytes_wanted": ("smsp__sass_data_bytes_mem_global_op_ld.sum",),
    "store_bytes_wanted": ("smsp__sass_data_bytes_mem_global_op_st.sum",),
    "lanes_active": ("smsp__thread_inst_executed_per_inst_executed.ratio",),
}  # fmt: skip
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "lg_throttle", "mio_throttle",
          "math_pipe_throttle", "no_instruction", "wait", "membar", "branch_resolving", "drain",
          "dispatch_stall", "imc_miss", "tex_throttle", "sleeping", "selected", "not_selected",
          "misc")  # fmt: skip
_STALL_NAMES = (
    "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio",
    "smsp__average_warp_latency_issue_stalled_{}.ratio",
    "smsp__warp_issue_stalled_{}_per_warp_active.pct",
    "smsp__pcsamp_warps_issue_stalled_{}",
)
# The load/store unit of a Turing multiprocessor takes in 16 lanes a cycle: unconflicted 32-bit
# accesses keep half of the data path busy and no more.
_HALF_RATE_SHARED = ("sm_75",)


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of one launch: shares in [0, 1], counts, and what was left out and why."""

    values: Mapping[str, float]
    problems: tuple[str, ...] = ()

    @property
    def duration_us(self) -> float | None:
        """Return the launch's duration, microseconds."""
        ns = self.values.get("duration_ns")
        return ns / 1e3 if ns else None


def read_counters(raw: Mapping[str, object], arch: str = "") -> Counters:
    """Sort counters under our names.

    Args:
        raw: ncu's metric names and values, in base units (ns, bytes, percent).
        arch: such as ``sm_75``, where it is known.
    """
    values: dict[str, float] = {}
    problems: list[str] = []

    def take(name: str, candidates: Iterable[str], most: float) -> None:
        for candidate in candidates:
            if candidate not in raw:
                continue
            number = _number(raw[candidate])
            if number is None or number < 0 or number > most:
                problems.append(f"{candidate} = {str(raw[candidate])[:40]!r} is no possible value")
                continue
            values[name] = number
            return

    for name, candidates in SHARES.items():
        take(name, candidates, MOST_PERCENT)
        if name in values:
            values[name] = min(1.0, values[name] / 100.0)
    for name, candidates in COUNTS.items():
        take(name, candidates, 1e30)
    for stall in STALLS:
        take(f"stall_{stall}", [n.format(stall) for n in _STALL_NAMES], 1e30)
    if arch.rstrip("af") in _HALF_RATE_SHARED and "use_shared" in values:
        values["use_shared"] = min(1.0, 2 * values["use_shared"])
    if values.get("duration_ns") == 0:
        del values["duration_ns"]
        problems.append("gpu__time_duration is zero: nothing was measured")
    if not values:
        problems.append(
            f"none of {len(raw)} metrics is one of ours: ncu's names are expected, such as "
            "dram__throughput.avg.pct_of_peak_sustained_elapsed" if raw else "there are no metrics"
        )  # fmt: skip
    return Counters(values, tuple(problems))


def derived(counters: Counters) -> dict[str, float]:
    """Return the ratios that rules judge, as far as their counters are there."""
    v = counters.values
    found = {k: x for k, x in v.items() if k in SHARES}
    _ratio(found, "local_share", _add(v, "local_load_sectors", "local_store_sectors"),
           _add(v, "local_load_sectors", "local_store_sectors", "l2_read_sectors",
                "l2_write_sectors"))  # fmt: skip
    _ratio(found, "load_excess", _scaled(v.get("load_sectors"), SECTOR_BYTES),
           v.get("load_bytes_wanted"))  # fmt: skip
    _ratio(found, "store_excess", _scaled(v.get("store_sectors"), SECTOR_BYTES),
           v.get("store_bytes_wanted"))  # fmt: skip
    if "load_excess" not in found:
        # Without the bytes wanted: four sectors hold what 32 lanes ask for in 32-bit words.
        # What L1 answers does not reach L2: a lower bound where only L2 was counted.
        sectors = v.get("load_sectors")
        if sectors is None and "l2_read_sectors" in v:
            sectors = max(0.0, v["l2_read_sectors"] - v.get("local_load_sectors", 0.0))
        _ratio(found, "load_sectors_per_request", sectors, v.get("load_requests"))
    wavefronts = _add(v, "shared_load_wavefronts", "shared_store_wavefronts")
    conflicts = v.get("shared_conflicts")
    if wavefronts and conflicts is not None and conflicts < wavefronts:
        found["conflict_degree"] = wavefronts / (wavefronts - conflicts)
    elif wavefronts:
        # At least so many passes an access: instructions on other memory are counted in too.
        _ratio(found, "conflict_degree", wavefronts, _scaled(v.get("memory_instructions"),
                                                             1.0 / WARP))  # fmt: skip
    _ratio(found, "atomic_share", _add(v, "l2_atomic_sectors", "l2_reduce_sectors"),
           _add(v, "l2_read_sectors", "l2_write_sectors", "l2_atomic_sectors",
                "l2_reduce_sectors"))  # fmt: skip
    if "lanes_active" in v:
        found["lanes"] = min(1.0, v["lanes_active"] / WARP)
    stalls = {s: v[f"stall_{s}"] for s in STALLS if f"stall_{s}" in v}
    total = sum(stalls.values())
    if total > 0:
        found |= {f"stall_{s}": x / total for s, x in stalls.items()}
    pipes = [found[k] for k in found if k.startswith("use_")]
    if pipes:
        found["busiest"] = max(pipes)
        found["useful"] = _useful(found)
    return found


def _useful(found: Mapping[str, float]) -> float:
    """Return how busy the busiest unit is with what has to be done: the rest is overhead.

    Arithmetic counts in full; memory traffic without what spills and unfilled sectors cause.
    """
    memory = found.get("use_dram", 0.0) * (1.0 - found.get("local_share", 0.0))
    memory /= max(1.0, found.get("load_excess", 1.0))
    pipes = [found.get(k, 0.0) for k in ("use_fp32", "use_fp64", "use_tensor", "use_sfu")]
    return max(memory, *pipes)


def combined(launches: Iterable[tuple[float, Counters]]) -> Counters:
    """Return the counters of a whole plan: shares averaged by time, counts added up.

    Args:
        launches: (duration in microseconds, counters) of each launch that ran.
    """
    known = [(t, c) for t, c in launches if math.isfinite(t) and t > 0]
    problems = [p for _, c in known for p in c.problems]
    if not known:
        return Counters({}, ("no kernel was profiled, or every duration is zero",))
    total = sum(t for t, _ in known)
    values: dict[str, float] = {}
    names = set.intersection(*(set(c.values) for _, c in known))
    for name in names:
        averaged = name in SHARES or name.startswith("stall_") or name == "lanes_active"
        values[name] = sum(c.values[name] * (t / total if averaged else 1.0) for t, c in known)
    return Counters(values, tuple(dict.fromkeys(problems)))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value.replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _add(values: Mapping[str, float], *names: str) -> float | None:
    found = [values[n] for n in names if n in values]
    return sum(found) if found else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _ratio(
    found: dict[str, float], name: str, above: float | None, below: float | None
) -> None:  # fmt: skip
    if above is not None and below is not None and below > 0:
        found[name] = above / below
