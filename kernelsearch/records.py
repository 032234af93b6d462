"""Frozen values that travel between the stages; each checks itself when it is built.

Everything here is plain data: picklable, comparable, and JSON-able through ``codec``. Times are in
microseconds (``_us``), sizes in bytes (``_bytes``).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

ParamValue = int | str
Params = Mapping[str, ParamValue]
Role = Literal["in", "out", "inout", "workspace"]
CacheState = Literal["cold", "hot"]


class Status(StrEnum):
    """What became of one candidate."""

    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    LAUNCH_ERROR = "launch_error"
    RESOURCE_LIMIT = "resource_limit"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    WRONG = "wrong"
    NONDETERMINISTIC = "nondeterministic"
    CHEATED = "cheated"
    OK = "ok"
    INFRASTRUCTURE_ERROR = "infrastructure_error"


class Verdict(StrEnum):
    """How one ok evaluation compares with another."""

    FASTER = "faster"
    SLOWER = "slower"
    TIE = "tie"
    UNSTABLE = "unstable"


def digest(*parts: object) -> str:
    """Return a 16-character content hash of JSON-able parts (stable across processes)."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def frozen_params(params: Params) -> tuple[tuple[str, ParamValue], ...]:
    """Return params as a sorted, hashable tuple."""
    return tuple(sorted(params.items()))


@dataclass(frozen=True, slots=True)
class Device:
    """What is known about a device without running anything of a candidate's.

    Args:
        target: ``cuda`` or ``cpu``.
        name: the vendor's name of the device.
        arch: ``sm_90a``, or the CPU's name as LLVM gives it.
        facts: numbers that expressions may use (``sm_count``, ``max_threads_per_block``, ...).
        driver: driver (CUDA) or compiler (CPU) version.
        ceilings: measured or datasheet rates: ``dram_gbps``, ``l2_gbps``, ``fp32_tflops``, ...
    """

    target: str
    name: str
    arch: str
    facts: Mapping[str, int] = field(default_factory=dict)
    driver: str = ""
    ceilings: Mapping[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identity for caches and ledgers: target, name, architecture and driver."""
        return digest(self.target, self.name, self.arch, self.driver, dict(self.facts))


@dataclass(frozen=True, slots=True)
class Candidate:
    """Variant + params + element type: what is compiled, verified and timed."""

    variant: str
    params: tuple[tuple[str, ParamValue], ...]
    dtype: str

    @property
    def key(self) -> str:
        return digest(self.variant, self.params, self.dtype)

    @property
    def values(self) -> dict[str, ParamValue]:
        return dict(self.params)


# --- launch plans: everything evaluated, nothing symbolic left ---------------------------------


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A by-value scalar argument of a concrete plan: C type and value."""

    ctype: str
    value: int | float


@dataclass(frozen=True, slots=True)
class KernelStep:
    """One kernel launch: ``args`` are buffer names, tensor map names or scalars, in order."""

    kernel: str
    args: tuple[str | ScalarArg, ...]
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False


@dataclass(frozen=True, slots=True)
class FillStep:
    """Set every byte of a buffer to ``value``."""

    buffer: str
    value: int


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """One TMA descriptor; ``box`` is outermost first, like the tensor's shape."""

    name: str
    tensor: str
    box: tuple[int, ...]
    swizzle: str = "none"
    l2_promotion: str = "none"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """A variant's launch plan bound to params, workload and device."""

    steps: tuple[KernelStep | FillStep, ...]
    workspaces: tuple[WorkspaceSpec, ...] = ()
    tensormaps: tuple[TensorMapSpec, ...] = ()

    @property
    def workspace_bytes(self) -> int:
        return sum(math.prod(w.shape) * dtype_bytes(w.dtype) for w in self.workspaces)


DTYPE_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "uint64": 8, "int32": 4,
    "uint32": 4, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip


def dtype_bytes(dtype: str) -> int:
    """Return the size of one element, in bytes."""
    return DTYPE_BYTES[dtype]


# --- compile ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """What the compiler says of one kernel. -1 or 0 where it is unknown is never used: None is.

    ``code`` holds what its machine code shows (docs/diagnosis.md); empty: nobody has looked.
    """

    name: str
    registers: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    stack_bytes: int | None = None
    static_shared_bytes: int | None = None
    barriers: int | None = None
    param_bytes: tuple[int, ...] | None = None
    code: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """All that a compiler needs: source, kernel name expressions and options. Picklable."""

    target: str
    source: str
    kernels: tuple[str, ...]
    arch: str
    name: str = "variant"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def key(self) -> str:
        return digest(self.target, self.source, self.kernels, self.arch, self.options)


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled candidate: image bytes (cubin), or what the target reloads by ``key`` (CPU).

    ``code_hash`` is over machine code: two candidates with equal hashes and plans are one.
    ``symbols`` maps a kernel's name expression to the name in the image.
    """

    key: str
    job: CompileJob
    image: bytes
    code_hash: str
    symbols: Mapping[str, str]
    facts: tuple[KernelFacts, ...] = ()
    log: str = ""
    compile_s: float = 0.0
    module_globals: tuple[str, ...] = ()


# --- shared memory and runs ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShmRef:
    """A place in a shared memory block: ``path`` opens in any process of this machine.

    ``block`` is unique to the block, which a path is not (the system uses paths again): caches of
    what a block holds are keyed by the whole reference.
    """

    path: str
    offset: int
    nbytes: int
    block: str = ""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """One argument buffer of a run.

    Args:
        source: initial contents (``in``, ``inout``); None means poison.
        sink: where the contents go after the run (``out``, ``inout``); None means they are dropped.
        misalign: bytes by which the buffer's start is moved off a 256-byte boundary.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    role: Role
    source: ShmRef | None = None
    sink: ShmRef | None = None
    misalign: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Run a loaded binary's plan once on fresh buffers and report what it touched.

    ``schedule`` names one of the target's ``schedules`` to run it under, "" the usual one.
    """

    binary: str
    plan: LaunchPlan
    buffers: tuple[BufferSpec, ...]
    poison: int = 0xFF
    bounds_checked: bool = False
    schedule: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run touched that it must not: guard bands by buffer name, inputs by name."""

    corrupted_guards: tuple[str, ...] = ()
    modified_inputs: tuple[str, ...] = ()
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """How long and how carefully to time.

    Args:
        cache: ``cold`` (data of a call is in no cache) or ``hot``.
        min_samples / max_samples: samples of each contender.
        min_sample_us: one sample is repeated calls until it takes at least this long.
        budget_s: wall-clock limit for one workload's timing.
        give_up_ratio: stop early once the candidate is clearly this many times slower.
        verify_calls: how many randomly chosen timed calls have their outputs captured.
    """

    cache: CacheState = "cold"
    min_samples: int = 7
    max_samples: int = 120
    min_sample_us: float = 100.0
    budget_s: float = 2.0
    give_up_ratio: float = 1.5
    verify_calls: int = 2
    warmup_calls: int = 2


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the things timed against each other in one request."""

    binary: str
    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class TimeRequest:
    """Time one or two loaded binaries on rotating input sets, interleaved.

    ``sets`` holds distinct input sets; the target replicates them in memory as needed to stay cold.
    Captured outputs of contender 0 are written to the sinks of ``captures[i]``, one for each of the
    ``settings.verify_calls`` calls; the report says which set each call used. ``deterministic``:
    all calls on one set must give the same bits, so that a captured one speaks for all.
    """

    contenders: tuple[Contender, ...]
    sets: tuple[tuple[BufferSpec, ...], ...]
    captures: tuple[tuple[BufferSpec, ...], ...]
    settings: TimingSettings
    seed: int
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class TimeReport:
    """Samples of each contender (microseconds a call, device time) and how they were taken."""

    samples_us: tuple[tuple[float, ...], ...]
    end_to_end_us: tuple[float, ...]
    calls_per_sample: int
    captured_sets: tuple[int, ...]
    cache: CacheState
    corrupted_guards: tuple[str, ...] = ()
    modified_inputs: tuple[str, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict)


# --- results ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one candidate on one workload, with what it may be compared with.

    Args:
        workload: the workload's key.
        samples_us: device time a call, microseconds.
        incumbent_us: samples of the incumbent taken interleaved with these (empty: none).
        sol_us: speed of light for this workload; ``floor_us``: below it is impossible.
    """

    workload: str
    samples_us: tuple[float, ...]
    incumbent_us: tuple[float, ...] = ()
    end_to_end_us: float | None = None
    sol_us: float | None = None
    floor_us: float | None = None
    cache: CacheState = "cold"
    conditions: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.samples_us:
            raise ValueError("Timing.samples_us must not be empty")
        bad = [s for s in self.samples_us if not (math.isfinite(s) and s > 0)]
        if bad:
            raise ValueError(f"Timing.samples_us must be positive and finite (got {bad[0]!r})")

    @property
    def median_us(self) -> float:
        ordered = sorted(self.samples_us)
        n = len(ordered)
        return ordered[n // 2] if n % 2 else 0.5 * (ordered[n // 2 - 1] + ordered[n // 2])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What became of one candidate: a status, and the evidence for it.

    Timings exist exactly when the status is ``ok``.

    Args:
        candidate: what was evaluated.
        status: see ``Status``.
        message: one sentence for people.
        evidence: JSON-able facts behind the status.
        timings: one for each tuned workload, only for ``ok``.
        facts: compiler facts of each kernel, where it compiled.
        code_hash: machine code identity, where it compiled.
        stages_s: wall-clock seconds spent in each stage (``compile``, ``verify``, ``measure``).
        verified: keys of the cases that passed.
        confirmed: timed again from scratch in a fresh process.
        device / settings: keys of the device and settings it holds for.
        created: seconds since the epoch.
    """

    candidate: Candidate
    status: Status
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    timings: tuple[Timing, ...] = ()
    facts: tuple[KernelFacts, ...] = ()
    code_hash: str = ""
    stages_s: Mapping[str, float] = field(default_factory=dict)
    verified: tuple[str, ...] = ()
    confirmed: bool = False
    device: str = ""
    settings: str = ""
    created: float = 0.0

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != bool(self.timings):
            raise ValueError(
                f"Evaluation.timings must be given exactly when status is ok "
                f"(got {len(self.timings)} timings with status {self.status})"
            )

    @property
    def ok(self) -> bool:
        return self.status is Status.OK

    def times_us(self) -> dict[str, float]:
        """Return the median time of each workload, microseconds."""
        return {t.workload: t.median_us for t in self.timings}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A new variant somebody suggests: whole source text, and why.

    Args:
        source: text of the variant file (metadata block included).
        parent: hash of the parent variant ("" for a template).
        proposer: who proposes (``template``, ``rules``, ``crossover``, ``inbox``, ``llm``).
        mutation: short name of the change.
        rationale: why it should help.
        predicted_gain: predicted parent time / child time, if the proposer dares.
        suggested_params: params to try first.
    """

    source: str
    parent: str
    proposer: str
    mutation: str
    rationale: str = ""
    predicted_gain: float | None = None
    suggested_params: tuple[tuple[str, ParamValue], ...] = ()
    second_parent: str = ""


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """A variant as the archive keeps it: source text, and where it came from."""

    hash: str
    operator: str
    language: str
    source: str
    name: str
    parent: str = ""
    second_parent: str = ""
    proposer: str = "template"
    mutation: str = ""
    rationale: str = ""
    predicted_gain: float | None = None
    suggested_params: tuple[tuple[str, ParamValue], ...] = ()
    created: float = 0.0


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    if not values:
        raise ValueError("geometric_mean needs at least one value")
    return math.exp(sum(math.log(v) for v in values) / len(values))
