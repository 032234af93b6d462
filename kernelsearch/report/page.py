"""The report as one self-contained HTML page that opens from disk without a network.

Sources, messages and answers in a study are hostile: everything is escaped, the script sets texts
and never markup, and a content policy lets only this page's own script and style run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
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
# What is too much for a page of this size is left out, and said to be.
PAGE_BYTES = 4_900_000
# Where the script's data goes. No escaped text holds it.
PLACE = '<script type="application/json" id="data"></script>'
REASON_CHARS = 2000
# What of a diagnosis is shown; the rest repeats the first finding.
DIAGNOSIS = ("label", "group", "confidence", "headroom", "source", "reason", "workload")


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
    text = environment.get_template("page.html").render(
        report=report, result=report.result, words=words, script=Markup(script),
        style=Markup(style), script_hash=_hash(script), style_hash=_hash(style),
        progress=progress,
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
    before, _, after = text.partition(PLACE)
    data = _embedded(_data(report, PAGE_BYTES - len(text.encode("utf-8", "replace"))))
    return f"{before}{PLACE.replace('><', f'>{data}<')}{after}"


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


def _data(report: Report, left: int) -> dict[str, Any]:
    """Return what the script shows of each variant. Equal lines and texts are stored once.

    What every variant needs comes first; sources, diagnoses and prompts follow, those of the best
    first, until ``left`` bytes are used.
    """
    of: dict[int, list[list[Any]]] = {}
    for row in report.evaluations:
        of.setdefault(row.variant, []).append([
            words.params(row.params), row.status, _round(row.speedup), _round(row.time_us),
            row.message, int(row.confirmed),
        ])  # fmt: skip
    variants = [_variant(v, of.get(v.number, [])) for v in report.variants]
    for found in variants:  # that nothing was found room for takes some room, too
        found.update(dict.fromkeys(("source", "diagnosis", "exchange")))
    room = _Room(left - len(_embedded({"variants": variants})))
    way = set(report.path)
    ranked = sorted(report.variants, key=lambda v: (v.number not in way, -(v.speedup or 0.0)))
    # Sources of all before prompts of any: they are smaller, and looked at more often.
    for variant in ranked:
        variants[variant.number]["source"] = room.source(variant.source)
    for variant in ranked:
        found = variants[variant.number]
        if variant.diagnosis is None:
            del found["diagnosis"]
        else:
            found["diagnosis"] = room.once(_diagnosis(variant.diagnosis.to_json(), room))
    for variant in ranked:
        found = variants[variant.number]
        if variant.exchange is None:
            del found["exchange"]
        else:
            found["exchange"] = room.once(_exchange(variant.exchange, room))
    return {
        "variants": variants, "lines": room.lines.values, "texts": room.texts.values,
        "shown": report.winner if report.winner is not None else 0, "folder": report.folder,
    }  # fmt: skip


def _variant(variant: VariantRow, evaluations: list[list[Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "name": variant.name, "hash": variant.hash, "parent": variant.parent,
        "second": variant.second_parent, "by": variant.proposer, "mutation": variant.mutation,
        "why": variant.rationale[:REASON_CHARS], "predicted": _round(variant.predicted_gain),
        "gain": _round(variant.gain), "status": variant.status, "speedup": _round(variant.speedup),
        "time": _round(variant.time_us), "params": words.params(variant.params),
        "evaluations": evaluations,
    }  # fmt: skip
    return {k: v for k, v in found.items() if v not in (None, "", [])}


def _diagnosis(value: Mapping[str, Any], room: _Room) -> dict[str, Any]:
    findings = [_finding(f, room) for f in value["findings"]]
    return {**{k: value[k] for k in DIAGNOSIS}, "findings": findings}


def _finding(finding: Mapping[str, Any], room: _Room) -> dict[str, Any]:
    return {
        "label": finding["label"], "headroom": _round(finding["headroom"]),
        "says": room.text(finding["says"]),
        "evidence": {k: _round(v) for k, v in finding["evidence"].items()},
        "directions": room.text(", ".join(map(words.plain, finding["directions"]))),
    }  # fmt: skip


def _exchange(exchange: Exchange, room: _Room) -> dict[str, Any]:
    parts = [("always sent", t) for t in exchange.stable]
    parts += [(speaker, text) for speaker, text in exchange.turns]
    parts.append(("reply", exchange.reply))
    return {
        "about": f"{exchange.model} as {exchange.role}: {exchange.tokens_in} tokens in, "
        f"{exchange.tokens_out} out, {words.dollars(exchange.usd)}, "
        f"{words.duration(exchange.seconds)}",
        "parts": [[name, room.text(text)] for name, text in parts],
    }  # fmt: skip


class _Once:
    """Keeps each text once and hands out its place."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.places: dict[str, int] = {}

    def index(self, text: str) -> int:
        if text not in self.places:
            self.places[text] = len(self.values)
            self.values.append(text)
        return self.places[text]


class _Room:
    """What may still be put into the page; what does not fit is None.

    Args:
        left: bytes.
    """

    def __init__(self, left: int) -> None:
        self.lines, self.texts = _Once(), _Once()
        self._left = left

    def source(self, text: str) -> str | None:
        """Return a text as places of its lines: ``0-40,55,41-90``."""
        lines = text.split("\n")
        cost = sum(_size(line) for line in set(lines) if line not in self.lines.places)
        # A place takes at most eight characters; runs of them far less.
        if cost > self._left:
            return None
        places = [self.lines.index(line) for line in lines]
        runs = _runs(places)
        self._left -= cost + len(runs)
        return runs

    def text(self, text: str) -> int | None:
        """Return the place of a text."""
        if text not in self.texts.places:
            if _size(text) > self._left:
                return None
            self._left -= _size(text)
        return self.texts.index(text)

    def once(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """Return a value if there is room for it."""
        size = len(_embedded(value))
        if size > self._left:
            return None
        self._left -= size
        return value


def _runs(places: Sequence[int]) -> str:
    found: list[list[int]] = []
    for place in places:
        if found and place == found[-1][1] + 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in found)


def _size(text: str) -> int:
    """Return how many bytes a text takes as JSON in the page."""
    return len(_embedded({"": text})) - 4


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
