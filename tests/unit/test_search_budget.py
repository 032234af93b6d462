"""Budgets are read as written and end a run at the first limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.errors import StudyError
from kernelsearch.search.budget import Budget, parse_budget

limits = st.none() | st.integers(1, 10**6)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200", Budget(candidates=200)),
        (200, Budget(candidates=200)),
        ("90s", Budget(seconds=90)),
        ("5m", Budget(seconds=300)),
        ("1.5h", Budget(seconds=5400)),
        ("200,10m", Budget(candidates=200, seconds=600)),
        (" 10m , 200 ", Budget(candidates=200, seconds=600)),
        ("5m,patience=50", Budget(seconds=300, patience=50)),
    ],
)
def test_parse(text: str | int, expected: Budget) -> None:
    assert parse_budget(text) == expected


@given(limits, limits, limits)
def test_what_is_printed_can_be_read(c: int | None, s: int | None, p: int | None) -> None:
    budget = Budget(candidates=c, seconds=None if s is None else s % 1000 + 1, patience=p)
    if str(budget) != "unlimited":
        assert parse_budget(str(budget)) == budget


@pytest.mark.parametrize(
    "text",
    ["", "x", "5 m", "-3", "0", "0s", "patience=0", "1,2", "5m,300s", "200;5m", "nan", "1e3"],
)
def test_nonsense(text: str) -> None:
    with pytest.raises(StudyError, match="write for example"):
        parse_budget(text)


def test_the_first_limit_ends_the_run() -> None:
    now = [100.0]
    budget = Budget(candidates=10, seconds=60, patience=5, clock=lambda: now[0])
    budget.start(spent=40)
    assert budget.candidates_left(40) == 10
    assert budget.candidates_left(47) == 3
    assert budget.candidates_left(99) == 0
    assert not budget.is_spent(40, since_best=30)  # those were another run's
    assert not budget.is_spent(44, since_best=34)
    assert budget.reason(45, since_best=35) == "no better one among the last 5 candidates"
    assert budget.reason(50, since_best=0) == "10 candidates evaluated"
    now[0] += 59
    assert budget.seconds_left() == 1.0
    assert not budget.is_spent(41)
    now[0] += 1
    assert budget.reason(41) == "60 s used"


def test_no_limit() -> None:
    budget = Budget()
    budget.start()
    assert budget.candidates_left(10**9) is None
    assert budget.seconds_left() is None
    assert not budget.is_spent(10**9, 10**9)
    assert Budget(seconds=5).seconds_left() == 5.0
