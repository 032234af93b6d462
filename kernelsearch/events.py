"""What a running study tells whoever watches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kernelsearch.records import Evaluation


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot after each step of a study.

    Args:
        phase: ``baseline``, ``search``, ``confirm`` or ``done``.
        candidates: evaluations recorded so far (in this study, all runs).
        statuses: how many of each status.
        best_speedup: over the baseline; ``best_us``: geometric mean of times.
        best_variant: its name.
        sol_fraction: speed of light / best time, geometric mean over the workloads.
        elapsed_s: since this run began; ``per_minute``: candidates of this run a minute.
        budget: what is left, for people.
        since_best: evaluations since the best one came.
        latest: the evaluation that caused this event, if one did.
        message: one line for people.
    """

    phase: str
    candidates: int = 0
    statuses: Mapping[str, int] = field(default_factory=dict)
    best_speedup: float | None = None
    best_us: float | None = None
    best_variant: str = ""
    sol_fraction: float | None = None
    elapsed_s: float = 0.0
    per_minute: float = 0.0
    budget: str = ""
    since_best: int = 0
    latest: Evaluation | None = None
    latest_variant: str = ""
    message: str = ""


Observer = Callable[[Progress], None]
