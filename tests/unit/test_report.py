"""Reports: what they say is what the study holds, in every format, whatever candidates write."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kernelsearch.errors import MissingExtraError
from kernelsearch.records import Evaluation
from kernelsearch.report import charts, words
from kernelsearch.report.collect import Report, collect
from kernelsearch.report.importance import parameters
from kernelsearch.report.page import page
from kernelsearch.report.reproduce import commands, tune_command
from kernelsearch.report.text import as_csv, as_json, as_markdown
from kernelsearch.report.tree import tree
from kernelsearch.study import StoredStudy
from tests.support.synthetic_study import Made, make_study

pytest.importorskip("jinja2")
HOSTILE = "</script><!--<script><img src=x onerror=alert(1)>{{7*7}}\x1b[31m\x00`|=cmd\"'&\u202e"


def load(folder: Path) -> Report:
    with StoredStudy(folder) as stored:
        return collect(stored)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_study(tmp_path_factory.mktemp("studies") / "small")


@pytest.fixture(scope="module")
def report(made: Made) -> Report:
    return load(made.folder)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return load(make_study(tmp_path_factory.mktemp("studies") / "large", 2000, 2000).folder)


def embedded(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    value: dict[str, Any] = json.loads(found[1])
    return value


def places(runs: str) -> list[int]:
    ends = [[int(n) for n in run.split("-")] for run in runs.split(",")]
    return [n for run in ends for n in range(run[0], run[-1] + 1)]


# --- collect ------------------------------------------------------------------------------------


def test_everything_in_the_study_is_there(made: Made, report: Report) -> None:
    assert [v.hash for v in report.variants] == [v.hash for v in made.variants]
    assert [v.source for v in report.variants] == [v.source for v in made.variants]
    assert Counter(e.status for e in report.evaluations) == Counter(
        str(e.status) for e in made.evaluations
    )
    assert report.result == made.result
    failed = [e for e in made.evaluations if not e.ok]
    assert sum(g.count for g in report.failures) == len(failed) > 0
    assert report.statuses["ok"] == len(made.evaluations) - len(failed)


def test_gains_and_ranks_follow_from_the_times(made: Made, report: Report) -> None:
    def best(hash_: str) -> Evaluation:
        own = [e for e in made.evaluations if e.ok and e.candidate.variant == hash_]
        return min(own, key=lambda e: e.timings[0].median_us)

    child = next(v for v in report.variants if v.parent is not None and v.gain is not None)
    assert child.parent is not None
    before = best(report.variants[child.parent].hash).timings[0].median_us
    assert child.gain == pytest.approx(before / best(child.hash).timings[0].median_us)
    ranked = report.elites
    assert [v.speedup for v in ranked] == sorted((v.speedup or 0 for v in ranked), reverse=True)
    assert report.winner == ranked[0].number
    assert report.path[-1] == report.winner
    for parent, number in zip(report.path, report.path[1:], strict=False):
        assert report.variants[number].parent == parent


def test_the_best_so_far_only_rises(report: Report) -> None:
    rising = [report.evaluations[n].speedup or 0 for n in report.incumbents]
    assert rising == sorted(set(rising))
    assert rising[-1] == max(e.speedup or 0 for e in report.evaluations)


def test_money_is_what_was_paid_by_then(report: Report) -> None:
    spent = [e.usd for e in report.evaluations]
    assert spent == sorted(spent)
    assert 0 < spent[-1] <= report.costs.usd
    assert report.costs.usd == pytest.approx(sum(m.usd for m in report.costs.models))


def test_pauses_between_runs_do_not_count(tmp_path: Path) -> None:
    from kernelsearch.report.collect import _Clock
    from kernelsearch.store import Event

    clock = _Clock([], [Event("run", {}, 100.0), Event("x", {}, 110.0), Event("run", {}, 9000.0),
                        Event("x", {}, 9005.0)])  # fmt: skip
    assert clock.total_s == 15.0
    assert clock.elapsed_s(110.0) == 10.0
    assert clock.elapsed_s(9003.0) == 10.0
    assert clock.elapsed_s(50.0) == 0.0


def test_a_variant_of_a_model_has_its_prompt_and_reply(report: Report) -> None:
    of_model = [v for v in report.variants if v.proposer == "llm"]
    assert of_model
    for variant in of_model:
        assert variant.exchange is not None
        assert variant.rationale in variant.exchange.reply
    others = [v for v in report.variants if v.proposer != "llm"]
    assert all(v.exchange is None for v in others)


def test_a_lost_prompt_does_not_stop_the_report(tmp_path: Path) -> None:
    made = make_study(tmp_path / "s")
    for blob in (made.folder / "blobs").rglob("*"):
        if blob.is_file():
            blob.unlink()
    assert all(v.exchange is None for v in load(made.folder).variants)


def test_the_cases_are_sorted_by_kind(report: Report) -> None:
    checked = report.checked
    assert (checked.tuned, checked.held_out) == (3, 1)
    assert checked.drawn == {"uniform": 1}
    assert checked.marks == {"misaligned": 1}


# --- the page -----------------------------------------------------------------------------------


def test_the_page_is_valid_and_loads_nothing(report: Report) -> None:
    html5lib = pytest.importorskip("html5lib")
    text = page(report)
    parser = html5lib.HTMLParser(strict=False)
    tree = parser.parse(text)
    assert not parser.errors
    names = {e.tag.split("}")[-1] for e in tree.iter() if isinstance(e.tag, str)}
    assert {"svg", "main", "nav", "table"} <= names
    outside = [
        v for e in tree.iter() for k, v in e.attrib.items()
        if str(k).split("}")[-1] in ("src", "href") and not v.startswith(("#", "data:,"))
    ]  # fmt: skip
    assert not outside
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([a-z]\w*)"', text):
        assert target in ids or re.fullmatch(r"v\d+", target)


def test_the_headline_is_the_result(made: Made, report: Report) -> None:
    text = page(report)
    assert made.result is not None
    assert words.speedup(made.result.speedup) in text
    low, high = words.speedup(made.result.low), words.speedup(made.result.high)
    assert f"95 % interval {low} to {high}" in text
    assert "memcheck (it is not installed)" in text


def test_the_script_gets_every_source_whole(made: Made, report: Report) -> None:
    data = embedded(page(report))
    for record, shown in zip(made.variants, data["variants"], strict=True):
        assert "\n".join(data["lines"][n] for n in places(shown["source"])) == record.source
    count = sum(len(v.get("evaluations", ())) for v in data["variants"])
    assert count == len(made.evaluations)


def test_only_the_page_s_own_script_may_run(report: Report) -> None:
    import base64
    import hashlib

    text = page(report)
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(script) == 1
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text
    assert "innerHTML" not in script[0]
    assert not re.search(r"\son\w+=", text[: text.index("<script")])


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    html5lib = pytest.importorskip("html5lib")
    make_study(tmp_path / "s", hostile=HOSTILE)
    report = load(tmp_path / "s")
    text = page(report)
    tree = html5lib.parse(text)
    tags = Counter(e.tag.split("}")[-1] for e in tree.iter() if isinstance(e.tag, str))
    assert tags["script"] == 2
    assert tags["img"] == 0
    assert "{{7*7}}" in text
    assert not re.search("[\x00\x1b\u202e]", text)
    # Only in the embedded data, where they are escapes of JSON, does a source have its characters.
    data = embedded(text)
    assert any("</script>" in line for line in data["lines"])
    for other in (as_markdown(report), as_csv(report)):
        assert not re.search("[\x00\x1b\u202e]", other)


def test_halves_of_characters_can_be_written() -> None:
    assert words.clean("\ud800\x00" + HOSTILE).encode()


@pytest.mark.parametrize("different", [0, 60])
def test_two_thousand_evaluations_fit_in_five_megabytes(large: Report, different: int) -> None:
    """Each of another variant; and with sources that share no line: then some are left out."""
    report = large
    if different:
        from dataclasses import replace

        report = replace(report, variants=tuple(
            replace(v, source="\n".join(f"line {n} of {v.hash} alone" for n in range(different)))
            for v in report.variants
        ))  # fmt: skip
    text = page(report)
    assert len(report.evaluations) == 2000
    assert len(text.encode()) <= 5_000_000
    data = embedded(text)
    assert len(data["variants"]) == 2000
    # The winner's way is there whatever had to be left out.
    assert report.winner is not None
    for number in report.path:
        assert data["variants"][number]["source"] is not None
    left_out = sum(v["source"] is None for v in data["variants"])
    assert (left_out > 0) == (different > 0)


@pytest.mark.parametrize("kind", ["unconfirmed", "one", "nothing right"])
def test_a_study_that_has_just_begun(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    if kind == "unconfirmed":
        make_study(folder, confirmed=False)
    elif kind == "one":
        make_study(folder, 1, 1, confirmed=False)
    else:
        from kernelsearch.store import open_ledger
        from kernelsearch.store_base import Contents

        made = make_study(tmp_path / "first", confirmed=False)
        bad = [e for e in made.evaluations if not e.ok]
        with open_ledger(None, made.folder, create=False) as old:
            settings = old.read_settings()
        folder.mkdir()
        with open_ledger(None, folder, create=True) as ledger:
            ledger.write_all(Contents(settings, made.variants, bad, ()))
    report = load(folder)
    for text in (page(report), as_markdown(report), as_json(report), as_csv(report)):
        assert text
    assert "confirmed" in as_markdown(report)


def test_without_jinja_a_sentence_names_the_extra(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"kernelsearch\[report\]"):
        page(report)


# --- charts -------------------------------------------------------------------------------------


def test_a_chart_stays_inside_its_frame(report: Report) -> None:
    drawings = [charts.best_so_far(report, by, w) for by in charts.UNITS for w in (700.0, 350.0)]
    drawings += [charts.roofline(report, 700.0), charts.winners_way(report, 350.0)]
    for drawing in drawings:
        width, height = map(float, re.findall(r'viewBox="0 0 (\S+) (\S+)"', drawing)[0])
        for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', drawing):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height


def test_the_tree_has_a_row_for_each_variant_below_its_parent(report: Report) -> None:
    drawing = tree(report)
    places = {
        int(n): float(y)
        for n, y in re.findall(r'id="t(\d+)".*?cy="([^"]+)"', drawing, re.DOTALL)
    }  # fmt: skip
    assert sorted(places) == [v.number for v in report.variants]
    assert len(set(places.values())) == len(places)
    for variant in report.variants:
        if variant.parent is not None:
            assert places[variant.parent] < places[variant.number]


def test_a_long_line_of_descent_needs_one_column(report: Report) -> None:
    drawing = tree(report)
    column = {
        int(n): float(x)
        for n, x in re.findall(r'id="t(\d+)".*?cx="([^"]+)"', drawing, re.DOTALL)
    }  # fmt: skip
    assert len({column[n] for n in report.path}) == 1
    widest = max(column.values())
    assert widest <= 12 + 20 * len(report.variants)


def test_the_fastest_has_the_strongest_colour(report: Report) -> None:
    shades = {v.number: charts.shade(v.speedup, report) for v in report.variants}
    assert report.winner is not None
    assert shades[report.winner] == charts.SHADES - 1
    assert all(s is None or 0 <= s < charts.SHADES for s in shades.values())


# --- figures and notebooks ----------------------------------------------------------------------


def test_figures_are_written_and_repeatable(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from kernelsearch.report.figures import write_figures

    make_study(tmp_path / "s", 60, 3, hostile="$\\frac{x$ </svg>")
    report = load(tmp_path / "s")
    written = write_figures(report, tmp_path / "a")
    names = {p.stem for p in written}
    assert {"best-so-far-evaluations", "best-so-far-time", "roofline", "winners-way"} <= names
    assert {p.suffix for p in written} == {".png", ".svg"}
    for path in written:
        start = path.read_bytes()[:8]
        assert start in (b"\x89PNG\r\n\x1a\n", b"<?xml ve")
    again = write_figures(report, tmp_path / "b")
    drawn = [p.read_bytes() for p in written if p.suffix == ".svg"]
    assert drawn == [p.read_bytes() for p in again if p.suffix == ".svg"]


def test_a_study_with_nothing_right_draws_nothing(tmp_path: Path, report: Report) -> None:
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    from kernelsearch.report.figures import write_figures

    empty = replace(report, evaluations=(), winner=None, path=(), incumbents=(), migrations=())
    assert write_figures(empty, tmp_path / "figures") == []


def test_without_matplotlib_a_sentence_names_the_extra(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelsearch.report.figures import write_figures

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"kernelsearch\[report\]"):
        write_figures(report, tmp_path)


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_notebook_shows_studies_and_results(confirmed: bool, tmp_path: Path) -> None:
    made = make_study(tmp_path / "s", hostile="<script>alert(1)</script>", confirmed=confirmed)
    with StoredStudy(made.folder) as stored:
        text = stored._repr_html_()
    assert "<script>" not in text
    assert "<svg" in text
    assert "<a " not in text
    if made.result is not None:
        shown = made.result._repr_html_()
        assert shown in text
        assert words.speedup(made.result.speedup) in shown
        assert made.result.workloads[1].workload in shown
    else:
        assert "not confirmed" in text


# --- parameters ---------------------------------------------------------------------------------


def test_importance_finds_the_parameter_that_matters(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    make_study(tmp_path / "s", 60, 1)
    found = parameters(load(tmp_path / "s"))
    assert len(found) == 1
    assert found[0].method == "fANOVA"
    weights = {s.name: s.importance or 0.0 for s in found[0].slices}
    assert sum(weights.values()) == pytest.approx(1.0)
    assert weights["WARPS"] > weights["VEC"]


def test_few_candidates_say_nothing_of_importance(report: Report) -> None:
    for one in parameters(report):
        assert one.candidates >= 8 or (not one.method and one.slices[0].importance is None)


# --- text and tables ----------------------------------------------------------------------------


def test_json_is_the_whole_report(report: Report) -> None:
    value = json.loads(as_json(report))
    assert value["format"] == 1
    assert len(value["evaluations"]) == len(report.evaluations)
    assert value["variants"][3]["source"] == report.variants[3].source


def test_csv_has_a_row_an_evaluation(report: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(report))))
    assert len(rows) == len(report.evaluations)
    assert rows[0]["variant"] == report.variants[0].hash
    assert float(rows[0]["speedup"]) == pytest.approx(1.0)
    assert rows[5]["param.WARPS"] == str(report.evaluations[5].params["WARPS"])


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    make_study(tmp_path / "s", hostile="=HYPERLINK(1)")
    cells = [c for row in csv.reader(io.StringIO(as_csv(load(tmp_path / "s")))) for c in row]
    assert any("HYPERLINK" in c for c in cells)
    assert not [c for c in cells if c.startswith("=")]


def test_markdown_keeps_its_tables_whatever_names_say(tmp_path: Path) -> None:
    make_study(tmp_path / "s", hostile="a | b\n# c ```` d")
    text = as_markdown(load(tmp_path / "s"))
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) in (6, 7, 8) for line in tables if "a " in line)
    assert not re.search(r"^# c", text.split("## Source")[0], re.MULTILINE)


# --- how to reproduce ---------------------------------------------------------------------------


def test_the_command_asks_for_the_same_study(report: Report) -> None:
    text = tune_command(report.settings)
    assert text.startswith("kernelsearch tune rms_norm --target cuda --dtype float32")
    assert "--workloads large" in text
    given = {**report.settings, "workload_set": "given", "proposers": [], "templates": False}
    text = tune_command(given)
    assert "rows=4096,cols=4096;rows=8192,cols=1024" in text
    assert "--proposer none" in text
    assert "--no-templates" in text


def test_every_command_exists_with_its_options(report: Report) -> None:
    import shlex

    import typer.main

    from kernelsearch.cli import main
    from kernelsearch.cli.app import app

    assert main is not None
    group: Any = typer.main.get_command(app)
    for _, line in commands(report):
        _, name, *arguments = shlex.split(line)
        options = {o for p in group.commands[name].params for o in (*p.opts, *p.secondary_opts)}
        assert {a for a in arguments if a.startswith("-")} <= options


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "text"), [
    (words.speedup(None), "-"), (words.speedup(1.804), "1.80x"), (words.speedup(1234.5), "1234x"),
    (words.percent(0.069), "6.9 %"), (words.percent(0.8), "80 %"), (words.percent(0.0999), "10 %"),
    (words.microseconds(0.4567), "0.4567 µs"), (words.microseconds(12345.0), "12.35 ms"),
    (words.microseconds(2.5e6), "2.5 s"), (words.duration(59.0), "59 s"),
    (words.duration(3725.0), "1 h 02 min"), (words.duration(125.0), "2 min 05 s"),
    (words.dollars(0.0), "0.00 USD"), (words.dollars(0.0123), "0.0123 USD"),
    (words.short("a+b"), "a+b"), (words.short("a+b+c+d+e"), "a+…+d+e"),
    (words.quantity(3.35e12, "B/s"), "3.35 TB/s"), (words.moment(0.0), "-"),
])  # fmt: skip
def test_numbers_are_written_for_people(value: str, text: str) -> None:
    assert value == text
