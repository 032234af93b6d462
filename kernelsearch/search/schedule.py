"""Decide what comes next: a first look at every variant, then tuning and new structures in turn.

Pure bookkeeping. The study tells it what variants there are, how good they are and how many of
their candidates have been tried; it answers with a decision, and the study acts on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# Every structure gets one candidate; one that is near the best then gets this many before it is
# judged: its parent's best projected on it, and a few of its own.
FIRST_LOOK = 4
NEAR = 1.25
# Candidates of one deepening step, and how many leading variants take part in it.
DEEPEN = 4
LEADERS = 3
# A structure whose first candidates all fail is given up.
FAILURES = 3
# A structure this much slower than the best after its first look is not tuned further.
HOPELESS = 1.6
# Of this many turns one asks for new structures; the others deepen the leaders.
PROPOSE_EVERY = 3


class Action(StrEnum):
    """What the study should do next."""

    TUNE = "tune"
    PROPOSE = "propose"
    WAIT = "wait"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a variant stands: candidates tried (also pending ones), ok ones, best speed-up.

    ``exhausted`` means that it has no untried params left.
    """

    hash: str
    tried: int
    ok: int
    speedup: float | None
    exhausted: bool
    settled: int = 0

    @property
    def given_up(self) -> bool:
        """Whether all of its first candidates failed."""
        return self.ok == 0 and self.settled >= FAILURES


@dataclass(frozen=True, slots=True)
class Decision:
    action: Action
    variant: str = ""
    count: int = 0


class Schedule:
    """Alternates between deepening the leaders and asking for new structures.

    Args:
        can_propose: whether there is any proposer.
    """

    def __init__(self, *, can_propose: bool) -> None:
        self._can_propose = can_propose
        self._turn = 0
        self._deepened = 0
        self._dry = False

    def dry(self) -> None:
        """Note that the proposers had nothing to say the last time they were asked."""
        self._dry = True

    def fresh(self) -> None:
        """Note that a variant was added or bettered, so that proposing is worth a try again."""
        self._dry = False

    def decide(self, standings: Sequence[Standing]) -> Decision:
        """Return what to do next, given every variant in order of arrival."""
        unseen = [s for s in standings if self._wants_a_look(s, standings)]
        if unseen:
            # Breadth first: a budget that ends early has seen every structure once.
            least = min(unseen, key=lambda s: s.tried)
            return Decision(Action.TUNE, least.hash, 1)
        unsettled = sum(s.tried > 0 and s.settled == 0 for s in standings)
        if unsettled > sum(s.settled > 0 for s in standings):
            return Decision(Action.WAIT)  # most of the picture is still missing
        leaders = self._leaders(standings)
        can_propose = self._can_propose and not self._dry
        self._turn += 1
        if can_propose and (not leaders or self._turn % PROPOSE_EVERY == 0):
            return Decision(Action.PROPOSE, count=2)
        if not leaders:
            return Decision(Action.STOP)
        # The best gets every other turn, the others share the rest.
        self._deepened += 1
        place = 0 if self._deepened % 2 else (self._deepened // 2) % len(leaders)
        return Decision(Action.TUNE, leaders[place].hash, DEEPEN)

    @staticmethod
    def _wants_a_look(standing: Standing, standings: Sequence[Standing]) -> bool:
        if standing.tried >= FIRST_LOOK or standing.exhausted or standing.given_up:
            return False
        if standing.tried > standing.settled:
            return False  # its candidates under way decide whether it gets more
        best = max((s.speedup or 0.0 for s in standings), default=0.0)
        return standing.speedup is None or standing.speedup * NEAR >= best

    @staticmethod
    def _leaders(standings: Sequence[Standing]) -> list[Standing]:
        ranked = sorted(
            (s for s in standings if s.speedup is not None),
            key=lambda s: -(s.speedup or 0.0),
        )
        if not ranked:
            return []
        best = ranked[0].speedup or 0.0
        open_ = [s for s in ranked if not s.exhausted and (s.speedup or 0.0) * HOPELESS >= best]
        return open_[:LEADERS]
