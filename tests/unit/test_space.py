"""Spaces hold exactly what their constraints allow, and are drawn from evenly however large."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernelsearch.space as space_module
from kernelsearch.errors import ExpressionError, SpecError
from kernelsearch.expressions import Expression
from kernelsearch.space import Space


def build(choices: dict[str, list[Any]], *rules: str, **facts: int) -> Space:
    constraints = {f"r{i}": Expression.parse(r) for i, r in enumerate(rules)}
    return Space(tuple(choices), tuple(choices.values()), constraints, facts)


RULES = ["A * B <= 9", "B % C == 0", "D < 4 or A > 2", "A + B + C + D > 7", "W == 'x' or A > 1"]
small = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        dict.fromkeys("ABCD", small) | {"W": st.lists(st.sampled_from(["x", "y"]), min_size=1)}
    ).map(lambda d: {k: list(dict.fromkeys(v)) for k, v in d.items()}),
    st.lists(st.sampled_from(RULES), max_size=4, unique=True),
    st.sampled_from([0, 3, 10**6]),
)  # fmt: skip
def test_a_space_is_what_its_constraints_allow(
    choices: dict[str, list[Any]], rules: list[str], limit: int
) -> None:
    expected = [
        combination for combination in itertools.product(*choices.values())
        if all(Expression.parse(r).truth(dict(zip(choices, combination, strict=True)))
               for r in rules)
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(space_module, "BLOCK_LIMIT", limit)
        patch.setattr(space_module, "LIST_LIMIT", limit)
        space = build(choices, *rules)
        drawn = space.draw(300, np.random.default_rng(0))
        if space.rows is not None:
            assert [tuple(space.params(r).values()) for r in space.rows] == expected
        if space.size is not None:
            assert space.size == len(expected)
        assert len(drawn) == (300 if expected else 0)
        assert space.valid(drawn).all()
        assert {tuple(space.params(r).values()) for r in drawn} <= set(expected)
        every = np.array(
            list(np.ndindex(*(len(c) for c in choices.values()))), dtype=np.int32
        )  # fmt: skip
        good = {tuple(space.params(r).values()) for r in every[space.valid(every)]}
        assert good == set(expected)


@pytest.mark.parametrize("limit", [0, 30, 10**6])
def test_draws_are_even(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_module, "BLOCK_LIMIT", limit)
    monkeypatch.setattr(space_module, "LIST_LIMIT", limit)
    space = build({n: [1, 2, 3, 4, 6] for n in "ABC"}, "A * B <= 6", "C % B == 0")
    seen = Counter(map(tuple, space.draw(40_000, np.random.default_rng(1)).tolist()))
    expected = [
        c for c in itertools.product(range(5), repeat=3)
        if space.valid(np.array([c], dtype=np.int32))[0]
    ]  # fmt: skip
    assert set(seen) == set(expected)
    mean = 40_000 / len(expected)
    assert max(abs(n - mean) for n in seen.values()) < 0.2 * mean


def test_a_space_of_a_million_millions_is_counted_and_drawn_from() -> None:
    choices = {f"T{i}": list(range(1, 33)) for i in range(10)}
    space = build(choices, "T0 * T1 <= 64", "T2 % T3 == 0", "T4 + T5 + T6 < 40")
    assert space.rows is None
    assert space.size is not None
    assert space.size > 10**11
    rows = space.draw(1000, np.random.default_rng(0))
    assert space.valid(rows).all()
    assert len(np.unique(rows, axis=0)) == 1000


def test_one_constraint_over_everything_is_drawn_from_without_listing() -> None:
    choices = {f"T{i}": [1, 2, 4, 8, 16, 32, 64] for i in range(14)}
    product = " * ".join(choices)
    space = build(choices, f"ilog2({product.replace(' * ', ') + ilog2(')}) == 20")
    assert space.rows is None
    rows = space.draw(500, np.random.default_rng(0))
    assert len(rows) == 500
    assert (rows.sum(axis=1) == 20).all()


def test_where_a_crowd_dies_out_the_search_goes_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_module, "BLOCK_LIMIT", 0)
    monkeypatch.setattr(space_module, "LIST_LIMIT", 0)
    monkeypatch.setattr(space_module, "PARTICLES", 1)
    space = build({n: list(range(1, 20)) for n in "ABC"}, "A * B * C == 19 ** 3")
    rows = space.draw(2, np.random.default_rng(0))
    assert rows.tolist() == [[18, 18, 18]] * 2


def test_ten_million_combinations_are_listed_or_counted() -> None:
    # How long it takes is measured by benchmarks/spaces.py.
    choices: dict[str, list[Any]] = {
        "BX": [1, 2, 4, 8, 16, *range(32, 1025, 32)], "BY": [1, 2, 4, 8, 16, 32],
        "TX": list(range(1, 11)), "TY": list(range(1, 11)), "TT": list(range(1, 11)),
        "SH": [0, 1], "UN": list(range(1, 21)), "BLK": [0, 1, 2, 3],
    }  # fmt: skip
    space = build(
        choices, "32 <= BX * BY <= 1024", "TT % UN == 0", "BX * TX * BY * TY * (2 + TT) * 4 < cap",
        "SH == 0 or BX * BY * TX * TY * 4 <= 49152", cap=500_000,
    )  # fmt: skip
    threads = {(x, y) for x in choices["BX"] for y in choices["BY"] if 32 <= x * y <= 1024}
    expected = sum(
        sum(tt % un == 0 for un in choices["UN"]) * (2 if x * y * tx * ty * 4 <= 49152 else 1) * 4
        for x, y in threads for tx in choices["TX"] for ty in choices["TY"] for tt in choices["TT"]
        if x * tx * y * ty * (2 + tt) * 4 < 500_000
    )  # fmt: skip
    assert space.size == expected


def test_a_condition_without_a_value_anywhere_is_an_error() -> None:
    with pytest.raises(ExpressionError, match="unknown name 'cap'"):
        build({"A": [1, 2]}, "A < cap")
    with pytest.raises(ExpressionError, match="divides by zero"):
        build({"A": [0]}, "4 % A == 0")
    assert build({"A": [0, 2]}, "4 % A == 0").size == 1


def test_what_is_beyond_64_bits_is_looked_at_one_by_one() -> None:
    space = build({"A": [1, 2, 3], "B": [1, 2, 30]}, "(A * 2 ** 30) * (B * 2 ** 30) < 2 ** 62")
    assert space.size == 4
    with pytest.raises(SpecError, match="split it"):
        build({n: list(range(1, 900)) for n in "AB"}, "(A * 2 ** 30) * (B * 2 ** 30) < 2 ** 70")


def test_given_rows_are_the_space() -> None:
    rows = np.array([[1, 1], [0, 1], [1, 0]], dtype=np.int32)
    space = Space.of_rows(("A", "W"), ((1, 2), ("x", "y")), rows)
    assert space.size == 3
    assert space.rows is not None
    assert space.rows.tolist() == [[0, 1], [1, 0], [1, 1]]
    assert space.valid(np.array([[0, 0], [1, 1]], dtype=np.int32)).tolist() == [False, True]
    assert space.neighbours((1, 1)).tolist() == [[0, 1], [1, 0]]
