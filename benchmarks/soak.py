"""Hostile candidates between good ones: what does a good one notice, and what leaks?

python benchmarks/soak.py --target cuda --pairs 1000 -o soak.json
python benchmarks/soak.py --target cpu --pairs 30 -o soak-cpu.json

Every hostile candidate must get the status that says so, every good one ``ok`` and a time within
2 % of its calm one. Afterwards memory, processes, open and temporary files are counted again.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from large import commit

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# By kind: crash, hang, memory storm, huge launch, text, illegal instruction, stack, refused launch.
HOSTILE = {
    "cuda": (
        "writes_far_away", "hangs", "workspace_of_petabytes", "too_many_threads",
        "prints_without_end", "illegal_instruction", "endless_recursion", "giant_local_arrays",
        "traps_at_the_tuned_size", "writes_after_its_output", "keeps_in_a_const_table",
        "hangs_at_the_tuned_size", "too_much_dynamic_shared_memory", "looks_for_the_answer",
    ),
    "cpu": (
        "looks_for_the_answer", "hangs", "takes_terabytes", "workspace_of_petabytes",
        "takes_more_with_each_step", "writes_after_its_output", "raises_at_the_tuned_size",
        "writes_before_its_output", "writes_beyond_its_own_array", "objmode",
    ),
}  # fmt: skip
GOOD = {
    "cuda": ("shuffled_sums", "library_constants", "edges_first", "workspace_of_partial_sums"),
    "cpu": ("split_sums", "edges_first", "zeros_skipped", "online"),
}
DEADLINE_S = 2.0
CALM_ROUNDS = 5
TOLERANCE = 0.02


def device_bytes(target: str) -> int | None:
    """Return the device memory in use, or None where nobody says."""
    if target != "cuda":
        return None
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


def holdings(target: str) -> dict[str, int | None]:
    """Return what this process and its children hold."""
    gc.collect()
    tasks = Path("/proc/self/task")
    children = sum(len((t / "children").read_text().split()) for t in tasks.iterdir())
    return {
        "device_bytes": device_bytes(target), "children": children,
        "open_files": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(),
        "temporary_files": len(os.listdir(tempfile.gettempdir())),
        "shared_memory_files": len(os.listdir("/dev/shm")),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("-o", "--output", default="soak.json")
    options = parser.parse_args()

    from kernelsearch.home import cache_folder
    from kernelsearch.records import TimingSettings
    from kernelsearch.session import Equipment
    from kernelsearch.targets.choose import choose_target
    from kernelsearch.versions import versions
    from tests.exploits.catalogue import Judge, entries

    kind = options.target
    known = {Path(e.file).stem: e for e in entries(kind) if not e.honest}
    decent = {Path(e.file).stem: e for e in entries(kind) if e.honest}
    hostile = [
        replace(known[n], deadline_s=DEADLINE_S) if known[n].deadline_s else known[n]
        for n in HOSTILE[kind]
    ]
    good = [decent[n] for n in GOOD[kind]]
    faults: list[str] = []
    costs: list[float] = []
    ratios: list[float] = []
    statuses: Counter[str] = Counter()
    with Equipment(choose_target(kind, cache_folder()), 2) as equipment:
        judge = Judge(
            equipment.target, equipment.device, equipment.runner, equipment.pool, TimingSettings()
        )
        calm: dict[str, float] = {}
        for entry in good:
            times = []
            for _ in range(CALM_ROUNDS):
                found = judge(entry)
                if not found.ok:
                    raise SystemExit(f"{entry.file} is not ok even in calm: {found.message}")
                times.append(found.timings[0].median_us)
            calm[entry.file] = statistics.median(times)
        judge.forget()  # inputs and references are kept on purpose
        before = holdings(kind)
        started = time.perf_counter()
        for number in range(options.pairs):
            bad, fine = hostile[number % len(hostile)], good[number % len(good)]
            at = time.perf_counter()
            found = judge(bad)
            spent = time.perf_counter() - at
            costs.append(spent - (DEADLINE_S if found.status == "timed_out" else 0.0))
            statuses[str(found.status)] += 1
            if bad.wrong(found):
                faults.append(f"{number}: {bad.wrong(found)}")
            found = judge(fine)
            if not found.ok:
                faults.append(f"{number}: {fine.file} after {bad.file}: {found.message}")
                continue
            ratios.append(found.timings[0].median_us / calm[fine.file])
        seconds = time.perf_counter() - started
        judge.forget()
        after = holdings(kind)
        starts = equipment.runner.starts
        device = equipment.device
        judge.close()
    off = [r for r in ratios if abs(r - 1) > TOLERANCE]
    document = {
        "benchmark": "soak", "target": kind, "device": device.name, "driver": device.driver,
        "versions": versions(), "commit": commit(), "date": datetime.now(UTC).isoformat(),
        "pairs": options.pairs, "seconds": seconds, "worker_starts": starts,
        "hostile_statuses": dict(statuses), "faults": faults,
        "hostile_mean_s_beyond_deadline": statistics.fmean(costs),
        "hostile_max_s_beyond_deadline": max(costs), "good_ok": len(ratios),
        "good_beyond_2_percent": len(off), "good_ratio_median": statistics.median(ratios or [0.0]),
        "good_ratio_worst": max(ratios, key=lambda r: abs(r - 1), default=0.0),
        "before": before, "after": after,
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{options.pairs} hostile candidates between as many good ones, {seconds:.0f} s, "
          f"{starts} workers")  # fmt: skip
    print(f"  statuses of the hostile ones: {dict(statuses)}")
    print(f"  a hostile one costs {document['hostile_mean_s_beyond_deadline']:.2f} s on average "
          f"beyond its deadline (at most {max(costs):.2f} s)")  # fmt: skip
    print(f"  good ones: {len(ratios)} ok, {len(off)} of them more than 2 % off their calm time")
    for name, value in before.items():
        print(f"  {name:20} before {value}, after {after[name]}")
    for fault in faults:
        print(f"  FAULT {fault}")


if __name__ == "__main__":
    main()
