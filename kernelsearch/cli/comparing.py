"""``compare``: replay search methods on recorded spaces and say which needs fewer evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, errors, out, table
from kernelsearch.errors import SpecError
from kernelsearch.replay.plot import plot_curves
from kernelsearch.replay.recording import Recording, read_recording
from kernelsearch.replay.simulate import (
    Replay,
    interval,
    needed,
    random_expectation,
    reached,
    replay,
    score,
)

COUNTS = (25, 50, 100, 200)


@app.command()
def compare(
    spaces: Annotated[list[Path], typer.Argument(
        help="Recorded spaces: Kernel Tuner cache, T4, KTT results, Kernel Launcher wisdom.")],
    method: Annotated[list[str], typer.Option(
        "--method", "-m", help="Search method: guide, tpe, gp, cmaes, ga, local, random.")
    ] = ["guide", "local"],  # noqa: B006
    evaluations: Annotated[int, typer.Option(
        "--evaluations", "-n", min=1, help="Distinct evaluations of each search.")] = 200,
    seeds: Annotated[int, typer.Option(min=1, help="Searches of each method.")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Replay search methods on recorded spaces, without a device."""
    recordings = [read_recording(p) for p in spaces]
    names = [r.name for r in recordings]
    if len(set(names)) < len(names):
        raise SpecError(f"two spaces have the same name ({', '.join(names)}): rename a file")
    results: dict[str, tuple[Recording, dict[str, list[Replay]]]] = {}
    for recording in recordings:
        runs: dict[str, list[Replay]] = {}
        for one in dict.fromkeys(method):
            with errors.status(f"{recording.name}: {one}"):
                runs[one] = [replay(recording, one, s, evaluations) for s in range(seeds)]
        results[recording.name] = (recording, runs)
    rows = {
        name: {m: _row(recording, r, evaluations) for m, r in runs.items()}
        for name, (recording, runs) in results.items()
    }
    if json_:
        emit_json({"evaluations": evaluations, "seeds": seeds, "spaces": rows})
    else:
        _print(rows, results, evaluations)
    if plot is not None:
        plot_curves(results, plot)
        if not json_:
            out.print(f"curves  {plot}", markup=False, highlight=False)


def _row(recording: Recording, runs: list[Replay], evaluations: int) -> dict[str, Any]:
    shares = {n: reached(recording, runs, n) for n in _counts(evaluations)}
    to_99 = float(np.median(needed(recording, runs, 0.99)))
    return {
        "reached": {
            str(n): {"mean": float(s.mean()), "interval_95": interval(s)}
            for n, s in shares.items()
        },
        "evaluations_to_99": to_99 if np.isfinite(to_99) else None,
        "score": score(recording, runs, random_expectation(recording, evaluations)),
        "recorded_s": float(np.mean([r.seconds[-1] for r in runs])),
    }  # fmt: skip


def _counts(evaluations: int) -> list[int]:
    return [n for n in COUNTS if n < evaluations] + [evaluations]


def _print(rows: dict[str, dict[str, Any]], results: dict[str, Any], evaluations: int) -> None:
    counts = _counts(evaluations)
    for name, methods in rows.items():
        recording = results[name][0]
        failed = int(np.isnan(recording.time).sum())
        title = (f"{name}: {len(recording.time)} configurations, {failed} failed, best "
                 f"{recording.best:.4g} {recording.unit}")  # fmt: skip
        shown = table(
            title, "method", *(f">after {n}" for n in counts), ">to 99 %", ">score", ">recorded"
        )
        for method, row in methods.items():
            cells = []
            for n in counts:
                cell = row["reached"][str(n)]
                low, high = cell["interval_95"]
                cells.append(f"{cell['mean']:.3f} ({low:.3f}-{high:.3f})")
            to_99 = row["evaluations_to_99"]
            shown.add_row(
                method, *cells, "-" if to_99 is None else f"{to_99:.0f}", f"{row['score']:.3f}",
                f"{row['recorded_s']:.0f} s" if row["recorded_s"] else "-",
            )  # fmt: skip
        out.print(shown)
    for method in next(iter(rows.values())):
        mean = np.mean([r[method]["score"] for r in rows.values()])
        out.print(f"score of {method} over {len(rows)} spaces: {mean:.3f} "
                  "(0: random search, 1: the optimum at once)", highlight=False)  # fmt: skip
