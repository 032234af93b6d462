"""Gather everything a report shows from a stored study, as plain values; nothing is drawn here."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelsearch.archive import Archive
from kernelsearch.diagnoser import Migration, migrations, stored_diagnoses
from kernelsearch.diagnosis import Diagnosis
from kernelsearch.records import Evaluation, ParamValue, VariantRecord, geometric_mean
from kernelsearch.report.exchanges import Exchange, stored_exchanges
from kernelsearch.result import Result
from kernelsearch.store import Event
from kernelsearch.study import (
    ModelSpending,
    StoredStudy,
    Study,
    baseline_variant,
    model_spending,
)

ELITES = 20
EXAMPLES = 3
MESSAGE_CHARS = 2000
EVIDENCE_CHARS = 4000
WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class VariantRow:
    """One variant of the study.

    Args:
        number: order of arrival, from 0; ``parent`` and ``second_parent`` are such numbers.
        status: ``ok`` if a candidate of it is, else its most frequent failure, or ``waiting``.
        gain: parent's best time / its best time; ``predicted_gain``: what its proposer said.
        speedup / time_us / params: of its best candidate; the time is a geometric mean.
        elapsed_s: when it came, in seconds of running time of the study.
        rank: 0 for the best of the elites; None: not among them.
    """

    number: int
    hash: str
    name: str
    proposer: str
    mutation: str
    rationale: str
    source: str
    depth: int
    parent: int | None = None
    second_parent: int | None = None
    status: str = WAITING
    statuses: Mapping[str, int] = field(default_factory=dict)
    speedup: float | None = None
    gain: float | None = None
    predicted_gain: float | None = None
    time_us: float | None = None
    params: Mapping[str, ParamValue] = field(default_factory=dict)
    times_us: Mapping[str, float] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    exchange: Exchange | None = None
    elapsed_s: float = 0.0
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """One candidate in the order of arrival; ``usd`` is what models had cost by then."""

    number: int
    variant: int
    params: Mapping[str, ParamValue]
    status: str
    speedup: float | None
    time_us: float | None
    elapsed_s: float
    usd: float
    message: str = ""
    confirmed: bool = False
    twin: bool = False


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One workload: times in microseconds, operations and compulsory bytes of one call."""

    key: str
    weight: float
    baseline_us: float | None = None
    time_us: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    sol_us: float | None = None
    sol_fraction: float | None = None
    end_to_end_us: float | None = None
    flops: float | None = None
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """The evaluations of one failed status: how many, and a few that differ."""

    status: str
    count: int
    examples: tuple[FailureExample, ...]


@dataclass(frozen=True, slots=True)
class FailureExample:
    evaluation: int
    variant: int
    params: Mapping[str, ParamValue]
    message: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checked:
    """What the winner was verified on, by kind of case."""

    tuned: int = 0
    held_out: int = 0
    drawn: Mapping[str, int] = field(default_factory=dict)
    marks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Costs:
    """Where the time and the money went: seconds of each stage, summed over the candidates."""

    elapsed_s: float
    runs: int
    stages_s: Mapping[str, float]
    models: tuple[ModelSpending, ...]
    usd: float
    refused_proposals: int


@dataclass(frozen=True, slots=True)
class Report:
    """A whole study, ready to be shown in any form.

    Args:
        name / folder: of the study.
        run: what the newest run noted of its surroundings (ceilings, versions, costs, doc, rate).
        winner: number of the winner's variant, else of the best one; None: nothing is right yet.
        path: the numbers of the winner's ancestors, the oldest first, the winner last.
        baseline: number of the variant that speed-ups are measured against.
        incumbents: numbers of the evaluations that were the best when they came.
    """

    name: str
    folder: str
    operator: str
    settings: Mapping[str, Any]
    device: Mapping[str, Any]
    run: Mapping[str, Any]
    result: Result | None
    objective: str
    created: float
    variants: tuple[VariantRow, ...]
    evaluations: tuple[EvaluationRow, ...]
    workloads: tuple[WorkloadRow, ...]
    failures: tuple[FailureGroup, ...]
    migrations: tuple[Migration, ...]
    checked: Checked
    costs: Costs
    statuses: Mapping[str, int]
    winner: int | None
    path: tuple[int, ...]
    baseline: int | None
    incumbents: tuple[int, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def elites(self) -> list[VariantRow]:
        """The best variants, best first."""
        ranked = [v for v in self.variants if v.rank is not None]
        return sorted(ranked, key=lambda v: v.rank or 0)


def collect(stored: StoredStudy | Study) -> Report:
    """Return everything a report shows of a study, stored or open.

    Raises:
        StorageError: the study cannot be read.
    """
    archive, ledger = stored.archive, stored.ledger
    events, _ = ledger.events()
    settings = ledger.read_settings()
    clock = _Clock(archive.evaluations(), events)
    result = stored.result()
    best = archive.best()
    winner = result.variant if result is not None and archive.has_variant(result.variant) else (
        best.candidate.variant if best is not None else None
    )  # fmt: skip
    numbers = {v.hash: i for i, v in enumerate(archive.variants())}
    path = [numbers[v.hash] for v in reversed(archive.path_to_root(winner))] if winner else []
    run = next((dict(e.data) for e in reversed(events) if e.kind == "run"), {})
    evaluations = _evaluations(archive, clock, numbers)
    base = baseline_variant(archive)
    kept = {e.candidate.key: i for i, e in enumerate(archive.evaluations())}
    return Report(
        name=stored.folder.name, folder=str(stored.folder), operator=str(settings["operator"]),
        settings=stored.settings.to_json(), device=dict(settings["device"]), run=run,
        result=result, objective=stored.settings.objective,
        created=float(settings.get("created", 0.0)),
        variants=_variants(archive, stored, clock, numbers), evaluations=evaluations,
        workloads=_workloads(stored, result, best, run),
        failures=_failures(archive, numbers),
        migrations=tuple(migrations(archive, stored_diagnoses(ledger))),
        checked=_checked(stored, result, best), costs=_costs(stored, events, clock),
        statuses=archive.statuses(), winner=numbers[winner] if winner else None,
        path=tuple(path), baseline=numbers[base.hash] if base is not None else None,
        incumbents=tuple(kept[e.candidate.key] for e in archive.incumbents()),
        notes=tuple(_notes(events, result)),
    )  # fmt: skip


class _Clock:
    """Running time of a study: pauses between its runs do not count, the money spent is known."""

    def __init__(self, evaluations: Sequence[Evaluation], events: Sequence[Event]) -> None:
        moments = [(e.created, e.kind == "run") for e in events]
        moments += [(e.created, False) for e in evaluations]
        moments.sort()
        self._at: list[float] = []
        self._elapsed: list[float] = []
        total, before = 0.0, None
        for moment, starts in moments:
            # What lies before the start of a run is a pause.
            if before is not None and not starts:
                total += moment - before
            before = moment
            self._at.append(moment)
            self._elapsed.append(total)
        self.total_s = total
        self._paid = [(e.created, float(e.data["usd"])) for e in events if e.kind == "exchange"]

    def elapsed_s(self, moment: float) -> float:
        """Return the running time up to a moment, seconds."""
        index = bisect.bisect_right(self._at, moment) - 1
        return self._elapsed[index] if index >= 0 else 0.0

    def usd(self, moment: float) -> float:
        """Return what models had cost by a moment, US dollars."""
        return sum(cost for when, cost in self._paid if when <= moment)


def _mean_us(evaluation: Evaluation | None) -> float | None:
    if evaluation is None or not evaluation.ok:
        return None
    return geometric_mean(list(evaluation.times_us().values()))


def _evaluations(
    archive: Archive, clock: _Clock, numbers: Mapping[str, int]
) -> tuple[EvaluationRow, ...]:
    rows = []
    for number, evaluation in enumerate(archive.evaluations()):
        rows.append(EvaluationRow(
            number=number, variant=numbers[evaluation.candidate.variant],
            params=evaluation.candidate.values, status=str(evaluation.status),
            speedup=archive.objective(evaluation), time_us=_mean_us(evaluation),
            elapsed_s=clock.elapsed_s(evaluation.created), usd=clock.usd(evaluation.created),
            message=_short(evaluation.message), confirmed=evaluation.confirmed,
            twin="same_machine_code_as" in evaluation.evidence,
        ))  # fmt: skip
    return tuple(rows)


def _variants(
    archive: Archive, stored: StoredStudy | Study, clock: _Clock, numbers: Mapping[str, int]
) -> tuple[VariantRow, ...]:
    found = stored_diagnoses(stored.ledger)
    exchanges = stored_exchanges(stored.ledger, archive.variants())
    ranks = {e.candidate.variant: i for i, e in enumerate(archive.elites(ELITES))}
    rows = []
    for number, record in enumerate(archive.variants()):
        best = archive.best_of(record.hash)
        rows.append(VariantRow(
            number=number, hash=record.hash, name=record.name, proposer=record.proposer,
            mutation=record.mutation, rationale=record.rationale, source=record.source,
            depth=len(archive.path_to_root(record.hash)) - 1,
            parent=numbers.get(record.parent), second_parent=numbers.get(record.second_parent),
            **_standing(archive, record), gain=_gain(archive, record, best),
            predicted_gain=record.predicted_gain,
            speedup=archive.objective(best) if best is not None else None,
            time_us=_mean_us(best), params=best.candidate.values if best is not None else {},
            times_us=best.times_us() if best is not None else {},
            diagnosis=found.get(best.candidate.key) if best is not None else None,
            exchange=exchanges.get(record.hash), elapsed_s=clock.elapsed_s(record.created),
            rank=ranks.get(record.hash),
        ))  # fmt: skip
    return tuple(rows)


def _standing(archive: Archive, record: VariantRecord) -> dict[str, Any]:
    counts = Counter(str(e.status) for e in archive.evaluations_of(record.hash))
    if not counts:
        return {"status": WAITING, "statuses": {}}
    status = "ok" if "ok" in counts else counts.most_common(1)[0][0]
    return {"status": status, "statuses": dict(counts)}


def _gain(archive: Archive, record: VariantRecord, best: Evaluation | None) -> float | None:
    before = archive.best_of(record.parent) if record.parent else None
    if best is None or before is None:
        return None
    new, old = archive.objective(best), archive.objective(before)
    return new / old if new and old else None


def _workloads(
    stored: StoredStudy | Study,
    result: Result | None,
    best: Evaluation | None,
    run: Mapping[str, Any],
) -> tuple[WorkloadRow, ...]:
    costs: Mapping[str, Any] = run.get("costs", {})
    base = baseline_variant(stored.archive)
    slow = stored.archive.best_of(base.hash) if base is not None else None
    confirmed = {w.workload: w for w in result.workloads} if result is not None else {}
    rows = []
    for workload in stored.settings.workloads:
        key = workload.key
        flops, traffic = costs.get(key, (None, None))
        timing = next((t for t in best.timings if t.workload == key), None) if best else None
        before = slow.times_us().get(key) if slow is not None else None
        after = timing.median_us if timing is not None else None
        light = timing.sol_us if timing is not None else None
        fields: dict[str, Any] = {
            "baseline_us": before,
            "time_us": after,
            "sol_us": light,
            "speedup": before / after if before and after else None,
            "sol_fraction": light / after if light and after else None,
        }
        if (one := confirmed.get(key)) is not None:
            fields = {
                "baseline_us": one.baseline_us,
                "time_us": one.time_us,
                "speedup": one.speedup,
                "low": one.low,
                "high": one.high,
                "sol_fraction": one.sol_fraction,
                "end_to_end_us": one.end_to_end_us,
                "sol_us": one.sol_fraction * one.time_us if one.sol_fraction else light,
            }
        rows.append(WorkloadRow(key, workload.weight, **fields, flops=flops, bytes=traffic))
    return tuple(rows)


def _failures(archive: Archive, numbers: Mapping[str, int]) -> tuple[FailureGroup, ...]:
    groups: dict[str, list[tuple[int, Evaluation]]] = {}
    for number, evaluation in enumerate(archive.evaluations()):
        if not evaluation.ok:
            groups.setdefault(str(evaluation.status), []).append((number, evaluation))
    found = []
    for status, members in groups.items():
        # Failures that say the same are one example.
        different = {_short(e.message)[:60]: (n, e) for n, e in reversed(members)}
        examples = tuple(
            FailureExample(
                n, numbers[e.candidate.variant], e.candidate.values, e.message[:MESSAGE_CHARS],
                {str(k): _cut(v) for k, v in e.evidence.items()},
            )
            for n, e in list(different.values())[:EXAMPLES]
        )  # fmt: skip
        found.append(FailureGroup(status, len(members), examples))
    return tuple(sorted(found, key=lambda g: (-g.count, g.status)))


def _checked(
    stored: StoredStudy | Study, result: Result | None, best: Evaluation | None
) -> Checked:
    """Sort the names of the cases that passed: ``sizes@distribution#seed+marks``."""
    cases = result.verified if result is not None else best.verified if best is not None else ()
    tuned = {w.key for w in stored.settings.workloads}
    plain, held_out = 0, 0
    drawn: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    for case in cases:
        name, *extra = case.split("+")
        workload, _, _ = name.partition("#")
        sizes, at, distribution = workload.partition("@")
        marks.update(extra)
        if at:
            drawn[distribution] += 1
        elif sizes in tuned:
            plain += 1
        else:
            held_out += 1
    return Checked(plain, held_out, dict(drawn), dict(marks))


def _costs(stored: StoredStudy | Study, events: Sequence[Event], clock: _Clock) -> Costs:
    stages: Counter[str] = Counter()
    for evaluation in stored.archive.evaluations():
        stages.update({k: v for k, v in evaluation.stages_s.items() if v > 0})
    models = tuple(model_spending(stored.ledger))
    kinds = Counter(e.kind for e in events)
    return Costs(
        clock.total_s, kinds["run"], dict(stages), models, sum(m.usd for m in models),
        kinds["refused_proposal"],
    )  # fmt: skip


def _notes(events: Sequence[Event], result: Result | None) -> list[str]:
    """Return what a reader must know before believing the figures."""
    found = []
    if result is None:
        found.append(
            "No result is confirmed yet: the figures are those of the search, each measured once."
        )
    for event in events:
        if event.kind == "sick_device":
            found.append(f"A device stopped computing during a run: {event.data.get('why', '')}")
        elif event.kind == "model_stopped":
            found.append(f"The language model was asked no more: {event.data.get('why', '')}")
    return list(dict.fromkeys(found))


def _short(message: str) -> str:
    lines = message.strip().splitlines()
    return lines[0][:300] if lines else ""


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > EVIDENCE_CHARS:
        return f"{value[:EVIDENCE_CHARS]} ... ({len(value)} characters in all)"
    return value
