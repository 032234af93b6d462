"""How parents are chosen: the selectors by name."""

from __future__ import annotations

from collections.abc import Callable

from kernelsearch.protocols import Selector
from kernelsearch.search.selectors import EpsilonGreedyTree, Greedy

SELECTORS: dict[str, Callable[[], Selector]] = {
    "epsilon_greedy": EpsilonGreedyTree,
    "greedy": Greedy,
}
