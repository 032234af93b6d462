"""A made-up study of any size, written through the real ledger: for reports and what reads them.

Its times follow no device: variant ``k`` gets faster by chance along its lineage.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelsearch.diagnosis import Diagnosis, Finding
from kernelsearch.operator import Workload
from kernelsearch.records import Candidate, Evaluation, Status, Timing, VariantRecord, digest
from kernelsearch.resources import template_paths
from kernelsearch.result import Result, WorkloadResult
from kernelsearch.settings import StudySettings
from kernelsearch.store import Event, open_ledger
from kernelsearch.store_base import Contents

START = 1_790_000_000.0
DEVICE = {
    "key": "device-1", "target": "cuda", "name": "Synthetic GPU", "arch": "sm_90a",
    "facts": {"sm_count": 132, "l2_bytes": 50 << 20}, "driver": "580.1",
}  # fmt: skip
WORKLOADS = tuple(Workload({"rows": r, "cols": c}) for r, c in ((4096, 4096), (8192, 1024)))
LIGHT_US = {WORKLOADS[0].key: 40.0, WORKLOADS[1].key: 20.0}
# Times of the baseline over the speed of light.
LIMIT = 20.0
MUTATIONS = ("vector_loads", "two_rows_a_block", "unroll", "shared_staging", "warp_shuffle",
             "fewer_barriers", "persistent_blocks")  # fmt: skip
LABELS = (("dram", "memory-bandwidth"), ("barrier", "memory-latency"), ("issue", "compute"))
FAILED = (Status.COMPILE_ERROR, Status.WRONG, Status.TIMED_OUT, Status.CHEATED, Status.REJECTED)


@dataclass
class Made:
    """What ``make_study`` wrote, for tests to compare with."""

    folder: Path
    variants: list[VariantRecord] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    result: Result | None = None


def make_study(
    folder: Path, evaluations: int = 60, variants: int = 12, *, seed: int = 1, models: bool = True,
    confirmed: bool = True, hostile: str = "",
) -> Made:  # fmt: skip
    """Write a study.

    Args:
        folder: where; it is made.
        evaluations: how many; at least as many as variants.
        variants: how many.
        seed: of everything drawn.
        models: every third mutation came of a language model, with prompt and reply.
        confirmed: it has a result.
        hostile: a text put into every place that a candidate or a model can write to.
    """
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    settings = StudySettings("rms_norm", "cuda", "float32", WORKLOADS, "large")
    key = settings.key("contract-1", DEVICE["key"])
    made = Made(folder)
    events: list[Event] = [Event("run", _run_facts(hostile), START)]
    with open_ledger(None, folder, create=True) as ledger:
        bases = [p.read_text() for p in template_paths("rms_norm", "cuda")]
        levels: dict[str, float] = {}
        for number in range(variants):
            now = START + 1 + number * evaluations / variants
            record, level = _variant(rng, number, now, made.variants, levels, bases, hostile)
            if models and record.proposer == "llm":
                events.append(_exchange(ledger, record, now - 0.5, rng, hostile))
            made.variants.append(record)
            levels[record.hash] = level
        for number in range(evaluations):
            record = made.variants[number * variants // evaluations]
            made.evaluations.append(
                _evaluation(rng, number, record, levels[record.hash], key, hostile)
            )
        # The baseline is right, whatever was drawn.
        made.evaluations[0] = _right(made.variants[0], {"WARPS": 1, "VEC": 1}, 1.0, START + 1, key)
        right = [e for e in made.evaluations if e.ok]
        events += _diagnoses(right, rng, hostile)
        best = min(right, key=lambda e: e.timings[0].median_us)
        if confirmed:
            made.result = _result(best, made, folder, key)
            events.append(Event("result", made.result.to_json(), START + evaluations + 5))
        events.append(Event("refused_proposal", {"why": hostile or "no"}, START + evaluations + 6))
        ledger.write_all(Contents(
            {"settings": settings.to_json(), "contract": "contract-1", "key": key,
             "operator": "rms_norm", "device": DEVICE, "created": START},
            made.variants, made.evaluations, events,
        ))  # fmt: skip
    return made


def _run_facts(hostile: str) -> dict[str, Any]:
    return {
        "ceilings": {"dram_gbps": 3350.0, "fp32_tflops": 60.0}, "rate": "fp32_tflops",
        "versions": {"kernelsearch": "0.1.0", "python": "3.11.7", "note": hostile or "none"},
        "doc": "y = x / rms(x) * weight + bias, row by row",
        "costs": {w.key: (4.0 * w.sizes["rows"] * w.sizes["cols"],
                          8.0 * w.sizes["rows"] * w.sizes["cols"]) for w in WORKLOADS},
    }  # fmt: skip


def _variant(
    rng: random.Random, number: int, now: float, known: list[VariantRecord],
    levels: dict[str, float], bases: list[str], hostile: str,
) -> tuple[VariantRecord, float]:  # fmt: skip
    if number < min(3, len(bases)):
        name = "naive" if number == 0 else f"template{number}"
        source = bases[number]
        level = 1.0 if number == 0 else 1.3
        return VariantRecord(digest(number), "rms_norm", "cuda", source, name,
                             created=now), level  # fmt: skip
    # Good parents have more children, as in a search.
    parents = sorted(known, key=lambda v: -levels[v.hash])
    parent = parents[min(len(parents) - 1, int(rng.expovariate(0.5)))]
    mutation = rng.choice(MUTATIONS)
    lines = parent.source.split("\n")
    place = rng.randrange(len(lines))
    lines[place:place] = [f"// step {number}: {mutation}", hostile]
    record = VariantRecord(
        digest(number), "rms_norm", "cuda", "\n".join(lines), f"{parent.name[-80:]}+{mutation}",
        parent=parent.hash, proposer="llm" if number % 3 == 0 else "rules",
        mutation=hostile or mutation,
        rationale=f"Change number {number} should keep more loads in flight. {hostile}".strip(),
        predicted_gain=round(rng.uniform(1.02, 1.6), 2), created=now,
        second_parent=known[0].hash if number % 11 == 0 else "",
    )  # fmt: skip
    # The nearer to the speed of light, the rarer a gain; nothing passes it.
    left = 1.0 - levels[parent.hash] / LIMIT
    return record, min(levels[parent.hash] * rng.uniform(0.75, 1.0 + 0.5 * left), 0.95 * LIMIT)


def _evaluation(
    rng: random.Random, number: int, record: VariantRecord, level: float, key: str, hostile: str
) -> Evaluation:
    params = {"WARPS": (1, 2, 4, 8, 16)[number % 5], "VEC": (1, 2, 4)[number // 5 % 3],
              "STEP": number}  # fmt: skip
    when = START + 2 + number
    if rng.random() < 0.2:
        status = FAILED[number % len(FAILED)]
        return Evaluation(
            Candidate(record.hash, tuple(sorted(params.items())), "float32"), status,
            hostile or f"{status}: line {number} says what went wrong",
            {"log": hostile or "error: expected a ';'", "stage": "compile"},
            device=DEVICE["key"], settings=key, created=when, stages_s={"compile": 0.3},
        )  # fmt: skip
    scale = level * (1.0 - 0.05 * abs(params["WARPS"] - 4) / 4) * rng.uniform(0.97, 1.0)
    return _right(record, params, scale, when, key)


def _right(
    record: VariantRecord, params: dict[str, int], scale: float, when: float, key: str
) -> Evaluation:
    timings = tuple(
        Timing(w.key, tuple(LIGHT_US[w.key] * LIMIT / scale * f for f in (1.0, 0.99, 1.01)),
               sol_us=LIGHT_US[w.key], floor_us=LIGHT_US[w.key] * 0.85)
        for w in WORKLOADS
    )  # fmt: skip
    return Evaluation(
        Candidate(record.hash, tuple(sorted(params.items())), "float32"), Status.OK,
        timings=timings, device=DEVICE["key"], settings=key, created=when,
        code_hash=digest(record.hash, params),
        stages_s={"compile": 0.3, "verify": 0.4, "measure": 0.2},
        verified=(*(f"{w.key}#0" for w in WORKLOADS), "rows=1,cols=1#0",
                  "rows=7,cols=1023@uniform#1", "rows=4096,cols=4096#2+misaligned"),
    )  # fmt: skip


def _exchange(
    ledger: Any, record: VariantRecord, when: float, rng: random.Random, hostile: str
) -> Event:
    prompt = {
        "role": "coder", "model": "model-1", "stable": ["The contract. " * 300 + hostile],
        "turns": [{"speaker": "user", "text": f"{hostile} Parent:\n{record.source}"}],
        "tool": None, "max_tokens": 8000,
    }  # fmt: skip
    usage = {"input_tokens": 3000, "output_tokens": 500, "cache_read_tokens": 2000,
             "cache_write_tokens": 100}  # fmt: skip
    reply = {
        "text": hostile, "stop": "end", "usage": usage, "model": "model-1", "seconds": 4.0,
        "attempts": 1, "data": {
            "mutation": record.mutation, "rationale": record.rationale,
            "predicted_gain": record.predicted_gain,
            "edits": [{"search": "a", "replace": "b"}],
        },
    }  # fmt: skip
    blobs = {n: ledger.put_blob(json.dumps(v).encode())
             for n, v in (("prompt", prompt), ("reply", reply))}  # fmt: skip
    return Event("exchange", {
        "role": "coder", "model": "model-1", "key": digest(record.hash),
        "usd": round(rng.uniform(0.01, 0.03), 4), "usage": usage, "seconds": 4.0, "attempts": 1,
        **blobs,
    }, when)  # fmt: skip


def _diagnoses(right: list[Evaluation], rng: random.Random, hostile: str) -> list[Event]:
    events = []
    for evaluation in right:
        label, group = rng.choice(LABELS)
        found = Diagnosis((Finding(
            label, group, 0.7, 1.4, hostile or f"The {label} limits this kernel.",
            {"roof_memory": 0.41, "occupancy": 0.5}, ("wider_loads", "fewer_barriers"),
        ),), "code+time", 0.8, 3.2, hostile, WORKLOADS[0].key)  # fmt: skip
        events.append(Event("diagnosis", {
            "candidate": evaluation.candidate.key, "variant": evaluation.candidate.variant,
            "diagnosis": found.to_json(),
        }, evaluation.created + 0.1))  # fmt: skip
    return events


def _result(best: Evaluation, made: Made, folder: Path, key: str) -> Result:
    base = made.evaluations[0]
    rows = []
    for timing, slow in zip(best.timings, base.timings, strict=True):
        ratio = slow.median_us / timing.median_us
        rows.append(WorkloadResult(
            timing.workload, timing.median_us, slow.median_us, ratio, 0.98 * ratio, 1.02 * ratio,
            (timing.sol_us or 0.0) / timing.median_us, timing.median_us + 2.0,
        ))  # fmt: skip
    name = next(v.name for v in made.variants if v.hash == best.candidate.variant)
    ratio = rows[0].speedup
    return Result(
        "rms_norm", "cuda", "float32", DEVICE["name"], best.candidate.variant, name,
        best.candidate.values, ratio, 0.98 * ratio, 1.02 * ratio, tuple(rows),
        sol_fraction=rows[0].sol_fraction, candidates=len(made.evaluations),
        statuses={"ok": sum(e.ok for e in made.evaluations)}, verified=best.verified,
        examined=("fresh_inputs", "one_sm"), not_examined={"memcheck": "it is not installed"},
        seconds=float(len(made.evaluations)), folder=str(folder), finished=True, settings=key,
        created=START + len(made.evaluations) + 5,
    )  # fmt: skip
