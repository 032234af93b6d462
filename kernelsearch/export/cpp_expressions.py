"""Write an expression of a launch plan as C++ that computes the same value (arithmetic.hpp)."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from kernelsearch.errors import ExpressionError
from kernelsearch.expressions import Expression, Value

_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
_WHOLE_ONLY = ("ilog2", "next_pow2", "ispow2", "round_up")
_INT64 = 1 << 63
INTEGER, REAL = "integer", "real"

# C++ text and whether it is an integer or a real number.
Typed = tuple[str, str]


class CppExpressions:
    """Translates expressions with some names known now and the others bound at run time.

    Args:
        known: values that are fixed (params, element size): folded into the text.
        names: C++ text of every other name; integers, or real numbers where ``reals`` has them.
        reals: names of real numbers (the operator's scalars).
        math: C++ name of the ``Arithmetic`` that remembers what has no value.
    """

    def __init__(
        self, known: Mapping[str, Value], names: Mapping[str, str],
        reals: frozenset[str] = frozenset(), math: str = "math",
    ) -> None:  # fmt: skip
        self.known, self.names, self.reals, self.math = known, names, reals, math

    def integer(self, expression: Expression) -> str:
        """Return C++ for a value that must be a whole number.

        Raises:
            ExpressionError: a name is unbound, or C++ cannot say it.
        """
        text, kind = self._typed(expression.tree, expression.text)
        return text if kind == INTEGER else f"{self.math}.to_integer({text})"

    def number(self, expression: Expression) -> Typed:
        """Return C++ and the kind of number that it is."""
        return self._typed(expression.tree, expression.text)

    def truth(self, expression: Expression) -> str:
        """Return C++ for a condition; what has no value must be asked of ``math`` afterwards."""
        return self._truth(expression.tree, expression.text)

    # --- nodes ------------------------------------------------------------------------------

    def _folded(self, node: ast.expr, text: str) -> Value | None:
        used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        called = {
            n.func.id
            for n in ast.walk(node)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        if used - called - set(self.known):
            return None
        try:
            return Expression.parse(ast.unparse(node)).evaluate(self.known)
        except ExpressionError as error:
            raise ExpressionError(f"has no value for these params ({error})", text) from error

    def _truth(self, node: ast.expr, text: str) -> str:
        known = self._settled(node, text)
        if known is not None:
            return "true" if known else "false"
        match node:
            case ast.BoolOp(op=op, values=values):
                word = " && " if isinstance(op, ast.And) else " || "
                return "(" + word.join(self._truth(v, text) for v in values) + ")"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return f"(!{self._truth(operand, text)})"
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                parts = []
                for order, right in zip(ops, comparators, strict=True):
                    a, b = self._pair(left, right, text)
                    parts.append(f"({a[0]} {_COMPARE[type(order)]} {b[0]})")
                    left = right
                return "(" + " && ".join(parts) + ")" if len(parts) > 1 else parts[0]
        return f"({self._typed(node, text)[0]} != 0)"

    def _settled(self, node: ast.expr, text: str) -> bool | None:
        """Return a condition's value where the known names decide it."""
        if isinstance(node, ast.BoolOp):
            wanted = isinstance(node.op, ast.Or)
            parts: list[ast.expr] = []
            for part in node.values:
                value = self._settled(part, text)
                if value is wanted:
                    # What stands before it must still have a value: only a leading run decides.
                    return wanted if not parts else None
                if value is None:
                    parts.append(part)
            return None if parts else not wanted
        folded = self._folded(node, text)
        return None if folded is None else bool(folded)

    def _typed(self, node: ast.expr, text: str) -> Typed:
        folded = self._folded(node, text)
        if folded is not None:
            return self._constant(folded, text)
        match node:
            case ast.Name(id=name):
                if name not in self.names:
                    known = ", ".join(sorted({*self.names, *self.known}))
                    raise ExpressionError(f"unknown name {name!r} (known: {known})", text)
                if name in self.reals:
                    return self.names[name], REAL
                return f"kernelsearch::integer{{{self.names[name]}}}", INTEGER
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                over, under = (self._real(self._typed(side, text)) for side in (left, right))
                return f"{self.math}.div({over}, {under})", REAL
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return self._power(left, right, text)
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._pair(left, right, text)
                return f"{self.math}.{_ARITHMETIC[type(op)]}({a[0]}, {b[0]})", a[1]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner, kind = self._typed(operand, text)
                return f"{self.math}.neg({inner})", kind
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self._typed(operand, text)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                a, b = self._pair(body, orelse, text)
                return f"({self._truth(test, text)} ? {a[0]} : {b[0]})", a[1]
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._call(name, args, text)
            case ast.BoolOp(op=op, values=values) if not all(map(_is_condition, values)):
                return self._either(isinstance(op, ast.Or), values, text)
        return f"static_cast<kernelsearch::integer>({self._truth(node, text)})", INTEGER

    def _either(self, otherwise: bool, values: list[ast.expr], text: str) -> Typed:
        """``a or b`` gives the first value that decides, not a condition."""
        last = self._typed(values[-1], text)
        for value in reversed(values[:-1]):
            first = self._typed(value, text)
            if REAL in (first[1], last[1]):
                first, last = (self._real(first), REAL), (self._real(last), REAL)
            test = f"{first[0]} != 0" if otherwise else f"!({first[0]} != 0)"
            last = f"({test} ? {first[0]} : {last[0]})", last[1]
        return last

    def _power(self, left: ast.expr, right: ast.expr, text: str) -> Typed:
        a, b = self._pair(left, right, text)
        if a[1] == INTEGER:
            exponent = self._folded(right, text)
            if not isinstance(exponent, int) or exponent < 0:
                raise ExpressionError(
                    "must have a power that is a whole number >= 0 known when the bundle is "
                    "written; C++ cannot say others", text,
                )  # fmt: skip
        return f"{self.math}.pow({a[0]}, {b[0]})", a[1]

    def _call(self, name: str, args: list[ast.expr], text: str) -> Typed:
        values = [self._typed(a, text) for a in args]
        real = any(kind == REAL for _, kind in values)
        if real and name in _WHOLE_ONLY:
            raise ExpressionError(f"{name} of a real number cannot be said in C++", text)
        texts = [self._real(v) if real else v[0] for v in values]
        kind = REAL if real and name != "ceildiv" else INTEGER
        if name in ("min", "max"):
            result = texts[0]
            for other in texts[1:]:
                result = f"{self.math}.{name}({result}, {other})"
            return result, kind
        return f"{self.math}.{name}({', '.join(texts)})", kind

    def _pair(self, left: ast.expr, right: ast.expr, text: str) -> tuple[Typed, Typed]:
        a, b = self._typed(left, text), self._typed(right, text)
        if a[1] == b[1]:
            return a, b
        return (self._real(a), REAL), (self._real(b), REAL)

    @staticmethod
    def _real(value: Typed) -> str:
        return value[0] if value[1] == REAL else f"static_cast<double>({value[0]})"

    @staticmethod
    def _constant(value: Value, text: str) -> Typed:
        if isinstance(value, str):
            raise ExpressionError("gives a word, not a number", text)
        if isinstance(value, float):
            return f"{value.hex()}", REAL
        number = int(value)
        if not -_INT64 < number < _INT64:
            raise ExpressionError("has a constant beyond 2**63, which C++ cannot say", text)
        return f"kernelsearch::integer{{{number}LL}}", INTEGER


def _is_condition(node: ast.expr) -> bool:
    negation = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    if isinstance(node, ast.BoolOp):
        return all(map(_is_condition, node.values))
    return negation or isinstance(node, ast.Compare)
