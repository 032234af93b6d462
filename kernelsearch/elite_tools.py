"""Run an elite under the tools of its target that see what results do not show.

Races that went well, reads of memory that happened to hold the right value, accesses beside a
buffer: compute-sanitizer for CUDA.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from kernelsearch.cases import SMALL_ELEMENTS, CaseSpec, CaseStore, Stage, elements
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    CandidateTimeoutError,
    TargetUnavailableError,
    WorkerError,
)
from kernelsearch.evaluate import Bound, Evaluator
from kernelsearch.protocols import Runner, SanitizedTarget, Target
from kernelsearch.records import Binary, RunReport, RunRequest, TimeReport, TimeRequest
from kernelsearch.verify import plan_maker, verify

# Of a run under a tool.
WATCHED_DEADLINE_S = 120.0


def watch_elite(
    evaluator: Evaluator, bound: Bound, target: Target, isolate: Callable[[Target], Runner],
    seed: int,
) -> tuple[list[str], dict[str, str], int]:  # fmt: skip
    """Run a candidate under every tool, all at once.

    Args:
        evaluator: of the study.
        bound: the candidate.
        target: offers the tools.
        isolate: returns a runner of a target, in a process of its own.
        seed: of the inputs.

    Returns:
        The tools that found nothing, those that can say nothing with the reason, how many cases
        were run.

    Raises:
        CandidateError: a tool found something.
    """
    offer = getattr(target, "sanitizers", None)
    if offer is None:
        return [], {}, 0
    try:
        tools: Sequence[SanitizedTarget] = offer()
    except TargetUnavailableError as error:
        return [], {"sanitizers": str(error)}, 0
    stage = sanitized_stage(evaluator, seed)
    alone = getattr(evaluator.runner, "alone", contextlib.nullcontext)
    with alone(), ThreadPoolExecutor(len(tools)) as pool:
        waiting = [pool.submit(_watch, evaluator, bound, t, isolate, stage) for t in tools]
        reasons = [w.result() for w in waiting]
    passed = [t.tool for t, reason in zip(tools, reasons, strict=True) if not reason]
    silent = {t.tool: reason for t, reason in zip(tools, reasons, strict=True) if reason}
    return passed, silent, len(passed) * len(stage.specs)


def sanitized_stage(evaluator: Evaluator, seed: int) -> Stage:
    """Return a few small cases: tools slow a kernel down by up to some hundred times."""
    operator = evaluator.operator
    small = [
        spec for stage in evaluator.first_stages for spec in stage.specs
        if spec.workload.distribution == "default"
        and elements(operator, spec.workload) <= SMALL_ELEMENTS
    ]  # fmt: skip
    if not small:
        small = [CaseSpec(min(evaluator.workloads, key=lambda w: elements(operator, w)), seed)]
    # The smallest shows odd sizes, the largest of them more blocks than one.
    small.sort(key=lambda s: elements(operator, s.workload))
    chosen = dict.fromkeys((0, len(small) // 2, len(small) - 1))
    return Stage("sanitizers", tuple(
        replace(small[i], seed=seed, repeat=False, bounds_checked=False) for i in chosen
    ))  # fmt: skip


def _watch(
    evaluator: Evaluator, bound: Bound, tool: SanitizedTarget,
    isolate: Callable[[Target], Runner], stage: Stage,
) -> str:  # fmt: skip
    """Return why a tool can say nothing, "" where it is content."""
    runner = _Watched(isolate(tool))
    make = plan_maker(
        bound.variant, bound.candidate.values, evaluator.operator, evaluator.device.facts,
        evaluator.dtype,
    )  # fmt: skip
    failure: CandidateError | None = None
    # Cases of its own: the study's are not made for several threads.
    store = CaseStore()
    try:
        runner.load(bound.binary, WATCHED_DEADLINE_S)
        verify(runner, bound.binary.key, make, (stage,), evaluator.operator, evaluator.dtype,
               store, WATCHED_DEADLINE_S)  # fmt: skip
    except CandidateError as error:
        failure = error
    except (WorkerError, TargetUnavailableError) as error:
        runner.close()
        return f"the worker does not run under it ({error})"
    finally:
        store.close()
    runner.close()
    # The tool knows better why a run failed.
    try:
        reason = tool.judge()
    except CandidateError as error:
        error.evidence["examination"] = tool.tool
        raise
    if failure is None or isinstance(failure, CandidateTimeoutError | CandidateCrashedError):
        # The tool itself may be too slow, or may have died; without its report that proves nothing.
        return reason or (f"{failure}" if failure is not None else "")
    failure.evidence["examination"] = tool.tool
    raise failure


class _Watched:
    """A runner that gives every buffer an allocation of its own."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def load(self, binary: Binary, deadline_s: float) -> None:
        self._runner.load(binary, deadline_s)

    def unload(self, key: str) -> None:
        self._runner.unload(key)

    def run(self, request: RunRequest, deadline_s: float) -> RunReport:
        return self._runner.run(replace(request, bounds_checked=True), deadline_s)

    def time(self, request: TimeRequest, deadline_s: float) -> TimeReport:
        return self._runner.time(request, deadline_s)

    def restart(self) -> None:
        self._runner.restart()

    def close(self) -> None:
        self._runner.close()
