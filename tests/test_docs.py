"""The documentation is true to the code: links, examples, tables of names, numbers and commands."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernelsearch import measure, sol
from kernelsearch.cases import Case
from kernelsearch.operator import Operator, Workload
from kernelsearch.operators_io import load_operator
from kernelsearch.records import Status, TimingSettings, Verdict
from kernelsearch.variant import _KNOWN_FACTS, load_variant
from kernelsearch.verify import check_outputs, probe_tolerance

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text(page), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(
        r"`((?:kernelsearch|tests|docs|operators|templates|benchmarks|\.ci)/[\w./]+?\.\w+)`",
        page.read_text(encoding="utf-8"),
    )
    assert not [n for n in named if not (ROOT / n).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    typer = pytest.importorskip("typer")
    from kernelsearch.cli import main
    from kernelsearch.cli.app import app

    assert main is not None
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    pattern = r"(?:^|`|&& |\$ )kernelsearch ([a-z]+(?:-[a-z]+)*)\b"
    used = set(re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE))
    assert used <= known


def test_the_readme_names_every_command() -> None:
    import typer.main

    from kernelsearch.cli import main
    from kernelsearch.cli.app import app

    assert main is not None
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert not {c for c in known if f"`kernelsearch {c}" not in text("README.md")}


# --- docs/operators.md --------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path) -> tuple[Operator, Path]:
    """Write out the page's operator and variant, and load the operator."""
    operator, variant = code_blocks("docs/operators.md", "python")
    (tmp_path / "row_scale.py").write_text(operator)
    (tmp_path / "row_scale_naive.py").write_text(variant)
    return load_operator(tmp_path / "row_scale.py"), tmp_path / "row_scale_naive.py"


def test_the_example_operator_is_complete(example: tuple[Operator, Path]) -> None:
    operator, _ = example
    for target, dtypes in operator.dtypes.items():
        for dtype in dtypes:
            probe_tolerance(operator, dtype, target)
    assert operator.symbols == ("rows", "cols")
    assert operator.cost(Workload({"rows": 3, "cols": 5}), "float32") == (15.0, 132.0)


def test_the_example_variant_computes_it(example: tuple[Operator, Path]) -> None:
    operator, path = example
    variant = load_variant(path)
    variant.check_against(operator)
    names: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    for workload in operator.workload_set("heldout", "cpu"):
        for distribution in operator.distributions:
            drawn = dataclasses.replace(workload, distribution=distribution)
            case = Case(operator, drawn, "float32", seed=3)
            y = np.full((drawn.sizes["rows"], drawn.sizes["cols"]), np.nan, np.float32)
            names["row_scale"](y, case.inputs["x"], case.inputs["factor"])  # type: ignore[operator]
            assert check_outputs(case, {"y": y}) <= 1.0
            case.close()


def test_every_field_of_an_operator_is_described() -> None:
    page = text("docs/operators.md")
    fields = {f.name for f in dataclasses.fields(Operator)} - {"path"}
    assert not {f for f in fields if f"| `{f}` |" not in page}


def test_every_shipped_operator_passes_the_probes_that_are_promised() -> None:
    from kernelsearch.resources import operator_paths

    for name in operator_paths():
        operator = load_operator(name)
        assert operator.name == name
        assert operator.error.reasoning


# --- docs/measuring.md --------------------------------------------------------------------------


def test_every_status_and_verdict_is_described() -> None:
    page = text("docs/measuring.md")
    assert not {s for s in Status if f"| `{s}` |" not in page}
    assert not {v for v in Verdict if f"| `{v}` |" not in page}


def test_the_numbers_are_those_of_the_code() -> None:
    page = text("docs/measuring.md")
    settings = TimingSettings()
    for words in (
        f"`min_sample_us` ({settings.min_sample_us:g} µs)",
        f"`give_up_ratio` ({settings.give_up_ratio:g})",
        f"`min_samples` ({settings.min_samples})",
        f"`max_samples` ({settings.max_samples})",
        f"`budget_s` ({settings.budget_s:g} s)",
        f"{measure.CONFIDENCE:.0%}".replace("%", " %") + " interval",
        f"from {measure.BOOTSTRAP}\nbootstrap resamples",
        f"lower end are above {1 + measure.LEAST_GAIN:g}",
        f"upper end are below {1 - measure.LEAST_GAIN:g}",
        f"a margin of {1 - sol.FLOOR_MARGIN:.0%}".replace("%", " %"),
    ):
        assert words in page, words
    assert settings.cache == "cold"


# --- docs/variants.md ---------------------------------------------------------------------------


def test_every_device_fact_is_described() -> None:
    page = text("docs/variants.md")
    assert not {f for f in _KNOWN_FACTS if f"`{f}`" not in page}


# --- docs/architecture.md -----------------------------------------------------------------------


def test_the_layers_are_those_of_the_table() -> None:
    from tests.test_architecture import TABLE

    page = text("docs/architecture.md")
    rows = re.findall(r"^\| (\d)[^|]*\|", page, re.MULTILINE)
    assert rows == [title.split()[0] for title in TABLE]
    for module in ("records", "errors", "expressions", "operator", "variant", "protocols", "wire",
                   "worker", "dispatch", "evaluate"):  # fmt: skip
        assert f"`{module}`" in page
