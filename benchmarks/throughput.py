"""How many candidates a second go through compile, verify and measure, split by stage.

python benchmarks/throughput.py --operator rms_norm --set paper --target cuda -o x.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from large import commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operator", default="rms_norm")
    parser.add_argument("--set", default="paper")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--budget", default="100")
    parser.add_argument("-o", "--output", default="throughput.json")
    options = parser.parse_args()

    from kernelsearch import api
    from kernelsearch.search.budget import parse_budget
    from kernelsearch.session import Equipment
    from kernelsearch.versions import versions

    events: list[tuple[float, str, int]] = []
    with tempfile.TemporaryDirectory() as folder:
        prepared = api.prepare(api.TuneRequest(
            options.operator, options.target, dtype=options.dtype, workloads=options.set,
            folder=Path(folder) / "study",
        ))  # fmt: skip
        study = prepared.open_study()
        with Equipment(prepared.target) as equipment:
            device = equipment.device
            started = time.perf_counter()
            api.run_study(
                study, equipment, parse_budget(options.budget),
                lambda p: events.append((time.perf_counter() - started, p.phase, p.candidates)),
            )  # fmt: skip
            total = time.perf_counter() - started
        evaluations = study.archive.evaluations()
        statuses = study.archive.statuses()
        study.close()
    search = [e for e in events if e[1] == "search"]
    span = search[-1][0] - search[0][0]
    count = search[-1][2] - search[0][2]
    stages: dict[str, float] = {}
    for evaluation in evaluations:
        for stage, seconds in evaluation.stages_s.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    document = {
        "benchmark": "throughput", "operator": options.operator, "set": options.set,
        "device": device.name, "driver": device.driver, "versions": versions(),
        "commit": commit(), "date": datetime.now(UTC).isoformat(), "candidates": len(evaluations),
        "search_seconds": span, "search_candidates": count,
        "candidates_per_second": count / span, "total_seconds": total, "statuses": statuses,
        "mean_stage_ms": {k: 1e3 * v / len(evaluations) for k, v in stages.items()},
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{count} candidates in {span:.2f} s of search: {count / span:.1f} a second "
          f"(whole run {total:.1f} s, {statuses})")  # fmt: skip
    for stage, value in document["mean_stage_ms"].items():
        print(f"  {stage:16} {value:8.2f} ms a candidate")


if __name__ == "__main__":
    main()
