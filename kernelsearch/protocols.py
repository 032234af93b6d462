"""Every extension point in one file: what a newcomer reads first.

A part is plugged in by passing an object that has these methods; nothing is registered. Contract
tests for third-party parts are in ``kernelsearch.testing``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kernelsearch.operator import Operator, Workload
from kernelsearch.records import (
    Binary,
    CompileJob,
    Device,
    Evaluation,
    Proposal,
    RunReport,
    RunRequest,
    TimeReport,
    TimeRequest,
    VariantRecord,
)
from kernelsearch.variant import Variant


class Target(Protocol):
    """A device family. ``compile`` may run in any process, also where there is no device.

    It may also have an attribute ``schedules``: names of unusual ways to run a plan (fewer
    processors, another order), which a ``RunRequest`` can ask for and elites must bear; and a
    method ``sanitizers()``: the ``SanitizedTarget`` of each tool that looks for what results do not
    show, or TargetUnavailableError with the reason why there is none.
    """

    @property
    def name(self) -> str:
        """``cuda`` or ``cpu``: also the language of the variants it takes."""
        ...

    @property
    def device(self) -> Device:
        """Known without running anything."""
        ...

    def compile(self, job: CompileJob) -> Binary:
        """Compile one candidate.

        Raises:
            CompileError: with the compiler's log. ResourceLimitError: it needs too much.
            RejectedError: the source uses what it must not.
        """
        ...

    def open(self) -> Executable:
        """Open the device in this process. Called only inside an isolated worker.

        Raises:
            TargetUnavailableError: no device answers.
        """
        ...


class SanitizedTarget(Target, Protocol):
    """A target whose worker is watched by a tool.

    Its worker is started by the command ``launcher`` (arguments), and given ``closing_s`` seconds
    to end when its pipe closes.
    """

    @property
    def tool(self) -> str:
        """The name of the tool."""
        ...

    def judge(self) -> str:
        """Read, after the worker has ended, what the tool has found.

        Returns:
            "" if it found nothing; else why nothing can be said.

        Raises:
            CandidateError: it found something; the evidence has its report.
        """
        ...


class Executable(Protocol):
    """Loaded binaries on an open device. Every method may raise CandidateError.

    It may also have a method ``confine(memory_bytes)``: called once after it is opened, to give up
    for good what candidates do not need, and to let the process grow by so much memory only. So may
    a ``Target``: called in a process that only compiles. Both return the names of the limits in
    force. And it may have a method ``probe()``: called in the worker that follows one that died;
    it raises WorkerError or CandidateError where the device does not compute.
    """

    def load(self, binary: Binary) -> None:
        """Load (and keep) a binary; afterwards requests name it by ``binary.key``."""
        ...

    def unload(self, key: str) -> None:
        """Forget a binary: its module, and with it all state it may have kept."""
        ...

    def run(self, request: RunRequest) -> RunReport:
        """Run a plan once on fresh, poisoned, guarded buffers; outputs go to their sinks."""
        ...

    def time(self, request: TimeRequest) -> TimeReport:
        """Time one or two binaries, interleaved, on rotating inputs."""
        ...

    def ceilings(self) -> Mapping[str, float]:
        """Measure the device's rates (``dram_gbps``, ``l2_gbps``, ``fp32_tflops``, ...)."""
        ...

    def close(self) -> None: ...


class Runner(Protocol):
    """What ``evaluate`` talks to: an ``Executable`` that may live in another process.

    On top of the candidate's own failures it reports the death or hang of that process as
    CandidateCrashedError or CandidateTimeoutError, and is usable again afterwards. A device that
    is not is reported as SickDeviceError, by every call from then on.
    """

    def load(self, binary: Binary, deadline_s: float) -> None: ...

    def unload(self, key: str) -> None: ...

    def run(self, request: RunRequest, deadline_s: float) -> RunReport: ...

    def time(self, request: TimeRequest, deadline_s: float) -> TimeReport: ...

    def restart(self) -> None:
        """End the process and start a fresh one (used before a confirmation)."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """A change of the same parent that was made before, and what came of it.

    Args:
        mutation / rationale / predicted_gain: as they were proposed.
        gain: parent's time / its time, both at their best; None: not known, or never right.
        outcome: one of ``ok``, ``waiting``, or the status that most of its candidates ended with.
    """

    mutation: str
    rationale: str
    predicted_gain: float | None
    gain: float | None
    outcome: str


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """What a proposer is told.

    Args:
        operator: the contract.
        parent / parent_record: the variant to change.
        best: the parent's best ok evaluation, if it has one; ``history``: all of them.
        siblings: other good variants with their best evaluations (for crossover).
        device: facts and ceilings.
        count: how many proposals are wanted at most.
        known: hashes of variants that exist already (repeating one is wasted).
        seed: source of randomness.
        diagnosis: of the parent's best candidate, as JSON; {}: none.
        tried: what has been made of this parent already, oldest first.
        speedups: objective of the parent and of each sibling by hash, where they have one.
    """

    operator: Operator
    parent: Variant
    parent_record: VariantRecord
    best: Evaluation | None
    history: tuple[Evaluation, ...]
    device: Device
    dtype: str
    workloads: tuple[Workload, ...]
    siblings: tuple[tuple[Variant, Evaluation], ...] = ()
    count: int = 1
    known: frozenset[str] = frozenset()
    seed: int = 0
    diagnosis: Mapping[str, Any] = field(default_factory=dict)
    tried: tuple[Attempt, ...] = ()
    speedups: Mapping[str, float] = field(default_factory=dict)


class Proposer(Protocol):
    """Yields new variants from a parent. Pure of I/O, except for the call to a model."""

    @property
    def name(self) -> str: ...

    def propose(self, request: ProposalRequest) -> Sequence[Proposal]: ...


@dataclass(frozen=True, slots=True)
class Node:
    """A variant as a selector sees it: its place in the lineage and its worth.

    ``speedup`` is the objective of the variant's best ok evaluation (None: none yet); ``children``
    is how many proposals it has had.
    """

    hash: str
    parent: str
    speedup: float | None
    children: int
    depth: int
    exhausted: bool = False


class Selector(Protocol):
    """Picks parents among a study's variants."""

    @property
    def name(self) -> str: ...

    def select(self, nodes: Sequence[Node], count: int, seed: int) -> list[str]:
        """Return up to ``count`` variant hashes, best choice first; [] if nothing can be picked."""
        ...


class Classifier(Protocol):
    """Names the bottleneck of an evaluation."""

    def classify(
        self, operator: Operator, workload: Workload, evaluation: Evaluation, device: Device
    ) -> Mapping[str, Any]: ...


class Exporter(Protocol):
    """Writes a verified winner in the form some build wants."""

    name: str

    def export(self, variant: Variant, evaluation: Evaluation, folder: Path) -> list[Path]: ...
