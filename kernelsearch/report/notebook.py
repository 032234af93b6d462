"""Results and studies as Jupyter shows them: a headline, a table, and the best so far."""

from __future__ import annotations

import re

from kernelsearch.report import charts, words
from kernelsearch.report.collect import collect
from kernelsearch.report.svg import escape
from kernelsearch.result import Result
from kernelsearch.study import StoredStudy, Study

# Notebooks have their own colours: everything follows the colour of their text.
STYLE = (
    ".kernelsearch svg text{font:12px sans-serif;fill:currentColor}"
    ".kernelsearch svg path{fill:none;stroke:currentColor}"
    ".kernelsearch svg .grid{stroke-opacity:.15}.kernelsearch svg .dots{stroke-width:4;"
    "stroke-linecap:round;stroke-opacity:.3}.kernelsearch svg .fails{stroke:#d55e00;"
    "stroke-width:3;stroke-linecap:square}.kernelsearch svg .best{stroke:#009e73;stroke-width:2}"
    ".kernelsearch svg circle{fill:#0072b2}.kernelsearch svg .end{text-anchor:end}"
    ".kernelsearch svg .middle{text-anchor:middle}.kernelsearch svg{max-width:100%}"
)
WIDTH = 620.0


def result_html(result: Result) -> str:
    """Return a result as a piece of HTML."""
    params = words.params(result.params)
    head = (
        f"<p><b>{escape(result.operator)}</b> {escape(result.dtype)} on {escape(result.device)}: "
        f"<b>{words.speedup(result.speedup)}</b> over {escape(result.baseline)} (95 % interval "
        f"{words.speedup(result.low)} to {words.speedup(result.high)}, {escape(result.cache)} "
        f"caches), {words.percent(result.sol_fraction)} of speed of light; verified on "
        f"{len(result.verified)} cases.<br>Winner: <code>{escape(result.variant_name)} "
        f"{escape(params)}</code></p>"
    )
    names = ("workload", "time", result.baseline, "speed-up", "of speed of light")
    rows = "".join(
        f"<tr><td><code>{escape(w.workload)}</code></td><td>{words.microseconds(w.time_us)}</td>"
        f"<td>{words.microseconds(w.baseline_us)}</td><td>{words.speedup(w.speedup)}</td>"
        f"<td>{words.percent(w.sol_fraction)}</td></tr>"
        for w in result.workloads
    )
    columns = "".join(f"<th>{escape(n)}</th>" for n in names)
    return f"{head}<table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table>"


def study_html(study: StoredStudy | Study) -> str:
    """Return a study as a piece of HTML: its result, or how far it is, with the best so far."""
    report = collect(study)
    if report.result is not None:
        head = result_html(report.result)
    else:
        best = report.variants[report.winner] if report.winner is not None else None
        found = f"best so far {words.speedup(best.speedup)}" if best else "nothing right yet"
        head = (
            f"<p><b>{escape(report.operator)}</b> on {escape(str(report.device['name']))}: "
            f"{found}, not confirmed; {len(report.evaluations)} candidates of "
            f"{len(report.variants)} variants</p>"
        )
    # There is nothing in a notebook that the links of the chart could lead to.
    drawing = re.sub(r"</?a\b[^>]*>", "", charts.best_so_far(report, "evaluations", WIDTH))
    return f'<div class="kernelsearch"><style>{STYLE}</style>{head}{drawing}</div>'
