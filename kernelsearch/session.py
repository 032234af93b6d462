"""Run a study on this machine's device: baseline, search, confirmation.

Compiles ahead of the device, evaluates one candidate at a time, records each before the next, and
leaves a resumable study whenever it is stopped.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Self

from kernelsearch.cases import CaseStore
from kernelsearch.ceilings import with_ceilings
from kernelsearch.diagnoser import Diagnoser
from kernelsearch.dispatch import CompilePool
from kernelsearch.elite import Examination, examine_elite
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    RejectedError,
    SickDeviceError,
    StudyError,
    TargetUnavailableError,
    VariantError,
    WorkerError,
)
from kernelsearch.evaluate import ATTEMPTS, LOAD_DEADLINE_S, Bound, Deadlines, Evaluator
from kernelsearch.events import Observer, Progress
from kernelsearch.home import cache_folder, lock_path
from kernelsearch.locks import DeviceLock
from kernelsearch.measure import Comparison, compare_interleaved
from kernelsearch.operator import Operator, Workload
from kernelsearch.protocols import Proposer, Selector, Target
from kernelsearch.records import (
    Binary,
    CompileJob,
    Device,
    Evaluation,
    Params,
    Status,
    Timing,
    TimingSettings,
    Verdict,
    geometric_mean,
)
from kernelsearch.result import Result, WorkloadResult
from kernelsearch.search.budget import Budget
from kernelsearch.search.schedule import Action, Schedule, Standing
from kernelsearch.study import Study, Work, rejected
from kernelsearch.variant import Variant
from kernelsearch.verify import probe_tolerance
from kernelsearch.worker import IsolatedRunner

HEARTBEAT_S = 20.0
WAIT_S = 0.25
# Whoever asks for a verdict on one file should not wait for minutes on one that hangs.
JUDGE_FIRST_S = 30.0
LOOK_AHEAD = 2
FINALISTS = 3
# A confirmation takes more samples than the search: it is what the user is told.
CONFIRM_SAMPLES = 15


class Equipment:
    """A target with its worker, compilers and measured ceilings, shared by studies of a process."""

    def __init__(self, target: Target, compilers: int | None = None) -> None:
        self.target = target
        self.lock = DeviceLock(lock_path(target.device.key))
        self.runner = IsolatedRunner(target, self.lock)
        size = compilers or max(1, min(16, len(os.sched_getaffinity(0))))
        self.pool = CompilePool(target, size, self.lock)
        self.look_ahead = size * LOOK_AHEAD
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device with its ceilings; measured on first use, then kept."""
        if self._device is None:
            self._device = with_ceilings(self.target.device, cache_folder(), self.runner.ceilings)
        return self._device

    def close(self) -> None:
        self.pool.close()
        self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass
class _Pending:
    work: Work
    future: Future[Binary] | None
    refusal: RejectedError | None = None


class StudyRun:
    """One run of one study on one device.

    Args:
        study: what to search.
        equipment: target, worker and compilers.
        proposers: where new variants come from, asked in turn.
        selector: picks parents.
        observer: is told after each step.
    """

    def __init__(
        self, study: Study, equipment: Equipment, proposers: Sequence[Proposer],
        selector: Selector, observer: Observer | None = None,
    ) -> None:  # fmt: skip
        self.study, self.equipment = study, equipment
        self.proposers, self.selector = tuple(proposers), selector
        self.observer = observer or (lambda progress: None)
        settings = study.settings
        operator = study.operator
        self.cases = CaseStore()
        self.evaluator = Evaluator(
            operator, settings.dtype, settings.workloads, equipment.device, equipment.runner,
            self.cases, settings.timing, study.key, settings.seed,
        )  # fmt: skip
        self.diagnoser = Diagnoser(study, equipment.device)
        self._pending: deque[_Pending] = deque()
        self._incumbent: Bound | None = None
        self._current: Work | None = None
        self._phase = "baseline"
        self._budget: Budget | None = None
        self._started = time.perf_counter()
        self._done_here = 0
        self._proposal_turn = 0
        self._schedule = Schedule(can_propose=bool(self.proposers))
        self._barren: set[str] = set()

    # --- whole run ---------------------------------------------------------------------------

    def run(self, budget: Budget) -> Result:
        """Search until the budget is used up, then confirm the winner.

        Raises:
            StudyError: the baseline is not right, so nothing can be compared with it.
        """
        study = self.study
        with study.ledger.kept_alive(study.owner, HEARTBEAT_S):
            finished = False
            try:
                self._probe_tolerance()
                self._baseline()
                self._phase = "search"
                self._search(budget)
                self._phase = "confirm"
                result = self._confirm(finished=True)
                self.diagnoser.finish()
                finished = True
                return result
            except SickDeviceError as error:
                study.ledger.add_event("sick_device", {
                    "device": study.device.name, "host": platform.node(), "why": str(error),
                })  # fmt: skip
                raise SickDeviceError(
                    f"{error}; the study in {study.folder} can be resumed"
                ) from error
            finally:
                self._release_all()
                self.diagnoser.close()
                study.pause(finished=finished)
                self.cases.close()

    def _probe_tolerance(self) -> None:
        """Once a study: prove that the operator's bound can reject wrong outputs at all."""
        study = self.study
        events, _ = study.ledger.events()
        if any(e.kind == "tolerance_probed" for e in events):
            return
        probe_tolerance(study.operator, study.settings.dtype, study.settings.target)
        study.ledger.add_event("tolerance_probed", {"dtype": study.settings.dtype})

    # --- baseline ----------------------------------------------------------------------------

    def _baseline(self) -> None:
        study = self.study
        record = study.baseline_record()
        if not any(e.ok for e in study.archive.evaluations_of(record.hash)):
            variant = study.variant(record.hash)
            params = study.tunable_variant(record.hash).default_params(
                study.device.facts, study.settings.dtype
            )
            work = Work(variant, params, variant.candidate(params, study.settings.dtype))
            evaluation = study.archive.find(work.candidate)
            while evaluation is None:
                if study.claim(work.candidate):
                    self._current = work
                    evaluation = self._evaluate(work, None)
                    break
                time.sleep(WAIT_S)  # another process is at it
                study.refresh()
                evaluation = study.archive.find(work.candidate)
            if not evaluation.ok:
                raise StudyError(
                    f"the baseline {record.name!r} of operator {study.operator.name} is "
                    f"{evaluation.status}: {evaluation.message}; a study needs one right kernel"
                )
        study.set_baseline()
        self._tell(None, "baseline measured")

    # --- search ------------------------------------------------------------------------------

    def _search(self, budget: Budget) -> None:
        budget.start(self.study.archive.count())
        self._budget = budget
        self._restore_incumbent()
        while True:
            self._fill(budget)
            if budget.is_spent(self._spent(), self._since_best()):
                break
            if not self._pending:
                if not self._others_at_work():
                    break
                time.sleep(WAIT_S)
                self.study.refresh()
                continue
            pending = self._pending.popleft()
            self._current = pending.work
            if pending.refusal is not None:
                self.study.tell(rejected(pending.refusal, pending.work.candidate, self.study))
                self._note(None, pending.work)
                continue
            evaluation = self._evaluate(pending.work, pending.future)
            self._note(evaluation, pending.work)

    def _others_at_work(self) -> bool:
        """Whether other processes hold claims, whose results may open new work here."""
        mine = self.study.owner.id
        return any(owner != mine for owner in self.study.ledger.claims().values())

    def _fill(self, budget: Budget) -> None:
        """Keep compilers busy ahead of the device, without claiming more than the budget."""
        blocked: set[str] = set()
        while len(self._pending) < self.equipment.look_ahead:
            room = budget.candidates_left(self._spent() + len(self._pending))
            if room is not None and room <= 0:
                return
            decision = self._schedule.decide(self._standings(blocked))
            if decision.action in (Action.STOP, Action.WAIT):
                return
            if decision.action is Action.PROPOSE:
                if not self._propose(decision.count):
                    self._schedule.dry()
                continue
            wanted = decision.count if room is None else min(decision.count, room)
            work = self.study.ask(decision.variant, wanted)
            if not work:
                blocked.add(decision.variant)  # what is left of it is under way elsewhere
            for item in work:
                self._pending.append(self._submit(item))

    def _submit(self, work: Work) -> _Pending:
        try:
            job: CompileJob = self.evaluator.admit(work.variant, work.params)
        except RejectedError as error:
            return _Pending(work, None, error)
        return _Pending(work, self.equipment.pool.submit(job))

    def _release_all(self) -> None:
        """Give every claim back, also that of the candidate an interruption came in on."""
        for pending in self._pending:
            if pending.future is not None:
                pending.future.cancel()
            self.study.release(pending.work.candidate)
        self._pending.clear()
        if self._current is not None and self.study.archive.find(self._current.candidate) is None:
            self.study.release(self._current.candidate)
        self._current = None

    def _standings(self, blocked: set[str]) -> list[Standing]:
        waiting: dict[str, int] = {}
        for pending in self._pending:
            key = pending.work.candidate.variant
            waiting[key] = waiting.get(key, 0) + 1
        standings = []
        archive = self.study.archive
        for record in archive.variants():
            evaluations = archive.evaluations_of(record.hash)
            best = archive.best_of(record.hash)
            standings.append(Standing(
                hash=record.hash, tried=len(evaluations) + waiting.get(record.hash, 0),
                ok=sum(e.ok for e in evaluations),
                speedup=self.study.objective(best) if best is not None else None,
                exhausted=record.hash in blocked or self.study.search(record.hash).is_dry,
                settled=len(evaluations),
            ))  # fmt: skip
        return standings

    def _propose(self, count: int) -> bool:
        """Ask the next proposer about the selected parent; whether anything new came of it."""
        nodes = [n for n in self.study.archive.nodes() if n.hash not in self._barren]
        parents = self.selector.select(nodes, 1, self.study.settings.seed + self._proposal_turn)
        if not parents:
            return False
        fresh = 0
        for _ in self.proposers:
            proposer = self.proposers[self._proposal_turn % len(self.proposers)]
            self._proposal_turn += 1
            seed = self.study.settings.seed + self._proposal_turn
            found = self.diagnoser.of_variant(parents[0])
            request = replace(
                self.study.proposal_request(parents[0], count, seed),
                diagnosis=found.to_json() if found is not None else {},
            )
            for proposal in proposer.propose(request):
                try:
                    fresh += self.study.tell_proposal(proposal) is not None
                except VariantError as error:
                    self.study.ledger.add_event("refused_proposal", {
                        "proposer": proposal.proposer, "mutation": proposal.mutation,
                        "parent": proposal.parent, "why": str(error),
                    })  # fmt: skip
            if fresh:
                break
        if not fresh:
            self._barren.add(parents[0])
            return bool(nodes[1:])
        self._schedule.fresh()
        return True

    # --- one candidate -----------------------------------------------------------------------

    def _evaluate(self, work: Work, future: Future[Binary] | None) -> Evaluation:
        study = self.study
        if future is None:
            future = self.equipment.pool.submit(self.evaluator.admit(work.variant, work.params))
        twin = self._twin(work, future)
        if twin is not None:
            study.tell(twin)
            return twin
        evaluation, bound = self.evaluator.evaluate(
            work.variant, work.params, future, self._incumbent
        )
        study.tell(evaluation)
        if evaluation.status is Status.INFRASTRUCTURE_ERROR:
            raise TargetUnavailableError(
                f"the worker failed repeatedly and no candidate is to blame: {evaluation.message}; "
                f"the study in {study.folder} can be resumed"
            )
        if bound is not None:
            self.diagnoser.note(evaluation, bound.binary)
        self._consider(evaluation, bound)
        self._done_here += 1
        self._forget(bound)
        return evaluation

    def _twin(self, work: Work, future: Future[Binary]) -> Evaluation | None:
        """Return a copy of an earlier evaluation with the same machine code and plans."""
        try:
            bound = self.evaluator.bind(work.variant, work.params, future.result())
        except (CandidateError, WorkerError):
            return None  # evaluate reports it
        earlier = self.study.archive.by_code_hash(bound.identity)
        if earlier is None or earlier.candidate == work.candidate:
            return None
        return replace(
            earlier, candidate=work.candidate, confirmed=False, created=time.time(),
            stages_s={"compile": 0.0},
            evidence={**earlier.evidence, "same_machine_code_as": earlier.candidate.key},
        )  # fmt: skip

    def _consider(self, evaluation: Evaluation, bound: Bound | None) -> None:
        """Make the candidate the incumbent if it is clearly faster than the one there is."""
        if not evaluation.ok or bound is None:
            return
        if self._incumbent is not None:
            if not all(t.incumbent_us for t in evaluation.timings):
                return
            if compare_interleaved(evaluation.timings).verdict is not Verdict.FASTER:
                return
            old = self._incumbent
            self._incumbent = bound
            if old.binary.key != bound.binary.key:
                self.equipment.runner.unload(old.binary.key)
            return
        self._incumbent = bound

    def _forget(self, bound: Bound | None) -> None:
        if bound is None:
            return
        self.equipment.pool.forget(bound.binary.job)
        incumbent = self._incumbent
        if incumbent is None or incumbent.binary.key != bound.binary.key:
            self.equipment.runner.unload(bound.binary.key)

    def _restore_incumbent(self) -> None:
        """On resume, bring the best known candidate back onto the device."""
        best = self.study.archive.best()
        if best is None or self._incumbent is not None:
            return
        bound = self._rebuild(best)
        if bound is not None:
            self._load(bound)
            self._incumbent = bound

    def _rebuild(self, evaluation: Evaluation) -> Bound | None:
        variant = self.study.variant(evaluation.candidate.variant)
        params = evaluation.candidate.values
        job = self.evaluator.admit(variant, params)
        try:
            binary = self.equipment.pool.submit(job).result()
        except CandidateError as error:
            self.study.ledger.add_event(
                "rebuild_failed", {"candidate": evaluation.candidate.key, "why": str(error)}
            )
            return None
        return self.evaluator.bind(variant, params, binary)

    # --- confirmation ------------------------------------------------------------------------

    def _confirm(self, *, finished: bool) -> Result:
        """Measure the finalists and the baseline again, in a fresh process, and name the winner.

        A finalist that does not survive this is struck from the archive, and the next ones play.
        """
        study = self.study
        self.equipment.runner.restart()
        settings = confirmation_settings(study.settings.timing)
        baseline = self._baseline_bound()
        for _ in range(study.archive.count()):
            champion = self._champion(settings)
            try:
                timings = self.evaluator.measure_surely(
                    champion, baseline, settings, seed=time.time_ns() % 2**31
                )
                examination = examine_elite(
                    self.evaluator, champion, self.equipment.target, IsolatedRunner
                )
            except CandidateError as error:
                study.strike(champion.candidate, error)
                if champion.candidate == baseline.candidate:
                    break
                continue
            study.ledger.add_event("examined", {
                "candidate": champion.candidate.key, **asdict(examination),
            })  # fmt: skip
            return self._finish(champion, timings, examination, finished)
        raise StudyError(
            f"no candidate of the study in {study.folder} survives its confirmation; see "
            f"`kernelsearch show {study.folder}`"
        )

    def _baseline_bound(self) -> Bound:
        study = self.study
        evaluation = study.archive.best_of(study.baseline_record().hash)
        bound = self._rebuild(evaluation) if evaluation is not None else None
        if bound is None:
            raise StudyError(f"the study in {study.folder} has no right baseline to compare with")
        self._load(bound)
        return bound

    def _load(self, bound: Bound) -> None:
        """Load a binary that was right before; a worker that dies meanwhile is replaced."""
        runner = self.equipment.runner
        for _ in range(ATTEMPTS - 1):
            try:
                runner.load(bound.binary, LOAD_DEADLINE_S)
            except (CandidateCrashedError, WorkerError):
                runner.restart()
            else:
                return
        runner.load(bound.binary, LOAD_DEADLINE_S)

    def _champion(self, settings: TimingSettings) -> Bound:
        """Let the best structures' best candidates play against each other."""
        finalists = [b for e in self.study.archive.elites(FINALISTS)
                     if (b := self._rebuild(e)) is not None]  # fmt: skip
        if not finalists:
            raise StudyError(f"the study in {self.study.folder} has no right candidate to confirm")
        for bound in finalists:
            self._load(bound)
        champion = finalists[0]
        for challenger in finalists[1:]:
            champion = self._duel(challenger, champion, settings)
        return champion

    def _finish(
        self, champion: Bound, timings: tuple[Timing, ...], examination: Examination, finished: bool
    ) -> Result:
        study = self.study
        comparison = compare_interleaved(timings, study.settings.seed)
        result = self._result(champion, timings, comparison, finished)
        result = replace(
            result, examined=examination.passed, not_examined=dict(examination.skipped)
        )
        study.confirm(champion.candidate, timings)
        study.ledger.add_event("result", result.to_json())
        self.observer(Progress(
            phase="done", candidates=result.candidates, statuses=result.statuses,
            best_speedup=result.speedup,
            best_us=geometric_mean([w.time_us for w in result.workloads]),
            best_variant=result.variant_name, sol_fraction=result.sol_fraction,
            elapsed_s=result.seconds, message="confirmed in a fresh process",
        ))  # fmt: skip
        return result

    def _duel(self, challenger: Bound, champion: Bound, settings: TimingSettings) -> Bound:
        if challenger.binary.key == champion.binary.key:
            return champion
        try:
            timings = self.evaluator.measure_surely(challenger, champion, settings)
        except CandidateError as error:
            self.study.strike(challenger.candidate, error)
            return champion
        faster = compare_interleaved(timings).verdict is Verdict.FASTER
        return challenger if faster else champion

    def _result(
        self, bound: Bound, timings: tuple[Timing, ...], comparison: Comparison, finished: bool
    ) -> Result:
        study = self.study
        rows = []
        for timing in timings:
            one = compare_interleaved([timing], study.settings.seed)
            ordered = sorted(timing.incumbent_us)
            base = ordered[len(ordered) // 2]
            rows.append(WorkloadResult(
                timing.workload, timing.median_us, base, one.ratio, one.low, one.high,
                timing.sol_us / timing.median_us if timing.sol_us else None,
                timing.end_to_end_us,
            ))  # fmt: skip
        fractions = [r.sol_fraction for r in rows if r.sol_fraction]
        stored = study.archive.find(bound.candidate)
        record = study.archive.variant(bound.candidate.variant)
        return Result(
            operator=study.operator.name, target=study.settings.target,
            dtype=study.settings.dtype, device=study.device.name,
            variant=bound.candidate.variant, variant_name=record.name,
            params=bound.candidate.values, speedup=comparison.ratio, low=comparison.low,
            high=comparison.high, workloads=tuple(rows), cache=study.settings.timing.cache,
            sol_fraction=geometric_mean(fractions) if len(fractions) == len(rows) else None,
            candidates=study.archive.count(), statuses=study.archive.statuses(),
            verified=stored.verified if stored is not None else (),
            seconds=time.perf_counter() - self._started, folder=str(study.folder),
            finished=finished, settings=study.key, created=time.time(),
        )  # fmt: skip

    # --- telling -----------------------------------------------------------------------------

    def _spent(self) -> int:
        return self.study.archive.count()

    def _since_best(self) -> int:
        return self.study.archive.since_best()

    def _note(self, evaluation: Evaluation | None, work: Work) -> None:
        if evaluation is not None and evaluation.ok:
            self._schedule.fresh()
        self._tell(evaluation, "", work=work)

    def _tell(self, evaluation: Evaluation | None, message: str, work: Work | None = None) -> None:
        archive = self.study.archive
        best = archive.best()
        elapsed = time.perf_counter() - self._started
        fraction = None
        if best is not None and all(t.sol_us for t in best.timings):
            fraction = geometric_mean([t.sol_us / t.median_us for t in best.timings if t.sol_us])
        self.observer(Progress(
            phase=self._phase, candidates=archive.count(), statuses=archive.statuses(),
            best_speedup=self.study.objective(best) if best is not None else None,
            best_us=self.study.best_us(),
            best_variant=archive.variant(best.candidate.variant).name if best is not None else "",
            sol_fraction=fraction, elapsed_s=elapsed,
            per_minute=60.0 * self._done_here / elapsed if elapsed > 0 else 0.0,
            budget=self._budget.left(archive.count()) if self._budget is not None else "",
            since_best=archive.since_best(), latest=evaluation,
            latest_variant=archive.variant(work.candidate.variant).name if work else "",
            message=message,
        ))  # fmt: skip


def confirmation_settings(timing: TimingSettings) -> TimingSettings:
    """Return how carefully a claim is timed, given how carefully a search times."""
    return replace(
        timing, min_samples=max(timing.min_samples, CONFIRM_SAMPLES),
        max_samples=max(timing.max_samples, 2 * CONFIRM_SAMPLES),
        budget_s=2 * timing.budget_s, give_up_ratio=float("inf"),
    )  # fmt: skip


def judge(
    operator: Operator, variant: Variant, params: Params, dtype: str,
    workloads: Sequence[Workload], equipment: Equipment, timing: TimingSettings | None = None,
    *, examine: bool = False,
) -> Evaluation:  # fmt: skip
    """Take one candidate down the whole path, without a study.

    With no ``timing`` a few samples are taken: the verdict is what is wanted. With ``examine`` it
    is examined like an elite, and its evidence has ``examined``: what it passed.
    """
    settings = timing or TimingSettings(min_samples=2, max_samples=4, budget_s=0.2)
    store = CaseStore()
    try:
        evaluator = Evaluator(
            operator, dtype, workloads, equipment.device, equipment.runner, store, settings
        )
        evaluator.deadlines = Deadlines(first_s=JUDGE_FIRST_S)
        try:
            job = evaluator.admit(variant, params)
        except RejectedError as error:
            return Evaluation(
                variant.candidate(params, dtype), error.status, str(error), error.evidence
            )
        evaluation, bound = evaluator.evaluate(variant, params, equipment.pool.submit(job))
        if not (examine and evaluation.ok and bound is not None):
            return evaluation
        try:
            examination = examine_elite(evaluator, bound, equipment.target, IsolatedRunner)
        except CandidateError as error:
            evidence = {"stage": "examine", **error.evidence}
            return replace(
                evaluation, status=error.status, message=str(error), evidence=evidence, timings=()
            )
        return replace(evaluation, evidence={**evaluation.evidence, "examined": {
            "passed": list(examination.passed), "skipped": dict(examination.skipped),
            "cases": examination.cases,
        }})  # fmt: skip
    finally:
        store.close()
