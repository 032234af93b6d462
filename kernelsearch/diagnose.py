"""Diagnose an evaluated candidate: gather what is known of it, and have it classified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernelsearch.classify import classify
from kernelsearch.diagnosis import Diagnosis, unknown
from kernelsearch.operator import Operator, Workload
from kernelsearch.profile.counters import Counters, derived
from kernelsearch.profile.mix import per_cycle
from kernelsearch.profile.occupancy import occupancy
from kernelsearch.records import (
    Device,
    Evaluation,
    KernelFacts,
    KernelStep,
    Params,
    Timing,
    dtype_bytes,
)
from kernelsearch.sol import rate_name
from kernelsearch.variant import Variant

# Bytes of device memory for each cycle of a multiprocessor, where the rate was not measured.
DRAM_BYTES_PER_CYCLE = 18.0
CLOCK_HZ = 1.7e9


@dataclass(frozen=True)
class Subject:
    """What a diagnosis is about besides the evaluation: contract, source, element type, device."""

    operator: Operator
    variant: Variant
    dtype: str
    device: Device
    workloads: Sequence[Workload]


def diagnose(
    subject: Subject, evaluation: Evaluation, facts: Sequence[KernelFacts] = (),
    counters: Mapping[str, Counters] | None = None, missing: str = "",
) -> Diagnosis:  # fmt: skip
    """Return the diagnosis of an evaluation on the workload farthest from its speed of light.

    Args:
        subject: what was evaluated, where.
        evaluation: without timings its diagnosis is unknown.
        facts: compiler facts with machine code, if better than the evaluation's own.
        counters: hardware counters of the whole plan by workload key, where they were collected.
        missing: why something is not known; it becomes part of the reason.
    """
    found = diagnose_each(subject, evaluation, facts, counters, missing)
    return found[0] if found else unknown(
        f"the evaluation is {evaluation.status}: nothing was timed"
    )  # fmt: skip


def diagnose_each(
    subject: Subject, evaluation: Evaluation, facts: Sequence[KernelFacts] = (),
    counters: Mapping[str, Counters] | None = None, missing: str = "",
) -> list[Diagnosis]:  # fmt: skip
    """Return the diagnosis for each timed workload, that with the most headroom first."""
    known = {w.key: w for w in subject.workloads}
    rows = []
    for timing in evaluation.timings:
        workload = known.get(timing.workload)
        if workload is None:
            continue
        own = facts or evaluation.facts
        numbers = gather(subject, evaluation, timing, workload, own)
        source = _source(subject, numbers)
        measured = (counters or {}).get(timing.workload)
        if measured is not None and measured.values:
            numbers, source = {**numbers, **derived(measured)}, "counters"
        found = classify(numbers, source, workload.key)
        reason = "; ".join(
            dict.fromkeys(r for r in (found.reason, missing, *_problems(measured)) if r)
        )
        rows.append((_room(timing), replace(found, reason=reason)))
    return [found for _, found in sorted(rows, key=lambda r: -r[0])]


def diagnose_unmeasured(
    subject: Subject, params: Params, facts: Sequence[KernelFacts], missing: str = ""
) -> list[Diagnosis]:
    """Return what code and launch alone say, for each workload of the subject."""
    rows = []
    for workload in subject.workloads:
        numbers = _static(subject, params, workload, facts)
        found = classify(numbers, "cpu" if subject.device.target == "cpu" else "code", workload.key)
        reason = "; ".join(r for r in (found.reason, missing) if r)
        rows.append(replace(found, reason=reason))
    return rows


def _problems(measured: Counters | None) -> tuple[str, ...]:
    return measured.problems if measured is not None else ()


def _room(timing: Timing) -> float:
    return timing.median_us / timing.sol_us if timing.sol_us else 1.0


def _source(subject: Subject, numbers: Mapping[str, float]) -> str:
    if subject.device.target == "cpu":
        return "cpu"
    return "code+time" if "code_instructions" in numbers else "time"


def gather(
    subject: Subject, evaluation: Evaluation, timing: Timing, workload: Workload,
    facts: Sequence[KernelFacts],
) -> dict[str, float]:  # fmt: skip
    """Return the numbers that rules judge, without counters (names: docs/diagnosis.md)."""
    static = _static(subject, evaluation.candidate.values, workload, facts)
    return {**roofline(subject, timing, workload), **static}


def _static(
    subject: Subject, params: Params, workload: Workload, facts: Sequence[KernelFacts]
) -> dict[str, float]:
    """Return what launch plan and code say."""
    variant, device = subject.variant, subject.device
    plan = variant.plan(
        params, workload.sizes, subject.operator.scalar_values(), device.facts, subject.dtype
    )
    found: dict[str, float] = {}
    steps = [s for s in plan.steps if isinstance(s, KernelStep)]
    found["launches"] = float(max(1, len(steps)))
    main = _main_step(steps, facts)
    if main is None:
        return found
    step, fact = main
    found |= {f"code_{k}": v for k, v in fact.code.items()}
    if device.target == "cpu":
        found["cores"] = float(device.facts.get("cores", 1))
        found["parallel"] = float(bool(variant.numba.get("parallel", False)))
        found["simd_lanes"] = device.facts.get("simd_bytes", 16) / dtype_bytes(subject.dtype)
        return found
    return found | launch(step, fact, device) | code(fact.code, device)


def roofline(subject: Subject, timing: Timing, workload: Workload) -> dict[str, float]:
    """Return where a time lies under the device's measured rates."""
    operator, device = subject.operator, subject.device
    time = timing.median_us
    flops, traffic = operator.cost(workload, subject.dtype)
    found = {"time_us": time, "hot": float(timing.cache == "hot"),
             "fp64_operator": float(subject.dtype == "float64")}  # fmt: skip
    rates = device.ceilings
    arithmetic = rates.get(rate_name(subject.dtype, operator.precision), 0.0)
    if rates.get("dram_gbps"):
        found["roof_memory"] = traffic / (rates["dram_gbps"] * 1e3) / time
    if arithmetic:
        found["roof_compute"] = flops / (arithmetic * 1e6) / time
    if timing.sol_us:
        found["sol_share"] = timing.sol_us / time
    if rates.get("launch_us"):
        found["launch_us"] = rates["launch_us"]
    if device.facts.get("l2_bytes"):
        found["data_share_of_l2"] = traffic / device.facts["l2_bytes"]
    return found


def _main_step(
    steps: Sequence[KernelStep], facts: Sequence[KernelFacts]
) -> tuple[KernelStep, KernelFacts] | None:
    """Return the launch that has the most to do, by its threads and the size of its code."""
    known = {f.name: f for f in facts}
    pairs = [(s, known[s.kernel]) for s in steps if s.kernel in known]
    return max(pairs, key=_work, default=None)


def _work(pair: tuple[KernelStep, KernelFacts]) -> float:
    step, fact = pair
    threads = 1.0
    for extent in (*step.grid, *step.block):
        threads *= extent
    return threads * (1.0 + fact.code.get("instructions", 0.0)) * (1 + fact.code.get("depth", 0.0))


def launch(step: KernelStep, fact: KernelFacts, device: Device) -> dict[str, float]:
    """Return a launch's sizes and theoretical occupancy."""
    threads = step.block[0] * step.block[1] * step.block[2]
    blocks = step.grid[0] * step.grid[1] * step.grid[2]
    shared = step.shared + (fact.static_shared_bytes or 0)
    found = {"threads": float(threads), "blocks": float(blocks), "shared_bytes": float(shared)}
    for name in ("registers", "stack_bytes"):
        value = getattr(fact, name)
        if value is not None:
            found[name] = float(value)
    if fact.spill_store_bytes is not None and fact.spill_load_bytes is not None:
        found["spill_bytes"] = float(fact.spill_store_bytes + fact.spill_load_bytes)
    if fact.registers is None:
        return found
    full = occupancy(blocks, threads, fact.registers, shared, device.facts, device.arch)
    if full is not None and full.blocks_per_sm:
        found |= {"occupancy": full.fraction, "waves": full.waves,
                  "idle_fraction": full.idle_fraction}  # fmt: skip
        found |= {
            f"limit_{k}": float(full.limiter == k)
            for k in ("registers", "shared", "threads", "blocks", "grid")
        }
    return found


def code(facts: Mapping[str, float], device: Device) -> dict[str, float]:
    """Return what rules need of machine code: pipes beside device memory, sums over classes."""
    if not facts:
        return {}
    sms = device.facts.get("sm_count", 0)
    rate = device.ceilings.get("dram_gbps", 0.0)
    supply = rate * 1e9 / (sms * CLOCK_HZ) if sms and rate else DRAM_BYTES_PER_CYCLE
    found = {f"code_{k}": v for k, v in per_cycle(facts, supply).items()}
    for name, parts in (
        ("code_w_local", ("w_local_load", "w_local_store")),
        ("code_w_global", ("w_global_load", "w_global_store")),
        ("code_w_shared", ("w_shared_load", "w_shared_store")),
    ):
        found[name] = sum(facts.get(p, 0.0) for p in parts)
    for name in ("tensor", "atomic", "barrier", "fp32", "fp64", "sfu", "control", "integer"):
        found[f"code_w_{name}"] = facts.get(f"w_{name}", 0.0)
    found["code_w_atomic"] += facts.get("w_shared_atomic", 0.0)
    found["code_n_tensor"] = facts.get("n_tensor", 0.0)
    return found
