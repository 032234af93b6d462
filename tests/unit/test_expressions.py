"""Launch-plan arithmetic agrees with Python where it is allowed, and stops at everything else."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.errors import ExpressionError
from kernelsearch.expressions import FUNCTIONS, MAX_LENGTH, MAX_NODES, Expression

NAMES = {"a": 7, "b": 3, "c": 0, "x": 2.5, "w": "tiled"}


def value(text: str | float, **names: object) -> object:
    return Expression.parse(text).evaluate({**NAMES, **names})  # type: ignore[arg-type]


numbers = st.integers(-50, 50).map(lambda n: f"({n})") | st.sampled_from(
    ["a", "b", "c", "x", "2.5"]
)


def combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    compare = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    return st.one_of(
        st.builds("({} {} {})".format, parts, binary, parts),
        st.builds("({} {} {} {} {})".format, parts, compare, parts, compare, parts),
        st.builds("({} and {} or not {})".format, parts, parts, parts),
        st.builds("({} if {} else {})".format, parts, parts, parts),
        st.builds("(-{})".format, parts),
        st.builds("min({}, {})".format, parts, parts),
        st.builds("max({}, {}, {})".format, parts, parts, parts),
        st.builds("abs({})".format, parts),
    )


@given(st.recursive(numbers, combined, max_leaves=12))
def test_the_value_is_pythons(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}, "min": min, "max": max, "abs": abs}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(ExpressionError, match="divides by zero"):
            value(text)
        return
    if abs(expected) >= 2**80:
        return
    got = value(text)
    assert got == expected
    assert type(got) is type(expected)


@given(st.text(max_size=40) | st.text("abcxmin()+-*/%<>=!&|~^.,[]{}:'\" 0123456789\n", max_size=40))
def test_any_text_gives_a_value_or_our_error(text: str) -> None:
    try:
        expression = Expression.parse(text)
        result = expression.evaluate(NAMES)
    except ExpressionError:
        return
    assert isinstance(result, int | float | str)
    assert expression.names <= set(NAMES) | {"min"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("ceildiv(7, 3)", 3), ("ceildiv(-7, 3)", -2), ("ceildiv(6, 3)", 2), ("ceildiv(7.0, 2)", 4),
     ("round_up(7, 4)", 8), ("round_up(8, 4)", 8), ("ilog2(1)", 0), ("ilog2(1023)", 9),
     ("ilog2(1024)", 10), ("next_pow2(0)", 1), ("next_pow2(5)", 8), ("next_pow2(8)", 8),
     ("ispow2(0)", False), ("ispow2(64)", True), ("ispow2(65)", False), ("2 ** 10", 1024),
     ("1 < a < 9", True), ("1 < a < 5", False), ("w == 'tiled'", True), ("w != 'tiled'", False),
     ("not c", True), ("c or b", 3), ("c and nonsense", 0), ("a or nonsense", 7),
     ("b if w == 'tiled' else nonsense", 3), ("2 ** -1", 0.5), (" a ", 7), (12, 12), (0.5, 0.5)],
)  # fmt: skip
def test_values(text: str | float, expected: object) -> None:
    assert value(text) == expected


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_ceildiv_covers(n: int, d: int) -> None:
    blocks = value(f"ceildiv({n}, {d})")
    assert isinstance(blocks, int)
    assert (blocks - 1) * d < n <= blocks * d or n == 0 == blocks


@pytest.mark.parametrize(
    "text",
    ["__import__('os')", "().__class__", "a.b", "a[0]", "[1]", "(1, 2)", "{1: 2}", "lambda: 1",
     "f'{a}'", "[x for x in a]", "a := 1", "open('x')", "min(*a)", "min(a=1)", "(min)(1)(2)",
     "a is b", "a is not b", "w in 'tiled'", "w not in 'tiled'", "a & b", "a | b", "a ^ b",
     "a << b", "a >> b", "~a", "a @ b", "b'x'", "1j", "None", "...", "await a", "yield", "*a",
     "a; b", "import os", "", "   ", "1 +", "(((", "a b", "\0", "a\n+ b"],
)  # fmt: skip
def test_everything_else_is_refused_when_parsed(text: str) -> None:
    with pytest.raises(ExpressionError):
        Expression.parse(text)


@pytest.mark.parametrize(
    ("text", "column"),
    [("a + nope", 5), ("a + b // c", 5), ("a + (b in c)", 6), ("a + b.real", 5), ("  a + nope", 5),
     ("min(a, ceildiv(b))", 8), ("a + 'x' * 2", 5), ("1 + ilog2(c)", 5)],
)  # fmt: skip
def test_errors_name_the_column(text: str, column: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert caught.value.column == column
    assert f"at column {column} in expression {text.strip()!r}" in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ExpressionError, match=r"unknown name 'rows' \(known: a, b, c, w, x\)"):
        value("rows + 1")
    with pytest.raises(ExpressionError, match="known: none"):
        Expression.parse("rows").evaluate({})


@pytest.mark.parametrize(
    "text",
    ["9 ** 9 ** 9", "2 ** 65", "2 ** 64 * 2 ** 64", "10 ** 25", "1e400", "1e300 * 1e300",
     "(-8) ** 0.5", "2 ** 'a'", "-'a'", "'a' + 'b'", "'a' * 1000", "a < 'b'", "max('a', 1)",
     "ilog2('a')", "ilog2(0)", "a % c", "a / c", "ceildiv(a, c)", "0 ** -1", "abs('a')"],
)  # fmt: skip
def test_hostile_values_stop_early(text: str) -> None:
    with pytest.raises(ExpressionError):
        value(text)


@pytest.mark.parametrize(
    "text",
    ["1 + " * 2000 + "1", "(" * 900 + "1" + ")" * 900, "-" * 990 + "1", "9" * (MAX_LENGTH + 1),
     "+".join(["a"] * (MAX_NODES // 2 + 50)), "not " * 249 + "a",
     "a if " * 100 + "a" + " else a" * 100],
)  # fmt: skip
def test_large_expressions_neither_crash_nor_take_long(text: str) -> None:
    message = ""
    try:
        value(text)
    except ExpressionError as error:
        message = str(error)
    assert len(message) < 3 * MAX_LENGTH


@pytest.mark.parametrize(("text", "expected"), [("a", 7), ("a / 7", 1), ("a > 1", 1)])
def test_integer(text: str, expected: int) -> None:
    got = Expression.parse(text).integer(NAMES)
    assert got == expected
    assert type(got) is int


@pytest.mark.parametrize("text", ["x", "a / 2", "w"])
def test_integer_refuses_fractions_and_words(text: str) -> None:
    with pytest.raises(ExpressionError, match="must give an integer"):
        Expression.parse(text).integer(NAMES)


def test_truth() -> None:
    assert Expression.parse("a % 7 == 0").truth(NAMES) is True
    assert Expression.parse("c").truth(NAMES) is False


def test_names_are_what_must_be_bound() -> None:
    assert Expression.parse("min(a, b) + ceildiv(n, 2) if w else abs(q)").names == {
        "a", "b", "n", "w", "q",
    }  # fmt: skip
    assert Expression.parse("min + min(1, 2)").names == {"min"}


def test_equality_is_by_text_also_after_a_pickle() -> None:
    one = Expression.parse("a + b")
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) == one
    assert hash(copy.deepcopy(one)) == hash(one)
    assert Expression.parse(" a + b ") == one
    assert Expression.parse("a+b") != one


def test_every_function_documents_itself() -> None:
    text = (__import__("pathlib").Path(__file__).parents[2] / "docs" / "variants.md").read_text()
    for name in FUNCTIONS:
        assert f"`{name}" in text
