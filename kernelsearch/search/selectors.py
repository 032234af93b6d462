"""Choose the parents of the next proposals among a study's variants."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kernelsearch.protocols import Node

EPSILON = 0.2
EXPLORATION = 0.5


@dataclass(slots=True)
class Greedy:
    """The best variants that are not exhausted, best first."""

    name: str = "greedy"

    def select(self, nodes: Sequence[Node], count: int, seed: int) -> list[str]:
        del seed
        return [n.hash for n in sorted(expandable(nodes), key=_worth)[: max(0, count)]]


@dataclass(slots=True)
class EpsilonGreedyTree:
    """With probability ``epsilon`` any expandable variant, else the one of highest score.

    The score of a variant with speed-up s and c proposals, out of C proposals in all, is ::

        q + exploration * sqrt(ln(1 + C) / (1 + c)),   q = ln(s / worst) / ln(best / worst)

    q is 1 for the best of the variants that can be chosen and 0 for the worst: only ratios of
    speed-ups count, not their unit. The second term falls as a variant gets children, so that one
    good variant does not get all the proposals. Equal scores go to the earlier variant. Every
    choice of one call counts as a proposal for the next one, and none is made twice.
    """

    epsilon: float = EPSILON
    exploration: float = EXPLORATION
    name: str = "epsilon_greedy"

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon <= 1:
            raise ValueError(f"EpsilonGreedyTree.epsilon must be in [0, 1] (got {self.epsilon!r})")
        if not self.exploration >= 0:
            raise ValueError(
                f"EpsilonGreedyTree.exploration must be at least 0 (got {self.exploration!r})"
            )

    def select(self, nodes: Sequence[Node], count: int, seed: int) -> list[str]:
        rng = random.Random(seed)
        left = expandable(nodes)
        total = sum(n.children for n in nodes)
        chosen: list[str] = []
        while left and len(chosen) < count:
            if rng.random() < self.epsilon:
                pick = left[rng.randrange(len(left))]
            else:
                scores = self.scores(left, total)
                pick = max(left, key=lambda n: scores[n.hash])
            left.remove(pick)
            chosen.append(pick.hash)
            total += 1
        return chosen

    def scores(self, nodes: Sequence[Node], total: int) -> dict[str, float]:
        """Return the score of each variant, given the number of proposals in all."""
        logs = [math.log(n.speedup) if n.speedup else 0.0 for n in nodes]
        low, high = min(logs, default=0.0), max(logs, default=0.0)
        span = high - low
        scores = {}
        for node, value in zip(nodes, logs, strict=True):
            quality = (value - low) / span if span > 0 else 1.0
            doubt = math.sqrt(math.log1p(total) / (1 + node.children))
            scores[node.hash] = quality + self.exploration * doubt
        return scores


def expandable(nodes: Sequence[Node]) -> list[Node]:
    """Return the variants that may be parents, in order of arrival.

    Those with a right candidate; where there is none at all, all that are not exhausted, so that a
    proposer gets a chance to repair one.
    """
    open_ = [n for n in nodes if not n.exhausted]
    return [n for n in open_ if n.speedup is not None] or open_


def _worth(node: Node) -> float:
    return -math.inf if node.speedup is None else -node.speedup
