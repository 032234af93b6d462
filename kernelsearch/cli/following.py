"""``history`` and ``watch``: how a study came to what it found, and how it goes on."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, microseconds, out, ratio, table
from kernelsearch.cli.progress import ProgressView
from kernelsearch.cli.results import print_result
from kernelsearch.cli.studies import find_study
from kernelsearch.errors import ArgumentError
from kernelsearch.events import Progress
from kernelsearch.records import Evaluation, geometric_mean
from kernelsearch.report.collect import Report, collect
from kernelsearch.report.words import clean, duration, params
from kernelsearch.study import StoredStudy

LEAST_INTERVAL_S = 0.1
# A run that confirms its winner holds no claim; so long may that take.
CONFIRMATION_S = 120.0


@app.command()
def history(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    all_: Annotated[bool, typer.Option("--all", help="Every candidate, not only each new best.")]
        = False,
    last: Annotated[int | None, typer.Option(help="Only so many, the newest.", min=1)] = None,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Show how a study came to its best: each new best in order, or with --all every candidate."""
    with StoredStudy(find_study(study)) as stored:
        report = collect(stored)
    lines = _lines(report, all_)[-(last or 0) :]
    if json_:
        emit_json({"study": report.folder, "history": lines})
        return
    if not lines:
        out.print("nothing was evaluated yet" if all_ else "nothing is right yet; --all shows what "
                  "was tried", highlight=False)  # fmt: skip
        return
    rows = table("", ">no.", ">after", ">time", ">speed-up", ">step", "variant")
    for line in lines:
        state = "" if line["status"] == "ok" else f": {line['status']}"
        name = f"{line['variant']} {params(line['params'])}".rstrip() + state
        rows.add_row(
            str(line["number"]), duration(line["elapsed_s"]), microseconds(line["time_us"]),
            ratio(line["speedup"]), ratio(line["step"]), name,
        )  # fmt: skip
    out.print(rows)
    for note in report.notes:
        out.print(clean(note), markup=False, highlight=False)


def _lines(report: Report, every: bool) -> list[dict[str, Any]]:
    """Return what happened in order; ``step`` is a new best over the one before."""
    found = []
    best: float | None = None
    bests = set(report.incumbents)
    for row in report.evaluations:
        variant = report.variants[row.variant]
        step = row.speedup / best if row.number in bests and best and row.speedup else None
        if row.number in bests:
            best = row.speedup
        if every or row.number in bests:
            found.append({
                "number": row.number + 1, "elapsed_s": row.elapsed_s, "variant": variant.name,
                "hash": variant.hash, "proposer": variant.proposer, "params": dict(row.params),
                "status": row.status, "time_us": row.time_us, "speedup": row.speedup,
                "best": row.number in bests, "step": step, "message": row.message,
            })  # fmt: skip
    return found


# --- watch --------------------------------------------------------------------------------------


@app.command()
def watch(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Follow a study that another process runs, here or elsewhere; ends with its result.

    Looking changes nothing. Ctrl-C ends the watching, not the study.
    """
    if not interval >= LEAST_INTERVAL_S:
        raise ArgumentError(f"--interval must be at least {LEAST_INTERVAL_S} s (got {interval})")
    if json_ and not once:
        raise ArgumentError("--json gives one document: use it with --once")
    with StoredStudy(find_study(study)) as stored:
        if json_:
            emit_json(_snapshot(stored))
            return
        title = f"{stored.settings.operator} {stored.settings.dtype} on {stored.device.name}"
        before = _results(stored)
        follower = _Follower(stored)
        with ProgressView(title, quiet=False) as view:
            view(follower.progress(None))
            while not once and _results(stored) == before and follower.expects(before == 0):
                time.sleep(interval)
                for evaluation in stored.refresh():
                    view(follower.progress(evaluation))
                view(follower.progress(None))
            stored.refresh()
            view(replace(follower.progress(None), message="nothing more is expected"))
        result = stored.result()
        if result is not None and _results(stored) > before:
            print_result(result)
        elif result is not None:
            out.print("no process is at work on this study; its last result:", highlight=False)
            print_result(result)


def _results(stored: StoredStudy) -> int:
    return sum(e.kind == "result" for e in stored.ledger.events()[0])


@dataclass
class _Follower:
    """Tells of a stored study what its own run would tell of it."""

    stored: StoredStudy
    seen: float | None = None

    def at_work(self) -> bool:
        """Whether a process holds a claim, as every search does until it confirms its winner."""
        if self.stored.ledger.claims():
            self.seen = time.monotonic()
            return True
        return False

    def expects(self, fresh: bool) -> bool:
        """Whether more may come: somebody is at work, or was a moment ago, or has yet to begin."""
        if fresh or self.at_work():
            return True
        return self.seen is not None and time.monotonic() - self.seen < CONFIRMATION_S

    def progress(self, latest: Evaluation | None) -> Progress:
        archive = self.stored.archive
        best = archive.best()
        started = [e.created for e in self.stored.ledger.events()[0] if e.kind == "run"]
        since = started[-1] if started else 0.0
        mine = [e.created for e in archive.evaluations() if e.created >= since]
        end = max(mine, default=since)
        elapsed = time.time() - since if self.at_work() else end - since
        lights = [t.sol_us / t.median_us for t in best.timings if t.sol_us] if best else []
        return Progress(
            phase="search" if self.at_work() else "not running", candidates=archive.count(),
            statuses=archive.statuses(),
            best_speedup=archive.objective(best) if best is not None else None,
            best_us=geometric_mean(list(best.times_us().values())) if best is not None else None,
            best_variant=archive.variant(best.candidate.variant).name if best is not None else "",
            sol_fraction=geometric_mean(lights) if lights else None, elapsed_s=elapsed,
            per_minute=60.0 * len(mine) / (end - since) if end > since else 0.0, latest=latest,
            latest_variant=(
                archive.variant(latest.candidate.variant).name if latest is not None else ""
            ),
        )  # fmt: skip


def _snapshot(stored: StoredStudy) -> dict[str, Any]:
    progress = _Follower(stored).progress(None)
    result = stored.result()
    return {
        "folder": str(stored.folder), "running": bool(stored.ledger.claims()),
        "candidates": progress.candidates, "statuses": dict(progress.statuses),
        "best_speedup": progress.best_speedup, "best_us": progress.best_us,
        "best_variant": progress.best_variant, "per_minute": progress.per_minute,
        "result": result.to_json() if result is not None else None,
    }  # fmt: skip
