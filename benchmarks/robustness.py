"""Kill the driver at random moments, kill the worker again and again, share a study: count losses.

python benchmarks/robustness.py --kills 50 --worker-kills 20 -o robustness.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from large import commit

SIZES = ({"rows": 16, "cols": 64},)
DRIVER = """
import sys
from kernelsearch import api
from kernelsearch.search.budget import parse_budget
from kernelsearch.session import Equipment
prepared = api.prepare(api.TuneRequest(
    "rms_norm", "cpu", workloads=({"rows": 16, "cols": 64},), folder=sys.argv[1]))
study = prepared.open_study()
told = study.tell
def tell(evaluation):
    told(evaluation)
    print(evaluation.candidate.key, flush=True)
study.tell = tell
print("ready", flush=True)
with Equipment(prepared.target, 2) as equipment:
    api.run_study(study, equipment, parse_budget(sys.argv[2]))
study.close()
"""


def driver(folder: Path, budget: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder), budget],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def recorded(folder: Path) -> list[str]:
    from kernelsearch.study import StoredStudy

    with StoredStudy(folder) as stored:
        return [e.candidate.key for e in stored.ledger.evaluations()[0] if not e.confirmed]


def kill_drivers(folder: Path, kills: int, chance: random.Random) -> dict[str, object]:
    """Kill a driver ``kills`` times; each next one resumes. Count what was lost or done twice."""
    acknowledged: list[str] = []
    failed_resumes = 0
    for number in range(kills):
        process = driver(folder, "400")
        # From before it is ready, over the baseline and the search, into its later candidates.
        timer = threading.Timer(chance.uniform(1.0, 20.0), process.kill)
        timer.start()
        out, err = process.communicate()
        timer.cancel()
        if process.returncode not in (-signal.SIGKILL, 0):
            failed_resumes += 1
            print(f"run {number}: exit {process.returncode}: {err[-300:]}")
        acknowledged += [line for line in out.split() if line != "ready"]
    stored = recorded(folder)
    return {
        "kills": kills, "acknowledged": len(acknowledged), "stored": len(stored),
        "lost": len(set(acknowledged) - set(stored)), "failed_resumes": failed_resumes,
        "acknowledged_twice": len(acknowledged) - len(set(acknowledged)),
        "stored_twice": len(stored) - len(set(stored)),
    }  # fmt: skip


def kill_workers(folder: Path, kills: int) -> dict[str, object]:
    """Run the same study undisturbed and with its worker killed; let the two winners compete.

    Winners that differ in their params may be one kernel in all but name, so the two are timed in
    turn: the disturbed study found the same best if neither is faster.
    """
    from kernelsearch import api
    from kernelsearch.search.budget import parse_budget
    from kernelsearch.session import Equipment

    found: dict[str, dict[str, object]] = {}
    winners = []
    for name, count in (("undisturbed", 0), ("disturbed", kills)):
        prepared = api.prepare(api.TuneRequest(
            "matrix_mul", "cpu", workloads=({"m": 256, "n": 256, "k": 256},), proposers=(),
            folder=folder / name,
        ))  # fmt: skip
        study = prepared.open_study()
        done = threading.Event()
        killed = 0
        with Equipment(prepared.target, 2) as equipment:

            def assassin(
                equipment: Equipment = equipment, count: int = count,
                done: threading.Event = done,
            ) -> None:  # fmt: skip
                nonlocal killed
                chance = random.Random(3)
                while killed < count and not done.wait(chance.uniform(2.0, 5.0)):
                    pid = equipment.runner.pid
                    if pid is not None:
                        os.kill(pid, signal.SIGKILL)
                        killed += 1

            thread = threading.Thread(target=assassin)
            thread.start()
            result = api.run_study(study, equipment, parse_budget("90"))
            done.set()
            thread.join()
        statuses = study.archive.statuses()
        winners.append((study.variant(result.variant), dict(result.params)))
        study.close()
        found[name] = {
            "variant": result.variant_name, "params": dict(result.params), "kills": killed,
            "speedup": result.speedup, "statuses": statuses,
        }  # fmt: skip
    found["head_to_head"] = compete(prepared, winners)
    return found


def compete(prepared, winners: list) -> dict[str, object]:
    """Time the second winner against the first; the ratio is above 1 if the second is faster."""
    from kernelsearch.cases import CaseStore
    from kernelsearch.evaluate import LOAD_DEADLINE_S, Evaluator
    from kernelsearch.measure import compare_interleaved
    from kernelsearch.operator import Workload
    from kernelsearch.records import TimingSettings
    from kernelsearch.session import Equipment

    store = CaseStore()
    with Equipment(prepared.target, 2) as equipment:
        evaluator = Evaluator(
            prepared.operator, "float32", (Workload({"m": 256, "n": 256, "k": 256}),),
            equipment.device, equipment.runner, store, TimingSettings(),
        )  # fmt: skip
        bounds = []
        for variant, params in winners:
            binary = equipment.pool.submit(evaluator.admit(variant, params)).result()
            bounds.append(evaluator.bind(variant, params, binary))
            equipment.runner.load(binary, LOAD_DEADLINE_S)
        timing = TimingSettings(min_samples=16, max_samples=64, budget_s=6.0, give_up_ratio=1e9)
        compared = compare_interleaved(evaluator.measure(bounds[1], bounds[0], timing))
    store.close()
    return {
        "ratio": compared.ratio, "low": compared.low, "high": compared.high,
        "verdict": str(compared.verdict),
    }  # fmt: skip


def share(folder: Path) -> dict[str, object]:
    """Two processes on one study: both must progress, and no candidate be done twice."""
    both = [driver(folder, "12"), driver(folder, "12")]
    outs = [p.communicate() for p in both]
    mine = [[line for line in out.split() if line != "ready"] for out, _ in outs]
    stored = recorded(folder)
    return {
        "exit_codes": [p.returncode for p in both], "candidates": [len(m) for m in mine],
        "done_by_both": len(set(mine[0]) & set(mine[1])), "stored": len(stored),
        "stored_twice": len(stored) - len(set(stored)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--worker-kills", type=int, default=20)
    parser.add_argument("--parts", nargs="+", default=["share", "workers", "drivers"])
    parser.add_argument("-o", "--output", default="robustness.json")
    options = parser.parse_args()

    from kernelsearch.versions import versions

    started = time.time()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        document: dict[str, object] = {
            "benchmark": "robustness", "commit": commit(), "versions": versions(),
            "date": datetime.now(UTC).isoformat(),
        }  # fmt: skip
        if "share" in options.parts:
            document["two_processes"] = share(folder / "shared")
            print(document["two_processes"], flush=True)
        if "workers" in options.parts:
            document["worker_kills"] = kill_workers(folder, options.worker_kills)
            print(document["worker_kills"], flush=True)
        if "drivers" in options.parts:
            document["driver_kills"] = kill_drivers(
                folder / "killed", options.kills, random.Random(options.kills)
            )
            print(document["driver_kills"], flush=True)
    document["seconds"] = time.time() - started
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
