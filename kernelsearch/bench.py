"""Verify and time variants as they are, without a search, beside the vendor's call."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernelsearch.errors import WorkerError
from kernelsearch.operator import Operator, Workload
from kernelsearch.records import ParamValue, TimingSettings
from kernelsearch.session import Equipment, judge
from kernelsearch.sol import sol_us
from kernelsearch.variant import Variant
from kernelsearch.vendor import time_vendor


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One kernel on one workload. ``time_us`` is the median; None where it failed."""

    name: str
    workload: str
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    time_us: float | None = None
    samples_us: tuple[float, ...] = ()
    sol_us: float | None = None
    sol_fraction: float | None = None
    status: str = "ok"
    note: str = ""


def bench_variants(
    operator: Operator, path: str, variants: Sequence[Variant],
    params: Mapping[str, ParamValue], dtype: str, workloads: Sequence[Workload],
    equipment: Equipment, timing: TimingSettings, *, vendor: bool,
) -> list[BenchRow]:  # fmt: skip
    """Return a row for each variant and workload, then the vendor's."""
    device = equipment.device
    rows: list[BenchRow] = []
    for variant in variants:
        if dtype not in variant.dtypes:
            continue
        chosen = {**variant.default_params(device.facts, dtype), **params}
        for workload in workloads:
            evaluation = judge(operator, variant, chosen, dtype, (workload,), equipment, timing)
            if not evaluation.ok:
                rows.append(BenchRow(
                    variant.name, workload.key, chosen, status=str(evaluation.status),
                    note=f"{evaluation.status}: {evaluation.message}",
                ))  # fmt: skip
                continue
            one = evaluation.timings[0]
            rows.append(BenchRow(
                variant.name, workload.key, chosen, one.median_us, one.samples_us, one.sol_us,
                one.sol_us / one.median_us if one.sol_us else None,
            ))  # fmt: skip
    if vendor:
        rows += [r for w in workloads if (r := _vendor_row(operator, path, w, dtype, equipment))]
    return rows


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
        found.name, workload.key, {}, median, found.samples_us, light,
        light / median if light else None, note=note,
    )  # fmt: skip
