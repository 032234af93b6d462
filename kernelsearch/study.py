"""A study: one search that can be created, stopped, resumed, shared, asked and told.

The study knows what is asked (settings), what is known (ledger, archive) and what may come next
(``ask``); it runs nothing itself. ``session.py`` brings a device to it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from kernelsearch.archive import Archive
from kernelsearch.errors import CandidateError, RejectedError, StudyError, VariantError
from kernelsearch.home import ensure_folder
from kernelsearch.operator import Operator
from kernelsearch.params import ParamSearch
from kernelsearch.protocols import Attempt, ProposalRequest
from kernelsearch.records import (
    Candidate,
    Device,
    Evaluation,
    ParamValue,
    Proposal,
    Status,
    Timing,
    VariantRecord,
    geometric_mean,
)
from kernelsearch.resources import template_paths
from kernelsearch.result import Result
from kernelsearch.settings import StudySettings
from kernelsearch.store import Claim, Ledger, Owner, evaluation_key, open_ledger
from kernelsearch.store_optuna import OptunaMirror, VariantSummary
from kernelsearch.variant import Variant, load_variant, parse_variant

LEASE_S = 120.0
BASELINE = "naive"


@dataclass(frozen=True, slots=True)
class Work:
    """One candidate this process has claimed: what to evaluate."""

    variant: Variant
    params: Mapping[str, ParamValue]
    candidate: Candidate


class Study:
    """One search: operator + target + settings + archive.

    Use ``Study.create`` or ``Study.load``; ``session.run_study`` runs it on a device, or use
    ``ask``, ``tell`` and ``tell_proposal`` from any executor.
    """

    def __init__(
        self, folder: Path, settings: StudySettings, operator: Operator, device: Device,
        ledger: Ledger,
    ) -> None:  # fmt: skip
        self.folder, self.settings, self.operator = folder, settings, operator
        self.device, self.ledger = device, ledger
        self.key = settings.key(operator.contract, device.key)
        self.owner = Owner.here()
        self.archive = new_archive(settings)
        self._variants: dict[str, Variant] = {}
        self._searches: dict[str, ParamSearch] = {}
        self._cursor = ""
        self._mirror = OptunaMirror(ledger.url, self.name)

    # --- create and load ---------------------------------------------------------------------

    @classmethod
    def create(
        cls, folder: Path, settings: StudySettings, operator: Operator, device: Device,
        url: str | None = None,
    ) -> Study:  # fmt: skip
        """Create a study in ``folder`` (or join the one that is there, if it is the same).

        Raises:
            StudyError: the folder holds a study of something else.
            VariantError: a variant file is malformed.
            StorageError: the folder or the storage cannot be used.
        """
        # Read before anything is written: a wrong variant file leaves no empty study behind.
        initial = initial_variants(settings, operator)
        if not initial and not folder.is_dir():
            raise _no_variant(settings, operator)
        ensure_folder(folder)
        ledger = open_ledger(url, folder, create=True)
        study = cls(folder, settings, operator, device, ledger)
        stored = ledger.read_settings() or study._begin()
        study._check_same(stored)
        study._add_initial_variants(initial)
        study.refresh()
        return study

    @classmethod
    def load(
        cls, folder: Path, operator: Operator, device: Device, url: str | None = None
    ) -> Study:
        """Open an existing study.

        Raises:
            StudyError: there is none, or it is of another operator contract or device.
        """
        ledger, stored = read_study(folder, url)
        settings = StudySettings.from_json(stored["settings"])
        study = cls(folder, settings, operator, device, ledger)
        study._check_same(stored)
        study._add_initial_variants(initial_variants(settings, operator))
        study.refresh()
        return study

    @property
    def name(self) -> str:
        return self.folder.name

    def _begin(self) -> Mapping[str, Any]:
        """Write the settings, unless another process does so meanwhile; return what is there."""
        mine = {
            "settings": self.settings.to_json(), "contract": self.operator.contract,
            "key": self.key, "operator": self.operator.name,
            "device": _device_json(self.device), "created": time.time(),
        }  # fmt: skip
        try:
            self.ledger.write_settings(mine)
        except StudyError:
            # Another process was first. Whether its study is this one is the caller's question.
            if not (theirs := self.ledger.read_settings()):
                raise
            return theirs
        return mine

    def _check_same(self, stored: Mapping[str, Any]) -> None:
        _check_same(stored, self.key, self.folder, self.operator, self.device)

    def _add_initial_variants(self, initial: Sequence[tuple[Variant, str]]) -> None:
        if not initial and not self.ledger.variants():
            raise _no_variant(self.settings, self.operator)
        for variant, proposer in initial:
            if proposer == "operator" or self.settings.dtype in variant.dtypes:
                self.add_variant(variant, proposer)

    # --- variants ----------------------------------------------------------------------------

    def add_variant(
        self, variant: Variant, proposer: str, proposal: Proposal | None = None
    ) -> VariantRecord | None:
        """Keep a variant; None if it is known already."""
        record = VariantRecord(
            hash=variant.hash, operator=variant.operator, language=variant.language,
            source=variant.source, name=variant.name, proposer=proposer, created=time.time(),
        )  # fmt: skip
        if proposal is not None:
            parent = self.archive.variant(proposal.parent)
            record = VariantRecord(
                hash=variant.hash, operator=variant.operator, language=variant.language,
                source=variant.source, name=f"{parent.name}+{proposal.mutation}",
                parent=proposal.parent, second_parent=proposal.second_parent, proposer=proposer,
                mutation=proposal.mutation, rationale=proposal.rationale,
                predicted_gain=proposal.predicted_gain,
                suggested_params=proposal.suggested_params, created=time.time(),
            )  # fmt: skip
        if not self.ledger.add_variant(record):
            return None
        self.archive.add_variant(record)
        return record

    def tell_proposal(self, proposal: Proposal) -> VariantRecord | None:
        """Admit a proposed variant: parse, check against the operator, drop what is known.

        Returns:
            The variant's record, or None if it is already in the archive.

        Raises:
            VariantError: the source is not a variant of this operator.
        """
        variant = parse_variant(
            proposal.source, self.settings.target, f"<{proposal.proposer}:{proposal.mutation}>"
        )
        variant.check_against(self.operator)
        if self.settings.dtype not in variant.dtypes:
            raise VariantError(
                f"must support dtype {self.settings.dtype} (has {', '.join(variant.dtypes)})",
                variant.path,
            )
        if proposal.parent and not self.archive.has_variant(proposal.parent):
            raise VariantError(f"names an unknown parent {proposal.parent!r}", variant.path)
        return self.add_variant(variant, proposal.proposer, proposal)

    def variant(self, hash_: str) -> Variant:
        """Return a variant of this study, parsed."""
        if hash_ not in self._variants:
            record = self.archive.variant(hash_)
            parsed = parse_variant(record.source, record.language, record.name)
            self._variants[hash_] = parsed
        return self._variants[hash_]

    # --- candidates --------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what other processes have added since the last time."""
        for record in self.ledger.variants():
            self.archive.add_variant(record)
        evaluations, self._cursor = self.ledger.evaluations(self._cursor)
        for evaluation in evaluations:
            self._take(evaluation)

    def set_baseline(self) -> bool:
        """Find the baseline's times; what was told to parameter searches before is told anew."""
        found = find_baseline(self.archive)
        self._searches.clear()
        return found

    def _take(self, evaluation: Evaluation) -> None:
        self.archive.add(evaluation)
        search = self._searches.get(evaluation.candidate.variant)
        if search is not None:
            search.tell(evaluation.candidate.values, self.objective(evaluation))

    def objective(self, evaluation: Evaluation) -> float | None:
        """Return the speed-up over the baseline (None for a failure, or without a baseline)."""
        return self.archive.objective(evaluation)

    def search(self, hash_: str) -> ParamSearch:
        """Return the parameter search of a variant, started from its parent's best."""
        if hash_ not in self._searches:
            record = self.archive.variant(hash_)
            starts = [dict(record.suggested_params)] if record.suggested_params else []
            for parent in (record.parent, record.second_parent):
                best = self.archive.best_of(parent) if parent else None
                if best is not None:
                    starts.append(best.candidate.values)
            variant = self.tunable_variant(hash_)
            first = variant.first_params(self.device.facts, self.settings.dtype)
            if not starts and first is not None:
                starts = [first]  # a template's author lists the choice to try first first
            history = [
                (e.candidate.values, self.objective(e)) for e in self.archive.evaluations_of(hash_)
            ]
            seed = self.settings.seed + int(hash_[:6], 16)
            self._searches[hash_] = ParamSearch(
                variant, self.device.facts, self.settings.dtype, seed=seed, starts=starts,
                history=history,
            )  # fmt: skip
        return self._searches[hash_]

    def tunable_variant(self, hash_: str) -> Variant:
        """Return a variant whose constraints also keep to its domain on all tuned workloads."""
        sizes = {w.key: w.sizes for w in self.settings.workloads}
        return self.variant(hash_).within(sizes)

    def ask(self, hash_: str, count: int) -> list[Work]:
        """Claim up to ``count`` untried candidates of a variant; fewer where it is exhausted."""
        variant = self.variant(hash_)

        def admit(params: dict[str, ParamValue]) -> bool:
            return self.claim(variant.candidate(params, self.settings.dtype))

        return [
            Work(variant, params, variant.candidate(params, self.settings.dtype))
            for params in self.search(hash_).ask(count, admit)
        ]

    def evaluation_key(self, candidate: Candidate) -> str:
        """Return the ledger's key of a candidate in this study."""
        return evaluation_key(candidate, self.device.key, self.key)

    def claim(self, candidate: Candidate) -> bool:
        """Claim a candidate for this process; False if it is done or somebody else has it."""
        key = self.evaluation_key(candidate)
        return self.ledger.claim(key, self.owner, LEASE_S) is Claim.CLAIMED

    def release(self, candidate: Candidate) -> None:
        """Give a claimed candidate back, unfinished."""
        self.ledger.release(self.evaluation_key(candidate), self.owner)
        search = self._searches.get(candidate.variant)
        if search is not None:
            search.give_back(candidate.values)

    def tell(self, evaluation: Evaluation) -> None:
        """Record an evaluation; after this returns it survives ``kill -9``."""
        self.ledger.record(evaluation, self.owner)
        self.refresh()
        if evaluation.status is Status.INFRASTRUCTURE_ERROR:
            self.search(evaluation.candidate.variant).give_back(evaluation.candidate.values)

    def confirm(self, candidate: Candidate, timings: Sequence[Timing]) -> None:
        """Keep the timings of a confirmation as the candidate's newest."""
        self.ledger.confirm(self.evaluation_key(candidate), timings)
        self.refresh()

    def strike(self, candidate: Candidate, error: CandidateError) -> None:
        """Revise a candidate that turned out to be no good after all."""
        key = self.evaluation_key(candidate)
        known = self.ledger.evaluation(key)
        if known is not None:
            revised = replace(
                known, status=error.status, timings=(), message=str(error),
                evidence={**error.evidence, "stage": "confirm"},
            )  # fmt: skip
            self.ledger.revise(key, revised)
        self.refresh()

    def pause(self, *, finished: bool = False) -> None:
        """Bring the Optuna mirror up to date. Call when a run ends, however it ends."""
        for record in self.archive.variants():
            evaluations = self.archive.evaluations_of(record.hash)
            tunables = self.variant(record.hash).tunables
            for evaluation in evaluations:
                self._mirror.evaluation(evaluation, tunables, self.objective(evaluation))
            best = self.archive.best_of(record.hash)
            shown = best or (evaluations[-1] if evaluations else None)
            self._mirror.variant(VariantSummary(
                record, str(shown.status) if shown else "",
                geometric_mean(list(best.times_us().values())) if best else None,
                self.objective(best) if best else None, len(evaluations), finished=finished,
            ))  # fmt: skip
        self._mirror.flush()

    def close(self) -> None:
        """Close the storage. Claims this process still holds are freed with it."""
        self._mirror.close()
        self.ledger.close()

    def proposal_request(self, parent: str, count: int, seed: int = 0) -> ProposalRequest:
        """Return what a proposer is told about a parent."""
        archive = self.archive
        best = archive.best_of(parent)
        siblings = [
            (self.variant(e.candidate.variant), e)
            for e in archive.elites(4) if e.candidate.variant != parent
        ]  # fmt: skip
        shown = [e for e in (best, *(e for _, e in siblings)) if e is not None]
        speedups = {e.candidate.variant: s for e in shown if (s := self.objective(e)) is not None}
        return ProposalRequest(
            operator=self.operator, parent=self.variant(parent),
            parent_record=archive.variant(parent), best=best,
            history=tuple(archive.evaluations_of(parent)), device=self.device,
            dtype=self.settings.dtype, workloads=self.settings.workloads,
            siblings=tuple(siblings), count=count,
            known=frozenset(v.hash for v in archive.variants()), seed=seed,
            tried=attempts(archive, parent), speedups=speedups,
        )  # fmt: skip

    # --- what is known -----------------------------------------------------------------------

    def baseline_record(self) -> VariantRecord:
        """Return the variant that speed-ups are measured against: ``naive``, or else the first.

        Raises:
            StudyError: the study has no variant.
        """
        record = baseline_variant(self.archive)
        if record is None:
            raise StudyError(f"the study in {self.folder} has no variant for its dtype")
        return record

    def result(self) -> Result | None:
        """Return the last confirmed result, None if there is none yet."""
        return stored_result(self.ledger)

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        from kernelsearch.report.notebook import study_html

        return study_html(self)

    def best_us(self) -> float | None:
        """Return the geometric mean of the best candidate's times, microseconds."""
        best = self.archive.best()
        return geometric_mean(list(best.times_us().values())) if best is not None else None


def initial_variants(settings: StudySettings, operator: Operator) -> list[tuple[Variant, str]]:
    """Return the variants a study begins with, each with where it comes from.

    Raises:
        VariantError: a variant file is malformed, or is of another operator.
    """
    found = []
    for number, source in enumerate(operator.sources.get(settings.target, ())):
        name = BASELINE if number == 0 else f"own{number}"
        found.append((parse_variant(source, settings.target, name), "operator"))
    paths: list[Path] = []
    if settings.templates and operator.path is not None:
        paths += template_paths(operator.name, settings.target)
    paths += [Path(p) for p in settings.variants]
    found += [(load_variant(path), "template") for path in paths]
    for variant, _ in found:
        variant.check_against(operator)
    return found


def _no_variant(settings: StudySettings, operator: Operator) -> StudyError:
    return StudyError(
        f"operator {operator.name} has no variant for target {settings.target}; give at least one "
        "with --variant FILE"
    )


class StoredStudy:
    """A stored study to look at: no device is needed and nothing is changed.

    Raises:
        StudyError: there is no study in the folder.
    """

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.ledger, stored = read_study(folder, url)
        self._stored = stored
        self.settings = StudySettings.from_json(stored["settings"])
        device = stored["device"]
        self.device = Device(
            device["target"], device["name"], device["arch"], device["facts"], device["driver"]
        )
        self.archive = new_archive(self.settings)
        self._cursor = ""
        self.refresh()

    def refresh(self) -> list[Evaluation]:
        """Read what a running search has added since the last time; return the evaluations."""
        for record in self.ledger.variants():
            self.archive.add_variant(record)
        fresh, self._cursor = self.ledger.evaluations(self._cursor)
        for evaluation in fresh:
            self.archive.add(evaluation)
        if fresh:
            find_baseline(self.archive)
        return fresh

    def check_same(self, operator: Operator, device: Device) -> None:
        """Raise ``StudyError`` if the study is of another operator contract or device."""
        key = self.settings.key(operator.contract, device.key)
        _check_same(self._stored, key, self.folder, operator, device)

    def result(self) -> Result | None:
        """Return the last confirmed result, None if there is none yet."""
        return stored_result(self.ledger)

    def variant(self, hash_: str) -> Variant:
        """Return a variant, parsed."""
        record = self.archive.variant(hash_)
        return parse_variant(record.source, record.language, record.name)

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        from kernelsearch.report.notebook import study_html

        return study_html(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.ledger.close()


def attempts(archive: Archive, parent: str) -> tuple[Attempt, ...]:
    """Return what has been made of a parent, oldest first."""
    base = archive.best_of(parent)
    before = archive.objective(base) if base is not None else None
    found = []
    for child in archive.children(parent):
        evaluations = archive.evaluations_of(child.hash)
        best = archive.best_of(child.hash)
        after = archive.objective(best) if best is not None else None
        failures = Counter(str(e.status) for e in evaluations if not e.ok)
        outcome = "waiting" if not evaluations else "ok" if best else failures.most_common(1)[0][0]
        found.append(Attempt(
            child.mutation, child.rationale, child.predicted_gain,
            after / before if after and before else None, outcome,
        ))  # fmt: skip
    return tuple(found)


@dataclass(frozen=True, slots=True)
class ModelSpending:
    """What a study has asked of one model in one role: replies, tokens and US dollars."""

    model: str
    role: str
    replies: int
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    usd: float


def model_spending(ledger: Ledger) -> list[ModelSpending]:
    """Return what a study has spent on models, by model and role."""
    found: dict[tuple[str, str], ModelSpending] = {}
    for event in ledger.events()[0]:
        if event.kind != "exchange":
            continue
        data, usage = event.data, event.data["usage"]
        key = (data["model"], data["role"])
        old = found.get(key, ModelSpending(*key, 0, 0, 0, 0, 0.0))
        cached = usage["cache_read_tokens"]
        fresh = usage["input_tokens"] + usage["cache_write_tokens"]
        found[key] = ModelSpending(
            *key, old.replies + 1, old.tokens_in + fresh + cached, old.tokens_cached + cached,
            old.tokens_out + usage["output_tokens"], old.usd + data["usd"],
        )  # fmt: skip
    return list(found.values())


def new_archive(settings: StudySettings) -> Archive:
    """Return an empty archive for a study's objective."""
    return Archive(settings.objective, {w.key: w.weight for w in settings.workloads})


def baseline_variant(archive: Archive) -> VariantRecord | None:
    """Return the variant to compare with: ``naive`` among the roots, or else the first of them."""
    roots = [v for v in archive.variants() if not v.parent]
    named = [v for v in roots if v.name == BASELINE]
    return next(iter(named or roots), None)


def find_baseline(archive: Archive) -> bool:
    """Set the archive's baseline times from the first ok evaluation of the baseline variant."""
    record = baseline_variant(archive)
    good = [e for e in archive.evaluations_of(record.hash) if e.ok] if record else []
    if not good:
        return False
    archive.set_baseline(min(good, key=lambda e: e.created).times_us())
    return True


def stored_result(ledger: Ledger) -> Result | None:
    """Return the last result a ledger holds."""
    events, _ = ledger.events()
    results = [e.data for e in events if e.kind == "result"]
    return Result.from_json(results[-1]) if results else None


def read_study(folder: Path, url: str | None = None) -> tuple[Ledger, Mapping[str, Any]]:
    """Open a stored study without its device: its ledger, and what it was created with.

    Raises:
        StudyError: there is no study in the folder.
    """
    if url is None and not folder.is_dir():
        raise StudyError(f"there is no study in {folder}; see `kernelsearch list --studies`")
    ledger = open_ledger(url, folder, create=False)
    stored = ledger.read_settings()
    if not stored:
        raise StudyError(f"the study in {folder} has no settings; it was never started")
    return ledger, stored


def _check_same(
    stored: Mapping[str, Any], key: str, folder: Path, operator: Operator, device: Device
) -> None:
    """Raise ``StudyError`` unless a study was made for this operator, device and key."""
    if stored["key"] == key:
        return
    where = f"the study in {folder}"
    if stored["operator"] != operator.name:
        raise StudyError(
            f"{where} is of operator {stored['operator']!r}, not {operator.name!r}; "
            "use another --folder"
        )
    if stored["contract"] != operator.contract:
        raise StudyError(
            f"{where} was made for another contract of {operator.name!r} (the operator "
            "file has changed); its results do not hold any more: use another --folder"
        )
    made_on = stored["device"]
    if made_on["key"] != device.key:
        raise StudyError(
            f"{where} was made on {made_on['name']} ({made_on['arch']}, {made_on['driver']}); "
            f"this machine has {device.name} ({device.arch}, {device.driver}): "
            "use another --folder"
        )
    raise StudyError(f"{where} has other settings than those asked for; use another --folder")


def _device_json(device: Device) -> dict[str, Any]:
    return {
        "key": device.key, "target": device.target, "name": device.name, "arch": device.arch,
        "driver": device.driver, "facts": dict(device.facts),
    }  # fmt: skip


def rejected(error: RejectedError, candidate: Candidate, study: Study) -> Evaluation:
    """Return the evaluation of a candidate that was refused before it was compiled."""
    return Evaluation(
        candidate, error.status, str(error), error.evidence, device=study.device.key,
        settings=study.key, created=time.time(),
    )  # fmt: skip
