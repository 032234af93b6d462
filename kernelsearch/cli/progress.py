"""Live progress of a study: a panel on a terminal, a line now and then in a pipe, or nothing."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from kernelsearch.cli.console import errors, microseconds, percent, ratio
from kernelsearch.events import Progress
from kernelsearch.records import Evaluation

LINE_EVERY_S = 5.0
RECENT = 6


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
        self._recent: list[str] = []
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
            self._recent = [*self._recent, _line(progress.latest, progress.latest_variant)]
            self._recent = self._recent[-RECENT:]
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
        grid.add_row("best", best)
        grid.add_row("speed-up", f"{ratio(progress.best_speedup)} over naive")
        grid.add_row("of speed of light", percent(progress.sol_fraction))
        grid.add_row("candidates", f"{progress.candidates}  ({progress.per_minute:.0f} a minute)")
        grid.add_row("failed", _failures(progress))
        grid.add_row("elapsed", f"{progress.elapsed_s:.0f} s   {progress.phase}")
        for line in self._recent:
            grid.add_row("", line)
        return Panel(grid, title=self.title, title_align="left", expand=False)


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
