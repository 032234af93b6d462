"""The charts of a report: best so far, roofline, the winner's way, bottlenecks, parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from kernelsearch.report.collect import EvaluationRow, Report, VariantRow, WorkloadRow
from kernelsearch.report.importance import Slice
from kernelsearch.report.svg import Chart, Scale, number, spread
from kernelsearch.report.words import duration, percent, plain, speedup

By = Literal["evaluations", "time", "money"]
SHADES = 9
# Where the greatest is so many times the least, a logarithmic scale shows more.
LOG_FROM = 4.0
# From so many dots on they are drawn smaller.
MANY = 30
# Room that a word below an axis wants, and that a letter takes.
LABEL_PX, LETTER_PX = 60.0, 6.5
NARROW = 500.0
UNITS: dict[By, str] = {"evaluations": "evaluations", "time": "running time, seconds",
         "money": "spent on models, US dollars"}  # fmt: skip


def shade(value: float | None, report: Report) -> int | None:
    """Return the step of the colour scale for a speed-up, 0 (slowest) to 8 (fastest)."""
    if value is None:
        return None
    low, high = shade_range(report)
    if high <= low:
        return SHADES - 1
    part = math.log(max(value, low) / low) / math.log(high / low)
    return min(SHADES - 1, int(part * SHADES))


def shade_range(report: Report) -> tuple[float, float]:
    """Return the speed-ups at the two ends of the colour scale."""
    known = [v.speedup for v in report.variants if v.speedup]
    return (min(known), max(known)) if known else (1.0, 1.0)


def reaches(row: EvaluationRow, by: By) -> float:
    """Return where an evaluation stands on the axis: its number, its time or the money."""
    return {"evaluations": row.number + 1.0, "time": row.elapsed_s, "money": row.usd}[by]


def best_so_far(report: Report, by: By, width: float) -> str:
    """Draw the speed-up of every right candidate, and the best one up to each moment."""
    rows = [r for r in report.evaluations if r.speedup]
    if not rows:
        return ""
    chart = Chart(width, 300)
    x = spread([0.0, *(reaches(r, by) for r in report.evaluations)], *chart.across, zero=True)
    ratios = [r.speedup for r in rows if r.speedup]
    log = max(ratios) / min(ratios) > LOG_FROM
    y = spread([1.0, *ratios], *chart.upward, log=log)
    chart.axes(x, y, UNITS[by], "speed-up", y_format=lambda v: f"{number(v)}x")
    low, _ = chart.upward
    chart.dots([(x(reaches(r, by)), low - 3) for r in report.evaluations if r.status != "ok"],
               "fails")  # fmt: skip
    chart.dots([(x(reaches(r, by)), y(r.speedup)) for r in rows if r.speedup], "dots")
    steps = [report.evaluations[n] for n in report.incumbents]
    chart.steps([(x(reaches(r, by)), y(r.speedup)) for r in steps if r.speedup], "best",
                chart.across[1])  # fmt: skip
    for row in steps:
        if row.speedup:
            name = report.variants[row.variant].name
            title = f"{name}: {speedup(row.speedup)} after {row.number + 1} evaluations, " + (
                duration(row.elapsed_s)
            )
            chart.mark(x(reaches(row, by)), y(row.speedup), title, "node hit",
                       variant=row.variant, radius=3.0 if len(steps) > MANY else 4.5)  # fmt: skip
    return chart.svg(f"Best speed-up so far against {UNITS[by]}")


# --- where the device's limits are -------------------------------------------------------------


def rates(report: Report) -> tuple[float, float] | None:
    """Return (bytes a second, operations a second) that bound the study; None: not known."""
    ceilings = report.run.get("ceilings", {})
    bandwidth = ceilings.get("dram_gbps")
    arithmetic = ceilings.get(str(report.run.get("rate", "")))
    if not bandwidth or not arithmetic:
        return None
    return float(bandwidth) * 1e9, float(arithmetic) * 1e12


def intensity(row: WorkloadRow) -> float | None:
    """Return the operations of a workload for each byte of compulsory traffic."""
    return row.flops / row.bytes if row.flops and row.bytes else None


def roofline(report: Report, width: float) -> str:
    """Draw the roof of the device, every elite on each workload, and the way of the winner."""
    limits = rates(report)
    rows = [w for w in report.workloads if intensity(w)]
    if limits is None or not rows or report.winner is None:
        return ""
    bandwidth, arithmetic = limits
    shown = [*report.elites, *(report.variants[n] for n in report.path)]
    reached = [rate(w, v) for w in rows for v in shown]
    heights = [r for r in reached if r]
    if not heights:
        return ""
    chart = Chart(width, 320, left=58)
    ridge = arithmetic / bandwidth
    intensities = [i for w in rows if (i := intensity(w))]
    x = spread([*intensities, ridge / 2, ridge * 3], *chart.across, log=True)
    tops = [min(arithmetic, bandwidth * i) for i in (*intensities, ridge)]
    y = spread([*heights, *tops], *chart.upward, log=True)
    chart.axes(x, y, "operations a byte of compulsory traffic", "operations a second")
    chart.line([(x(x.low), y(max(bandwidth * x.low, y.low))), (x(ridge), y(arithmetic)),
                (x(x.high), y(arithmetic))], "roof")  # fmt: skip
    chart.text(x(x.high) - 4, y(arithmetic) - 6, f"{number(arithmetic)} operations a second",
               "tick end")  # fmt: skip
    # One line lower where both would not fit beside each other.
    chart.text(
        chart.left + 8,
        24 if width > NARROW else 42,
        f"memory: {number(bandwidth)} bytes a second",
        "tick start",
    )
    for workload in rows:
        at = x(intensity(workload) or 1.0)
        for variant in report.elites:
            if got := rate(workload, variant):
                chart.mark(at, y(got), _roof_title(workload, variant, got), "elite",
                           variant=variant.number, radius=3.5)  # fmt: skip
        way = [(v, r) for n in report.path if (r := rate(workload, v := report.variants[n]))]
        chart.line([(at, y(r)) for _, r in way], "way")
        for variant, height in way:
            kind = "node winner" if variant.number == report.winner else "node hit"
            chart.mark(at, y(height), _roof_title(workload, variant, height), kind,
                       variant=variant.number)  # fmt: skip
    return chart.svg("Roofline: operations a second of the elites under the limits of the device")


def rate(workload: WorkloadRow, variant: VariantRow) -> float | None:
    """Return a variant's operations a second on a workload, None where it was not timed."""
    time = variant.times_us.get(workload.key)
    return workload.flops / (time * 1e-6) if time and workload.flops else None


def _roof_title(workload: WorkloadRow, variant: VariantRow, height: float) -> str:
    light = workload.sol_us
    time = variant.times_us[workload.key]
    share = f", {percent(light / time)} of speed of light" if light else ""
    return f"{variant.name} on {workload.key}: {number(height)} operations a second{share}"


def winners_way(report: Report, width: float) -> str:
    """Draw each step from the first ancestor to the winner, as part of the speed of light."""
    lights = {w.key: w.sol_us for w in report.workloads if w.sol_us}
    shown = [*report.elites, *(report.variants[n] for n in report.path)]
    shares = [lights[k] / t for v in shown for k, t in v.times_us.items() if k in lights]
    if not shares or not report.path:
        return ""
    chart = Chart(width, 320, left=58, bottom=58)
    count = len(report.path)
    x = Scale(-0.5, max(0.5, count - 0.5), *chart.across)
    y = spread([*shares, 1.0], *chart.upward, log=True)
    low, _ = chart.upward
    for value in y.ticks(5):
        chart.line([(chart.left, y(value)), (chart.across[1], y(value))], "grid")
        chart.text(chart.left - 6, y(value) + 4, percent(value), "tick end")
    chart.line([(chart.left, y(1.0)), (chart.across[1], y(1.0))], "roof")
    chart.text(chart.left + 4, y(1.0) + 15, "speed of light", "tick start")
    for key, light in lights.items():
        points = []
        for place, index in enumerate(report.path):
            variant = report.variants[index]
            time = variant.times_us.get(key)
            if time:
                points.append((x(place), y(light / time), variant, light / time))
        chart.line([(a, b) for a, b, _, _ in points], "way")
        for a, b, variant, share in points:
            kind = "node winner" if variant.number == report.winner else "node hit"
            title = f"{variant.name} on {key}: {percent(share)} of speed of light"
            chart.mark(a, b, title, kind, variant=variant.number)
    each = (chart.across[1] - chart.left) / count
    every = math.ceil(2 * LABEL_PX / each) if each < LABEL_PX else 1
    room = int(2 * every * each / LETTER_PX) - 1
    for place in range(count - 1, -1, -every):
        variant = report.variants[report.path[place]]
        words = plain(variant.mutation or variant.name)
        cut = words if len(words) <= room else words[: room - 1] + "…"
        end = "end" if place == count - 1 and len(cut) * LETTER_PX > each else "middle"
        edge = chart.across[1] if end == "end" else x(place)
        row = (count - 1 - place) // every % 2
        chart.text(edge, low + 16 + 14 * row, cut, f"tick {end}")
    chart.text((chart.left + chart.across[1]) / 2, chart.height - 6, "from the start to the winner",
               "label middle")  # fmt: skip
    return chart.svg("The way from the first ancestor to the winner, as part of speed of light")


# --- bottlenecks and parameters ----------------------------------------------------------------


def migration(report: Report, width: float) -> str:
    """Draw which bottleneck became which from parent to child."""
    rows = report.migrations
    if not rows:
        return ""
    before = _stacked([(m.before, m.count) for m in rows])
    after = _stacked([(m.after, m.count) for m in rows])
    total = sum(m.count for m in rows)
    gap = 26.0
    most = max(len(before), len(after))
    unit = min(14.0, 180.0 / total)
    chart = Chart(width, 34 + most * gap + total * unit, left=0, right=0)
    side = min(170.0, width * 0.33)
    ends = []
    for names, place, kind in ((before, side, "tick end"), (after, width - side, "tick start")):
        tops: dict[str, float] = {}
        y = 24.0
        for name, count in names.items():
            tops[name] = y
            shift = -10 if kind.endswith("end") else 10
            chart.bar(place - 3, y, 6, count * unit, "band", f"{plain(name)}: {count}")
            chart.text(place + shift, y + count * unit / 2 + 4, plain(name), kind)
            y += count * unit + gap
        ends.append(tops)
    chart.text(side - 10, 12, "parent", "label end")
    chart.text(width - side + 10, 12, "child", "label start")
    for step in rows:
        thick = step.count * unit
        a, b = ends[0][step.before] + thick / 2, ends[1][step.after] + thick / 2
        ends[0][step.before] += thick
        ends[1][step.after] += thick
        kind = "flow gain" if step.gain > 1 else "flow loss"
        title = (
            f"{plain(step.before)} became {plain(step.after)} {step.count} times, "
            f"{speedup(step.gain)} on the average"
        )
        chart.curve((side + 4, a), (width - side - 4, b), thick, kind, title)
    return chart.svg("Bottlenecks of parents and what they became in their children")


def _stacked(pairs: Sequence[tuple[str, int]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name, count in pairs:
        counts[name] = counts.get(name, 0) + count
    return dict(sorted(counts.items(), key=lambda p: (-p[1], p[0])))


def param_slice(one: Slice, width: float) -> str:
    """Draw the speed-ups of a variant's candidates over the values of one parameter."""
    ratios = [r for _, r in one.points]
    chart = Chart(width, 200, left=46)
    y = spread(ratios, *chart.upward, log=max(ratios) / min(ratios) > LOG_FROM)
    low, _ = chart.upward
    for value in y.ticks(4):
        chart.line([(chart.left, y(value)), (chart.across[1], y(value))], "grid")
        chart.text(chart.left - 6, y(value) + 4, f"{number(value)}x", "tick end")
    chart.line([(chart.left, low), (chart.across[1], low)], "axis")
    x = Scale(-0.5, max(0.5, len(one.values) - 0.5), *chart.across)
    places = {v: i for i, v in enumerate(one.values)}
    chart.dots([(x(places[v]), y(r)) for v, r in one.points], "dots strong")
    tops: dict[object, float] = {}
    for choice, ratio in one.points:
        tops[choice] = max(ratio, tops.get(choice, 0.0))
    chart.line([(x(places[v]), y(tops[v])) for v in one.values if v in tops], "way")
    for choice, place in places.items():
        chart.text(x(place), low + 17, str(choice)[:9], "tick middle")
    chart.text((chart.left + chart.across[1]) / 2, chart.height - 4, one.name, "label middle")
    return chart.svg(f"Speed-up over {one.name}")
