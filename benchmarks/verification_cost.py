"""What the first two stages of verification cost one candidate, with inputs and references there.

python benchmarks/verification_cost.py --target cuda -o verification.json

For each operator its naive template is verified again and again at ``smoke`` and ``heldout``.
``kernel`` is the time in which the candidate's own steps ran, ``worker`` all of the worker's
(buffers, poison, guards, hashes, copies), ``parent`` the comparison with the references.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from large import commit

OPERATORS = ("rms_norm", "softmax", "stencil_2d", "matrix_mul", "spmv_csr")


class Counted:
    """A runner that adds up where its time goes."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.reset()

    def reset(self) -> None:
        self.runs, self.kernel_s, self.worker_s = 0, 0.0, 0.0

    def run(self, request: Any, deadline_s: float) -> Any:
        started = time.perf_counter()
        report = self._runner.run(request, deadline_s)
        self.worker_s += time.perf_counter() - started
        self.kernel_s += report.elapsed_s
        self.runs += 1
        return report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("-o", "--output", default="verification.json")
    options = parser.parse_args()

    from kernelsearch.cases import CaseStore
    from kernelsearch.evaluate import LOAD_DEADLINE_S, Evaluator
    from kernelsearch.home import cache_folder
    from kernelsearch.operators_io import load_operator
    from kernelsearch.records import TimingSettings
    from kernelsearch.session import Equipment
    from kernelsearch.targets.choose import choose_target
    from kernelsearch.variant import load_variant
    from kernelsearch.versions import versions

    suffix = {"cuda": "cu", "cpu": "py"}[options.target]
    templates = Path(__file__).resolve().parents[1] / "templates" / options.target
    rows = []
    with Equipment(choose_target(options.target, cache_folder()), 1) as equipment:
        runner = Counted(equipment.runner)
        device = equipment.device
        for name in OPERATORS:
            operator = load_operator(name)
            variant = load_variant(templates / name / f"naive.{suffix}")
            store = CaseStore()
            tuned = operator.workload_set("smoke", options.target)[:1]
            evaluator = Evaluator(
                operator, "float32", tuned, device, runner, store, TimingSettings()
            )
            params = variant.default_params(device.facts, "float32")
            binary = equipment.pool.submit(evaluator.admit(variant, params)).result()
            equipment.runner.load(binary, LOAD_DEADLINE_S)
            totals, kernels, workers, cases = [], [], [], 0
            for number in range(options.rounds + 1):
                runner.reset()
                started, processor = time.perf_counter(), time.process_time()
                report = evaluator.verify(
                    variant, params, binary, evaluator.first_stages, first=True
                )
                if number == 0:  # draws inputs and computes references
                    first_s = time.perf_counter() - started
                    continue
                totals.append((time.perf_counter() - started, time.process_time() - processor))
                kernels.append(runner.kernel_s)
                workers.append(runner.worker_s)
                cases = len(report.verified)
            store.close()
            wall = statistics.median(t for t, _ in totals)
            worker = statistics.median(workers)
            rows.append({
                "operator": name, "cases": cases, "runs": runner.runs, "first_ms": 1e3 * first_s,
                "total_ms": 1e3 * wall, "worker_ms": 1e3 * worker,
                "kernel_ms": 1e3 * statistics.median(kernels), "parent_ms": 1e3 * (wall - worker),
                "parent_cpu_ms": 1e3 * statistics.median(c for _, c in totals),
            })  # fmt: skip
    document = {
        "benchmark": "verification_cost", "target": options.target, "device": device.name,
        "driver": device.driver, "versions": versions(), "commit": commit(),
        "date": datetime.now(UTC).isoformat(), "rounds": options.rounds, "operators": rows,
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")
    print("milliseconds a candidate, median; the first also draws inputs and computes references")
    columns = ("cases", "runs", "first_ms", "total_ms", "kernel_ms", "worker_ms", "parent_ms")
    print(f"{'operator':12}" + "".join(f"{c:>11}" for c in columns))
    for row in rows:
        cells = "".join(
            f"{row[c]:>11}" if isinstance(row[c], int) else f"{row[c]:>11.2f}" for c in columns
        )
        print(f"{row['operator']:12}{cells}")


if __name__ == "__main__":
    main()
