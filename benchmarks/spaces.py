"""Compare parameter searches on recorded spaces: best-so-far shares of the optimum over seeds.

    OMP_NUM_THREADS=1 python benchmarks/spaces.py FOLDER --out studies/results/spaces.json

Reads every recorded space in FOLDER, replays each method with each seed, and writes the shares
reached after 25, 50, 100 and 200 distinct evaluations with 95 % intervals, evaluations to 99 % of
the optimum, the methodology score and processor time. ``peers.csv`` in FOLDER (space, method,
at_25 ...) is put beside them.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import math
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from kernelsearch.expressions import Expression
from kernelsearch.params import SpaceSearch
from kernelsearch.replay.recording import Recording, read_recording
from kernelsearch.replay.simulate import (
    interval,
    needed,
    random_expectation,
    reached,
    replay,
    score,
)
from kernelsearch.space import Space

COUNTS = (25, 50, 100, 200)
BUDGET = max(COUNTS)


def measure(recording: Recording, method: str, seeds: int) -> dict[str, Any]:
    begin = time.process_time()
    runs = [replay(recording, method, seed, BUDGET) for seed in range(seeds)]
    spent = time.process_time() - begin
    shares = {n: reached(recording, runs, n) for n in COUNTS}
    to_99 = needed(recording, runs, 0.99)
    median = float(np.median(to_99))
    return {
        **{f"at_{n}": round(float(s.mean()), 4) for n, s in shares.items()},
        **{f"at_{n}_95": [round(v, 4) for v in interval(s)] for n, s in shares.items()},
        "evaluations_to_99_median": None if math.isinf(median) else median,
        "never_99": int(np.isinf(to_99).sum()),
        "score": round(score(recording, runs, random_expectation(recording, BUDGET)), 4),
        "ms_a_suggestion": round(1e3 * spent / (seeds * BUDGET), 3),
    }


def construction() -> dict[str, Any]:
    """Time a constrained space of 44 million combinations, and a suggestion at 1,000 trials."""
    choices: dict[str, list[int]] = {
        "bx": [1, 2, 4, 8, 16, *range(32, 1025, 32)], "by": [1, 2, 4, 8, 16, 32],
        "tx": list(range(1, 11)), "ty": list(range(1, 11)), "tt": list(range(1, 11)),
        "un": list(range(1, 21)), "sh": [0, 1], "bl": [0, 1, 2, 3, 4],
    }  # fmt: skip
    rules = {
        "threads": "32 <= bx * by <= 1024", "unroll": "un == 1 or tt % un == 0",
        "shared": "(bx * tx + tt * 2) * (by * ty + tt * 2) * (2 + sh) * 4 <= 49152",
        "blocks": "bl == 0 or bl * bx * by <= 1024",
    }  # fmt: skip
    constraints = {n: Expression.parse(r) for n, r in rules.items()}
    begin = time.process_time()
    space = Space(tuple(choices), tuple(choices.values()), constraints)
    ready = time.process_time() - begin
    search = SpaceSearch(space, seed=0)
    for _ in range(1000):
        (params,) = search.ask()
        search.tell(params, 1.0 / (1.0 + abs(int(params["bx"]) - 96) + int(params["tt"])))
    begin = time.process_time()
    for _ in range(100):
        (params,) = search.ask()
        search.tell(params, 1.0 / (1.0 + abs(int(params["bx"]) - 96) + int(params["tt"])))
    suggestion = (time.process_time() - begin) / 100
    return {
        "combinations": int(math.prod(map(len, choices.values()))), "valid": space.size,
        "ready_cpu_s": round(ready, 3), "suggestion_at_1000_cpu_ms": round(1e3 * suggestion, 2),
    }  # fmt: skip


def family(name: str) -> str:
    return name.split("_")[0]


def means(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return family means of one column (space -> share) and the geometric mean over spaces."""
    families: dict[str, list[float]] = {}
    for space, row in table.items():
        families.setdefault(family(space), []).append(row["value"])
    result = {f: round(float(np.mean(v)), 4) for f, v in families.items()}
    values = [row["value"] for row in table.values()]
    result["geometric_mean"] = round(float(np.exp(np.mean(np.log(values)))), 4)
    return result


def summary(spaces: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    methods = sorted({m for rows in spaces.values() for m in rows})
    return {
        m: {
            f"at_{n}": means(
                {s: {"value": float(rows[m][f"at_{n}"])} for s, rows in spaces.items() if m in rows}
            )
            for n in COUNTS
        }
        for m in methods
    }


def read_peers(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    path = folder / "peers.csv"
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if path.exists():
        with path.open(newline="") as lines:
            for row in csv.DictReader(lines):
                found.setdefault(row["space"], {})[row["method"]] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--methods", default="guide,tpe,ga,local,random")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    files = sorted(p for p in options.folder.iterdir() if ".json" in p.suffixes)
    recordings = [read_recording(p) for p in files]
    report: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip(),
        "command": "OMP_NUM_THREADS=1 python " + " ".join(sys.argv),
        "versions": {
            "python": platform.python_version(), "numpy": np.__version__,
            "optuna": optuna.__version__,
        },
        "seeds": options.seeds,
        "construction": construction(),
        "spaces": {r.name: {} for r in recordings},
    }  # fmt: skip
    print(report["construction"], flush=True)
    for method in options.methods.split(","):
        for recording in recordings:
            row = measure(recording, method, options.seeds)
            report["spaces"][recording.name][method] = row
            shares = " ".join(f"{row[f'at_{n}']:.4f}" for n in COUNTS)
            print(f"{method:8s} {recording.name:34s} {shares} {row['score']:.3f}", flush=True)
            peers = read_peers(options.folder)
            known = {s: {**rows, **peers[s]} for s, rows in report["spaces"].items() if s in peers}
            report["summary"] = summary(
                {s: {m: r for m, r in rows.items() if all(m in o for o in known.values())}
                 for s, rows in known.items()}
            )  # fmt: skip
            if options.out:
                options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
