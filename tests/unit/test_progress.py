"""Live progress: a panel on a terminal, lines in a pipe, nothing when quiet."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kernelsearch.cli.progress import ProgressView, spark
from kernelsearch.events import Progress
from kernelsearch.records import Candidate, Evaluation, Status

FAILED = Evaluation(Candidate("v", (("VEC", 4),), "float32"), Status.CRASHED, "it crashed")


def shown(console: Console, *steps: Progress, quiet: bool = False) -> str:
    with ProgressView("rms_norm [/] on a device", quiet=quiet, console=console) as view:
        for step in steps:
            view(step)
        if view._live is not None:
            console.print(view._panel(steps[-1]))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def step(speedup: float, count: int, message: str = "") -> Progress:
    return Progress(
        "search", candidates=count, statuses={"ok": count - 1, "crashed": 1}, best_us=10.0,
        best_speedup=speedup, best_variant="naive+[bold]x", sol_fraction=0.31, elapsed_s=12.0,
        per_minute=30.0, budget="48 s, 100 candidates", since_best=4, latest=FAILED,
        latest_variant="[/]", message=message,
    )  # fmt: skip


@pytest.mark.parametrize("width", [40, 120])
def test_a_terminal_shows_what_matters(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    text = shown(console, step(1.2, 5), step(1.8, 9))
    words = " ".join(text.replace("│", " ").split())
    for part in ("1.80x over naive", "31 % of", "48 s, 100", "1 crashed", "4 candidates since"):
        assert part in words
    assert "naive+[bold]x" in words


def test_a_pipe_gets_lines_and_only_when_something_is_new() -> None:
    console = Console(file=io.StringIO(), width=200)
    lines = shown(console, step(1.2, 5), step(1.2, 6), step(1.2, 7), step(1.8, 8),
                  step(1.8, 9, "the end")).splitlines()  # fmt: skip
    assert len(lines) == 3
    assert "1.80x over naive" in lines[1]
    assert lines[2].endswith("the end")


def test_quiet_is_silent() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    assert shown(console, step(1.2, 5), quiet=True) == ""


@pytest.mark.parametrize(("values", "text"), [
    ([], ""), ([2.0], "▁"), ([1.0, 1.0], "▁▁"), ([1.0, 2.0], "▁█"), ([1.0, 1.5, 2.0], "▁▅█"),
])  # fmt: skip
def test_the_row_of_blocks(values: list[float], text: str) -> None:
    assert spark(values).replace("▄", "▅") == text
    assert len(spark([1.0 + i for i in range(1000)])) <= 30
