"""Examine a candidate that is about to be called the best: what would be too dear for every one.

It has passed verification. Now it meets inputs that nobody has seen, drawn after it was written,
and the schedules of its target that are unlike the usual one: fewer processors, or work cut up
elsewhere; and the tools of its target that watch for races, reads of what was never written and
accesses beside a buffer.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from kernelsearch.cases import SMALL_ELEMENTS, CaseSpec, Stage, elements
from kernelsearch.elite_tools import watch_elite
from kernelsearch.errors import CandidateError
from kernelsearch.evaluate import Bound, Evaluator
from kernelsearch.protocols import Runner, Target
from kernelsearch.records import KernelStep

FRESH_INPUTS = "fresh_inputs"
# A race may miss once or twice.
RUNS_A_SCHEDULE = 3


@dataclass(frozen=True, slots=True)
class Examination:
    """What an elite has passed.

    Args:
        passed: names of the examinations, in order.
        skipped: those that could not be held here, with the reason.
        cases: how many cases were run.
        seconds: wall clock.
    """

    passed: tuple[str, ...]
    skipped: Mapping[str, str]
    cases: int
    seconds: float


def examine_elite(
    evaluator: Evaluator, bound: Bound, target: Target, isolate: Callable[[Target], Runner]
) -> Examination:
    """Examine a candidate whose binary is loaded.

    Args:
        evaluator: of the study; its runner runs the candidate.
        bound: the candidate.
        target: says which schedules and tools there are.
        isolate: returns a runner of a target, in a process of its own.

    Raises:
        CandidateError: it fails; ``evidence["examination"]`` names the one it failed in.
        WorkerError: the worker fails repeatedly, and the candidate is not to blame.
    """
    started = time.perf_counter()
    # Even: a user's own data is taken as it is by even seeds, scaled by odd ones.
    seed = 2 * secrets.randbits(30)
    exams: list[tuple[str, tuple[Stage, ...]]] = [(FRESH_INPUTS, fresh_stages(evaluator, seed))]
    schedules, why = _schedules(bound, target)
    exams += [(name, (schedule_stage(evaluator, name, seed),)) for name in schedules]
    passed: list[str] = []
    cases = 0
    for name, stages in exams:
        step = partial(
            evaluator.verify, bound.variant, bound.candidate.values, bound.binary, stages
        )
        try:
            report = evaluator.surely(step)
        except CandidateError as error:
            error.evidence["examination"] = name
            raise
        passed.append(name)
        cases += len(report.verified)
    skipped = {} if schedules else {"schedules": why}
    seen, silent, count = watch_elite(evaluator, bound, target, isolate, seed)
    passed += seen
    skipped.update(silent)
    cases += count
    return Examination(tuple(passed), skipped, cases, time.perf_counter() - started)


def fresh_stages(evaluator: Evaluator, seed: int) -> tuple[Stage, ...]:
    """Return all stages of verification with inputs of their own.

    Index checks are left out: which indices a kernel uses has been checked on the same sizes.
    """
    stages = []
    for stage in (*evaluator.first_stages, *evaluator.last_stages):
        # Small cases come back among the tuned ones for their index checks alone.
        specs = [s for s in stage.specs if s.repeat or not s.bounds_checked]
        fresh = [replace(s, seed=s.seed - evaluator.seed + seed, bounds_checked=False)
                 for s in specs]  # fmt: skip
        stages.append(Stage(stage.name, tuple(fresh)))
    return tuple(stages)


def schedule_stage(evaluator: Evaluator, schedule: str, seed: int) -> Stage:
    """Return the small cases and the smallest tuned one, several times under one schedule."""
    operator = evaluator.operator
    smallest = min(evaluator.workloads, key=lambda w: elements(operator, w))
    small = [
        spec for stage in evaluator.first_stages for spec in stage.specs
        if spec.workload.distribution == "default" and not spec.misaligned
        and elements(operator, spec.workload) <= SMALL_ELEMENTS
    ]  # fmt: skip
    specs = [replace(s, seed=seed + i) for s in small for i in range(RUNS_A_SCHEDULE)]
    specs.append(CaseSpec(smallest, seed))
    return Stage(schedule, tuple(
        replace(s, repeat=False, bounds_checked=False, schedule=schedule) for s in specs
    ))  # fmt: skip


def _schedules(bound: Bound, target: Target) -> tuple[Sequence[str], str]:
    """Return the schedules that a candidate must bear, or why there are none."""
    schedules: Sequence[str] = getattr(target, "schedules", ())
    if not schedules:
        return (), f"the {target.name} target offers none"
    steps = [s for plan in bound.plans.values() for s in plan.steps if isinstance(s, KernelStep)]
    if any(s.cooperative or s.cluster is not None for s in steps):
        return (), "a cooperative or cluster launch is promised room for its blocks at once"
    return schedules, ""
