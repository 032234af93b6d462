"""Evaluate an expression on whole columns of values at once, with the scalar evaluator's answers.

``expressions`` computes with exact integers; columns hold 64 bits. Each step therefore carries the
bounds of its values, and what could leave the exact range (or has no counterpart in columns) is
refused with ``NoColumnsError``: the caller then evaluates row by row. A row without a value, such
as one that divides by zero, is marked and not an error.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelsearch.expressions import Expression

Column: TypeAlias = NDArray[Any]
Mask: TypeAlias = NDArray[np.bool_]
# Beyond this a float64 no longer holds every integer.
EXACT = 1 << 53


class NoColumnsError(Exception):
    """The expression must be evaluated row by row; whoever asks for columns catches it."""


@dataclass(frozen=True, slots=True)
class _Values:
    """Values of one step; ``lost`` marks the rows without one (None: all have one).

    ``and`` and ``or`` give one of their operands: of those only the truth is known here, and they
    cannot be computed with.
    """

    column: Column
    lost: Mask | None = None
    only_truth: bool = False

    @property
    def is_word(self) -> bool:
        return self.column.dtype.kind == "U"

    @property
    def is_real(self) -> bool:
        return self.column.dtype.kind == "f"


def truths(expression: Expression, names: Mapping[str, Column]) -> tuple[Mask, Mask]:
    """Tell for each row whether a condition holds, and whether it has no value.

    Args:
        expression: the condition.
        names: a column of numbers (int64, float64) or words for each name in it; all of shapes
            that broadcast together, a constant as an array without axes.

    Returns:
        Two masks of the common shape: where it holds, and where it cannot be evaluated.

    Raises:
        NoColumnsError: columns cannot give the exact answer.
    """
    with np.errstate(all="ignore"):
        result = _value(expression.tree, names)
        holds = _truth(result)
    lost = np.zeros((), dtype=np.bool_) if result.lost is None else result.lost
    shape = np.broadcast_shapes(holds.shape, lost.shape)
    lost = np.broadcast_to(lost, shape)
    return np.broadcast_to(holds, shape) & ~lost, lost


def _truth(values: _Values) -> Mask:
    return np.asarray(values.column != ("" if values.is_word else 0))


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    if a is None or b is None:
        return b if a is None else a
    return np.asarray(a | b)


def _number(values: _Values) -> _Values:
    """Return values to compute with: Booleans count as 0 and 1."""
    if values.is_word or values.only_truth:
        raise NoColumnsError  # the scalar evaluator knows what to say about it
    if values.column.dtype.kind == "b":
        return _Values(values.column.astype(np.int64), values.lost)
    return values


def _reach(column: Column) -> int:
    """Return a bound of the magnitudes in a column of numbers."""
    if not column.size:
        return 0
    low, high = column.min(), column.max()
    if not (np.isfinite(low) and np.isfinite(high)):
        raise NoColumnsError
    return int(max(abs(float(low)), abs(float(high)))) + 1


def _checked(column: Column, lost: Mask | None) -> _Values:
    if column.dtype.kind == "f" and lost is not None:
        column = np.where(np.broadcast_to(lost, np.broadcast_shapes(lost.shape, column.shape)),
                          0.0, column)  # fmt: skip
    if column.dtype.kind != "b" and _reach(column) > EXACT:
        raise NoColumnsError
    return _Values(column, lost)


def _value(node: ast.expr, names: Mapping[str, Column]) -> _Values:
    match node:
        case ast.Constant(value=value):
            return _leaf(np.asarray(value))
        case ast.Name(id=name):
            if name not in names:
                raise NoColumnsError
            return _leaf(names[name])
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, _number(_value(left, names)), _number(_value(right, names)))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _value(operand, names)
            return _Values(~_truth(inner), inner.lost)
        case ast.UnaryOp(op=op, operand=operand):
            inner = _number(_value(operand, names))
            return _Values(-inner.column if isinstance(op, ast.USub) else inner.column, inner.lost)
        case ast.BoolOp(op=op, values=parts):
            return _connected(isinstance(op, ast.Or), [_value(p, names) for p in parts])
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _compared(
                [_value(p, names) for p in (left, *comparators)], [type(o) for o in ops]
            )
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _chosen(_value(test, names), _value(body, names), _value(orelse, names))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _called(name, [_number(_value(a, names)) for a in args])
    raise NoColumnsError


def _leaf(column: Column) -> _Values:
    if column.dtype.kind in "bU":
        return _Values(column)
    if column.dtype.kind not in "iuf":
        raise NoColumnsError
    kind = np.float64 if column.dtype.kind == "f" else np.int64
    return _checked(column.astype(kind, copy=False), None)


def _arithmetic(op: ast.operator, a: _Values, b: _Values) -> _Values:
    lost = _either(a.lost, b.lost)
    x, y = a.column, b.column
    if isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
        zero = y == 0
        lost = _either(lost, zero) if zero.any() else lost
        y = np.where(zero, 1, y) if zero.any() else y
        divide: dict[type[ast.operator], Callable[..., Any]] = {
            ast.Div: np.true_divide, ast.FloorDiv: np.floor_divide, ast.Mod: np.remainder,
        }  # fmt: skip
        return _checked(np.asarray(divide[type(op)](x, y)), lost)
    if isinstance(op, ast.Mult):
        # Both are exact in 53 bits; their product must be too, before it is formed.
        if _reach(x) * _reach(y) > EXACT:
            raise NoColumnsError
        return _checked(np.asarray(x * y), lost)
    if isinstance(op, ast.Pow):
        return _power(a, b, lost)
    return _checked(np.asarray(x + y if isinstance(op, ast.Add) else x - y), lost)


def _power(a: _Values, b: _Values, lost: Mask | None) -> _Values:
    """Return whole powers of whole numbers; the rest is for the scalar evaluator."""
    if a.is_real or b.is_real or (b.column.size and b.column.min() < 0):
        raise NoColumnsError
    highest = int(b.column.max()) if b.column.size else 0
    if highest > 64 or _reach(a.column) ** highest > EXACT:
        raise NoColumnsError
    return _checked(np.asarray(np.power(a.column, b.column)), lost)


def _same_kind(parts: list[_Values]) -> list[_Values]:
    """Return parts that may be chosen between: all words, or all numbers of one kind."""
    if all(p.is_word for p in parts):
        return parts
    return [_number(p) for p in parts]


def _connected(is_or: bool, parts: list[_Values]) -> _Values:
    """Return ``and`` or ``or`` as a truth; what comes after the decision is not looked at."""
    holds, lost = _truth(parts[0]), parts[0].lost
    for part in parts[1:]:
        decided = holds if is_or else ~holds
        if part.lost is not None:
            lost = _either(lost, part.lost & ~decided)
        holds = holds | _truth(part) if is_or else holds & _truth(part)
    mixed = any(p.only_truth or p.column.dtype.kind != "b" for p in parts)
    return _Values(np.asarray(holds), lost, only_truth=mixed)


def _compared(parts: list[_Values], ops: list[type[ast.cmpop]]) -> _Values:
    if any(p.only_truth for p in parts):
        raise NoColumnsError
    holds: Mask | None = None
    lost = parts[0].lost
    for (a, b), op in zip(pairwise(parts), ops, strict=True):
        # A chain that is decided does not look at what follows.
        after = b.lost if b.lost is None or holds is None else b.lost & holds
        lost = _either(lost, after)
        step = _COMPARE[op](a.column, b.column) if a.is_word == b.is_word else _unlike(op)
        holds = np.asarray(step) if holds is None else np.asarray(holds & step)
    assert holds is not None
    return _Values(holds, lost)


def _unlike(op: type[ast.cmpop]) -> Mask:
    """Return how a word compares with a number."""
    if op not in (ast.Eq, ast.NotEq):
        raise NoColumnsError
    return np.asarray(op is ast.NotEq)


_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


def _chosen(test: _Values, body: _Values, orelse: _Values) -> _Values:
    body, orelse = _same_kind([body, orelse])
    if body.is_real != orelse.is_real:
        raise NoColumnsError  # whether a value is whole depends on the row
    holds = _truth(test)
    lost = test.lost
    if body.lost is not None:
        lost = _either(lost, body.lost & holds)
    if orelse.lost is not None:
        lost = _either(lost, orelse.lost & ~holds)
    return _Values(np.where(holds, body.column, orelse.column), lost)


def _called(name: str, args: list[_Values]) -> _Values:
    lost: Mask | None = None
    for arg in args:
        lost = _either(lost, arg.lost)
    if name in ("min", "max"):
        if len({a.is_real for a in args}) > 1:
            raise NoColumnsError
        best = args[0].column
        for arg in args[1:]:
            best = np.minimum(best, arg.column) if name == "min" else np.maximum(best, arg.column)
        return _Values(np.asarray(best), lost)
    if name == "abs":
        return _Values(np.abs(args[0].column), lost)
    if any(a.is_real for a in args):
        raise NoColumnsError
    x = args[0].column
    if name in ("ceildiv", "round_up"):
        quotient = _arithmetic(ast.FloorDiv(), _Values(-x, lost), args[1])
        up = _Values(-quotient.column, quotient.lost)
        return up if name == "ceildiv" else _arithmetic(ast.Mult(), up, args[1])
    if name == "ispow2":
        return _Values((x > 0) & ((x & (x - 1)) == 0), lost)
    if name == "ilog2":
        bad = x < 1
        lost = _either(lost, bad) if bad.any() else lost
        return _Values(_bits(np.maximum(x, 1)) - 1, lost)
    if name == "next_pow2":
        return _Values(np.left_shift(1, np.where(x <= 1, 0, _bits(np.maximum(x - 1, 1)))), lost)
    raise NoColumnsError


def _bits(x: Column) -> Column:
    """Return the bit lengths of positive whole numbers below 2**53: exact, as frexp is."""
    return np.asarray(np.frexp(x.astype(np.float64))[1].astype(np.int64))
