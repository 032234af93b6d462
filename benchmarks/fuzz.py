"""Read 10,000 mutated inputs of each kind and count what becomes of them.

python benchmarks/fuzz.py --examples 10000 -o studies/results/fuzz.json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import signal
import sys
import time
import traceback
import warnings
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from large import commit

from kernelsearch.versions import versions
from tests.fuzz.subjects import SUBJECTS, Subject, outcome

HANG_S = 10
MEMORY_BYTES = 4 << 30
FAULTS_SHOWN = 5


class HangError(BaseException):
    """One input took too long. Not an Exception: nothing may swallow it."""


def expired(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise HangError(f"no answer after {HANG_S} s")


def fuzz(subject: Subject, examples: int, seed: int) -> dict[str, Any]:
    errors: dict[str, int] = {}
    faults: dict[str, dict[str, str]] = {}
    slowest = 0.0
    count = 0

    @seeded(seed)
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck),
        database=None, phases=(Phase.generate,),
    )  # fmt: skip
    @given(value=subject.drawn())
    def run(value: Any) -> None:
        nonlocal slowest, count
        count += 1
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, HANG_S)
        try:
            name = outcome(subject, value)
        except (Exception, HangError) as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} in {Path(place.filename).name}:{place.lineno}"
            faults.setdefault(where, {"message": str(error)[:300], "input": repr(value)[:2000]})
            name = "FAULT"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        errors[name or "read"] = errors.get(name or "read", 0) + 1
        slowest = max(slowest, time.perf_counter() - started)

    started = time.perf_counter()
    run()
    return {
        "kind": subject.kind, "examples": count, "faults": errors.get("FAULT", 0),
        "outcomes": dict(sorted(errors.items())),
        "seconds": round(time.perf_counter() - started, 1),
        "slowest_s": round(slowest, 3), "fault_places": faults,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="*", default=[s.kind for s in SUBJECTS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGALRM, expired)
    rows = []
    for subject in SUBJECTS:
        if subject.kind not in options.kinds:
            continue
        row = fuzz(subject, options.examples, options.seed)
        rows.append(row)
        print(
            f"{row['kind']:16} {row['examples']:6} read or refused, {row['faults']} faults, "
            f"{row['seconds']} s, slowest {row['slowest_s']} s",
            flush=True,
        )
        print(f"  {row['outcomes']}", flush=True)  # fmt: skip
        for where, fault in list(row["fault_places"].items())[:FAULTS_SHOWN]:
            print(f"  {where}: {fault['message'][:120]}\n    {fault['input'][:400]}", flush=True)
    report = {
        "command": " ".join(["python", *sys.argv]), "seed": options.seed,
        "hang_s": HANG_S, "memory_bytes": MEMORY_BYTES,
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(),
        "host": platform.processor() or platform.machine(), "versions": versions(), "kinds": rows,
    }  # fmt: skip
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(1 if any(r["faults"] for r in rows) else 0)


if __name__ == "__main__":
    main()
