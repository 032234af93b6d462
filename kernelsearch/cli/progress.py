"""Live progress of a study: a panel on a terminal, a line now and then in a pipe, or nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from kernelsearch.cli.console import coloured, errors, microseconds, percent, ratio
from kernelsearch.events import Progress
from kernelsearch.records import Evaluation

LINE_EVERY_S = 5.0
RECENT = 6
BLOCKS = "▁▂▃▄▅▆▇█"


class ProgressView:
    """Shows what a study does. Use as a context manager, and call it with each ``Progress``.

    Args:
        quiet: show nothing.
        title: what is being tuned.
        console: where to show it (default: standard error, so that results can be piped).
    """

    def __init__(self, title: str, *, quiet: bool, console: Console | None = None) -> None:
        self.title, self.quiet = title, quiet
        self.console = console or errors
        self._live: Live | None = None
        self._recent: list[tuple[str, str]] = []
        self._bests: list[float] = []
        self._last_line = 0.0
        self._last_best: float | None = None

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        if self.quiet:
            return
        if progress.latest is not None:
            style = "" if progress.latest.ok else "red"
            line = (_line(progress.latest, progress.latest_variant), style)
            self._recent = [*self._recent, line][-RECENT:]
        if progress.best_speedup is not None:
            self._bests.append(progress.best_speedup)
        if self._live is not None:
            self._live.update(self._panel(progress))
            return
        better = progress.best_speedup is not None and progress.best_speedup != self._last_best
        due = time.monotonic() - self._last_line > LINE_EVERY_S
        if better or due or progress.message:
            self._last_line, self._last_best = time.monotonic(), progress.best_speedup
            self.console.print(_summary(progress), markup=False, highlight=False)

    def _panel(self, progress: Progress) -> Panel:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column()
        best = "-"
        if progress.best_us is not None:
            best = f"{microseconds(progress.best_us)}  ({progress.best_variant})"
        gain = f"{ratio(progress.best_speedup)} over naive"
        share = f"{percent(progress.sol_fraction)} of speed of light"
        rows = [
            ("speed-up", coloured(f"{gain}, {share}", "bold green")),
            ("best", coloured(best)),
            ("so far", coloured(f"{spark(self._bests)}  {_waited(progress.since_best)}")),
            ("candidates", coloured(
                f"{progress.candidates}  ({progress.per_minute:.0f} a minute), failed: "
                f"{_failures(progress)}"
            )),
            ("time", coloured(f"{progress.elapsed_s:.0f} s, {progress.phase}")),
            ("left", coloured(progress.budget or "-")),
        ]  # fmt: skip
        for name, words in rows:
            grid.add_row(name, words)
        for number, (line, style) in enumerate(self._recent):
            grid.add_row("latest" if number == 0 else "", coloured(line, style))
        return Panel(grid, title=coloured(self.title), title_align="left", expand=False)


def spark(values: Sequence[float], width: int = 30) -> str:
    """Return a row of blocks that shows how values rose, the newest on the right."""
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    shown = [max(values[i : i + step]) for i in range(0, len(values), step)]
    low, high = min(shown), max(shown)
    size = high - low
    return "".join(
        BLOCKS[round((v - low) / size * (len(BLOCKS) - 1)) if size else 0] for v in shown
    )


def _waited(since_best: int) -> str:
    if since_best == 0:
        return "the latest is the best"
    return f"{since_best} candidate{'s' if since_best != 1 else ''} since the best"


def _failures(progress: Progress) -> str:
    bad = {s: n for s, n in progress.statuses.items() if s != "ok" and n}
    return ", ".join(f"{n} {s}" for s, n in sorted(bad.items())) or "none"


def _summary(progress: Progress) -> str:
    text = (
        f"[{progress.elapsed_s:6.1f} s] {progress.phase}: {progress.candidates} candidates, best "
        f"{microseconds(progress.best_us)} ({ratio(progress.best_speedup)} over naive, "
        f"{percent(progress.sol_fraction)} of speed of light), failed: {_failures(progress)}"
    )
    return f"{text}; {progress.message}" if progress.message else text


def _line(evaluation: Evaluation, name: str) -> str:
    params = " ".join(f"{k}={v}" for k, v in evaluation.candidate.params)
    if evaluation.ok:
        times = [t.median_us for t in evaluation.timings]
        return f"{name} {params}: {microseconds(times[0])}"
    return f"{name} {params}: {evaluation.status}"
