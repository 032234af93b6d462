"""Integer arithmetic of C on unknown sizes: division that truncates, simplified, written as plans.

Everything is taken to be >= 0, as sizes and indices are, so C's division is the floor.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import sympy as sp
from sympy.printing.str import StrPrinter

from kernelsearch.errors import ExpressionError
from kernelsearch.expressions import Expression

Expr = Any  # sympy has no types of its own


def symbol(name: str) -> Expr:
    """Return the symbol of a size, a tunable or an index."""
    return sp.Symbol(name, integer=True, nonnegative=True)


def number(value: int) -> Expr:
    """Return a whole number."""
    return sp.Integer(value)


class _Natural(sp.Function):  # type: ignore[misc]
    """A function whose value is a whole number >= 0."""

    is_integer = True
    is_nonnegative = True


class FloorDivide(_Natural):
    """a / b of integers."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 1:
            return a
        if a.is_Integer and b.is_Integer and b != 0:
            return sp.Integer(int(a) // int(b))
        quotient = _exact(a, b)
        if quotient is not None:
            return quotient
        if isinstance(a, FloorDivide):
            return FloorDivide(a.args[0], sp.expand(a.args[1] * b))
        whole, rest = _split(a, b)
        # (n + b - 1) / b, and (n + 255) / 256
        raised = sp.expand(rest - (b - 1))
        if raised.is_Integer and raised == 0:
            return whole
        if _without_constant(raised) and not _without_constant(rest):
            return whole + CeilDivide(raised, b)
        if whole != 0:
            return whole + FloorDivide(rest, b)
        return None


class CeilDivide(_Natural):
    """The quotient, rounded up."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 1:
            return a
        if a.is_Integer and b.is_Integer and b != 0:
            return sp.Integer(-(-int(a) // int(b)))
        return _exact(a, b)


class Modulo(_Natural):
    """a % b of integers."""

    nargs = 2

    @classmethod
    def eval(cls, a: Expr, b: Expr) -> Expr | None:
        if b == 1:
            return sp.Integer(0)
        if a.is_Integer and b.is_Integer and b != 0:
            return sp.Integer(int(a) % int(b))
        return sp.Integer(0) if _exact(a, b) is not None else None


class Compare(_Natural):
    """``Compare(op, a, b)``: 1 where it holds. ``op`` is a symbol named like the operator."""

    nargs = 3

    @classmethod
    def eval(cls, op: Expr, a: Expr, b: Expr) -> Expr | None:
        difference = sp.expand(a - b)
        if not difference.is_Integer:
            return None
        d = int(difference)
        held = {"<": d < 0, "<=": d <= 0, ">": d > 0, ">=": d >= 0, "==": d == 0, "!=": d != 0}
        return sp.Integer(int(held[op.name]))


class Logic(_Natural):
    """``Logic(op, a, ...)``: and, or, not."""

    @classmethod
    def eval(cls, op: Expr, *args: Expr) -> Expr | None:
        known = [bool(a != 0) for a in args if a.is_Integer]
        if op.name == "not":
            return sp.Integer(int(not known[0])) if known else None
        if (op.name == "and" and not all(known)) or (op.name == "or" and any(known)):
            return sp.Integer(int(op.name == "or"))
        rest = [a for a in args if not a.is_Integer]
        if not rest:
            return sp.Integer(int(op.name == "and"))
        if len(rest) < len(args):
            return rest[0] if len(rest) == 1 else Logic(op, *rest)
        return None


class Choose(_Natural):
    """``Choose(condition, a, b)``: C's conditional expression."""

    nargs = 3

    @classmethod
    def eval(cls, condition: Expr, a: Expr, b: Expr) -> Expr | None:
        if condition.is_Integer:
            return a if condition != 0 else b
        if a == b:
            return a
        if isinstance(condition, Compare) and condition.args[0].name in ("<", "<=", ">", ">="):
            _, left, right = condition.args
            smaller = condition.args[0].name in ("<", "<=")
            if {a, b} == {left, right}:
                first = left if smaller else right
                return sp.Min(left, right) if a == first else sp.Max(left, right)
        return None


class NextPowerOfTwo(_Natural):
    """The smallest power of two that is not less."""

    nargs = 1


def compare(op: str, a: Expr, b: Expr) -> Expr:
    """Return 1 where ``a op b`` holds."""
    return Compare(sp.Symbol(op), a, b)


def logic(op: str, *args: Expr) -> Expr:
    """Return the conjunction, disjunction or negation."""
    return Logic(sp.Symbol(op), *args)


def _exact(a: Expr, b: Expr) -> Expr | None:
    """Return a / b where that is a polynomial with whole coefficients."""
    if a == 0:
        return sp.Integer(0)
    quotient = sp.cancel(a / b)
    if sp.fraction(quotient)[1] != 1:
        return None
    expanded = sp.expand(quotient)
    terms = expanded.as_ordered_terms()
    return expanded if all(t.as_coeff_Mul()[0].is_Integer for t in terms) else None


def _split(a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Return (q, r) with a = q b + r, where whole terms of ``a`` are multiples of ``b``."""
    whole, rest = sp.Integer(0), sp.Integer(0)
    for term in sp.Add.make_args(sp.expand(a)):
        quotient = _exact(term, b)
        # A negative multiple stays: n - 1 over n would not be >= 0 any more.
        if quotient is None or quotient.could_extract_minus_sign() or b.is_Integer:
            rest += term
        else:
            whole += quotient
    # ``b - 1`` in (n + b - 1): the multiple belongs to the rounding up.
    if whole != 0 and rest.as_coeff_Add()[0] == -1:
        return whole - 1, rest + b
    return whole, rest


def _without_constant(e: Expr) -> bool:
    return bool(e.as_coeff_Add()[0] == 0)


class _PlanPrinter(StrPrinter):  # type: ignore[misc]
    """Writes an expression in the grammar of launch plans (docs/variants.md)."""

    def _operand(self, e: Expr) -> str:
        text = self._print(e)
        return text if e.is_Symbol or (e.is_Integer and e >= 0) else f"({text})"

    def _print_FloorDivide(self, e: Expr) -> str:
        return f"({self._operand(e.args[0])} // {self._operand(e.args[1])})"

    def _print_Modulo(self, e: Expr) -> str:
        return f"({self._operand(e.args[0])} % {self._operand(e.args[1])})"

    def _print_CeilDivide(self, e: Expr) -> str:
        return f"ceildiv({self._print(e.args[0])}, {self._print(e.args[1])})"

    def _print_NextPowerOfTwo(self, e: Expr) -> str:
        return f"next_pow2({self._print(e.args[0])})"

    def _print_Float(self, e: Expr) -> str:
        return repr(float(e))

    def _print_Pow(self, e: Expr, rational: bool = False) -> str:
        del rational
        base, power = e.args
        if power == -1:
            return f"(1 / {self._operand(base)})"
        return f"{self._operand(base)}**{self._operand(power)}"

    def _print_Rational(self, e: Expr) -> str:
        return f"({e.p} / {e.q})"

    def _print_Max(self, e: Expr) -> str:
        return f"max({', '.join(sorted(self._print(a) for a in e.args))})"

    def _print_Min(self, e: Expr) -> str:
        return f"min({', '.join(sorted(self._print(a) for a in e.args))})"

    def _print_Compare(self, e: Expr) -> str:
        return f"({self._operand(e.args[1])} {e.args[0].name} {self._operand(e.args[2])})"

    def _print_Logic(self, e: Expr) -> str:
        if e.args[0].name == "not":
            return f"(not {self._operand(e.args[1])})"
        return "(" + f" {e.args[0].name} ".join(self._operand(a) for a in e.args[1:]) + ")"

    def _print_Choose(self, e: Expr) -> str:
        c, a, b = e.args
        return f"({self._operand(a)} if {self._operand(c)} else {self._operand(b)})"


_PRINTER = _PlanPrinter()


def plan_text(e: Expr) -> str:
    """Return ``e`` as an expression of a launch plan or an operator's shape."""
    text: str = _PRINTER.doprint(sp.expand(e) if not e.is_Symbol else e)
    if text.startswith("(") and text.endswith(")") and _closes_at_end(text):
        text = text[1:-1]
    return text


def _closes_at_end(text: str) -> bool:
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return at == len(text) - 1
    return False


def names(e: Expr) -> set[str]:
    """Return the names of the symbols in ``e``, operators of comparisons not among them."""
    return {s.name for s in e.free_symbols if s.name.isidentifier()} - {"and", "or", "not"}


def from_plan(text: str) -> Expr:
    """Return the expression that a text in the grammar of launch plans says.

    Raises:
        ExpressionError: it is none, or holds what has no counterpart here.
    """
    return _from_tree(Expression.parse(text).tree, text)


_BINARY: dict[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: FloorDivide, ast.Mod: Modulo,
    ast.Pow: lambda a, b: a**b,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Expr]] = {
    "ceildiv": CeilDivide, "max": sp.Max, "min": sp.Min, "next_pow2": NextPowerOfTwo,
}  # fmt: skip


def _from_tree(node: ast.expr, text: str) -> Expr:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return number(value)
        case ast.Constant(value=float(value)):
            return sp.Float(value)
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_from_tree(operand, text)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_from_tree(left, text), _from_tree(right, text))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _CALLS:
            return _CALLS[name](*(_from_tree(a, text) for a in args))
    raise ExpressionError("is too involved here: use sums, products and quotients of sizes", text)
