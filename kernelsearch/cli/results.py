"""Print a result for people."""

from __future__ import annotations

from kernelsearch.cli.console import coloured, microseconds, out, percent, ratio, table
from kernelsearch.result import Result


def print_result(result: Result) -> None:
    """Print what was found, by how much, how it was checked, and what to do with it."""
    params = " ".join(f"{k}={v}" for k, v in result.params.items())
    out.print(
        coloured(result.operator, "bold"), coloured(f"{result.dtype} on {result.device}:"),
        coloured(ratio(result.speedup), "bold green"),
        coloured(
            f"over {result.baseline} (95 % interval {ratio(result.low)} to {ratio(result.high)}, "
            f"{result.cache} caches)"
        ),
    )  # fmt: skip
    rows = table("", "workload", ">time", ">naive", ">speed-up", ">of speed of light")
    for row in result.workloads:
        rows.add_row(
            row.workload, microseconds(row.time_us), microseconds(row.baseline_us),
            ratio(row.speedup), percent(row.sol_fraction),
        )  # fmt: skip
    out.print(rows)
    failed = ", ".join(f"{n} {s}" for s, n in result.statuses.items() if s != "ok") or "none"
    out.print(f"winner    {result.variant_name} {params}", markup=False, highlight=False)
    out.print(
        f"verified  on {len(result.verified)} cases against a float64 reference "
        "(held-out sizes, distributions, guard bands, repeated runs)",
        markup=False, highlight=False,
    )  # fmt: skip
    if result.examined:
        missing = "".join(f"; no {n.replace('_', ' ')} ({why})"
                          for n, why in result.not_examined.items())  # fmt: skip
        out.print(
            f"examined  {', '.join(n.replace('_', ' ') for n in result.examined)}{missing}",
            markup=False, highlight=False,
        )  # fmt: skip
    out.print(
        f"searched  {result.candidates} candidates in {result.seconds:.0f} s; failed: {failed}",
        markup=False, highlight=False,
    )  # fmt: skip
    out.print(f"study     {result.folder}", markup=False, highlight=False)
    out.print(
        f"next      kernelsearch show {result.folder} --source\n"
        f"          kernelsearch report {result.folder} -o report.html\n"
        f"          kernelsearch export {result.folder} -o {result.operator}-bundle",
        markup=False, highlight=False,
    )  # fmt: skip
