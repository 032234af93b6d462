"""Does the move that a diagnosis suggests lead downhill? Answered on recorded counters.

    python benchmarks/diagnosis.py ../shared/data/spaces/counters_convolution_RTX_2080_Ti.json.gz \
        -o studies/results/diagnosis_counters.json

For each recorded configuration the counters give a label, the label gives directions, and of the
configurations that differ in one tunable the one is taken that follows them best (by launch facts:
threads, work a thread, registers, shared and local memory, occupancy; never by a tunable's name).
It is compared with a random one. Configurations are split in halves by a hash: thresholds may be
set on the first, figures are of the second. Reads any file in KTT's format.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import subprocess
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median

import numpy as np

from kernelsearch.classify import classify
from kernelsearch.diagnosis import Diagnosis
from kernelsearch.moves import LaunchFacts, follows
from kernelsearch.profile.counters import derived, read_counters
from kernelsearch.profile.ktt import Recorded, RecordedSpace, read_ktt
from kernelsearch.profile.occupancy import occupancy

ROOT = Path(__file__).resolve().parent.parent
# Sizes of devices in recorded files: multiprocessors, threads, shared bytes, architecture.
DEVICES = {
    "RTX 2080 Ti": (68, 1024, 65536, "sm_75"),
    "RTX 3090": (82, 1536, 102400, "sm_86"),
    "A100": (108, 2048, 167936, "sm_80"),
    "GTX 1070": (15, 2048, 98304, "sm_61"),
    "GTX 750": (4, 2048, 65536, "sm_50"),
    "GTX 680": (8, 2048, 49152, "sm_30"),
}
BOOTSTRAPS = 2000


def sizes_of(device: str) -> tuple[dict[str, int], str]:
    for name, (sms, threads, shared, arch) in DEVICES.items():
        if name in device:
            return {"sm_count": sms, "max_threads_per_sm": threads, "regs_per_sm": 65536,
                    "max_shared_per_sm": shared}, arch  # fmt: skip
    raise SystemExit(f"the sizes of {device!r} are not in this program's table; add them")


def launch_facts(one: Recorded, sizes: dict[str, int], arch: str) -> LaunchFacts:
    return LaunchFacts.of(one.block, one.grid, one.registers, one.shared_bytes, one.local_bytes,
                          sizes, arch)  # fmt: skip


def diagnose(one: Recorded, sizes: dict[str, int], arch: str) -> Diagnosis:
    facts = derived(read_counters(one.counters, arch))
    threads, blocks = int(np.prod(one.block)), int(np.prod(one.grid))
    full = occupancy(blocks, threads, one.registers, one.shared_bytes, sizes, arch)
    facts |= {"threads": threads, "blocks": blocks, "registers": one.registers,
              "shared_bytes": one.shared_bytes}  # fmt: skip
    if full is not None:
        facts |= {"waves": full.waves, "idle_fraction": full.idle_fraction,
                  "occupancy": full.fraction}  # fmt: skip
        for limit in ("registers", "shared", "threads", "blocks", "grid"):
            facts[f"limit_{limit}"] = float(full.limiter == limit)
    return classify(facts, "counters")


def neighbours(space: RecordedSpace) -> list[list[int]]:
    """Return for each configuration those that differ from it in one tunable."""
    rows = space.configurations
    names = [n for n in rows[0].params if len({r.params[n] for r in rows}) > 1]
    groups = defaultdict(list)
    for number, row in enumerate(rows):
        for name in names:
            groups[name, tuple(row.params[n] for n in names if n != name)].append(number)
    found = [set() for _ in rows]
    for members in groups.values():
        for member in members:
            found[member].update(m for m in members if m != member)
    return [sorted(f) for f in found]


def second_half(row: Recorded) -> bool:
    text = json.dumps(sorted(row.params.items()), default=str)
    return hashlib.sha256(text.encode()).digest()[0] % 2 == 1


def suggested(
    number: int, near: list[int], launches: list[LaunchFacts], diagnosis: Diagnosis,
    chance: random.Random,
) -> int | None:  # fmt: skip
    """Return the neighbour that follows the primary label's directions best (ties: by chance)."""
    if not diagnosis.findings:
        return None
    directions = diagnosis.findings[0].directions
    scores = {m: follows(directions, launches[number], launches[m]) for m in near}
    best = max(scores.values(), default=0.0)
    return chance.choice([m for m, s in scores.items() if s == best]) if best > 0 else None


def ranks(values: list[float]) -> np.ndarray:
    from scipy.stats import rankdata

    return rankdata(values)


def correlation(a: list[float], b: list[float]) -> float | None:
    if len(set(a)) < 3 or len(set(b)) < 3:
        return None
    return round(float(np.corrcoef(ranks(a), ranks(b))[0, 1]), 4)


def interval(values: np.ndarray, groups: list[object], seed: int = 1) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean, whole groups drawn (they are alike)."""
    order = defaultdict(list)
    for value, group in zip(values, groups, strict=True):
        order[group].append(value)
    sums = np.array([[np.sum(v), len(v)] for v in order.values()])
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(sums), (BOOTSTRAPS, len(sums)))
    means = sums[picks, 0].sum(axis=1) / sums[picks, 1].sum(axis=1)
    return tuple(float(x) for x in np.percentile(means, [2.5, 97.5]))


def climb(
    start: int, near: list[list[int]], launches: list[LaunchFacts], found: list[Diagnosis],
    times: list[float], seed: int,
) -> int:  # fmt: skip
    """Follow the suggestions from a configuration until one does not lead downhill."""
    chance = random.Random(seed)
    at, tried = start, set()
    for _ in range(30):
        nearby = [m for m in near[at] if m not in tried]
        to = suggested(at, nearby, launches, found[at], chance)
        if to is None:
            break
        tried.add(to)
        if times[to] < times[at]:
            at, tried = to, set()
        elif len(tried) >= 3:
            break
    return at


def measure(space: RecordedSpace, half: str) -> dict[str, object]:
    sizes, arch = sizes_of(space.device)
    rows = space.configurations
    times = [r.time_us for r in rows]
    launches = [launch_facts(r, sizes, arch) for r in rows]
    found = [diagnose(r, sizes, arch) for r in rows]
    near = neighbours(space)
    chosen = [n for n, r in enumerate(rows)
              if near[n] and (half == "all" or second_half(r) == (half == "second"))]  # fmt: skip
    chance = random.Random(0)
    hits, bases, groups, labels = [], [], [], []
    for n in chosen:
        to = suggested(n, near[n], launches, found[n], chance)
        if to is None:
            continue
        hits.append(float(times[to] < times[n]))
        bases.append(fmean(times[m] < times[n] for m in near[n]))
        groups.append(rows[n].block)
        labels.append(found[n].label)
    if not hits:
        return {"half": half, "configurations": len(chosen), "suggestions": 0,
                "labels": dict(Counter(found[n].label for n in chosen))}  # fmt: skip
    gain = np.array(hits) - np.array(bases)
    best = min(times)
    room = [(n, found[n].headroom) for n in chosen if found[n].headroom is not None]
    ends = [climb(n, near, launches, found, times, n) for n, _ in room]
    by_label = {
        label: {
            "configurations": labels.count(label),
            "downhill": round(fmean(h for h, x in zip(hits, labels, strict=True) if x == label), 4),
            "random": round(fmean(b for b, x in zip(bases, labels, strict=True) if x == label), 4),
        }
        for label in sorted(set(labels))
    }
    return {
        "half": half, "configurations": len(chosen), "suggestions": len(hits),
        "labels": dict(Counter(found[n].label for n in chosen)),
        "downhill_suggested": round(fmean(hits), 4), "downhill_random": round(fmean(bases), 4),
        "difference": round(float(gain.mean()), 4),
        "difference_95": [round(x, 4) for x in interval(gain, groups)],
        "by_label": by_label,
        "headroom_rank_correlation": {
            name: correlation([h for _, h in room], gains) for name, gains in {
                "best_of_space": [times[n] / best for n, _ in room],
                "end_of_suggested_path": [
                    times[n] / times[e] for (n, _), e in zip(room, ends, strict=True)
                ],
                "best_neighbour": [times[n] / min(times[m] for m in near[n]) for n, _ in room],
            }.items()
        },
        "median_time_over_best": round(median(times[n] / best for n in chosen), 3),
        "median_path_end_over_best": (
            round(median(times[e] / best for e in ends), 3) if ends else None
        ),
    }  # fmt: skip


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def show(result: dict[str, object]) -> None:
    print(f"half {result['half']}: {result['configurations']} configurations, "
          f"{result['suggestions']} with a suggestion")  # fmt: skip
    if not result["suggestions"]:
        return
    low, high = result["difference_95"]
    print(f"  downhill: suggested {result['downhill_suggested']:.3f}, random "
          f"{result['downhill_random']:.3f}, difference {result['difference']:+.3f} "
          f"[{low:+.3f}, {high:+.3f}]")  # fmt: skip
    for label, row in result["by_label"].items():
        print(f"  {label:22} {row['configurations']:6} {row['downhill']:.3f} {row['random']:.3f}")
    print(f"  headroom, rank correlation with gain: {result['headroom_rank_correlation']}")
    print(f"  time / best of space: {result['median_time_over_best']} before, "
          f"{result['median_path_end_over_best']} where the suggestions end (medians)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--half", choices=("first", "second", "both", "all"), default="both")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    halves = ("first", "second") if options.half == "both" else (options.half,)
    results = []
    for path in options.files:
        space = read_ktt(path)
        print(f"{path.name}: {space.device}, {len(space.configurations)} valid, "
              f"{space.failed} failed")  # fmt: skip
        for half in halves:
            result = {"file": path.name, "device": space.device, **measure(space, half)}
            show(result)
            results.append(result)
    if options.output:
        from kernelsearch.versions import versions

        document = {
            "benchmark": "diagnosis", "date": datetime.now(UTC).isoformat(), "commit": commit(),
            "versions": versions(), "results": results,
        }  # fmt: skip
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
