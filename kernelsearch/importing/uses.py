"""What launches do to buffers: roles, extents, and what indices lead to."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping

import sympy as sp

from kernelsearch.errors import ExpressionError
from kernelsearch.importing.bounds import greater
from kernelsearch.importing.host import HostReader
from kernelsearch.importing.kernel import follow_launch
from kernelsearch.importing.kernel_facts import Found
from kernelsearch.importing.symbols import CeilDivide, Expr, FloorDivide, from_plan, number, symbol
from kernelsearch.importing.syntax import Module
from kernelsearch.importing.values import (
    Buffer,
    FillBuffer,
    HostPlan,
    LaunchStep,
    Number,
    Pointer,
    Record,
    SymbolCopy,
)
from kernelsearch.records import DTYPE_BYTES

# What a launch plan knows of the device by itself.
DEVICE_FACTS = {"sm_count", "max_threads_per_block", "max_threads_per_sm"}
_KEYWORDS = frozenset(keyword.kwlist) | {
    "min", "max", "abs", "ceildiv", "round_up", "ilog2", "next_pow2", "ispow2", "elem", "elem_t",
    "elem_bytes", "cores", "warp_size", "sm_count", "l2_bytes",
}  # fmt: skip


class Uses:
    """What the launches of a host plan do to its buffers, and how large those are.

    Args:
        module: the file.
        plan: what its host code does.
        given: integers fixed by the user.
        extents: extents given by the user, by buffer name.
        inout: buffers whose contents count before the call.
    """

    def __init__(
        self, module: Module, plan: HostPlan, given: Mapping[str, int],
        extents: Mapping[str, str], inout: frozenset[str],
    ) -> None:  # fmt: skip
        self.module, self.plan, self.given = module, plan, {**plan.fixed, **given}
        self.extents, self.inout = extents, inout
        self.names: dict[int, str] = {}
        self.reads: dict[int, bool] = {}
        self.writes: dict[int, bool] = {}
        self.reached: dict[int, Expr] = {}
        self.blind: dict[int, int] = {}
        self.strides: dict[int, set[Expr]] = {}
        self.found: list[Found] = []
        self.limits: dict[str, Expr] = {}
        self.offsets: set[str] = set()
        self.solved: dict[Expr, Expr] = {}
        self.domain: list[Expr] = []
        self.moved: set[tuple[str, str]] = set()
        self.entered: set[str] = set()

    def follow(self) -> None:
        for step in self.plan.steps:
            if isinstance(step, FillBuffer):
                self.reads.setdefault(id(step.buffer), False)
                self.writes[id(step.buffer)] = True
            elif isinstance(step, SymbolCopy):
                self.reads[id(step.source)] = True
                self.writes.setdefault(id(step.source), False)
                if step.source.extent is None:
                    size = self.symbol_extent(step)
                    self.reached[id(step.source)] = size
            else:
                self.launch(step)

    def symbol_extent(self, step: SymbolCopy) -> Expr:
        node = self.module.symbols[step.symbol]
        reader = HostReader(self.module, self.given)
        kind = node.child_by_field_name("type")
        dtype = reader.dtype_of(kind.text.decode()) if kind is not None else None
        if dtype is None:
            raise self.module.fail(node, f"the type of {step.symbol} is no plain number")
        step.source.dtype = step.source.dtype or dtype
        return number(reader.symbol_bytes(step.symbol, node) // DTYPE_BYTES[dtype])

    def launch(self, step: LaunchStep) -> None:
        found = follow_launch(self.module, step)
        self.found.append(found)
        buffers = {b.name: b for b in buffers_of(step.arguments)}
        for name, use in found.uses.items():
            buffer = buffers.get(name)
            if buffer is None:
                continue
            key = id(buffer)
            fresh = not self.writes.get(key, False)
            needs = fresh and (use.read_first or (use.written and (use.conditional or use.partial)))
            self.reads[key] = self.reads.get(key, False) or needs
            self.writes[key] = self.writes.get(key, False) or use.written
            self.strides.setdefault(key, set()).update(use.strides)
            if use.blind:
                self.blind.setdefault(key, use.blind)
            if use.extent is not None:
                old = self.reached.get(key)
                self.reached[key] = use.extent if old is None else greater(old, use.extent)
        for buffer in buffers.values():
            if id(buffer) not in self.reads and buffer.name not in found.uses:
                # The kernel never looks at it; a launch needs it all the same.
                self.reads[id(buffer)], self.writes[id(buffer)] = True, False
                self.reached.setdefault(id(buffer), number(1))
                self.plan.notes.append(f"{buffer.name} is passed and never used")
        for name, limit in found.limits.items():
            if name in buffers:
                self.limits[name] = limit
        self.offsets |= found.offsets

    def shown(self, used: list[Buffer]) -> None:
        """Take what a program computes and never copies back as its result."""
        if any(self.writes.get(id(b)) and outward(b) for b in used):
            return
        for buffer in used:
            if self.writes.get(id(buffer)):
                buffer.outside = True
                self.plan.notes.append(
                    f"{buffer.name} is never copied back: it is taken as a result"
                )

    def name_buffers(self, used: list[Buffer]) -> None:
        """Name buffers like the host memory that a caller passes, where that is one thing."""
        taken: set[str] = set()
        for buffer in used:
            name = buffer.name
            for host in (buffer.uploaded, buffer.downloaded):
                if host is not None and host.outside:
                    name = host.name
                    break
            name = python_name(name)
            if name in taken:
                name = f"{name}_out" if self.writes.get(id(buffer)) else f"{name}_in"
            while name in taken:
                name += "_"
            taken.add(name)
            self.names[id(buffer)] = name

    def is_workspace(self, buffer: Buffer) -> bool:
        """Return whether a buffer is scratch: made here, written first, never copied out."""
        key = id(buffer)
        kept = buffer.outside or buffer.uploaded is not None or buffer.downloaded is not None
        asked = buffer.name in self.inout or self.names.get(key) in self.inout
        return not (kept or asked or self.reads.get(key, False)) and self.writes.get(key, False)

    def sizes(self, used: list[Buffer]) -> dict[int, Expr]:
        """Return each buffer's extent, elements.

        Raises:
            CannotImportError: some cannot be told.
        """
        result: dict[int, Expr] = {}
        reached = {k: self.whole(e) for k, e in self.reached.items()}
        for buffer in used:
            given = self.extents.get(buffer.name) or self.extents.get(self.names[id(buffer)])
            if given is not None:
                result[id(buffer)] = self.parsed(given, buffer)
            elif buffer.extent is not None:
                result[id(buffer)] = self.whole(buffer.extent)
        self.solve(used, result, reached)
        missing = []
        for buffer in used:
            key = id(buffer)
            if key in result:
                result[key] = sp.expand(result[key].subs(self.solved))
                continue
            if (key in self.blind and key not in reached) or key not in reached:
                missing.append(buffer)
                continue
            if key in self.blind:
                self.plan.notes.append(
                    f"{buffer.name}: line {self.blind[key]} reaches what cannot be told; "
                    f"its extent is taken from the other accesses (--extent {buffer.name}=EXPR)"
                )
            result[key] = _interior(sp.expand(reached[key].subs(self.solved)))
        if missing:
            listed = " ".join(f"--extent {b.name}=EXPR" for b in missing)
            lines = [self.blind[id(b)] for b in missing if id(b) in self.blind]
            raise self.module.fail(
                lines[0] if lines else (self.plan.entry.line if self.plan.entry else None),
                f"how many elements {' and '.join(b.name for b in missing)} "
                f"{'has' if len(missing) == 1 else 'have'} cannot be told from the source",
                f"say it: {listed}",
            )
        return result

    def parsed(self, text: str, buffer: Buffer) -> Expr:
        try:
            return from_plan(text)
        except ExpressionError as error:
            raise self.module.fail(None, f"--extent {buffer.name}={text}: {error}") from error

    def whole(self, e: Expr) -> Expr:
        """Take T * (n / T) for n, and remember that n must be a multiple of T."""
        for f in sorted(e.atoms(FloorDivide, CeilDivide), key=str):
            a, b = f.args
            probe = sp.Dummy("q")
            opened = sp.expand(e.subs(f, probe))
            share = opened.coeff(probe, 1)
            quotient = sp.cancel(share / b)
            if share != 0 and sp.fraction(quotient)[1] == 1 and opened.coeff(probe, 2) == 0:
                e = sp.expand(opened.subs(probe, 0) + quotient * a)
                condition = a - b * FloorDivide(a, b)
                if condition != 0 and (a, b) not in [c.args for c in self.domain]:
                    self.domain.append(Multiple(a, b))
        return e

    def solve(
        self, used: list[Buffer], known: Mapping[int, Expr], reached: Mapping[int, Expr]
    ) -> None:
        """Tell what indices may lead to from the extents that are known, or name it."""
        for name, limit in sorted(self.limits.items(), key=lambda i: i[0] not in self.offsets):
            if limit in self.solved:
                continue
            targets = [b for b in used if id(b) in reached and reached[id(b)].has(limit)]
            # As far as other accesses reach: max(limit, n).
            others = [
                a for b in targets if isinstance(reached[id(b)], sp.Max)
                for a in reached[id(b)].args if limit in reached[id(b)].args and not a.has(limit)
            ]  # fmt: skip
            if others:
                self.solved[limit] = others[0]
                continue
            for buffer in targets:
                extent = known.get(id(buffer))
                span = reached[id(buffer)]
                share = span.coeff(limit)
                if extent is None or share == 0:
                    continue
                rest = sp.expand(span - share * limit)
                if rest.has(limit):
                    continue
                value = sp.cancel((extent - rest) / share)
                if sp.fraction(value)[1] == 1:
                    self.solved[limit] = sp.expand(value)
                    break
            else:
                row = self.row(limit, targets, reached)
                self.solved[limit] = (
                    row if row is not None else symbol(self.limit_name(name, targets))
                )

    def row(self, limit: Expr, targets: list[Buffer], reached: Mapping[int, Expr]) -> Expr | None:
        """Return V for n V - V + limit: the index picks an element of a row of V."""
        for buffer in targets:
            rest = sp.expand(reached[id(buffer)] - limit)
            terms = sp.Add.make_args(rest)
            short = [t for t in terms if t.could_extract_minus_sign()]
            plain = len(terms) == 2 and len(short) == 1 and short[0].free_symbols
            if plain and not rest.has(limit):
                return -short[0]
        return None

    def limit_name(self, name: str, targets: list[Buffer]) -> str:
        if name in self.offsets:
            unused = [
                n for n in self.plan.integers
                if not any(symbol(n) in e.free_symbols for e in self.reached.values())
                and re.search(r"nnz|nz|edges|total|entries", n.lower())
            ]  # fmt: skip
            return unused[0] if unused else "nnz" if len(self.offsets) == 1 else f"{name}_total"
        passed = {
            s.name for step in self.plan.launches() for v in numbers_of(step.arguments)
            for s in v.expr.free_symbols
        }  # fmt: skip
        passed |= {
            s.name for step in self.plan.launches() for d in (step.grid, step.block)
            for e in (d.x, d.y, d.z) for s in e.free_symbols
        }  # fmt: skip
        passed |= {s.name for e in self.reached.values() for s in e.free_symbols}
        passed |= {str(v) for v in self.solved.values()}
        free = [n for n in self.plan.integers if n not in self.given and n not in passed]
        if len(free) == 1:
            self.plan.notes.append(f"the values of {name} are taken to be below {free[0]}")
            return free[0]
        return f"{targets[0].name}_size" if targets else f"{name}_values"


class Multiple:
    """``a`` must be a multiple of ``b``."""

    def __init__(self, a: Expr, b: Expr) -> None:
        self.args = (a, b)


def _interior(e: Expr) -> Expr:
    """Return nx ny for nx ny - 1: a loop over a grid's interior stops short of the last one."""
    terms = list(sp.Add.make_args(e))
    whole = [t for t in terms if not t.could_extract_minus_sign()]
    free = [] if len(whole) != 1 else list(whole[0].free_symbols)
    # nx ny, or n**2: of more than one dimension
    if len(terms) > 1 and free and sum(sp.degree(whole[0], s) for s in free) > 1:
        return whole[0]
    return e


def outward(buffer: Buffer) -> bool:
    """Return whether a caller sees what a buffer ends up holding."""
    return buffer.outside or buffer.downloaded is not None


def buffers_of(arguments: Iterable[object]) -> list[Buffer]:
    """Return the buffers that pointers among a launch's arguments lead to."""
    found = []
    for value in arguments:
        if isinstance(value, Pointer):
            found.append(value.buffer)
        elif isinstance(value, Record):
            found += buffers_of(value.fields.values())
    return found


def numbers_of(arguments: Iterable[object]) -> list[Number]:
    """Return the numbers among a launch's arguments, offsets of pointers too."""
    found = []
    for value in arguments:
        if isinstance(value, Number):
            found.append(value)
        elif isinstance(value, Pointer):
            found.append(Number(value.offset))
        elif isinstance(value, Record):
            found += numbers_of(value.fields.values())
    return found


def python_name(name: str) -> str:
    """Return a name that operator files can use."""
    name = re.sub(r"\W", "_", name) or "x"
    return f"{name}_" if name in _KEYWORDS or name.startswith("__") else name
