"""Safe arithmetic for launch plans: parse once, evaluate against names, never ``eval``.

The grammar is in docs/variants.md. Integer arithmetic is exact; ``/`` gives a real number; results
are bounded so that a hostile expression cannot use up memory or time.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kernelsearch.errors import ExpressionError

Value = int | float | str | bool
MAX_LENGTH = 1000
MAX_NODES = 300
MAX_MAGNITUDE = 1 << 80


def _ceildiv(a: float, b: float) -> int:
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return math.ceil(a / b)


def _round_up(a: int, b: int) -> int:
    return _ceildiv(a, b) * b


def _ilog2(n: int) -> int:
    if n < 1:
        raise ValueError(f"ilog2 needs a number >= 1 (got {n})")
    return int(n).bit_length() - 1


def _next_pow2(n: int) -> int:
    return 1 if n <= 1 else 1 << (int(n) - 1).bit_length()


def _ispow2(n: int) -> bool:
    return n > 0 and int(n) & (int(n) - 1) == 0


FUNCTIONS: dict[str, tuple[int, int, Callable[..., Value]]] = {
    "ceildiv": (2, 2, _ceildiv),
    "round_up": (2, 2, _round_up),
    "min": (1, 16, min),
    "max": (1, 16, max),
    "abs": (1, 1, abs),
    "ilog2": (1, 1, _ilog2),
    "next_pow2": (1, 1, _next_pow2),
    "ispow2": (1, 1, _ispow2),
}

_BINARY: dict[type[ast.operator], Callable[..., Value]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}

_COMPARE: dict[type[ast.cmpop], Callable[..., bool]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}

_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Name,
    ast.Constant, ast.Load, ast.And, ast.Or, ast.Not, ast.UAdd, ast.USub, ast.Pow,
    *_BINARY, *_COMPARE,
)  # fmt: skip
# These nodes carry no position of their own: what is wrong with them is told by their parent.
_OPERATORS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


@dataclass(frozen=True, slots=True)
class Expression:
    """One parsed expression. Build with ``Expression.parse``; equality is by text."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    names: frozenset[str] = field(compare=False)

    @staticmethod
    def parse(text: str | int | float) -> Expression:
        """Parse and check ``text``.

        Raises:
            ExpressionError: with the column, if anything outside the grammar is used.
        """
        # Columns count from the first character that is not blank, as the message shows it.
        return _parse(str(text).strip())

    def bind(self, values: Mapping[str, int]) -> Expression:
        """Return the expression with some of its names replaced by numbers."""

        class Replace(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                node.args = [self.visit(a) for a in node.args]
                return node

            def visit_Name(self, node: ast.Name) -> ast.AST:
                return ast.Constant(values[node.id]) if node.id in values else node

        tree = Replace().visit(ast.parse(self.text.strip(), mode="eval"))
        return Expression.parse(ast.unparse(ast.fix_missing_locations(tree)))

    def evaluate(self, names: Mapping[str, Value]) -> Value:
        """Return the value with ``names`` bound.

        Raises:
            ExpressionError: a name is unbound, a type does not fit, or a number gets out of hand.
        """
        return _evaluate(self.tree, names, self.text)

    def integer(self, names: Mapping[str, Value]) -> int:
        """Return the value, which must be a whole number."""
        value = self.evaluate(names)
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, int):
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise ExpressionError(f"must give an integer (got {value!r})", self.text)

    def truth(self, names: Mapping[str, Value]) -> bool:
        """Return the value as a condition."""
        return bool(self.evaluate(names))


@lru_cache(maxsize=4096)
def _parse(text: str) -> Expression:
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"is longer than {MAX_LENGTH} characters", text[:60] + "...")
    if not text:
        raise ExpressionError("is empty", text)
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        column = getattr(error, "offset", None)
        raise ExpressionError("is not an expression", text, column) from None
    names: set[str] = set()
    nodes = list(ast.walk(tree))
    if len(nodes) > MAX_NODES:
        raise ExpressionError(f"has more than {MAX_NODES} parts", text[:60] + "...")
    called = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
    for node in nodes:
        _check(node, text, called)
        if isinstance(node, ast.Name) and id(node) not in called:
            names.add(node.id)
    return Expression(text, tree.body, frozenset(names))


def _check(node: ast.AST, text: str, called: set[int]) -> None:
    if isinstance(node, _OPERATORS):
        return
    column = getattr(node, "col_offset", -1) + 1 or None
    for part in (node, *(c for c in ast.iter_child_nodes(node) if isinstance(c, _OPERATORS))):
        if not isinstance(part, _ALLOWED):
            raise ExpressionError(f"{type(part).__name__} is not allowed", text, column)
    if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str):
        raise ExpressionError(f"constant {node.value!r} is not allowed", text, column)
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
            known = ", ".join(FUNCTIONS)
            raise ExpressionError(f"only these functions may be called: {known};", text, column)
        low, high, _ = FUNCTIONS[node.func.id]
        if not low <= len(node.args) <= high:
            raise ExpressionError(
                f"{node.func.id} takes {low if low == high else f'{low} to {high}'} arguments "
                f"(got {len(node.args)})", text, column,
            )  # fmt: skip


def _evaluate(node: ast.expr, names: Mapping[str, Value], text: str) -> Value:
    column = node.col_offset + 1
    try:
        value = _value(node, names, text)
    except ExpressionError:
        raise
    except ZeroDivisionError:
        raise ExpressionError("divides by zero", text, column) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ExpressionError(f"cannot be evaluated ({error})", text, column) from None
    if isinstance(value, complex):
        raise ExpressionError("gives a complex number", text, column)
    if isinstance(value, int | float) and not -MAX_MAGNITUDE < value < MAX_MAGNITUDE:
        raise ExpressionError("gives a number beyond 2**80", text, column)
    return value


def _value(node: ast.expr, names: Mapping[str, Value], text: str) -> Value:
    match node:
        case ast.Constant(value=value):
            return value  # type: ignore[return-value]
        case ast.Name(id=name):
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise ExpressionError(
                    f"unknown name {name!r} (known: {known})", text, node.col_offset + 1
                )
            return names[name]
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base = _evaluate(left, names, text)
            power = _evaluate(right, names, text)
            if not isinstance(power, int | float) or abs(power) > 64:
                raise ExpressionError("power must be at most 64", text, node.col_offset + 1)
            return base**power  # type: ignore[operator, no-any-return]
        case ast.BinOp(left=left, op=op, right=right):
            return _arithmetic(op, _evaluate(left, names, text), _evaluate(right, names, text))
        case ast.UnaryOp(op=op, operand=operand):
            return _unary(op, _evaluate(operand, names, text))
        case ast.BoolOp(op=op, values=values):
            wanted = isinstance(op, ast.Or)
            result: Value = not wanted
            for part in values:
                result = _evaluate(part, names, text)
                if bool(result) is wanted:
                    return result
            return result
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            a = _evaluate(left, names, text)
            for op_, right in zip(ops, comparators, strict=True):
                b = _evaluate(right, names, text)
                if not _COMPARE[type(op_)](a, b):
                    return False
                a = b
            return True
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _evaluate(body if _evaluate(test, names, text) else orelse, names, text)
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name][2](*(_evaluate(a, names, text) for a in args))
    raise ExpressionError(f"{type(node).__name__} is not allowed", text)  # pragma: no cover


def _arithmetic(op: ast.operator, a: Value, b: Value) -> Value:
    if isinstance(a, str) or isinstance(b, str):
        raise TypeError("words can only be compared")
    return _BINARY[type(op)](a, b)


def _unary(op: ast.unaryop, value: Value) -> Value:
    if isinstance(op, ast.Not):
        return not value
    if isinstance(value, str):
        raise TypeError("words can only be compared")
    if isinstance(op, ast.USub):
        return -value
    return +value
