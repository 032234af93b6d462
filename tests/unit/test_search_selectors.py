"""Selectors choose only what can be chosen, the same for a seed, and spread their choices."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.protocols import Node, Selector
from kernelsearch.search import SELECTORS
from kernelsearch.search.selectors import EpsilonGreedyTree, Greedy, expandable

forests = st.lists(
    st.tuples(st.none() | st.floats(0.01, 100), st.integers(0, 9), st.booleans()), max_size=12
).map(
    lambda rows: [Node(f"v{i}", "", s, c, 0, exhausted=x) for i, (s, c, x) in enumerate(rows)]
)  # fmt: skip
selectors = st.sampled_from([*SELECTORS.values()]).map(lambda make: make())


@given(selectors, forests, st.integers(0, 5), st.integers())
def test_any_selector(selector: Selector, nodes: list[Node], count: int, seed: int) -> None:
    chosen = selector.select(nodes, count, seed)
    possible = [n.hash for n in expandable(nodes)]
    assert len(chosen) == len(set(chosen)) == min(count, len(possible))
    assert set(chosen) <= set(possible)
    assert chosen == selector.select(nodes, count, seed)
    assert selector.name in SELECTORS


@given(forests)
def test_exhausted_variants_are_never_parents(nodes: list[Node]) -> None:
    found = expandable(nodes)
    assert not any(n.exhausted for n in found)
    if any(n.speedup is not None and not n.exhausted for n in nodes):
        assert all(n.speedup is not None for n in found)


def test_greedy_takes_the_best_first() -> None:
    nodes = [Node("a", "", 1.0, 0, 0), Node("b", "", 3.0, 9, 1), Node("c", "", 2.0, 0, 1)]
    assert Greedy().select(nodes, 2, 0) == ["b", "c"]
    assert Greedy().select([Node("a", "", None, 0, 0)], 2, 0) == ["a"]
    assert Greedy().select([], 2, 0) == []


def test_the_tree_prefers_the_best_but_not_for_ever() -> None:
    tree = EpsilonGreedyTree(epsilon=0.0)
    fresh = [Node("a", "", 1.0, 0, 0), Node("b", "", 3.0, 0, 1)]
    assert tree.select(fresh, 1, 0) == ["b"]
    children = {"a": 0, "b": 0, "c": 0}
    for seed in range(60):
        nodes = [
            Node("a", "", 1.0, children["a"], 0), Node("b", "", 3.0, children["b"], 1),
            Node("c", "", 2.9, children["c"], 1),
        ]  # fmt: skip
        children[tree.select(nodes, 1, seed)[0]] += 1
    assert children["b"] >= children["c"] > children["a"]


@given(st.floats(0.01, 100))
def test_scores_do_not_depend_on_the_unit_of_speed_ups(unit: float) -> None:
    tree = EpsilonGreedyTree()
    nodes = [Node(f"v{i}", "", s * unit, i, 0) for i, s in enumerate((1.0, 2.0, 5.0))]
    base = [Node(f"v{i}", "", s, i, 0) for i, s in enumerate((1.0, 2.0, 5.0))]
    assert tree.scores(nodes, 3) == pytest.approx(tree.scores(base, 3))


def test_epsilon_one_is_uniform() -> None:
    nodes = [Node(f"v{i}", "", 1.0 + 10 * i, 0, 0) for i in range(4)]
    counts = Counter(EpsilonGreedyTree(epsilon=1.0).select(nodes, 1, s)[0] for s in range(400))
    assert min(counts.values()) > 60


@pytest.mark.parametrize("arguments", [{"epsilon": 1.5}, {"exploration": -1.0}])
def test_bad_settings(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        EpsilonGreedyTree(**arguments)  # type: ignore[arg-type]
