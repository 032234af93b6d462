"""The report as Markdown, as CSV (a row an evaluation) and as JSON."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence

from kernelsearch.report import words
from kernelsearch.report.collect import Report, VariantRow
from kernelsearch.report.reproduce import commands
from kernelsearch.wire import jsonable

FORMAT = 1
TOP = 15
# What Markdown and HTML would take for something else than text.
_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|&~])")
COLUMNS = ("evaluation", "variant", "name", "parent", "proposer", "mutation", "status", "speedup",
           "time_us", "elapsed_s", "usd", "confirmed", "message")  # fmt: skip


def as_json(report: Report) -> str:
    """Return the whole report as one JSON document."""
    value = {"format": FORMAT, **report.to_json()}
    return json.dumps(jsonable(value), indent=1) + "\n"


def as_csv(report: Report) -> str:
    """Return a row for each evaluation, with a column ``param.NAME`` for each parameter."""
    names = sorted({n for row in report.evaluations for n in row.params})
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"param.{n}" for n in names)])
    for row in report.evaluations:
        variant = report.variants[row.variant]
        parent = report.variants[variant.parent].hash if variant.parent is not None else ""
        writer.writerow([
            row.number, variant.hash, _cell(variant.name), parent, _cell(variant.proposer),
            _cell(variant.mutation), row.status, row.speedup, row.time_us, row.elapsed_s, row.usd,
            row.confirmed, _cell(row.message), *(_cell(row.params.get(n, "")) for n in names),
        ])  # fmt: skip
    return file.getvalue()


def _cell(value: object) -> object:
    """Return a text that no spreadsheet takes for a formula."""
    if not isinstance(value, str):
        return value
    text = words.clean(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def as_markdown(report: Report) -> str:
    """Return the report as a Markdown page."""
    parts = [f"# {_md(report.operator)} on {_md(str(report.device['name']))}", *_headline(report)]
    parts += [f"> {_md(note)}" for note in report.notes]
    parts += ["## Workloads", _table(
        ("workload", "time", "baseline", "speed-up", "95 % interval", "of speed of light"),
        [(_md(w.key), words.microseconds(w.time_us), words.microseconds(w.baseline_us),
          words.speedup(w.speedup),
          f"{words.speedup(w.low)} to {words.speedup(w.high)}" if w.low else words.MISSING,
          words.percent(w.sol_fraction)) for w in report.workloads],
    )]  # fmt: skip
    if report.path:
        parts += ["## The way to the winner", _table(
            ("variant", "change", "by", "speed-up", "gain", "predicted", "bottleneck"),
            [(_md(v.name), _md(words.plain(v.mutation)), _md(v.proposer), words.speedup(v.speedup),
              words.speedup(v.gain), words.speedup(v.predicted_gain),
              _md(words.plain(v.diagnosis.label)) if v.diagnosis else words.MISSING)
             for v in (report.variants[n] for n in report.path)],
        )]  # fmt: skip
    parts += ["## Best variants", _table(
        ("variant", "by", "candidates", "time", "speed-up", "parameters"),
        [(_md(v.name), _md(v.proposer), str(sum(v.statuses.values())),
          words.microseconds(v.time_us), words.speedup(v.speedup), _md(words.params(v.params)))
         for v in report.elites[:TOP]],
    )]  # fmt: skip
    if report.migrations:
        parts += ["## Bottlenecks", _table(
            ("bottleneck", "becomes", "steps", "gain"),
            [(_md(words.plain(m.before)), _md(words.plain(m.after)), str(m.count),
              words.speedup(m.gain)) for m in report.migrations],
        )]  # fmt: skip
    parts += ["## Failures"]
    if not report.failures:
        parts.append(f"None of the {len(report.evaluations)} candidates failed.")
    for group in report.failures:
        parts.append(f"- {_md(words.plain(group.status))}: {group.count}")
        parts += [f"  - {_md(report.variants[e.variant].name)}: {_md(_line(e.message))}"
                  for e in group.examples]  # fmt: skip
    costs = report.costs
    parts += ["## Costs", (
        f"{words.duration(costs.elapsed_s)} in {costs.runs} run{'s' if costs.runs != 1 else ''}; "
        f"models: {words.dollars(costs.usd)}. Summed over the candidates: "
        + (", ".join(f"{_md(words.plain(k))} {words.duration(s)}"
                     for k, s in costs.stages_s.items()) or "nothing")
        + "."
    )]  # fmt: skip
    parts += ["## Environment", f"{_md(str(report.device['name']))}, "
              f"{_md(str(report.device['arch']))}, {_md(str(report.device['driver']))}. "
              + ", ".join(f"{_md(k)} {_md(str(v))}"
                          for k, v in report.run.get("versions", {}).items())]  # fmt: skip
    parts += ["## How to reproduce"]
    parts += [f"{what}:\n\n{_block(command)}" for what, command in commands(report)]
    if report.winner is not None:
        parts += ["## Source", _block(report.variants[report.winner].source)]
    return _joined(parts)


def variant_note(report: Report, variant: VariantRow) -> str:
    """Return what one variant is, as a short Markdown text."""
    state = words.speedup(variant.speedup) if variant.speedup else words.plain(variant.status)
    parts = [f"**{_md(variant.name)}**: {state}"]
    if variant.params:
        parts.append(f"Best parameters: {_md(words.params(variant.params))}")
    if variant.parent is not None:
        parent = report.variants[variant.parent]
        parts.append(
            f"{_md(words.plain(variant.mutation))}, by {_md(variant.proposer)}, of "
            f"{_md(parent.name)} (predicted {words.speedup(variant.predicted_gain)}, became "
            f"{words.speedup(variant.gain)})"
        )
    if variant.rationale:
        parts.append(_md(variant.rationale))
    if variant.diagnosis is not None and variant.diagnosis.findings:
        parts.append(f"Bottleneck: {_md(words.plain(variant.diagnosis.label))}. "
                     f"{_md(variant.diagnosis.findings[0].says)}")  # fmt: skip
    return "\n\n".join(parts)


def _headline(report: Report) -> list[str]:
    result = report.result
    if result is None:
        best = report.variants[report.winner] if report.winner is not None else None
        found = f"best so far {words.speedup(best.speedup)}" if best else "nothing right yet"
        return [f"Not confirmed: {found} after {len(report.evaluations)} candidates."]
    missing = "".join(
        f"; not {_md(words.plain(n))} ({_md(why)})" for n, why in result.not_examined.items()
    )
    return [
        f"**{words.speedup(result.speedup)}** over {_md(result.baseline)} (95 % interval "
        f"{words.speedup(result.low)} to {words.speedup(result.high)}, {result.cache} caches), "
        f"{words.percent(result.sol_fraction)} of speed of light, {_md(report.settings['dtype'])}.",
        f"Verified on {len(result.verified)} cases; examined: "
        f"{', '.join(_md(words.plain(n)) for n in result.examined) or 'nothing more'}{missing}.",
        f"Winner: {_md(result.variant_name)} {_md(words.params(result.params))}".rstrip() + ".",
    ]


def _md(text: str) -> str:
    """Return text of a study's as plain words of one line of Markdown."""
    return _SIGNS.sub(r"\\\1", words.clean(" ".join(text.split())))


def _line(message: str) -> str:
    return next(iter(message.strip().splitlines()), "")[:300]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _block(text: str) -> str:
    """Return a fenced block that its own content cannot end."""
    longest = max((len(m) for m in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{words.clean(text).rstrip()}\n{fence}"


def _joined(parts: Sequence[str]) -> str:
    """Join blocks with blank lines, the items of a list without them."""
    text = ""
    for before, part in zip(("", *parts), parts, strict=False):
        item = part.lstrip().startswith("- ") and before.lstrip().startswith("- ")
        text += ("\n" if item else "\n\n" if before else "") + part
    return text + "\n"
