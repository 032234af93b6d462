"""Columns give the same answers as the scalar evaluator, or say that they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsearch.columns import NoColumnsError, truths
from kernelsearch.errors import ExpressionError
from kernelsearch.expressions import Expression

leaves = st.sampled_from(["A", "B", "C", "0", "1", "3", "2.5", "32", "4096", "W", "'wide'"])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from(
        ["+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", ">", ">=", "and", "or"]
    ), inner)  # fmt: skip
    return st.one_of(
        two.map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} < {t[1]} <= {t[2]})"),
        inner.map(lambda t: f"(not {t})"),
        inner.map(lambda t: f"(-{t})"),
        st.tuples(st.sampled_from(["ilog2", "next_pow2", "ispow2", "abs"]), inner).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
        st.tuples(st.sampled_from(["min", "max", "ceildiv", "round_up"]), inner, inner).map(
            lambda t: f"{t[0]}({t[1]}, {t[2]})"
        ),
    )


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(leaves, grow, max_leaves=8),
    st.lists(
        st.tuples(
            st.integers(-3, 70), st.sampled_from([0, 1, 16, 1000, 1 << 40]), st.integers(1, 3),
            st.sampled_from(["wide", "plain", ""]),
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
def test_columns_agree_with_the_scalar_evaluator(text: str, rows: list[Any]) -> None:
    expression = Expression.parse(text)
    names = {n: np.array([r[i] for r in rows]) for i, n in enumerate("ABCW")}
    try:
        holds, lost = truths(expression, names)
    except NoColumnsError:
        return
    holds = np.broadcast_to(holds, len(rows))
    lost = np.broadcast_to(lost, len(rows))
    for i, row in enumerate(rows):
        try:
            expected = expression.truth(dict(zip("ABCW", row, strict=True)))
        except ExpressionError:
            assert lost[i], (text, row)
            assert not holds[i]
        else:
            assert not lost[i], (text, row)
            assert bool(holds[i]) is expected, (text, row)


@pytest.mark.parametrize(
    "text",
    ["A * A * A * A > 3", "(A and 3) - 1 > 1", "(A or 5) == A", "A + 'w' == 3",
     "unknown < A", "A ** -1 < 2",
     "(2.5 if B else 3) < A",
     "W < A"],
)  # fmt: skip
def test_what_columns_cannot_do_exactly_is_refused(text: str) -> None:
    names = {"A": np.array([1, 1 << 30]), "B": np.array([0, 1]), "W": np.array(["a", "b"])}
    with pytest.raises(NoColumnsError):
        truths(Expression.parse(text), names)


@pytest.mark.parametrize(
    "text",
    ["32 <= A * B <= 1024", "A % B == 0", "ceildiv(A, B) < 4 and ispow2(A)", "W != 'wide' or A > 2",
     "B == 0 or A // B > 1", "A / B <= 1.5"],
)  # fmt: skip
def test_what_constraints_are_made_of_needs_no_rows(text: str) -> None:
    names = {
        "A": np.array([[1], [64]]), "B": np.array([[0, 2, 3]]), "W": np.array([["wide"], ["x"]]),
    }  # fmt: skip
    holds, _ = truths(Expression.parse(text), names)
    assert holds.ndim == 2
    assert holds.any()
