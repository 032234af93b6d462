"""The report as one self-contained HTML page that opens from disk without a network.

Sources, messages and answers in a study are hostile: everything is escaped, the script sets texts
and never markup, and a content policy lets only this page's own script and style run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kernelsearch.errors import MissingExtraError
from kernelsearch.report import charts, words
from kernelsearch.report.collect import Report, VariantRow
from kernelsearch.report.exchanges import Exchange
from kernelsearch.report.importance import parameters
from kernelsearch.report.reproduce import commands
from kernelsearch.report.tree import tree
from kernelsearch.resources import resource_folder

if TYPE_CHECKING:
    from jinja2 import Environment

WIDE, NARROW = 700.0, 350.0
# Of all prompts and replies together; what is beyond it is named and left in the study.
TEXT_BYTES = 1_500_000
SOURCE_CHARS = 60_000
# What of a diagnosis is shown; the rest repeats the first finding.
DIAGNOSIS = ("label", "group", "confidence", "headroom", "source", "reason", "workload", "findings")


def page(report: Report) -> str:
    """Return the page.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    environment = _environment()
    from markupsafe import Markup

    script, style = (_asset(n) for n in ("report.js", "report.css"))

    def drawn(draw: Callable[[float], str]) -> Markup:
        """Draw a chart for wide and for narrow screens: its letters keep their size."""
        both = [draw(WIDE), draw(NARROW)]
        if not both[0]:
            return Markup("")
        wide, narrow = both
        return Markup(f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>')

    progress = {by: drawn(partial(charts.best_so_far, report, by)) for by in charts.UNITS}
    return environment.get_template("page.html").render(
        report=report, result=report.result, words=words, script=Markup(script),
        style=Markup(style), script_hash=_hash(script), style_hash=_hash(style),
        data=Markup(_embedded(_data(report))), progress=progress,
        roofline=drawn(partial(charts.roofline, report)),
        way=drawn(partial(charts.winners_way, report)),
        migration=drawn(partial(charts.migration, report)),
        tree=Markup(tree(report)), shades=range(charts.SHADES),
        shade_range=charts.shade_range(report), limits=charts.rates(report),
        parameters=[
            (one, [(s, drawn(partial(_slice, s))) for s in one.slices])
            for one in parameters(report)
        ],
        commands=commands(report),
        ranked=sorted(report.variants, key=lambda v: (-(v.speedup or 0.0), v.number)),
        steps=[report.evaluations[n] for n in report.incumbents],
        winner=report.variants[report.winner] if report.winner is not None else None,
        json=partial(json.dumps, indent=1, default=str),
    )  # fmt: skip


def _slice(one: Any, width: float) -> str:
    return charts.param_slice(one, min(width, 340.0))


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError as error:
        raise MissingExtraError("the HTML report", "report", "jinja2") from error

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource_folder("templates") / "report"),
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["clean"] = words.clean
    environment.filters["short"] = words.short
    return environment


def _asset(name: str) -> str:
    path = resource_folder("templates") / "report" / name
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(value: Mapping[str, Any]) -> str:
    """Return JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, default=str)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _data(report: Report) -> dict[str, Any]:
    """Return what the script shows of each variant. Equal lines and texts are stored once."""
    lines = _Once()
    texts = _Texts(TEXT_BYTES)
    of: dict[int, list[list[Any]]] = {}
    for row in report.evaluations:
        of.setdefault(row.variant, []).append([
            words.params(row.params), row.status, _round(row.speedup), _round(row.time_us),
            row.message, int(row.confirmed),
        ])  # fmt: skip
    return {
        "variants": [_variant(v, lines, texts, of.get(v.number, [])) for v in report.variants],
        "lines": lines.values, "texts": texts.values,
        "shown": report.winner if report.winner is not None else 0,
    }  # fmt: skip


def _variant(
    variant: VariantRow, lines: _Once, texts: _Texts, evaluations: list[list[Any]]
) -> dict[str, Any]:
    source = variant.source
    if len(source) > SOURCE_CHARS:
        source = f"{source[:SOURCE_CHARS]}\n... cut: {len(source)} characters in all"
    found: dict[str, Any] = {
        "name": variant.name, "hash": variant.hash, "parent": variant.parent,
        "second": variant.second_parent, "by": variant.proposer, "mutation": variant.mutation,
        "why": variant.rationale, "predicted": _round(variant.predicted_gain),
        "gain": _round(variant.gain), "status": variant.status, "speedup": _round(variant.speedup),
        "time": _round(variant.time_us), "params": words.params(variant.params),
        "source": [lines.index(line) for line in source.split("\n")], "evaluations": evaluations,
    }  # fmt: skip
    if variant.diagnosis is not None:
        value = variant.diagnosis.to_json()
        found["diagnosis"] = {k: value[k] for k in DIAGNOSIS}
    if variant.exchange is not None:
        found["exchange"] = _exchange(variant.exchange, texts)
    return {k: v for k, v in found.items() if v not in (None, "", [])}


def _exchange(exchange: Exchange, texts: _Texts) -> dict[str, Any]:
    parts = [("always sent", t) for t in exchange.stable]
    parts += [(speaker, text) for speaker, text in exchange.turns]
    parts.append(("reply", exchange.reply))
    return {
        "about": f"{exchange.model} as {exchange.role}: {exchange.tokens_in} tokens in, "
        f"{exchange.tokens_out} out, {words.dollars(exchange.usd)}, "
        f"{words.duration(exchange.seconds)}",
        "parts": [[name, texts.index(text)] for name, text in parts],
    }  # fmt: skip


class _Once:
    """Keeps each text once and hands out its place."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self._places: dict[str, int] = {}

    def index(self, text: str) -> int:
        if text not in self._places:
            self._places[text] = len(self.values)
            self.values.append(text)
        return self._places[text]


class _Texts(_Once):
    """The same with a limit: what does not fit any more is cut."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._left = most_bytes

    def index(self, text: str) -> int:
        if text not in self._places:
            size = len(text.encode("utf-8", "replace"))
            if size > self._left:
                return super().index("(left out to keep this page small; it is in the study)")
            self._left -= size
        return super().index(text)


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
