"""Tune operators at a workload set, time the vendor beside them, print a table and write JSON.

    python benchmarks/large.py --target cuda --set large --budget 60s -o large.json \
        rms_norm:float32 rms_norm:bfloat16 matrix_mul:float32

Each operator is tuned by a process of its own; the device's lock keeps their timings apart, while
drawing inputs, compiling and checking overlap. Vendor calls are timed afterwards, alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commit() -> str:
    if given := os.environ.get("KERNELSEARCH_COMMIT"):
        return given
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def tune_command(item: str, options: argparse.Namespace) -> list[str]:
    name, _, dtype = item.partition(":")
    command = [
        sys.executable, "-m", "kernelsearch", "tune", name, "--target", options.target,
        "--workloads", options.set, "--budget", options.budget, "--json",
    ]  # fmt: skip
    return [*command, "--dtype", dtype] if dtype else command


def run_all(options: argparse.Namespace) -> dict[str, dict]:
    """Start one process an operator, at most ``--jobs`` at once; return their answers."""
    waiting, running, answers = list(options.items), {}, {}
    logs = Path(options.output).parent
    end = time.monotonic() + options.deadline
    while waiting or running:
        while waiting and len(running) < options.jobs:
            item = waiting.pop(0)
            log = open(logs / f"{item.replace(':', '_')}.log", "w")  # noqa: SIM115
            running[item] = subprocess.Popen(
                tune_command(item, options), stdout=subprocess.PIPE, stderr=log, text=True
            )
        for item, process in list(running.items()):
            try:
                text, _ = process.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    process.kill()
                continue
            del running[item]
            try:
                answers[item] = json.loads(text)
            except ValueError:
                answers[item] = {"error": f"exit code {process.returncode}: {text[-300:]}"}
    return answers


def vendor(item: str, options: argparse.Namespace, device: object) -> dict[str, dict]:
    from kernelsearch.errors import KernelSearchError
    from kernelsearch.operators_io import load_operator
    from kernelsearch.vendor import time_vendor

    name, _, dtype = item.partition(":")
    operator = load_operator(name)
    found: dict[str, dict] = {}
    for workload in operator.workload_set(options.set, options.target):
        try:
            timing = time_vendor(operator, name, workload, dtype or "float32", device)
        except KernelSearchError as error:
            found[workload.key] = {"error": str(error)}
            continue
        if timing is not None:
            ordered = sorted(timing.samples_us)
            found[workload.key] = {
                "name": timing.name, "median_us": ordered[len(ordered) // 2],
                "samples_us": ordered, "max_ratio": timing.max_ratio, "flags": timing.flags,
            }  # fmt: skip
    return found


def rows(answers: dict[str, dict], vendors: dict[str, dict], ceilings: dict) -> list[str]:
    from kernelsearch.operator import Workload
    from kernelsearch.operators_io import load_operator

    lines = [f"{'operator':24} {'workload':42} {'time us':>11} {'naive us':>11} {'x naive':>8} "
             f"{'vendor us':>11} {'x vendor':>8} {'GB/s':>7} {'of copy':>8} "
             f"{'TFLOP/s':>8}"]  # fmt: skip
    for item, answer in answers.items():
        name, _, dtype = item.partition(":")
        if "workloads" not in answer:
            lines.append(f"{item:24} {json.dumps(answer)[:150]}")
            continue
        operator = load_operator(name)
        for row in answer["workloads"]:
            text, _, distribution = row["workload"].partition("@")
            sizes = {k: int(v) for k, v in (p.split("=") for p in text.split(","))}
            flops, traffic = operator.cost(
                Workload(sizes, distribution or "default"), dtype or "float32"
            )
            rate = traffic / row["time_us"] / 1e3
            known = vendors.get(item, {}).get(row["workload"], {}).get("median_us")
            lines.append(
                f"{item:24} {row['workload'][:42]:42} {row['time_us']:11.1f} "
                f"{row['baseline_us']:11.1f} {row['speedup']:8.2f} "
                f"{known or float('nan'):11.1f} {(known or float('nan')) / row['time_us']:8.2f} "
                f"{rate:7.0f} {rate / ceilings.get('dram_gbps', float('nan')):8.1%} "
                f"{flops / row['time_us'] / 1e6:8.2f}"
            )
        lines.append(f"{'':24}   {answer['variant_name']} {answer['params']} "
                     f"[{answer['candidates']} candidates, {answer['statuses']}]")  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", nargs="+", metavar="OPERATOR[:DTYPE]")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--set", default="large")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=7200, help="seconds for all tuning")
    parser.add_argument("--no-vendor", action="store_true")
    parser.add_argument("-o", "--output", default="large.json")
    options = parser.parse_args()

    from kernelsearch.ceilings import with_ceilings
    from kernelsearch.home import cache_folder
    from kernelsearch.session import Equipment
    from kernelsearch.targets.choose import choose_target

    target = choose_target(options.target, cache_folder())
    with Equipment(target) as equipment:
        device = with_ceilings(target.device, cache_folder(), equipment.runner.ceilings)
    started = time.time()
    answers = run_all(options)
    elapsed = time.time() - started
    vendors: dict[str, dict] = {}
    save(options, device, answers, vendors, elapsed)
    if not options.no_vendor:
        with ThreadPoolExecutor(options.jobs) as pool:
            found = pool.map(lambda i: vendor(i, options, device), options.items)
            vendors = dict(zip(options.items, found, strict=True))
    save(options, device, answers, vendors, elapsed)
    print("\n".join(rows(answers, vendors, dict(device.ceilings))))
    print(f"ceilings: { {k: round(v, 2) for k, v in device.ceilings.items()} }")


def save(
    options: argparse.Namespace, device: object, answers: dict, vendors: dict, elapsed: float
) -> None:
    from kernelsearch.versions import versions

    document = {
        "benchmark": "large", "set": options.set, "budget": options.budget, "jobs": options.jobs,
        "device": device.name, "arch": device.arch, "driver": device.driver,
        "ceilings": dict(device.ceilings), "versions": versions(), "commit": commit(),
        "date": datetime.now(UTC).isoformat(), "seconds": elapsed, "results": answers,
        "vendor": vendors,
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
