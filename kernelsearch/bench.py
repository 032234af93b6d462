"""Verify and time variants as they are, without a search, against the first one and the vendor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kernelsearch.cases import CaseStore
from kernelsearch.errors import RejectedError, WorkerError
from kernelsearch.evaluate import Bound, Deadlines, Evaluator
from kernelsearch.measure import Comparison, compare, compare_interleaved
from kernelsearch.operator import Operator, Workload
from kernelsearch.records import ParamValue, Timing, TimingSettings
from kernelsearch.session import JUDGE_FIRST_S, Equipment
from kernelsearch.sol import sol_us
from kernelsearch.variant import Variant
from kernelsearch.vendor import time_vendor

IDLE = "GpuIdle"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One kernel on one workload.

    ``time_us`` is the median, None where it failed. ``against`` is how it compares with the first
    kernel that was right on this workload (None: it is the first, or it failed): a ratio above 1
    means that this one is faster. ``interleaved`` says whether the two were timed in turn.
    ``conditions`` is what the target says of the machine while the samples were taken.
    """

    name: str
    workload: str
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    time_us: float | None = None
    samples_us: tuple[float, ...] = ()
    end_to_end_us: float | None = None
    sol_us: float | None = None
    sol_fraction: float | None = None
    against: Comparison | None = None
    interleaved: bool = False
    first_samples_us: tuple[float, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)
    status: str = "ok"
    note: str = ""

    @property
    def clock_mhz(self) -> float | None:
        """The processors' clock while the samples were taken; None where it is not known."""
        found = self.conditions.get("sm_mhz") or self.conditions.get("mhz")
        return float(found) if found else None

    @property
    def throttle(self) -> tuple[str, ...]:
        """Why the device's clock was held back before or after the samples."""
        both = [self.conditions.get(when, {}) for when in ("before", "after")]
        reasons = {r for state in both for r in state.get("throttle", ())}
        return tuple(sorted(reasons - {IDLE}))

    @property
    def disturbed(self) -> bool:
        return bool(self.conditions.get("disturbed"))


def bench_variants(
    operator: Operator, path: str, variants: Sequence[Variant],
    params: Mapping[str, ParamValue], dtype: str, workloads: Sequence[Workload],
    equipment: Equipment, timing: TimingSettings, *, vendor: bool,
) -> list[BenchRow]:  # fmt: skip
    """Return a row for each variant and workload, then the vendor's.

    Each variant is timed in turn with the first one that is right.
    """
    timing = replace(timing, give_up_ratio=float("inf"))
    fitting = [v for v in variants if dtype in v.dtypes]
    rows: dict[str, list[BenchRow]] = {}
    store = CaseStore()
    try:
        for workload in workloads:
            evaluator = Evaluator(
                operator, dtype, (workload,), equipment.device, equipment.runner, store, timing
            )
            slow = Deadlines()
            evaluator.deadlines = Deadlines(
                slow.run_s + JUDGE_FIRST_S, slow.time_s + JUDGE_FIRST_S, 0.0
            )
            rows[workload.key] = _workload_rows(evaluator, workload, fitting, params, equipment)
    finally:
        store.close()
    # Variant by variant, as they were given.
    found = [rows[w.key][n] for n in range(len(fitting)) for w in workloads]
    if vendor:
        for workload in workloads:
            row = _vendor_row(operator, path, workload, dtype, equipment)
            if row is not None:
                first = next((r for r in rows[workload.key] if r.status == "ok"), None)
                found.append(_against_first(row, first))
    return found


def _workload_rows(
    evaluator: Evaluator, workload: Workload, variants: Sequence[Variant],
    params: Mapping[str, ParamValue], equipment: Equipment,
) -> list[BenchRow]:  # fmt: skip
    first: Bound | None = None
    rows = []
    for variant in variants:
        chosen = {**variant.default_params(evaluator.device.facts, evaluator.dtype), **params}
        row = BenchRow(variant.name, workload.key, chosen)
        try:
            job = evaluator.admit(variant, chosen)
        except RejectedError as error:
            rows.append(replace(row, status=str(error.status), note=f"{error.status}: {error}"))
            continue
        evaluation, bound = evaluator.evaluate(variant, chosen, equipment.pool.submit(job), first)
        if not evaluation.ok:
            note = f"{evaluation.status}: {evaluation.message}"
            rows.append(replace(row, status=str(evaluation.status), note=note))
        else:
            rows.append(_timed(row, evaluation.timings[0]))
            first = first or bound
    return rows


def _timed(row: BenchRow, one: Timing) -> BenchRow:
    return replace(
        row, time_us=one.median_us, samples_us=one.samples_us, end_to_end_us=one.end_to_end_us,
        sol_us=one.sol_us, sol_fraction=one.sol_us / one.median_us if one.sol_us else None,
        against=compare_interleaved([one]) if one.incumbent_us else None,
        interleaved=bool(one.incumbent_us), first_samples_us=one.incumbent_us,
        conditions=one.conditions,
    )  # fmt: skip


def _against_first(row: BenchRow, first: BenchRow | None) -> BenchRow:
    """Compare the vendor's call with the first kernel; they were timed apart."""
    if first is None or row.time_us is None:
        return row
    return replace(
        row, against=compare(row.samples_us, first.samples_us), first_samples_us=first.samples_us
    )


def _vendor_row(
    operator: Operator, path: str, workload: Workload, dtype: str, equipment: Equipment
) -> BenchRow | None:
    device = equipment.device
    name = operator.vendor.get(device.target, ("", None))[0]
    try:
        found = time_vendor(operator, path, workload, dtype, device)
    except WorkerError as error:
        return BenchRow(name, workload.key, status="unavailable", note=str(error))
    if found is None:
        return None
    median = statistics.median(found.samples_us)
    light = sol_us(operator, workload, dtype, device)
    note = found.flags if found.max_ratio <= 1 else f"{found.flags}; outside our error bound"
    return BenchRow(
        found.name, workload.key, {}, median, found.samples_us, sol_us=light,
        sol_fraction=light / median if light else None, note=note,
    )  # fmt: skip
