"""The largest value an index can take, from guards, loops, definitions and the launch."""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy as sp

from kernelsearch.importing.symbols import (
    CeilDivide,
    Choose,
    Compare,
    Expr,
    FloorDivide,
    Logic,
    Modulo,
    NextPowerOfTwo,
    number,
)

MAX_STEPS = 60


@dataclass(frozen=True)
class Guard:
    """``expr <= high`` holds where it is active; no loop index of its own is in ``high``."""

    expr: Expr
    high: Expr


@dataclass
class Atom:
    """A variable's value in a kernel, kept under a name of its own so that guards can speak of it.

    Args:
        symbol: its name.
        definition: what it was assigned, None where it changes.
        high: the largest value, None where only guards tell.
        low: the smallest value.
        loaded: the integer tensor it was read from, and the index there.
    """

    symbol: Expr
    definition: Expr | None = None
    high: Expr | None = None
    low: Expr | None = None
    loaded: tuple[str, Expr] | None = None


@dataclass
class Bounds:
    """All atoms of one kernel, and the guards that are active."""

    atoms: dict[Expr, Atom] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)

    def atoms_of(self, e: Expr) -> list[Expr]:
        return [s for s in e.free_symbols if s in self.atoms]

    def expanded(self, e: Expr) -> Expr:
        """Return ``e`` with every definition put in."""
        for _ in range(MAX_STEPS):
            defined = {
                s: self.atoms[s].definition for s in self.atoms_of(e)
                if self.atoms[s].definition is not None
            }  # fmt: skip
            if not defined:
                return e
            e = rejoined(sp.expand(e.subs(defined)))
        return e

    def largest(self, e: Expr) -> Expr | None:
        """Return the largest value of ``e`` as an expression without atoms; None: unknown."""
        return self._largest(rejoined(sp.expand(e)), list(self.guards), 0)

    def _largest(self, e: Expr, guards: list[Guard], depth: int) -> Expr | None:
        if depth > MAX_STEPS:
            return None
        if not self.atoms_of(e):
            return e
        e = self._without_functions(e, guards, depth)
        if e is None or not self.atoms_of(e):
            return e
        for guard in reversed(guards):
            for at in self.atoms_of(guard.expr):
                if sp.expand(guard.expr).coeff(at) != 1:
                    continue
                share = e.coeff(at, 1)
                if share == 0 or e.coeff(at, 2) != 0 or share.could_extract_minus_sign():
                    continue
                rest = sp.expand(e - share * guard.expr)
                if at in rest.free_symbols or (self.atoms_of(share) and _tangled(share)):
                    continue
                rest_guards = [g for g in guards if g is not guard]
                found = self._largest(sp.expand(share * guard.high + rest), rest_guards, depth + 1)
                if found is not None:
                    return found
        # The newest atom first: it is made of the older ones.
        for at in sorted(self.atoms_of(e), key=lambda s: -list(self.atoms).index(s)):
            atom = self.atoms[at]
            share = e.coeff(at, 1)
            negative = share != 0 and share.could_extract_minus_sign()
            if atom.definition is not None:
                return self._largest(rejoined(sp.expand(e.subs(at, atom.definition))), guards,
                                     depth + 1)  # fmt: skip
            value = (atom.low if atom.low is not None else number(0)) if negative else atom.high
            if value is None:
                return None
            return self._largest(sp.expand(e.subs(at, value)), guards, depth + 1)
        return e

    def _without_functions(self, e: Expr, guards: list[Guard], depth: int) -> Expr | None:
        """Replace the functions of atoms by what they are at most."""
        kinds = (FloorDivide, CeilDivide, Modulo, sp.Min, sp.Max, Choose, Compare, Logic,
                 NextPowerOfTwo)  # fmt: skip
        inner = [f for f in e.atoms(sp.Function) | e.atoms(sp.Min, sp.Max) if isinstance(f, kinds)]
        outer = [
            f for f in inner
            if self.atoms_of(f) and not any(f is not g and g.has(f) for g in inner)
        ]  # fmt: skip
        if not outer:
            return e
        # Guards may speak of an expression with a function in it: tried as a whole by the caller.
        for f in outer:
            high = self._function(f, guards, depth + 1)
            if high is None:
                return None
            e = e.subs(f, high)
        return sp.expand(e)

    def _function(self, f: Expr, guards: list[Guard], depth: int) -> Expr | None:
        if isinstance(f, Compare | Logic):
            return number(1)
        if isinstance(f, Modulo):
            divisor = self._largest(f.args[1], guards, depth)
            return None if divisor is None else sp.expand(divisor - 1)
        if isinstance(f, FloorDivide | CeilDivide):
            top = self._largest(f.args[0], guards, depth)
            if top is None or self.atoms_of(f.args[1]):
                return top
            return f.func(sp.expand(top), f.args[1])
        if isinstance(f, Choose):
            highs = [self._largest(a, guards, depth) for a in f.args[1:]]
            return None if None in highs else greater(*highs)
        if isinstance(f, sp.Min):
            known = [h for a in f.args if (h := self._largest(a, guards, depth)) is not None]
            return known[0] if len(known) == 1 else sp.Min(*known) if known else None
        if isinstance(f, sp.Max):
            highs = [self._largest(a, guards, depth) for a in f.args]
            return None if None in highs else greater(*highs)
        return None


def greater(*values: Expr) -> Expr:
    """Return the largest of the values, without max() where one is plainly larger."""
    best = values[0]
    for value in values[1:]:
        difference = sp.expand(value - best)
        terms = sp.Add.make_args(difference)
        if all(not t.could_extract_minus_sign() for t in terms):
            best = value
        elif all(t.could_extract_minus_sign() for t in terms):
            continue
        elif _dominates(value, best):
            best = value
        elif _dominates(best, value):
            continue
        else:
            best = sp.Max(best, value)
    return best


def _dominates(a: Expr, b: Expr) -> bool:
    """Return whether a >= b for all sizes >= 1, as far as a shift of every size by one shows."""
    for maximum in b.atoms(sp.Max):
        return all(_dominates(a, sp.expand(b.subs(maximum, part))) for part in maximum.args)
    free = list(a.free_symbols | b.free_symbols)
    difference = sp.expand((a - b).subs({s: s + 1 for s in free}, simultaneous=True))
    if difference.atoms(sp.Function, sp.Max, sp.Min):
        return False
    return all(not t.could_extract_minus_sign() for t in sp.Add.make_args(difference))


def rejoined(e: Expr) -> Expr:
    """Put (a / b) * b + a % b together again."""
    for f in e.atoms(Modulo):
        a, b = f.args
        quotient = FloorDivide(a, b)
        if not e.has(quotient):
            continue
        share = e.coeff(f)
        if share != 0 and sp.expand(e - share * f).has(quotient):
            rest = sp.expand(e - share * f - share * b * quotient)
            if not rest.has(quotient):
                e = sp.expand(rest + share * a)
    return e


def _tangled(share: Expr) -> bool:
    """A coefficient that is itself a sum of atoms says little."""
    return len(sp.Add.make_args(share)) > 1
