"""The front door: ``tune(op)`` searches, verifies and returns a tuned kernel one can call."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernelsearch.archive import Archive
from kernelsearch.errors import OperatorError, StudyError, UnknownNameError, WorkloadError
from kernelsearch.events import Observer
from kernelsearch.home import cache_folder, home, studies_folder
from kernelsearch.operator import Operator, Workload
from kernelsearch.operators_io import is_shipped, load_operator
from kernelsearch.propose.agent import LlmProposer, ModelOptions
from kernelsearch.propose.crossover import CrossoverProposer
from kernelsearch.propose.exchange import Prompt, Reply
from kernelsearch.propose.inbox import InboxProposer
from kernelsearch.propose.llm import AnthropicModel
from kernelsearch.propose.purse import PRICES_FILE, Purse, price_of, read_prices
from kernelsearch.propose.rules import RulesProposer
from kernelsearch.protocols import Proposer, Target
from kernelsearch.records import Device, Evaluation, TimingSettings
from kernelsearch.result import Result
from kernelsearch.runtime import TunedKernel, choices_of
from kernelsearch.search import SELECTORS
from kernelsearch.search.budget import Budget, parse_budget
from kernelsearch.session import Equipment, StudyRun
from kernelsearch.settings import PROPOSERS, StudySettings
from kernelsearch.sol import rate_name
from kernelsearch.study import Study
from kernelsearch.targets.choose import choose_target
from kernelsearch.user_data import with_data, workload_from_file
from kernelsearch.versions import versions

DEFAULT_BUDGET = "60s"
DEFAULT_SETS = ("large", "paper", "smoke")


@dataclass(frozen=True)
class TuneRequest:
    """What to tune and how; the defaults are those of ``tune``.

    Args:
        operator: an operator, a shipped operator's name, or the path of an operator file.
        target: ``auto`` (the GPU where there is one), ``cpu`` or ``cuda``.
        dtype: element type (default: the operator's first for the target).
        workloads: a set's name, or workloads, or mappings of sizes (default: ``large``).
        data: file the inputs come from (``.npz``; ``.mtx`` for sparse operators).
        variants: variant files to start from besides the shipped ones.
        templates: start from the shipped variants.
        selector / proposers / objective / seed / timing: see docs/studies.md.
        folder: of the study (default: one of this operator, device and settings in the home).
    """

    operator: str | Path | Operator
    target: str = "auto"
    dtype: str | None = None
    workloads: str | Sequence[Workload | Mapping[str, int]] | None = None
    data: str | Path | None = None
    variants: Sequence[str | Path] = ()
    templates: bool = True
    selector: str = "epsilon_greedy"
    proposers: Sequence[str] = ("rules", "crossover")
    objective: str = "geometric_mean"
    seed: int = 0
    timing: TimingSettings = field(default_factory=TimingSettings)
    folder: str | Path | None = None


@dataclass(frozen=True)
class Prepared:
    """A request with everything looked up: nothing has run yet."""

    operator: Operator
    target: Target
    settings: StudySettings
    folder: Path

    @property
    def device(self) -> Device:
        return self.target.device

    def open_study(self) -> Study:
        """Create the study, or join the one that is there."""
        return Study.create(self.folder, self.settings, self.operator, self.device)


def prepare(request: TuneRequest) -> Prepared:
    """Look everything up that a request names.

    Raises:
        SpecError: a name, file, size or dtype is wrong. TargetUnavailableError: no such device.
    """
    operator = request.operator
    if not isinstance(operator, Operator):
        operator = load_operator(operator)
    target = choose_target(request.target, cache_folder())
    kind = target.name
    if request.selector not in SELECTORS:
        raise UnknownNameError("selector", request.selector, SELECTORS)
    supported = operator.dtypes.get(kind, ())
    if not supported:
        raise OperatorError(
            f"operator {operator.name} supports no element type on target {kind} "
            f"(targets: {', '.join(operator.dtypes)}); choose one with --target"
        )
    dtype = request.dtype or supported[0]
    operator.check_dtype(kind, dtype)
    data = ""
    if request.data is not None:
        data = str(Path(request.data).expanduser().absolute())
        if request.workloads is not None:
            raise WorkloadError("data and workloads exclude each other: the data fixes the sizes")
        operator = with_data(operator, Path(data))
        workloads: tuple[Workload, ...] = (workload_from_file(operator, Path(data)),)
        set_name = Path(data).name
    else:
        workloads, set_name = choose_workloads(operator, request.workloads, kind)
    shipped = operator.path is None or is_shipped(operator.path)
    settings = StudySettings(
        operator=operator.name if shipped else str(operator.path),
        target=kind, dtype=dtype, workloads=workloads, workload_set=set_name, data=data,
        variants=tuple(str(Path(v).expanduser().absolute()) for v in request.variants),
        templates=request.templates, selector=request.selector,
        proposers=tuple(request.proposers), objective=request.objective, seed=request.seed,
        timing=request.timing,
    )  # fmt: skip
    key = settings.key(operator.contract, target.device.key)
    default = studies_folder() / f"{operator.name}-{kind}-{dtype}-{key[:8]}"
    folder = Path(request.folder).expanduser().absolute() if request.folder else default
    return Prepared(operator, target, settings, folder)


def choose_workloads(
    operator: Operator, wanted: str | Sequence[Workload | Mapping[str, int]] | None, target: str
) -> tuple[tuple[Workload, ...], str]:
    """Return the workloads to tune, and the name of the set they come from.

    Raises:
        UnknownNameError: no such set. WorkloadError: sizes that do not fit the operator.
    """
    if wanted is None:
        names = {n.split("@")[0] for n in operator.workloads}
        found = [n for n in DEFAULT_SETS if n in names] or sorted(names)
        if not found:
            raise WorkloadError(f"operator {operator.name} has no workload set; give sizes")
        wanted = found[0]
    if isinstance(wanted, str):
        workloads = operator.workload_set(wanted, target)
        if not workloads:
            raise WorkloadError(f"workload set {wanted!r} of operator {operator.name} is empty")
        return workloads, wanted
    given = tuple(w if isinstance(w, Workload) else Workload(dict(w)) for w in wanted)
    for workload in given:
        operator.check_workload(workload)
    return given, "given"


def tune(
    op: str | Path | Operator, target: str = "auto", budget: str | int = DEFAULT_BUDGET, *,
    refresh: bool = False, observer: Observer | None = None, **options: Any,
) -> TunedKernel:  # fmt: skip
    """Search for the fastest verified kernel of an operator and return it, ready to call.

    Args:
        op: an operator, a shipped operator's name (``"rms_norm"``), or an operator file's path.
        target: ``auto`` takes the GPU where there is one, else the CPU; or ``cpu`` or ``cuda``.
        budget: ``"60s"``, ``"5m"``, ``"200"`` (candidates), or several: ``"200,5m"``.
        refresh: search again where a finished study of the same operator, device, driver and
            settings is stored; by default its winner is returned at once.
        observer: called with a ``Progress`` after each step.
        **options: further fields of ``TuneRequest``: ``dtype``, ``workloads``, ``data``,
            ``variants``, ``templates``, ``selector``, ``proposers``, ``objective``, ``seed``,
            ``timing``, ``folder``.

    Returns:
        A callable on NumPy arrays (CPU) or DLPack / CUDA-array objects (GPU), with ``result``.

    Raises:
        SpecError: something is written wrongly; nothing has run.
        TargetUnavailableError: the device is missing or stopped answering.
        StorageError: results cannot be kept.
    """
    unknown = [o for o in options if o not in TuneRequest.__dataclass_fields__]
    if unknown:
        raise UnknownNameError("option of tune", unknown[0], TuneRequest.__dataclass_fields__)
    limits = parse_budget(budget)
    prepared = prepare(TuneRequest(op, target, **options))
    return tune_prepared(prepared, limits, refresh=refresh, observer=observer)


def tune_prepared(
    prepared: Prepared, budget: Budget, *, refresh: bool = False, observer: Observer | None = None,
    models: ModelOptions | None = None,
) -> TunedKernel:  # fmt: skip
    """Run (or look up) a prepared request; see ``tune``. ``models`` is for the proposer ``llm``."""
    study = prepared.open_study()
    try:
        stored = study.result()
        if stored is not None and stored.finished and not refresh:
            return tuned_kernel(study, prepared.target, stored)
        with Equipment(prepared.target) as equipment:
            result = run_study(study, equipment, budget, observer, models)
            return tuned_kernel(study, prepared.target, result)
    finally:
        study.close()


def run_study(
    study: Study, equipment: Equipment, budget: Budget, observer: Observer | None = None,
    models: ModelOptions | None = None,
) -> Result:  # fmt: skip
    """Run a study on open equipment until its budget is used up; see ``StudyRun.run``."""
    selector = SELECTORS[study.settings.selector]()
    proposers = [make_proposer(name, study, models) for name in study.settings.proposers]
    study.ledger.add_event("run", run_facts(study, equipment.device))
    try:
        return StudyRun(study, equipment, proposers, selector, observer).run(budget)
    finally:
        for proposer in proposers:
            if isinstance(proposer, LlmProposer):
                proposer.close()


def run_facts(study: Study, device: Device) -> dict[str, Any]:
    """Return what a report needs later and the ledger would not know: rates, costs, versions.

    ``costs`` holds (operations, compulsory bytes) of each workload by its key.
    """
    settings, operator = study.settings, study.operator
    return {
        "ceilings": dict(device.ceilings), "versions": versions(),
        "doc": operator.doc, "rate": rate_name(settings.dtype, operator.precision),
        "costs": {w.key: operator.cost(w, settings.dtype) for w in settings.workloads},
    }  # fmt: skip


def make_proposer(name: str, study: Study, models: ModelOptions | None = None) -> Proposer:
    """Return the proposer called ``name`` for a study."""
    match name:
        case "rules":
            return RulesProposer()
        case "crossover":
            return CrossoverProposer()
        case "inbox":
            return InboxProposer(study.folder)
        case "llm":
            return _llm_proposer(study, models)
    raise UnknownNameError("proposer", name, PROPOSERS)


def _llm_proposer(study: Study, models: ModelOptions | None) -> LlmProposer:
    if models is None:
        raise StudyError("this study asks a language model for kernels; say which one with --model")
    prices = read_prices(PRICES_FILE, home() / "prices.toml")
    price, purse = price_of(models.model, prices), Purse(models.spend_usd)
    ledger = study.ledger

    def record(prompt: Prompt, reply: Reply, cost: float) -> None:
        blobs = {
            name: ledger.put_blob(json.dumps(part.to_json(), sort_keys=True).encode())
            for name, part in (("prompt", prompt), ("reply", reply))
        }
        ledger.add_event("exchange", {
            "role": prompt.role, "model": prompt.model, "key": prompt.key, "usd": cost,
            "usage": asdict(reply.usage), "seconds": reply.seconds, "attempts": reply.attempts,
            **blobs,
        })  # fmt: skip

    model = AnthropicModel(models.base_url)
    return LlmProposer(model, models.model, price, purse, record, ledger.add_event)


def tuned_kernel(study: Study, target: Target, result: Result) -> TunedKernel:
    """Return the winner of a study as a callable, with right variants to fall back on."""
    archive = study.archive
    first = winner(archive, result, study.folder)
    # The winner, then every structure's best: whatever sizes come, one of them covers them.
    rest = [archive.best_of(v.hash) for v in archive.variants()]
    ranked = sorted((e for e in rest if e is not None), key=lambda e: -(study.objective(e) or 0))
    pairs = [(study.variant(e.candidate.variant), e) for e in (first, *ranked)]
    return TunedKernel(study.operator, target, study.settings.dtype, choices_of(pairs), result)


def winner(archive: Archive, result: Result, folder: Path) -> Evaluation:
    """Return the evaluation a result speaks of.

    Raises:
        StudyError: the study does not hold it.
    """
    for evaluation in archive.evaluations_of(result.variant):
        if evaluation.candidate.values == dict(result.params) and evaluation.ok:
            return evaluation
    raise StudyError(f"the study in {folder} has lost its winner {result.variant}")
