"""The straight path of one candidate: compile, verify, measure. The one catcher of its failures.

Whatever a candidate does wrong becomes an ``Evaluation`` with a status and evidence. What is not
its fault (``WorkerError``) is tried again, and then recorded as an infrastructure error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kernelsearch.cases import Case, CaseStore, Stage, timing_cases, verification_cases
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    CheatedError,
    RejectedError,
    WorkerError,
    WrongResultError,
)
from kernelsearch.measure import compare_interleaved
from kernelsearch.operator import Operator, Workload
from kernelsearch.protocols import Runner
from kernelsearch.records import (
    Binary,
    Candidate,
    CompileJob,
    Contender,
    Device,
    Evaluation,
    KernelFacts,
    KernelStep,
    LaunchPlan,
    Params,
    Status,
    TimeReport,
    TimeRequest,
    Timing,
    TimingSettings,
    Verdict,
    digest,
)
from kernelsearch.sol import floor_us, sol_us
from kernelsearch.variant import Variant
from kernelsearch.verify import VerifyReport, check_capture, plan_maker, verify

Answer = TypeVar("Answer")

ATTEMPTS = 3
# A worker that somebody else may have killed (an operator, the kernel short of memory) is no proof
# against the candidate that ran in it; so many such deaths in a row are.
OUTSIDE_CAUSES = frozenset({"SIGKILL", "SIGTERM", "SIGHUP", "SIGINT"})
DEATHS = 5
# Sinks of timed calls; verification uses the slots below.
CAPTURE_SLOT = 8
LOAD_DEADLINE_S = 60.0
# Times between the floor and this fraction of speed of light are taken again before they count.
SUSPICIOUS = 0.97


@dataclass(frozen=True)
class Bound:
    """A candidate with its binary and a launch plan for each workload: ready to run."""

    variant: Variant
    candidate: Candidate
    binary: Binary
    plans: Mapping[str, LaunchPlan] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """Hash of machine code and launch plans: equal identities are one candidate."""
        names = {name: f"kernel{i}" for i, name in enumerate(self.binary.symbols)}
        plans = {key: _renamed(plan, names) for key, plan in self.plans.items()}
        return digest(self.binary.code_hash, repr(sorted(plans.items())))


def _renamed(plan: LaunchPlan, names: Mapping[str, str]) -> LaunchPlan:
    """Return the plan with kernels called by their place, as names differ where code does not."""
    steps = tuple(
        replace(s, kernel=names[s.kernel]) if isinstance(s, KernelStep) else s for s in plan.steps
    )
    return replace(plan, steps=steps)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds a stage may take before the worker is killed; the volume of data extends them."""

    run_s: float = 10.0
    time_s: float = 20.0
    # Where nothing is known yet (the baseline: it may be slow, and is no stranger).
    first_s: float = 120.0
    bytes_per_s: float = 2e8


class Evaluator:
    """Evaluates candidates of one operator on one device.

    Args:
        operator / dtype / workloads: what is computed; the tuned workloads.
        device: facts and ceilings.
        runner: where candidates run.
        cases: inputs and references.
        timing: how carefully to time.
        settings_key: identity of the settings, stored with every evaluation.
        seed: of the timing order.
    """

    def __init__(
        self, operator: Operator, dtype: str, workloads: Sequence[Workload], device: Device,
        runner: Runner, cases: CaseStore, timing: TimingSettings, settings_key: str = "",
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.operator, self.dtype, self.workloads = operator, dtype, tuple(workloads)
        self.device, self.runner, self.cases = device, runner, cases
        self.timing, self.settings_key, self.seed = timing, settings_key, seed
        self.deadlines = Deadlines()
        stages = verification_cases(operator, dtype, self.workloads, device.target, seed)
        # The tuned sizes are the dear ones: timed calls are checked there anyway, and whoever wins
        # is verified on them in full before it counts.
        self.first_stages = tuple(s for s in stages if s.name != "tuned")
        self.last_stages = tuple(s for s in stages if s.name == "tuned")

    # --- before the device -------------------------------------------------------------------

    def admit(self, variant: Variant, params: Params) -> CompileJob:
        """Check what can be checked without a compiler and return the compile job.

        Raises:
            RejectedError: a tunable or constraint is violated, or the element type, architecture
                or a tuned workload is outside what the variant supports.
        """
        variant.check_params(params)
        broken = variant.violated(params, self.device.facts, self.dtype)
        if broken is not None:
            raise RejectedError(
                f"constraint {broken} ({variant.constraints[broken].text}) does not hold",
                {"constraint": broken, "params": dict(params)},
            )
        if self.dtype not in variant.dtypes:
            raise RejectedError(
                f"the variant supports {', '.join(variant.dtypes)} (asked for {self.dtype})"
            )
        if variant.arch and not arch_covers(self.device.arch, variant.arch):
            raise RejectedError(
                f"the variant requires {variant.arch}, the device is {self.device.arch}"
            )
        for workload in self.workloads:
            missed = variant.applies(params, workload.sizes, self.device.facts, self.dtype)
            if missed is not None:
                raise RejectedError(
                    f"the variant's domain excludes workload {workload.key}: "
                    f"{variant.domain[missed].text} does not hold",
                    {"domain": missed, "workload": workload.key},
                )
        return variant.compile_job(params, self.dtype, self.device.arch, self.operator)

    def bind(self, variant: Variant, params: Params, binary: Binary) -> Bound:
        """Return the candidate with its launch plans for the tuned workloads.

        Raises:
            WrongResultError: a plan launches nothing where there is something to write.
        """
        plans = {w.key: self.plan(variant, params, w.sizes) for w in self.workloads}
        for workload in self.workloads:
            outputs = (t.concrete_shape(workload.sizes) for t in self.operator.outputs)
            if not plans[workload.key].steps and any(0 not in shape for shape in outputs):
                raise WrongResultError(
                    f"the launch plan has no step on {workload.key}: nothing would be written",
                    {"workload": workload.key, "steps": 0},
                )
        return Bound(variant, variant.candidate(params, self.dtype), binary, plans)

    def plan(self, variant: Variant, params: Params, sizes: Mapping[str, int]) -> LaunchPlan:
        return variant.plan(
            params, sizes, self.operator.scalar_values(), self.device.facts, self.dtype
        )

    # --- the path ----------------------------------------------------------------------------

    def evaluate(
        self, variant: Variant, params: Params, binary: Future[Binary] | Binary,
        incumbent: Bound | None = None,
    ) -> tuple[Evaluation, Bound | None]:  # fmt: skip
        """Take one candidate down the path. Never raises for what the candidate does.

        Returns:
            The evaluation, and the bound candidate where it compiled.
        """
        candidate = variant.candidate(params, self.dtype)
        problem: WorkerError | None = None
        failures = deaths = 0
        while failures < ATTEMPTS:
            run = _Path(self, variant, params, candidate, incumbent)
            try:
                return run.follow(binary), run.bound
            except CandidateCrashedError as error:
                deaths += 1
                outside = error.evidence.get("cause") in OUTSIDE_CAUSES and run.bound is not None
                if not outside or deaths >= DEATHS:
                    return run.failed(error), run.bound
            except CandidateError as error:
                return run.failed(error), run.bound
            except WorkerError as error:
                problem = error
                failures += 1
                self.runner.restart()
        evaluation = Evaluation(
            candidate, Status.INFRASTRUCTURE_ERROR, message=str(problem),
            evidence={"attempts": ATTEMPTS}, device=self.device.key, settings=self.settings_key,
            created=time.time(),
        )  # fmt: skip
        return evaluation, None

    def measure(
        self, bound: Bound, incumbent: Bound | None, timing: TimingSettings | None = None,
        seed: int | None = None,
    ) -> tuple[Timing, ...]:  # fmt: skip
        """Time a bound candidate on every tuned workload, outputs of timed calls verified.

        Raises:
            CheatedError: faster than the floor, or it touched what it must not.
            WrongResultError: an output of a timed call is wrong.
        """
        settings = timing or self.timing
        return tuple(
            self._measure_one(bound, incumbent, w, settings, self.seed if seed is None else seed)
            for w in self.workloads
        )

    def measure_surely(
        self, bound: Bound, incumbent: Bound | None, timing: TimingSettings,
        seed: int | None = None,
    ) -> tuple[Timing, ...]:  # fmt: skip
        """Like ``measure``, but tried again when the worker dies by somebody else's hand."""
        return self.surely(lambda: self.measure(bound, incumbent, timing, seed))

    def surely(self, step: Callable[[], Answer]) -> Answer:
        """Do a step, again when the worker dies by somebody else's hand or fails.

        Raises:
            CandidateError: the candidate's own failure.
            WorkerError: it failed every time.
        """
        for _ in range(DEATHS - 1):
            try:
                return step()
            except CandidateCrashedError as error:
                if error.evidence.get("cause") not in OUTSIDE_CAUSES:
                    raise
            except WorkerError:
                self.runner.restart()
        return step()

    def _measure_one(
        self, bound: Bound, incumbent: Bound | None, workload: Workload,
        settings: TimingSettings, seed: int,
    ) -> Timing:  # fmt: skip
        floor = floor_us(self.operator, workload, self.dtype, self.device, settings.cache)
        light = sol_us(self.operator, workload, self.dtype, self.device)
        report = self._time(bound, incumbent, workload, settings, seed)
        timing = _timing(workload, report, light, floor)
        if light is not None and timing.median_us < SUSPICIOUS * light:
            # Better than speed of light: taken again on other inputs before it is believed.
            report = self._time(bound, incumbent, workload, settings, seed + 1)
            timing = _timing(workload, report, light, floor)
        if floor is not None and timing.median_us < floor:
            raise CheatedError(
                f"{timing.median_us:.3f} us on {workload.key} is below the floor of {floor:.3f} us "
                "(compulsory traffic at peak bandwidth, operations at peak rate)",
                {"workload": workload.key, "median_us": timing.median_us, "floor_us": floor},
            )
        return timing

    def _time(
        self, bound: Bound, incumbent: Bound | None, workload: Workload,
        settings: TimingSettings, seed: int,
    ) -> TimeReport:  # fmt: skip
        cases = [
            self.cases.case(self.operator, spec.workload, self.dtype, spec.seed)
            for spec in timing_cases(workload, self.seed)
        ]
        sinks = [self.cases.sink(cases[0], CAPTURE_SLOT + i) for i in range(settings.verify_calls)]
        for sink in sinks:
            sink.poison(cases[0].rows)
        contenders = [Contender(bound.binary.key, bound.plans[workload.key])]
        if incumbent is not None:
            contenders.append(Contender(incumbent.binary.key, incumbent.plans[workload.key]))
        spare = self.cases.sink(cases[0], CAPTURE_SLOT - 1)
        request = TimeRequest(
            contenders=tuple(contenders),
            sets=tuple(c.buffers(spare) for c in cases),
            captures=tuple(cases[0].buffers(s) for s in sinks), settings=settings, seed=seed,
            deterministic=self.operator.deterministic,
        )  # fmt: skip
        report = self.runner.time(request, self._time_deadline(cases[0], settings, incumbent))
        if len(report.captured_sets) != len(sinks) or any(
            not 0 <= i < len(cases) for i in report.captured_sets
        ):
            raise WorkerError(
                f"the worker captured sets {report.captured_sets} of {len(sinks)} timed calls on "
                f"{len(cases)} sets"
            )
        check_capture(cases, report, [s.arrays for s in sinks])
        return report

    def _time_deadline(
        self, case: Case, settings: TimingSettings, incumbent: Bound | None
    ) -> float:
        data = 4 * case.nbytes / self.deadlines.bytes_per_s
        first = self.deadlines.first_s if incumbent is None else 0.0
        return self.deadlines.time_s + 4 * settings.budget_s + data + first

    def verify(
        self, variant: Variant, params: Params, binary: Binary, stages: Sequence[Stage],
        *, first: bool = False,
    ) -> VerifyReport:  # fmt: skip
        """Take a loaded binary through verification stages.

        Args:
            variant: what is verified.
            params: its params.
            binary: loaded on the runner.
            stages: which cases.
            first: nothing has been measured yet, so that deadlines are long.
        """
        make = plan_maker(variant, params, self.operator, self.device.facts, self.dtype)
        most = max((_data_bytes(self.operator, spec.workload, self.dtype)
                    for stage in stages for spec in stage.specs), default=0)  # fmt: skip
        deadline = self.deadlines.run_s + most / self.deadlines.bytes_per_s
        deadline += self.deadlines.first_s if first else 0.0
        return verify(
            self.runner, binary.key, make, stages, self.operator, self.dtype, self.cases, deadline
        )


def _data_bytes(operator: Operator, workload: Workload, dtype: str) -> float:
    return operator.cost(workload, dtype)[1]


class _Path:
    """One walk down the path: what it has so far, so that a failure can be reported in full."""

    def __init__(
        self, owner: Evaluator, variant: Variant, params: Params, candidate: Candidate,
        incumbent: Bound | None,
    ) -> None:  # fmt: skip
        self.owner, self.variant, self.params = owner, variant, params
        self.candidate, self.incumbent = candidate, incumbent
        self.bound: Bound | None = None
        self.stages: dict[str, float] = {}
        self.verified: tuple[str, ...] = ()
        self.outside: tuple[str, ...] = ()
        self._stage = "compile"
        self._since = time.perf_counter()

    def follow(self, binary: Future[Binary] | Binary) -> Evaluation:
        owner = self.owner
        compiled = binary.result() if isinstance(binary, Future) else binary
        self.bound = owner.bind(self.variant, self.params, compiled)
        self.stages["compile_cpu"] = compiled.compile_s
        self._next("verify")
        owner.runner.load(compiled, LOAD_DEADLINE_S)
        self._verify(compiled, owner.first_stages)
        self._next("measure")
        timings = owner.measure(self.bound, self.incumbent)
        # A domain that leaves out every held-out size must at least be right where it is tuned.
        if not self.verified or self._wins(timings):
            self._next("verify_winner")
            self._verify(compiled, owner.last_stages)
        self._next("done")
        evidence = {"outside_domain": list(self.outside)} if self.outside else {}
        return self._evaluation(Status.OK, "", evidence, timings)

    def _verify(self, binary: Binary, stages: Sequence[Stage]) -> None:
        report = self.owner.verify(
            self.variant, self.params, binary, stages, first=self.incumbent is None
        )
        self.verified = (*self.verified, *report.verified)
        self.outside = (*self.outside, *report.outside)

    def _wins(self, timings: tuple[Timing, ...]) -> bool:
        if self.incumbent is None:
            return True
        return compare_interleaved(timings).verdict is Verdict.FASTER

    def failed(self, error: CandidateError) -> Evaluation:
        stage = self._stage
        self._next("done")
        return self._evaluation(error.status, str(error), {"stage": stage, **error.evidence}, ())

    def _next(self, stage: str) -> None:
        now = time.perf_counter()
        self.stages[self._stage] = now - self._since
        self._stage, self._since = stage, now

    def _evaluation(
        self, status: Status, message: str, evidence: Mapping[str, object],
        timings: tuple[Timing, ...],
    ) -> Evaluation:  # fmt: skip
        facts: tuple[KernelFacts, ...] = ()
        code_hash = ""
        if self.bound is not None:
            facts, code_hash = self.bound.binary.facts, self.bound.identity
        return Evaluation(
            self.candidate, status, message, dict(evidence), timings, facts, code_hash,
            dict(self.stages), self.verified, False, self.owner.device.key,
            self.owner.settings_key, time.time(),
        )  # fmt: skip


def _timing(
    workload: Workload, report: TimeReport, light: float | None, floor: float | None
) -> Timing:
    return Timing(
        workload=workload.key, samples_us=report.samples_us[0],
        incumbent_us=report.samples_us[1] if len(report.samples_us) > 1 else (),
        end_to_end_us=report.end_to_end_us[0] if report.end_to_end_us else None,
        sol_us=light, floor_us=floor, cache=report.cache,
        conditions={**report.conditions, "calls_per_sample": report.calls_per_sample},
    )  # fmt: skip


def arch_covers(device: str, required: str) -> bool:
    """Return whether a device of architecture ``device`` can run code for ``required``."""
    if required[-1] in "af":
        return device.rstrip("af") == required.rstrip("af")
    return int(device.removeprefix("sm_").rstrip("af")) >= int(required.removeprefix("sm_"))
