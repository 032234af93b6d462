"""Decide whether a candidate computes what its operator says. The verdict is made in this process.

A worker only runs the candidate; what comes back is compared here, on poison, guards, inputs, bound
and repetition. A failure is raised as the ``CandidateError`` that names it, with its evidence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernelsearch.cases import (
    Case,
    CaseSpec,
    CaseStore,
    Expected,
    Sink,
    Stage,
    alignments,
    elements,
    varied_scalars,
)
from kernelsearch.errors import (
    CandidateError,
    CheatedError,
    NondeterministicError,
    OperatorError,
    WrongResultError,
)
from kernelsearch.operator import Operator, Workload
from kernelsearch.protocols import Runner
from kernelsearch.records import LaunchPlan, Params, RunReport, RunRequest, TimeReport
from kernelsearch.variant import Variant
from kernelsearch.verify_bound import is_float

# As float32: a NaN, and 1.5e16: no honest sum or copy hides either of them.
POISONS = (0xFF, 0x5A)
_BLOCK = 1 << 20
_PIECE = 1 << 15
_RECHECKED_ROWS = 8
# Probes look at a workload of about this size, to meet the growth of the bound with size.
_PROBE_ELEMENTS = 1 << 24


class PlanMaker(Protocol):
    """Binds a plan to a workload, an alignment and scalars (None: the operator's defaults)."""

    def __call__(
        self, workload: Workload, alignment: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> LaunchPlan | None: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a candidate has passed.

    Args:
        verified: keys of the cases that passed.
        outside: keys of the workloads the variant's domain leaves out.
        max_ratio: largest error as a fraction of its bound.
        seconds: wall clock.
    """

    verified: tuple[str, ...]
    outside: tuple[str, ...]
    max_ratio: float
    seconds: float


def plan_maker(
    variant: Variant, params: Params, operator: Operator, facts: Mapping[str, int], dtype: str
) -> PlanMaker:
    """Return a function that binds the variant's plan to a workload: None outside its domain."""
    defaults = operator.scalar_values()

    def make(
        workload: Workload, alignment: Mapping[str, int],
        scalars: Mapping[str, float] | None = None,
    ) -> LaunchPlan | None:  # fmt: skip
        if variant.applies(params, workload.sizes, facts, dtype, alignment) is not None:
            return None
        return variant.plan(params, workload.sizes, scalars or defaults, facts, dtype)

    return make


def verify(
    runner: Runner,
    binary: str,
    make_plan: PlanMaker,
    stages: Sequence[Stage],
    operator: Operator,
    dtype: str,
    store: CaseStore,
    deadline_s: float = 20.0,
) -> VerifyReport:
    """Run a loaded binary through all stages.

    Args:
        runner: runs the candidate, usually in another process.
        binary: key of the loaded binary.
        make_plan: see ``plan_maker``.
        stages: from ``verification_cases``.
        operator: the contract.
        dtype: element type.
        store: holds the cases and sinks (slots 0 and 1 are used).
        deadline_s: for each run.

    Raises:
        WrongResultError: an output is outside its bound, or depends on old memory contents.
        NondeterministicError: two runs differ and the operator does not allow it.
        CheatedError: guards or inputs were written to.
        CandidateError: whatever the runner raises, with the workload added to its evidence.
    """
    started = time.perf_counter()
    passed: list[str] = []
    outside: list[str] = []
    worst = 0.0
    shifted = alignments(operator, dtype)
    for stage in stages:
        for index, spec in enumerate(stage.specs):
            scalars = varied_scalars(operator, spec.seed) if spec.vary_scalars else None
            bound_plan = _first_in_domain(
                make_plan, spec, shifted if spec.misaligned else {}, scalars
            )
            if bound_plan is None:
                outside.append(_name(spec.workload.key, spec))
                continue
            workload, plan = bound_plan
            case = store.case(operator, workload, dtype, spec.seed, vary_scalars=spec.vary_scalars)
            trial = _Trial(
                runner, binary, plan, case, store, spec.misaligned, deadline_s, spec.schedule
            )
            worst = max(worst, _check_case(trial, spec, index))
            passed.append(_name(case.key, spec))
    return VerifyReport(
        tuple(dict.fromkeys(passed)), tuple(outside), worst, time.perf_counter() - started
    )


def _name(key: str, spec: CaseSpec) -> str:
    marks = ("misaligned" if spec.misaligned else "", "scalars" if spec.vary_scalars else "",
             spec.schedule)  # fmt: skip
    return "+".join((key, *filter(None, marks)))


def _first_in_domain(
    make_plan: PlanMaker,
    spec: CaseSpec,
    alignment: Mapping[str, int],
    scalars: Mapping[str, float] | None,
) -> tuple[Workload, LaunchPlan] | None:
    for workload in spec.choices:
        plan = make_plan(workload, alignment, scalars)
        if plan is not None:
            return workload, plan
    return None


@dataclass(frozen=True, slots=True)
class _Trial:
    """One plan on one case, ready to be run several times."""

    runner: Runner
    binary: str
    plan: LaunchPlan
    case: Case
    store: CaseStore
    misaligned: bool
    deadline_s: float
    schedule: str = ""

    def run(self, slot: int, poison: int, *, bounds_checked: bool = False) -> Sink:
        """Run once and return the sink that holds the outputs."""
        case = self.case
        sink = self.store.sink(case, slot)
        sink.poison(case.rows)
        request = RunRequest(
            binary=self.binary,
            plan=self.plan,
            buffers=case.buffers(sink, misaligned=self.misaligned),
            poison=poison,
            bounds_checked=bounds_checked,
            schedule=self.schedule,
        )
        try:
            report = self.runner.run(request, self.deadline_s)
            check_report(report, case)
        except CandidateError as error:
            self.explain(error, poison)
            raise
        return sink

    def check(self, sink: Sink, poison: int) -> float:
        try:
            return check_outputs(self.case, sink.arrays)
        except WrongResultError as error:
            self.explain(error, poison)
            raise

    def explain(self, error: CandidateError, poison: int) -> None:
        """Add to a failure's evidence what was run."""
        case = self.case
        facts = {
            "workload": case.workload.key, "distribution": case.workload.distribution,
            "seed": case.seed, "dtype": case.dtype, "poison": f"0x{poison:02X}",
            "misaligned": self.misaligned, "scalars": case.scalars,
        }  # fmt: skip
        if self.schedule:
            facts["schedule"] = self.schedule
        for name, value in facts.items():
            error.evidence.setdefault(name, value)


def _check_case(trial: _Trial, spec: CaseSpec, index: int) -> float:
    if spec.bounds_checked:
        trial.run(0, POISONS[0], bounds_checked=True)
    poison = POISONS[0] if spec.repeat else POISONS[index % 2]
    first = trial.run(0, poison)
    worst = trial.check(first, poison)
    if not spec.repeat:
        return worst
    second = trial.run(1, POISONS[1])
    difference = _difference(first, second)
    if difference is None:
        return worst
    worst = max(worst, trial.check(second, POISONS[1]))
    if trial.case.operator.deterministic:
        _blame(trial, first, difference)
    return worst


def _blame(trial: _Trial, first: Sink, difference: dict[str, object]) -> None:
    """Raise for two results that differ: a third run tells stale memory from chance."""
    third = trial.run(1, POISONS[0])
    error: CandidateError
    if _difference(first, third) is None:
        error = WrongResultError(
            f"{difference['output']} depends on what was in memory before the call "
            f"(workload {trial.case.workload.key}, {difference['differing']} elements)",
            {**difference, "poison_dependent": True},
        )
    else:
        error = NondeterministicError(
            f"{difference['output']} differs between two runs on the same inputs "
            f"(workload {trial.case.workload.key}, {difference['differing']} elements)",
            difference,
        )
    trial.explain(error, POISONS[1])
    raise error


def _difference(first: Sink, second: Sink) -> dict[str, object] | None:
    """Return where two runs' outputs differ in their bits, or None. Two NaN count as equal."""
    for name, a in first.arrays.items():
        b = second.arrays[name]
        flat_a, flat_b = a.reshape(-1), b.reshape(-1)
        bits = np.dtype(f"u{a.dtype.itemsize}")
        count, where = 0, -1
        for start in range(0, flat_a.size, _BLOCK):
            part_a, part_b = flat_a[start : start + _BLOCK], flat_b[start : start + _BLOCK]
            unequal = part_a.view(bits) != part_b.view(bits)
            if not unequal.any():
                continue
            unequal &= ~((part_a != part_a) & (part_b != part_b))
            found = np.flatnonzero(unequal)
            if len(found):
                where = start + int(found[0]) if where < 0 else where
                count += len(found)
        if count:
            return {
                "output": name,
                "index": [int(i) for i in np.unravel_index(where, a.shape)],
                "first": _number(flat_a[where]),
                "second": _number(flat_b[where]),
                "differing": count,
            }
    return None


def check_report(report: RunReport | TimeReport, case: Case) -> None:
    """Raise ``CheatedError`` if the candidate wrote where it must not."""
    for what, kind, names in (
        ("wrote outside the bounds of", "guards", report.corrupted_guards),
        ("changed its input", "inputs", report.modified_inputs),
    ):
        if names:
            raise CheatedError(
                f"{what} {', '.join(names)} (workload {case.workload.key})",
                {kind: list(names), "workload": case.workload.key},
            )


def error_ratio(case: Case, outputs: Mapping[str, NDArray[Any]]) -> float:
    """Return the largest error as a fraction of its bound, whatever it is (vendor calls)."""
    try:
        return check_outputs(case, outputs)
    except WrongResultError as error:
        return float(str(error.evidence["max_ratio"]))


def check_capture(
    cases: Sequence[Case], report: TimeReport, captures: Sequence[Mapping[str, NDArray[Any]]]
) -> float:
    """Check the outputs that were captured from timed calls, and what the timed run touched.

    Args:
        cases: the timed input sets, in the order of ``TimeRequest.sets``.
        report: says which set each captured call used.
        captures: outputs by name of each captured call.

    Raises:
        WrongResultError: a timed call computed something else; evidence has ``timed_call``.
        CheatedError: guards or inputs were written to.
    """
    check_report(report, cases[0])
    worst = 0.0
    for call, (chosen, outputs) in enumerate(zip(report.captured_sets, captures, strict=True)):
        case = cases[chosen]
        try:
            worst = max(worst, check_outputs(case, outputs))
        except WrongResultError as error:
            error.evidence.update(timed_call=call, input_set=chosen, seed=case.seed)
            raise
    return worst


# --- comparison with the reference --------------------------------------------------------------


def check_outputs(case: Case, outputs: Mapping[str, NDArray[Any]]) -> float:
    """Compare outputs with the reference.

    Returns:
        The largest error as a fraction of its bound.

    Raises:
        WrongResultError: with index, expected, got, bound and how many elements are wrong.
    """
    worst = 0.0
    for name, expected in case.expected.items():
        worst = max(worst, _check_output(case, expected, outputs[name]))
        if expected.rows is not None:
            worst = max(worst, _check_unsampled(case, expected, outputs[name]))
    return worst


def _check_output(case: Case, expected: Expected, output: NDArray[Any]) -> float:
    got = output if expected.rows is None else output[expected.rows]
    if got.size == 0:
        return 0.0
    flat, value, allowed = got.reshape(-1), expected.value.reshape(-1), expected.bound.reshape(-1)
    # In pieces that stay in the cache: a large output costs as much as reading it.
    worst = 0.0
    for start in range(0, flat.size, _PIECE):
        piece = slice(start, start + _PIECE)
        ratios = _ratios(flat[piece], value[piece], allowed[piece], finite=expected.finite)
        worst = max(worst, float(ratios.max()))
    if worst <= 1.0:
        return worst
    raise _wrong(case, expected, got)


def _ratios(
    got: NDArray[Any],
    value: NDArray[np.float64],
    allowed: NDArray[np.float64],
    *,
    finite: bool,
) -> NDArray[np.float64]:
    """Return |got - value| / allowed; infinite where only one of the two is a finite number."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratios: NDArray[np.float64] = got.astype(np.float64)
        ratios -= value
        np.abs(ratios, out=ratios)
        right = ratios == 0
        ratios /= allowed
    unclear = np.isnan(ratios)
    if unclear.any():  # 0 / 0 where the result is exact, or NaN where it must be a number
        ratios[unclear] = np.where(right[unclear], 0.0, np.inf)
    if not finite:
        # Where the reference is not finite, only the same infinity, or NaN for NaN, is right.
        special = ~np.isfinite(value)
        have = got.astype(np.float64)
        same = (have == value) | (np.isnan(have) & np.isnan(value))
        ratios[special] = np.where(same[special], 0.0, np.inf)
    return ratios


def _wrong(case: Case, expected: Expected, got: NDArray[Any]) -> WrongResultError:
    ratios = _ratios(got, expected.value, expected.bound, finite=expected.finite)
    wrong = ratios > 1.0
    at = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    index = [int(i) for i in at]
    if expected.rows is not None:
        index[0] = int(expected.rows[index[0]])
    evidence: dict[str, object] = {
        "workload": case.workload.key,
        "distribution": case.workload.distribution,
        "output": expected.tensor.name,
        "index": index,
        "expected": _number(expected.value[at]),
        "got": _number(got[at]),
        "bound": _number(expected.bound[at]),
        "wrong": int(wrong.sum()),
        "checked": int(ratios.size),
        "max_ratio": _number(ratios[at]),
    }
    place = f"{expected.tensor.name}[{', '.join(map(str, index))}]"
    hint = ""
    if np.asarray(got[at]).tobytes() == b"\xff" * got.dtype.itemsize:
        evidence["unwritten"] = True
        hint = "; it looks never written"
    return WrongResultError(
        f"{place} is {evidence['got']}, must be {evidence['expected']} within {evidence['bound']} "
        f"(workload {case.workload.key}; {evidence['wrong']} of {evidence['checked']} checked "
        f"elements are wrong{hint})",
        evidence,
    )


def _check_unsampled(case: Case, expected: Expected, output: NDArray[Any]) -> float:
    """Scan all of a large output for non-finite values, and judge the rows that hold any."""
    if not is_float(expected.dtype):
        return 0.0
    rows = output.reshape(len(output), -1)
    step = max(1, _BLOCK // max(1, rows.shape[1]))
    suspects: list[int] = []
    for start in range(0, len(rows), step):
        finite = _finite(rows[start : start + step])
        if not finite.all():
            suspects += [start + int(r) for r in np.flatnonzero(~finite.all(axis=1))]
            if len(suspects) >= _RECHECKED_ROWS:
                break
    known = set() if expected.rows is None else set(expected.rows.tolist())
    picked = [r for r in suspects if r not in known][:_RECHECKED_ROWS]
    if not picked:
        return 0.0
    closer = case.expect(np.array(picked, dtype=np.int64))[expected.tensor.name]
    return _check_output(case, closer, output)


def _finite(part: NDArray[Any]) -> NDArray[np.bool_]:
    if part.dtype.itemsize == 2 and part.dtype.kind != "f":  # bfloat16: NumPy has no fast test
        exponent = np.uint16(0x7F80)
        special: NDArray[np.bool_] = (part.view(np.uint16) & exponent) == exponent
        return np.logical_not(special)
    return np.asarray(np.isfinite(part))


def _number(value: Any) -> float | str:
    """Return a JSON-able number: as text where it is not finite."""
    number = float(value)
    return number if math.isfinite(number) else str(number)


# --- does the tolerance reject what is plainly wrong --------------------------------------------


def probe_tolerance(operator: Operator, dtype: str, target: str) -> None:
    """Make sure that the operator's bound rejects plainly wrong outputs.

    Zeros, a constant, a copy of an input, neighbours swapped and a dropped tail are tried on
    default inputs, of a small and of a large size.

    Raises:
        OperatorError: the bound would accept one of them; names it.
    """
    for workload in _probe_workloads(operator, target):
        case = Case(operator, workload, dtype, seed=0)
        try:
            for name in case.expected:
                _probe(case, case.expected[name])
        finally:
            case.close()


def _probe_workloads(operator: Operator, target: str) -> list[Workload]:
    sets = {name.split("@")[0] for name in operator.workloads}
    known = [w for name in sorted(sets) for w in operator.workload_set(name, target)]
    fitting = [w for w in known if 64 <= elements(operator, w) <= _PROBE_ELEMENTS]
    fitting = [w for w in fitting if w.distribution == "default"]
    fitting.sort(key=lambda w: (elements(operator, w), w.key))
    return fitting[:1] + fitting[-1:]


def _probe(case: Case, expected: Expected) -> None:
    value = expected.value
    if value.size < 2 or np.all(value == value.flat[0]):
        return  # a constant answer cannot be told from these probes
    probes = {"all zeros": np.zeros_like(value), "a constant": np.full_like(value, value.mean())}
    probes["its neighbour's value"] = np.roll(value.reshape(-1), 1).reshape(value.shape)
    tail = value.copy()
    tail.flat[-1] = 0.0 if value.flat[-1] != 0 else 1.0
    probes["a dropped last element"] = tail
    for name, array in case.inputs.items():
        source = array if expected.rows is None or not array.ndim else array[: len(value)]
        if source.size == value.size:
            probes[f"a copy of {name}"] = source.reshape(value.shape).astype(np.float64)
    for probe, output in probes.items():
        if np.array_equal(output, value):
            continue
        ratios = _ratios(output, value, expected.bound, finite=expected.finite)
        if float(ratios.max()) <= 1.0:
            raise OperatorError(
                f"{case.operator.name}: error must reject {probe} as {expected.tensor.name!r} on "
                f"{case.workload.key} (its bound accepts it); lower ErrorModel.factor or terms, or "
                f"give a scale closer to the true error"
            )
