"""Take a study's claims up again from scratch: verify and time its elites in fresh processes.

Nothing is believed that the study holds but the sources and what it claims of them. Every elite is
compiled anew, verified on inputs that were drawn after it was written, examined like a winner, and
timed in turn with the baseline in a worker that has run nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kernelsearch.cases import CaseStore
from kernelsearch.elite import examine_elite
from kernelsearch.errors import (
    CandidateError,
    RejectedError,
    StudyError,
    TargetUnavailableError,
)
from kernelsearch.evaluate import LOAD_DEADLINE_S, Bound, Evaluator
from kernelsearch.measure import Comparison, compare_interleaved, compare_timings
from kernelsearch.operator import Operator
from kernelsearch.records import Evaluation, ParamValue, Status, Verdict
from kernelsearch.session import Equipment, confirmation_settings
from kernelsearch.study import StoredStudy, baseline_variant
from kernelsearch.worker import IsolatedRunner

# A comparison that a neighbour has disturbed is taken again, this often in all.
ATTEMPTS = 2


class ClaimVerdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNSTABLE = "unstable"
    WRONG = "fails verification"


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One claim and what was found.

    Args:
        variant / name / params / dtype: the candidate.
        winner: it is what the study names as its result.
        claimed / claimed_low: the speed-up over the baseline that the study's samples say, and the
            lower end of its 95 % interval; geometric mean over the workloads.
        measured / low / high: the same, measured now (None where it was not timed).
        cases: how many cases it was verified on now.
        verdict: see ``ClaimVerdict``. A claim holds if the measured interval reaches the claimed
            one; more than was claimed is no fault.
        message: why it does not hold.
    """

    variant: str
    name: str
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    dtype: str = ""
    winner: bool = False
    claimed: float = 1.0
    claimed_low: float = 1.0
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    cases: int = 0
    verdict: ClaimVerdict = ClaimVerdict.HOLDS
    message: str = ""


def judge_claim(claimed_low: float, found: Comparison) -> ClaimVerdict:
    """Return what a fresh comparison says of a claimed speed-up.

    Args:
        claimed_low: the lower end of the claim's interval.
        found: the candidate against the baseline, measured now.
    """
    if found.low >= claimed_low:
        return ClaimVerdict.HOLDS
    if found.verdict is Verdict.UNSTABLE:
        return ClaimVerdict.UNSTABLE
    return ClaimVerdict.HOLDS if found.high >= claimed_low else ClaimVerdict.FAILS


def audit_study(
    stored: StoredStudy, operator: Operator, equipment: Equipment, top: int,
    told: Callable[[AuditRow], None] = lambda row: None,
) -> list[AuditRow]:  # fmt: skip
    """Return a row for the baseline, the claimed winner and the ``top`` best variants.

    Args:
        stored: the study; it is not changed.
        operator: its operator.
        equipment: of the device that the study was made on.
        top: how many of the best variants are audited beside the winner.
        told: is called with each row as it is there.

    Raises:
        StudyError: the study is of another device or operator contract, or has nothing to audit.
        TargetUnavailableError: the worker fails and no candidate is to blame.
    """
    stored.check_same(operator, equipment.device)
    audit = _Audit(stored, operator, equipment)
    try:
        rows = []
        for number, (row, evaluation) in enumerate(audit.claims(top)):
            rows.append(audit.take_up(row, evaluation, first=number == 0))
            told(rows[-1])
        return rows
    finally:
        audit.cases.close()


class _Audit:
    """One audit: an evaluator with a seed nobody knew, and the baseline once it has passed."""

    def __init__(self, stored: StoredStudy, operator: Operator, equipment: Equipment) -> None:
        self.stored, self.equipment = stored, equipment
        settings = stored.settings
        self.cases = CaseStore()
        self.evaluator = Evaluator(
            operator, settings.dtype, settings.workloads, equipment.device, equipment.runner,
            self.cases, settings.timing, seed=2 * secrets.randbits(20),
        )  # fmt: skip
        self.timing = confirmation_settings(settings.timing)
        self.baseline: Bound | None = None

    def claims(self, top: int) -> list[tuple[AuditRow, Evaluation]]:
        """Return what the study claims: the baseline first, then the winner, then by speed-up."""
        archive = self.stored.archive
        record = baseline_variant(archive)
        base = archive.best_of(record.hash) if record is not None else None
        if base is None:
            raise StudyError(
                f"the study in {self.stored.folder} has no right baseline yet: it claims nothing; "
                f"run: kernelsearch resume {self.stored.folder}"
            )
        found = [(self._row(base), base)]
        result = self.stored.result()
        if result is not None:
            candidates = archive.evaluations_of(result.variant)
            for evaluation in candidates:
                if evaluation.candidate.values == dict(result.params):
                    row = replace(self._row(evaluation), winner=True, claimed=result.speedup,
                                  claimed_low=result.low)  # fmt: skip
                    found.append((row, evaluation))
        taken = {e.candidate for _, e in found}
        for evaluation in archive.elites(top):
            if evaluation.candidate not in taken:
                claim = compare_timings(evaluation.timings, base.timings)
                row = replace(self._row(evaluation), claimed=claim.ratio, claimed_low=claim.low)
                found.append((row, evaluation))
        return found

    def _row(self, evaluation: Evaluation) -> AuditRow:
        candidate = evaluation.candidate
        name = self.stored.archive.variant(candidate.variant).name
        return AuditRow(candidate.variant, name, candidate.values, candidate.dtype)

    def take_up(self, row: AuditRow, claimed: Evaluation, *, first: bool) -> AuditRow:
        """Verify and time one claim; the first one is the baseline."""
        self.equipment.runner.restart()
        try:
            bound, cases = self._verified(claimed)
        except CandidateError as error:
            return replace(row, verdict=ClaimVerdict.WRONG, message=f"{error.status}: {error}")
        row = replace(row, cases=cases)
        if first:
            self.baseline = bound
            return replace(row, measured=1.0, low=1.0, high=1.0)
        if self.baseline is None:
            why = "there is no right baseline to compare with"
            return replace(row, verdict=ClaimVerdict.FAILS, message=why)
        if bound.candidate == self.baseline.candidate:
            one = Comparison(1.0, 1.0, 1.0, Verdict.TIE)
            return _compared(row, one)
        for _ in range(ATTEMPTS):
            try:
                row = _compared(row, self._timed(bound, self.baseline))
            except CandidateError as error:
                return replace(row, verdict=ClaimVerdict.WRONG, message=f"{error.status}: {error}")
            if row.verdict is not ClaimVerdict.UNSTABLE:
                break
        return row

    def _verified(self, claimed: Evaluation) -> tuple[Bound, int]:
        """Compile, verify and examine a candidate; return it with the number of cases passed."""
        evaluator, params = self.evaluator, claimed.candidate.values
        variant = self.stored.variant(claimed.candidate.variant)
        if variant.hash != claimed.candidate.variant:
            raise RejectedError(
                f"the stored source has hash {variant.hash}, not {claimed.candidate.variant}"
            )
        job = evaluator.admit(variant, params)
        evaluation, bound = evaluator.evaluate(variant, params, self.equipment.pool.submit(job))
        if evaluation.status is Status.INFRASTRUCTURE_ERROR:
            raise TargetUnavailableError(
                f"the worker failed repeatedly and no candidate is to blame: {evaluation.message}; "
                "audit again"
            )
        if not evaluation.ok or bound is None:
            error = CandidateError(evaluation.message, evaluation.evidence)
            error.status = evaluation.status
            raise error
        examination = examine_elite(evaluator, bound, self.equipment.target, IsolatedRunner)
        return bound, len(evaluation.verified) + examination.cases

    def _timed(self, bound: Bound, baseline: Bound) -> Comparison:
        """Time a candidate in turn with the baseline, in a worker that has run nothing else."""
        runner = self.equipment.runner
        runner.restart()
        for each in (baseline, bound):
            binary = each.binary
            self.evaluator.surely(lambda b=binary: runner.load(b, LOAD_DEADLINE_S))  # type: ignore[misc]
        timings = self.evaluator.measure_surely(
            bound, baseline, self.timing, seed=secrets.randbits(31)
        )
        return compare_interleaved(timings)


def _compared(row: AuditRow, found: Comparison) -> AuditRow:
    verdict = judge_claim(row.claimed_low, found)
    message = ""
    if verdict is ClaimVerdict.FAILS:
        message = f"at most {found.high:.3f} was measured, at least {row.claimed_low:.3f} claimed"
    elif verdict is ClaimVerdict.UNSTABLE:
        message = "the samples scatter too much to say; audit again on a calmer machine"
    return replace(row, measured=found.ratio, low=found.low, high=found.high, verdict=verdict,
                   message=message)  # fmt: skip


def all_hold(rows: Sequence[AuditRow]) -> bool:
    """Tell whether every claim holds."""
    return all(r.verdict is ClaimVerdict.HOLDS for r in rows)
