"""C's arithmetic on expressions: one operator at a time, shared by host and device code."""

from __future__ import annotations

import sympy as sp

from kernelsearch.importing.symbols import Expr, FloorDivide, Modulo, compare, logic, number


def combine(op: str, a: Expr, b: Expr, *, real: bool = False) -> Expr | None:
    """Return ``a op b``; None where no expression says it (bit operations on unknown sizes)."""
    match op:
        case "+":
            return sp.expand(a + b)
        case "-":
            return sp.expand(a - b)
        case "*":
            return sp.expand(a * b)
        case "/":
            if b == 0:
                return None
            return a / b if real else FloorDivide(sp.expand(a), sp.expand(b))
        case "%":
            return None if b == 0 else Modulo(sp.expand(a), sp.expand(b))
        case "<" | "<=" | ">" | ">=" | "==" | "!=":
            return compare(op, a, b)
        case "&&":
            return logic("and", a, b)
        case "||":
            return logic("or", a, b)
        case "<<" if b.is_Integer and 0 <= b < 64:
            return sp.expand(a * 2 ** int(b))
        case ">>" if b.is_Integer and 0 <= b < 64:
            return FloorDivide(a, number(2 ** int(b)))
        case "&" | "|" | "^" if a.is_Integer and b.is_Integer:
            x, y = int(a), int(b)
            return number({"&": x & y, "|": x | y, "^": x ^ y}[op])
        case "&" if b.is_Integer and _is_mask(int(b)):
            return Modulo(a, number(int(b) + 1))
        case "&" if b.is_Integer and _is_mask(-int(b) - 1):
            low = -int(b)
            return sp.expand(FloorDivide(a, number(low)) * low)
        case "&":
            # x & (n - 1), for a power of two n
            return Modulo(a, sp.expand(b + 1)) if sp.expand(b + 1).is_Symbol else None
    return None


def _is_mask(value: int) -> bool:
    return value > 0 and value & (value + 1) == 0


def literal(text: str) -> tuple[Expr, bool] | None:
    """Return the value of a number as written in C, and whether it is real."""
    body = text.replace("'", "").lower()
    if body.startswith("0x") and "p" not in body:
        return number(int(body.rstrip("ul"), 16)), False
    try:
        if body.startswith("0b"):
            return number(int(body.rstrip("ul"), 2)), False
        if any(c in body for c in ".e") or body.endswith("f"):
            return sp.Float(float(body.rstrip("fl"))), True
        digits = body.rstrip("ul")
        octal = len(digits) > 1 and digits.startswith("0")
        return number(int(digits, 8 if octal else 10)), False
    except ValueError:
        return None
