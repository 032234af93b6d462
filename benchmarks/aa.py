"""Time a kernel against itself: how often noise is called a gain, and how often a true 2 % is seen.

    python benchmarks/aa.py --target cuda -o studies/results/h200_aa.json
    python benchmarks/aa.py --target cpu --comparisons 40 -o studies/results/aa_cpu.json
    python benchmarks/aa.py --target simulated --comparisons 2000 \
        -o studies/results/aa_simulated.json

``cuda`` and ``cpu`` time a real kernel of about 100 us, in a worker of its own, with the settings
of a search: against itself, against itself with 2 % more work (checked by long averaging first),
and alone in fresh processes. ``simulated`` draws the samples from ``simulated_device.py`` instead:
it says what the statistics do with noise of a known kind, and nothing about a device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from large import commit
from simulated_device import MODELS, SimulatedDevice

from kernelsearch.measure import compare_interleaved, sample
from kernelsearch.records import BufferSpec, Contender, TimeRequest, Timing, TimingSettings

TRUE_US = 100.0
MORE = 0.02
DEADLINE_S = 60.0
SETTINGS = TimingSettings(verify_calls=0)
CUDA = """/* kernelsearch
format = 1
operator = "spin"
dtypes = ["float32"]
[[launch]]
kernel = "spin"
grid = ["ceildiv(n, 256)"]
block = [256]
args = ["y", "x", "n:i64", "loops:i32"]
*/
__global__ void spin(elem_t* y, const elem_t* x, long long n, int loops) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i >= n) return;
    float v = static_cast<float>(x[i]);
#pragma unroll 1
    for (int k = 0; k < loops; ++k) v = fmaf(v, 0.999f, 0.5f);
    y[i] = static_cast<elem_t>(v);
}
"""
CPU = '''"""kernelsearch
format = 1
operator = "spin"
dtypes = ["float32"]
[[launch]]
kernel = "spin"
args = ["y", "x", "loops:i64"]
"""


def spin(y, x, loops):
    for i in range(x.shape[0]):
        v = x[i]
        for _ in range(loops):
            v = v * ELEM(0.999) + ELEM(0.5)
        y[i] = v
'''
SIZES = {"cuda": 1 << 20, "cpu": 64}


def verdict_of(timing: Timing, seed: int) -> dict[str, object]:
    """Return what a search would make of this comparison."""
    found = compare_interleaved([timing], seed)
    return {
        "verdict": str(found.verdict), "ratio": found.ratio, "low": found.low, "high": found.high,
        "samples": len(timing.samples_us), **timing.conditions,
    }  # fmt: skip


def summary(found: list[dict]) -> dict[str, object]:
    ratios = [f["ratio"] for f in found]
    costs = [f["cost_ms"] for f in found]
    counts = Counter(f["verdict"] for f in found)
    return {
        "comparisons": len(found),
        **{f"{v}_share": counts[v] / len(found) for v in ("faster", "slower", "tie", "unstable")},
        "ratio_median": statistics.median(ratios), "ratio_min": min(ratios),
        "ratio_max": max(ratios), "samples_median": statistics.median(f["samples"] for f in found),
        "cost_ms_median": statistics.median(costs), "cost_ms_max": max(costs),
        "dropped": sum(f.get("dropped", 0) for f in found),
        "disturbed": sum(bool(f.get("disturbed")) for f in found),
    }  # fmt: skip


# --- simulated ----------------------------------------------------------------------------------


def simulate(model: str, incumbent_us: float, seed: int) -> dict[str, object]:
    device = SimulatedDevice((TRUE_US, incumbent_us), MODELS[model], seed)
    taken = sample(device, 2, SETTINGS, seed, clock=lambda: device.clock)
    conditions = {"dropped": taken.dropped, "disturbed": taken.disturbed,
                  "cost_ms": device.now_ms}  # fmt: skip
    timing = Timing("simulated", taken.samples_us[0], taken.samples_us[1], conditions=conditions)
    return verdict_of(timing, seed)


def simulated(count: int) -> dict[str, object]:
    results: dict[str, object] = {}
    for number, model in enumerate(MODELS):
        cases = {}
        for name, ratio in (
            ("same", 1.0),
            ("2_percent_faster", 1 + MORE),
            ("2_percent_slower", 1 / (1 + MORE)),
            ("30_percent_faster", 1.3),
        ):
            first = 1_000_000 * number + 100_000 * len(cases)
            found = [simulate(model, TRUE_US * ratio, first + i) for i in range(count)]
            cases[name] = summary(found)
        results[model] = {"noise": asdict(MODELS[model]), **cases}
    return results


# --- a real target ------------------------------------------------------------------------------


class Arena:
    """One real kernel on one target, in a worker of its own."""

    def __init__(self, target_name: str) -> None:
        from kernelsearch.home import cache_folder
        from kernelsearch.operator import ErrorModel, Operator, Tensor
        from kernelsearch.session import Equipment
        from kernelsearch.shm import SharedBlock
        from kernelsearch.targets.choose import choose_target
        from kernelsearch.variant import parse_variant

        target = choose_target(target_name, cache_folder())
        self.equipment = Equipment(target, 1)
        self.device = target.device
        self.n = SIZES[target.name]
        operator = Operator(
            name="spin", doc="as much work as is asked for",
            arguments=(Tensor("y", "elem", ("n",), "out"), Tensor("x", "elem", ("n",))),
            reference=lambda arrays, scalars, rows: {}, generate=lambda *a: {}, workloads={},
            error=ErrorModel(), flops="n * loops", bytes="8 * n",
        )  # fmt: skip
        source = CUDA if target.name == "cuda" else CPU
        name = "spin.cu" if target.name == "cuda" else "spin.py"
        self.variant = parse_variant(source, target.name, name)
        job = self.variant.compile_job({}, "float32", target.device.arch, operator)
        self.binary = target.compile(job)
        self.blocks = [SharedBlock(4 * self.n) for _ in range(2)]
        self.sets = []
        for seed, block in enumerate(self.blocks):
            block.array("float32", (self.n,))[:] = np.random.default_rng(seed).random(self.n)
            self.sets.append((
                BufferSpec("y", "float32", (self.n,), "out"),
                BufferSpec("x", "float32", (self.n,), "in", block.ref(0, 4 * self.n)),
            ))  # fmt: skip
        self.load()

    def load(self) -> None:
        self.equipment.runner.load(self.binary, DEADLINE_S)

    def time(self, loops: tuple[int, ...], settings: TimingSettings, seed: int) -> Timing:
        """Time the kernel with ``loops[0]`` repetitions, against one with ``loops[1]``."""
        plans = [
            self.variant.plan({}, {"n": self.n, "loops": k}, {}, self.device.facts, "float32")
            for k in loops
        ]
        request = TimeRequest(
            tuple(Contender(self.binary.key, p) for p in plans), tuple(self.sets), (), settings,
            seed,
        )  # fmt: skip
        started = time.perf_counter()
        report = self.equipment.runner.time(request, DEADLINE_S)
        conditions = {**report.conditions, "cost_ms": 1e3 * (time.perf_counter() - started)}
        second = report.samples_us[1] if len(loops) > 1 else ()
        return Timing("spin", report.samples_us[0], second, conditions=conditions)

    def close(self) -> None:
        self.equipment.close()
        for block in self.blocks:
            block.close()


def long_ratio(arena: Arena, slow: int, fast: int, samples: int) -> float:
    """Return the true ratio of two repetition counts, by long averaging."""
    settings = TimingSettings(
        min_samples=samples, max_samples=samples, budget_s=30.0, give_up_ratio=1e9, verify_calls=0
    )
    timing = arena.time((fast, slow), settings, 1)
    return compare_interleaved([timing]).ratio


def repetitions(arena: Arena, samples: int) -> tuple[int, int, float]:
    """Return repetitions that take about 100 us, others that take 2 % more, and the true ratio."""
    loops = 1000
    for _ in range(4):
        us = arena.time((loops,), SETTINGS, 0).median_us
        loops = max(100, round(loops * TRUE_US / us))
    slow, ratio = round(loops * (1 + MORE)), 1 + MORE
    for _ in range(3):
        ratio = long_ratio(arena, slow, loops, samples)
        if abs(ratio - 1 - MORE) < 0.0005:
            break
        slow = round(slow + loops * (1 + MORE - ratio))
    return loops, slow, ratio


def real(options: argparse.Namespace) -> dict[str, object]:
    arena = Arena(options.target)
    try:
        loops, slow, ratio = repetitions(arena, options.long)
        cases = {"same": (loops, loops), "2_percent_faster": (loops, slow)}
        found: dict[str, list[dict]] = {name: [] for name in cases}
        for seed in range(options.comparisons):
            for name, both in cases.items():
                timing = arena.time(both, SETTINGS, seed)
                found[name].append({**verdict_of(timing, seed), "seed": seed})
        medians = []
        for seed in range(options.processes):
            arena.equipment.runner.restart()
            arena.load()
            medians.append(arena.time((loops,), SETTINGS, seed).median_us)
        middle = statistics.median(medians)
        keep = ("verdict", "ratio", "low", "high", "samples", "cost_ms", "seed", "disturbed")
        return {
            "device": arena.device.name, "driver": arena.device.driver, "loops": loops,
            "slow_loops": slow, "true_ratio_by_long_averaging": ratio,
            "long_samples": options.long,
            "cases": {name: summary(rows) for name, rows in found.items()},
            "fresh_process_medians_us": medians,
            "fresh_process_spread": (max(medians) - min(medians)) / middle,
            "conditions_of_the_last": {k: v for k, v in found["same"][-1].items()
                                       if k not in keep},
            "comparisons": {name: [{k: r[k] for k in keep if k in r} for r in rows]
                            for name, rows in found.items()},
        }  # fmt: skip
    finally:
        arena.close()


def show(name: str, case: dict) -> None:
    print(f"{name:28} faster {case['faster_share']:7.2%}  slower {case['slower_share']:7.2%}  "
          f"tie {case['tie_share']:7.2%}  unstable {case['unstable_share']:7.2%}  "
          f"samples {case['samples_median']:4.0f}  {case['cost_ms_median']:7.1f} ms  "
          f"ratio {case['ratio_min']:.4f} to {case['ratio_max']:.4f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=("cuda", "cpu", "simulated"), required=True)
    parser.add_argument("--comparisons", type=int, default=200)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--long", type=int, default=1000, help="samples of the long averages")
    parser.add_argument("-o", "--output", default="aa.json")
    options = parser.parse_args()

    started = time.perf_counter()
    found = simulated(options.comparisons) if options.target == "simulated" else real(options)
    document = {
        "benchmark": "aa", "target": options.target, "commit": commit(),
        "date": datetime.now(UTC).isoformat(), "seconds": time.perf_counter() - started,
        "settings": asdict(SETTINGS), **({"models": found} if options.target == "simulated"
                                         else found),
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(document, indent=1) + "\n")
    if options.target == "simulated":
        for model, result in found.items():
            for name, case in result.items():
                if name != "noise":
                    show(f"{model} {name}", case)
        return
    for name, case in found["cases"].items():
        show(name, case)
    print(f"2 % by long averaging: {found['true_ratio_by_long_averaging']:.4f}; fresh processes "
          f"differ by {found['fresh_process_spread']:.2%}")  # fmt: skip


if __name__ == "__main__":
    main()
