"""Diagnose the best candidates of a running study, keep what was found, and sum it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from kernelsearch.archive import Archive
from kernelsearch.diagnose import Subject, diagnose
from kernelsearch.diagnosis import UNKNOWN, Diagnosis
from kernelsearch.profile.sass import with_code
from kernelsearch.records import Binary, Device, Evaluation, KernelFacts, geometric_mean
from kernelsearch.store import Ledger
from kernelsearch.study import Study

EVENT = "diagnosis"
# Reading machine code takes half a second beside the search; nobody waits much longer for it.
PATIENCE_S = 5.0
KEPT_CODES = 64
Facts = tuple[tuple[KernelFacts, ...], str]


class Diagnoser:
    """Diagnoses candidates of one study; what is found is stored as events of its ledger.

    Args:
        study: whose candidates.
        device: with its measured ceilings.
    """

    def __init__(self, study: Study, device: Device) -> None:
        self._study, self._device = study, device
        self._found = stored_diagnoses(study.ledger)
        self._codes: dict[str, Future[Facts]] = {}
        self._reader = ThreadPoolExecutor(1, "machine-code")

    def note(self, evaluation: Evaluation, binary: Binary) -> None:
        """Have a binary's machine code read in the background if its candidate leads its variant.

        On the CPU the compiler has said it all already.
        """
        if self._device.target != "cuda" or not evaluation.ok:
            return
        best = self._study.archive.best_of(evaluation.candidate.variant)
        if best is None or best.candidate != evaluation.candidate:
            return
        if evaluation.code_hash in self._codes:
            return
        while len(self._codes) >= KEPT_CODES:
            self._codes.pop(next(iter(self._codes))).cancel()
        self._codes[evaluation.code_hash] = self._reader.submit(with_code, binary)

    def of_variant(self, hash_: str) -> Diagnosis | None:
        """Return the diagnosis of a variant's best candidate, None if it has none."""
        best = self._study.archive.best_of(hash_)
        return self.of(best) if best is not None else None

    def of(self, evaluation: Evaluation) -> Diagnosis:
        """Return the diagnosis of an evaluation; a new one is stored."""
        key = evaluation.candidate.key
        if key not in self._found:
            facts, missing = self._facts(evaluation)
            study = self._study
            subject = Subject(
                study.operator, study.variant(evaluation.candidate.variant),
                study.settings.dtype, self._device, study.settings.workloads,
            )  # fmt: skip
            found = diagnose(subject, evaluation, facts, missing=missing)
            self._found[key] = found
            study.ledger.add_event(EVENT, {
                "candidate": key, "variant": evaluation.candidate.variant,
                "diagnosis": found.to_json(),
            })  # fmt: skip
        return self._found[key]

    def finish(self) -> None:
        """Diagnose the best candidate of every variant that has one."""
        for record in self._study.archive.variants():
            self.of_variant(record.hash)

    def close(self) -> None:
        """End the background reading."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _facts(self, evaluation: Evaluation) -> Facts:
        future = self._codes.get(evaluation.code_hash)
        if future is None:
            told = self._device.target == "cpu" or any(f.code for f in evaluation.facts)
            return evaluation.facts, "" if told else "the machine code was not read in this run"
        try:
            return future.result(PATIENCE_S)
        except FutureTimeoutError:
            return evaluation.facts, f"the machine code was not read within {PATIENCE_S:.0f} s"


def stored_diagnoses(ledger: Ledger) -> dict[str, Diagnosis]:
    """Return the diagnoses that a ledger holds, by the candidate's key; the newest counts."""
    events, _ = ledger.events()
    return {
        str(e.data.get("candidate", "")): Diagnosis.from_json(e.data.get("diagnosis", {}))
        for e in events if e.kind == EVENT
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Migration:
    """What became of the bottleneck from parents to children.

    Args:
        before / after: labels.
        count: of steps from a parent to a child, both at their best.
        gain: parent's time / child's time, geometric mean.
    """

    before: str
    after: str
    count: int
    gain: float


def migrations(archive: Archive, found: Mapping[str, Diagnosis]) -> list[Migration]:
    """Return the before/after table of a study, the most frequent first."""
    steps: dict[tuple[str, str], list[float]] = {}
    for record in archive.variants():
        child = archive.best_of(record.hash)
        parent = archive.best_of(record.parent) if record.parent else None
        if child is None or parent is None:
            continue
        new, old = archive.objective(child), archive.objective(parent)
        labels = tuple(_label(found, e) for e in (parent, child))
        if new and old and UNKNOWN not in labels:
            steps.setdefault((labels[0], labels[1]), []).append(new / old)
    rows = [Migration(b, a, len(g), geometric_mean(g)) for (b, a), g in steps.items()]
    return sorted(rows, key=lambda m: (-m.count, m.before, m.after))


def _label(found: Mapping[str, Diagnosis], evaluation: Evaluation) -> str:
    diagnosis = found.get(evaluation.candidate.key)
    return diagnosis.label if diagnosis is not None else UNKNOWN


def best_diagnoses(
    archive: Archive, found: Mapping[str, Diagnosis]
) -> Sequence[tuple[Evaluation, Diagnosis]]:
    """Return the best candidate of each diagnosed variant with its diagnosis, best first."""
    pairs = [
        (best, found[best.candidate.key])
        for record in archive.variants()
        if (best := archive.best_of(record.hash)) is not None and best.candidate.key in found
    ]
    return sorted(pairs, key=lambda p: -(archive.objective(p[0]) or 0.0))
