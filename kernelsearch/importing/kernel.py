"""Follow a kernel's body once with unknown indices: what it reads and writes, and how far."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import sympy as sp

from kernelsearch.importing.arithmetic import combine, literal
from kernelsearch.importing.bounds import Atom, Bounds, Guard, greater
from kernelsearch.importing.symbols import Choose, Expr, FloorDivide, Logic, number, symbol
from kernelsearch.importing.syntax import (
    DTYPES,
    INTEGERS,
    VECTORS,
    Function,
    Module,
    Node,
    declared,
    plain,
    text_of,
    walk,
)
from kernelsearch.importing.values import Buffer, Dim3, LaunchStep, Number, Opaque, Pointer, Record

_AXES = ("x", "y", "z")
_BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_MAX_DEPTH = 16
_LOADS = ("__ldg", "__ldcs", "__ldca", "__ldcg", "__ldcv", "__ldlu")
_STORES = ("__stcs", "__stcg", "__stwb", "__stwt")
_WIDTHS = {2: "float2", 3: "float3", 4: "float4"}


@dataclass
class Use:
    """What one kernel does to one buffer.

    Args:
        read, written: at all.
        read_first: something is read before anything is written.
        atomic: through atomics.
        conditional: every write depends on data, so that some elements may stay as they are.
        extent: elements up to the largest index; None where that is not known.
        blind: the line of the access that hides it.
        touched: an access was met.
        partial: every write leaves out the first elements.
        strides: what indices are multiplied with.
    """

    read: bool = False
    written: bool = False
    read_first: bool = False
    atomic: bool = False
    conditional: bool = True
    extent: Expr | None = None
    blind: int = 0
    touched: bool = False
    partial: bool = True
    strides: set[Expr] = field(default_factory=set)


@dataclass
class Found:
    """What following a kernel gives.

    Args:
        uses: by buffer.
        limits: integer buffers whose values are used as indices: name = symbol of how many.
        offsets: those of them that are running offsets (row pointers).
        terms: how many terms one output may sum up.
        global_guards: by axis, the bound of a global index where a guard or a loop gives one.
        axes: axes of threadIdx or blockIdx that are used, by builtin.
        shared_arrays: dimensions of ``__shared__`` arrays, as expressions.
        atomics: on floating point.
        spread: a loop goes through an array by all threads together.
        gathers: threads exchange what they have (shared memory, shuffles).
    """

    uses: dict[str, Use] = field(default_factory=dict)
    limits: dict[str, Expr] = field(default_factory=dict)
    offsets: set[str] = field(default_factory=set)
    terms: list[Expr] = field(default_factory=list)
    global_guards: dict[str, Expr] = field(default_factory=dict)
    axes: dict[str, set[str]] = field(default_factory=dict)
    shared_arrays: list[tuple[Expr, ...]] = field(default_factory=list)
    atomics: bool = False
    spread: bool = False
    gathers: bool = False


Value = Number | Pointer | Record | Opaque


class _LeftError(Exception):
    """The function returns on every path."""


class KernelReader:
    """Follows one launch of a kernel.

    Args:
        module: the parsed file.
        grid, block: of the launch, over sizes and tunables; None for a kernel without a launch.
    """

    def __init__(self, module: Module, grid: Dim3 | None, block: Dim3 | None) -> None:
        self.module = module
        self.bounds = Bounds()
        self.found = Found()
        self.grid = grid
        self.block_dim = block
        self.data_dependent = 0
        self.depth = 0
        self.count = 0
        self.trips: list[Expr | None] = []
        self.types: dict[str, str] = {}
        self.widths: dict[int, int] = {}
        self.builtins: dict[str, Expr] = {}
        self.result: Value = Opaque()

    def follow(self, kernel: Function, arguments: Sequence[object], types: Mapping[str, str],
               values: Mapping[str, Expr]) -> Found:  # fmt: skip
        """Return what ``kernel`` does, called with ``arguments``.

        Args:
            kernel: the function.
            arguments: of the launch; pointers lead to the host plan's buffers.
            types: template parameters that are types.
            values: template parameters that are numbers.
        """
        self.types = dict(types)
        scope: dict[str, Value] = {n: Number(v) for n, v in values.items()}
        for parameter, value in zip(kernel.parameters, arguments, strict=True):
            known = value if isinstance(value, Number | Pointer | Record) else Opaque()
            if isinstance(known, Pointer):
                known = self.viewed(known, parameter.type)
            scope[parameter.name] = known
            if isinstance(known, Number) and known.real:
                scope[parameter.name] = Opaque(parameter.name)
        with suppress(_LeftError):
            self.block(kernel.body, scope)
        return self.found

    # --- builtins and atoms -------------------------------------------------------------------

    def builtin(self, name: str, axis: str) -> Expr:
        self.found.axes.setdefault(name, set()).add(axis)
        if name == "blockDim":
            return getattr(self.block_dim, axis) if self.block_dim else symbol(f"blockDim_{axis}")
        if name == "gridDim":
            return getattr(self.grid, axis) if self.grid else symbol(f"gridDim_{axis}")
        key = f"{name}_{axis}"
        if key not in self.builtins:
            at = symbol(key)
            dim = self.builtin("blockDim" if name == "threadIdx" else "gridDim", axis)
            if dim == 1:
                self.builtins[key] = number(0)
                return number(0)
            self.bounds.atoms[at] = Atom(at, high=sp.expand(dim - 1), low=number(0))
            self.builtins[key] = at
        return self.builtins[key]

    def atom(self, name: str, **facts: object) -> Expr:
        self.count += 1
        at = symbol(f"{name}__{self.count}")
        self.bounds.atoms[at] = Atom(at, **facts)  # type: ignore[arg-type]
        return at

    # --- statements ---------------------------------------------------------------------------

    def block(self, node: Node, scope: dict[str, Value]) -> None:
        guards = len(self.bounds.guards)
        outer = self.data_dependent
        try:
            for item in node.named_children:
                self.statement(item, scope)
        finally:
            del self.bounds.guards[guards:]
            self.data_dependent = outer

    def statement(self, node: Node, scope: dict[str, Value]) -> None:
        match node.type:
            case "compound_statement":
                self.block(node, scope)
            case "declaration":
                self.declaration(node, scope)
            case "expression_statement":
                for item in node.named_children:
                    self.evaluate(item, scope)
            case "if_statement":
                self.branch(node, scope)
            case "for_statement" | "while_statement" | "do_statement":
                self.loop(node, scope)
            case "for_range_loop":
                body = node.child_by_field_name("body")
                if body is not None:
                    self.changing(node, scope)
                    self.statement(body, scope)
            case "return_statement":
                for item in node.named_children:
                    self.result = self.evaluate(item, scope)
                raise _LeftError
            case "switch_statement":
                self.data_dependent += 1
                body = node.child_by_field_name("body")
                for case in body.named_children if body is not None else ():
                    for item in case.named_children:
                        if item.type.endswith("statement") or item.type == "declaration":
                            try:
                                self.statement(item, scope)
                            except _LeftError:
                                continue
                self.data_dependent -= 1
            case "labeled_statement" | "else_clause" | "attributed_statement":
                for item in node.named_children:
                    if item.type.endswith("statement") or item.type == "declaration":
                        self.statement(item, scope)
            case _:
                pass

    def declaration(self, node: Node, scope: dict[str, Value]) -> None:
        head = text_of(node)
        for item in node.children_by_field_name("declarator"):
            parsed = declared(node, item)
            if parsed is None or not parsed.name:
                continue
            inner = (
                item.child_by_field_name("declarator") if item.type == "init_declarator" else item
            )
            if "__shared__" in head or (inner is not None and inner.type == "array_declarator"):
                self.array(node, parsed.name, inner, shared="__shared__" in head, scope=scope)
                value = item.child_by_field_name("value") if item is not inner else None
                if value is not None:
                    self.evaluate(value, scope)
                continue
            value = item.child_by_field_name("value") if item.type == "init_declarator" else None
            kind = self.concrete(parsed.type)
            found: Value = Opaque(parsed.name)
            if value is not None:
                parts = (
                    value.named_children
                    if value.type in ("argument_list", "initializer_list")
                    else [value]
                )
                for part in parts:
                    found = self.evaluate(part, scope)
                if len(parts) != 1:
                    found = Opaque(parsed.name)
            scope[parsed.name] = self.held(parsed.name, kind, found, bool(parsed.pointers))

    def held(self, name: str, kind: str, value: Value, pointer: bool) -> Value:
        if pointer or isinstance(value, Pointer | Record):
            return value
        if isinstance(value, Number) and (kind in INTEGERS or kind == "auto" or kind == "dim3"):
            if value.expr.is_Symbol or value.expr.is_Integer:
                return value
            return Number(self.atom(name, definition=value.expr))
        return Opaque(name)

    def array(
        self, node: Node, name: str, item: Node | None, *, shared: bool, scope: dict[str, Value]
    ) -> None:
        sizes = []
        while item is not None and item.type == "array_declarator":
            size = item.child_by_field_name("size")
            value = self.evaluate(size, scope) if size is not None else Opaque()
            sizes.append(value.expr if isinstance(value, Number) else number(0))
            item = item.child_by_field_name("declarator")
        self.found.gathers = self.found.gathers or shared
        if shared and sizes:
            self.found.shared_arrays.append(tuple(reversed(sizes)))
        kind = node.child_by_field_name("type")
        dtype = DTYPES.get(self.concrete(text_of(kind))) if kind is not None else None
        buffer = Buffer(name, dtype, line=-1)  # line -1: memory of the kernel's own
        scope[name] = Pointer(buffer)

    def concrete(self, kind: str) -> str:
        kind = self.module.plain_type(plain(kind))
        kind = self.types.get(kind, kind)
        return self.module.plain_type(kind)

    def branch(self, node: Node, scope: dict[str, Value]) -> None:
        condition = node.child_by_field_name("condition")
        yes, no = node.child_by_field_name("consequence"), node.child_by_field_name("alternative")
        value = self.evaluate(condition, scope) if condition is not None else Opaque()
        data = not isinstance(value, Number) or self.from_data(value.expr)
        if isinstance(value, Number) and value.expr.is_Integer:
            taken = yes if value.expr != 0 else no
            if taken is not None:
                self.statement(taken, scope)
            return
        left = []
        before = dict(scope)
        results: list[dict[str, Value]] = []
        for body, positive in ((yes, True), (no, False)):
            inner = dict(before)
            guards = len(self.bounds.guards)
            if isinstance(value, Number):
                self.guard(value.expr, positive)
            # With an else, each element is written one way or the other.
            self.data_dependent += int(data and no is None)
            try:
                if body is not None:
                    self.statement(body, inner)
                left.append(False)
            except _LeftError:
                left.append(True)
            finally:
                self.data_dependent -= int(data and no is None)
                del self.bounds.guards[guards:]
            results.append(inner)
        if all(left):
            raise _LeftError
        self.merge(scope, before, results, left, value)
        if isinstance(value, Number) and any(left):
            # if (i >= n) return; what follows lies in the other branch.
            self.guard(value.expr, not left[0])
        elif any(left) and data:
            self.data_dependent += 1

    def merge(
        self, scope: dict[str, Value], before: dict[str, Value], results: list[dict[str, Value]],
        left: list[bool], condition: Value,
    ) -> None:  # fmt: skip
        if any(left):
            kept = results[left.index(False)]
            scope.update({n: v for n, v in kept.items() if n in before})
            return
        for name, old in before.items():
            a, b = results[0].get(name, old), results[1].get(name, old)
            if a == b:
                scope[name] = a
            elif isinstance(a, Number) and isinstance(b, Number):
                test = condition.expr if isinstance(condition, Number) else symbol("unknown__")
                chosen = Choose(test, a.expr, b.expr)
                scope[name] = Number(self.atom(name, definition=chosen))
            else:
                scope[name] = a if isinstance(a, Pointer) else b

    def guard(self, e: Expr, positive: bool) -> None:
        """Take what a condition says about indices as guards."""
        if isinstance(e, Logic):
            op = e.args[0].name
            if op == "not":
                self.guard(e.args[1], not positive)
            elif (op == "and") == positive:
                for part in e.args[1:]:
                    self.guard(part, positive)
            return
        if len(getattr(e, "args", ())) != 3 or not hasattr(e.args[0], "name"):
            return
        op, a, b = e.args[0].name, e.args[1], e.args[2]
        if not positive:
            op = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}.get(op, "")
        if op in (">", ">="):
            a, b, op = b, a, {">": "<", ">=": "<="}[op]
        if op == "!=":
            # i <= n - 1 and i != n - 1
            difference = sp.expand(a - b)
            for held in list(self.bounds.guards):
                if sp.expand(difference - (held.expr - held.high)) == 0 or (
                    sp.expand(difference + (held.expr - held.high)) == 0
                ):
                    self.bounds.guards.append(Guard(held.expr, sp.expand(held.high - 1)))
            return
        if op not in ("<", "<=", "=="):
            return
        self.at_most(a, b - 1 if op == "<" else b)
        if op == "==":
            self.at_most(b, a)

    def at_most(self, a: Expr, b: Expr) -> None:
        difference = sp.expand(a - b)
        atoms = [s for s in difference.free_symbols if s in self.bounds.atoms]
        if not atoms:
            return
        # All that has atoms on the left, whatever has none on the right.
        left = sp.Add(*(t for t in sp.Add.make_args(difference) if self.bounds.atoms_of(t)))
        right = sp.expand(left - difference)
        if self.bounds.atoms_of(right):
            return
        self.bounds.guards.append(Guard(left, right))
        self.note_global(left, right)
        # An upper bound for a loop index that another index bounds: j < row_end.
        lone = [s for s in atoms if left.coeff(s) == 1]
        for at in lone:
            others = sp.expand(at - left)
            if others != 0 and not others.could_extract_minus_sign():
                high = self.bounds.largest(sp.expand(others + right))
                if high is not None:
                    self.bounds.guards.append(Guard(at, high))

    def note_global(self, left: Expr, right: Expr) -> None:
        """Remember that a global thread index is below a size: the grid can be told from it."""
        whole = self.bounds.expanded(left)
        for axis in _AXES:
            block, thread = (
                self.builtins.get(f"blockIdx_{axis}"),
                self.builtins.get(f"threadIdx_{axis}"),
            )
            if thread is not None and block is not None:
                dim = self.builtin("blockDim", axis)
                if sp.expand(whole - (block * dim + thread)) == 0:
                    self.found.global_guards.setdefault(axis, sp.expand(right + 1))
            if block is not None and whole == block:
                self.found.global_guards.setdefault(f"block_{axis}", sp.expand(right + 1))

    def loop(self, node: Node, scope: dict[str, Value]) -> None:
        body = node.child_by_field_name("body")
        first = node.child_by_field_name("initializer")
        condition = node.child_by_field_name("condition")
        update = node.child_by_field_name("update")
        if first is not None:
            if first.type == "declaration":
                self.declaration(first, scope)
            else:
                self.evaluate(first, scope)
        starts = dict(scope)
        step = self.changing(node, scope)
        guards = len(self.bounds.guards)
        outer = self.data_dependent
        trip: Expr | None = None
        if condition is not None and node.type != "do_statement":
            value = self.evaluate(condition, scope)
            if isinstance(value, Number):
                self.offsets_of(value.expr, starts)
                self.guard(value.expr, True)
                trip = self.trip(value.expr, starts, scope, step)
        self.trips.append(trip)
        known = [t for t in self.trips if t is not None]
        if trip is not None and known:
            self.found.terms.append(sp.prod(known))
        try:
            if body is not None:
                self.statement(body, scope)
            if update is not None:
                self.evaluate(update, scope)
        except _LeftError:
            pass
        finally:
            self.trips.pop()
            del self.bounds.guards[guards:]
            self.data_dependent = outer
        # Afterwards, what changed in the loop is known no better than within.
        self.changing(node, scope)

    def changing(self, node: Node, scope: dict[str, Value]) -> dict[str, str]:
        """Give every variable that a loop changes a new name; return how it changes."""
        kinds: dict[str, str] = {}
        for item in walk(node):
            left, kind = None, ""
            if item.type == "assignment_expression":
                left = item.child_by_field_name("left")
                kind = text_of(item.child_by_field_name("operator"))
                right = item.child_by_field_name("right")
                if kind == "=" and right is not None:
                    kind = "+=" if f"{text_of(left)} +" in text_of(right) else (
                        ">>=" if f"{text_of(left)} /" in text_of(right) else "=")  # fmt: skip
            elif item.type == "update_expression":
                left = item.child_by_field_name("argument")
                kind = "++" if "++" in text_of(item) else "--"
            if left is not None and left.type == "identifier":
                name = text_of(left)
                kinds[name] = kind if kinds.get(name, kind) == kind else "="
        for name, kind in kinds.items():
            value = scope.get(name)
            if isinstance(value, Number):
                down = kind in ("--", ">>=", "/=", "-=")
                high = self.bounds.largest(value.expr) if down else None
                low = value.expr if kind in ("++", "+=", "*=", "<<=") else number(0)
                scope[name] = Number(self.atom(name, high=high, low=low))
            elif isinstance(value, Pointer) and kind in ("++", "+="):
                scope[name] = Pointer(value.buffer, self.atom(f"{name}_offset", low=value.offset))
            elif isinstance(value, Opaque):
                scope[name] = Opaque(name)
        return kinds

    def trip(
        self,
        e: Expr,
        starts: Mapping[str, Value],
        scope: Mapping[str, Value],
        step: Mapping[str, str],
    ) -> Expr | None:
        """Return how often a counted loop runs, where only sizes decide it."""
        for name, kind in step.items():
            a, b = starts.get(name), scope.get(name)
            if kind in ("++", "+=") and isinstance(a, Number) and isinstance(b, Number):
                high = next(
                    (g.high for g in reversed(self.bounds.guards) if g.expr == b.expr), None
                )
                if high is None:
                    continue
                if self.is_global(a.expr):
                    self.found.spread = True
                    continue
                low = number(0) if self.bounds.atoms_of(a.expr) else a.expr
                count = sp.expand(high + 1 - low)
                return count if not self.bounds.atoms_of(count) else None
        return None

    def is_global(self, e: Expr) -> bool:
        """Return whether a loop starts at the thread's own index: it spreads, and does not sum."""
        whole = self.bounds.expanded(e)
        return any(s.name.startswith("blockIdx") for s in whole.free_symbols)

    def offsets_of(self, e: Expr, starts: Mapping[str, Value]) -> None:
        """Notice loops from offsets[i] to offsets[i + 1]."""
        ends = [
            s for s in e.free_symbols
            if s in self.bounds.atoms and self.loaded(s) is not None
        ]  # fmt: skip
        for end in ends:
            name, index = self.loaded(end)  # type: ignore[misc]
            for value in starts.values():
                if not isinstance(value, Number):
                    continue
                for start in self.bounds.expanded(value.expr).free_symbols:
                    source = self.loaded(start) if start in self.bounds.atoms else None
                    if source is None or source[0] != name:
                        continue
                    ahead = sp.expand(self.bounds.expanded(index) - self.bounds.expanded(source[1]))
                    if ahead == 1:
                        self.found.offsets.add(name)
                        self.use_as_index(name)
                        limit = self.found.limits[name]
                        for at in (start, end):
                            self.bounds.atoms[at].high = limit
                        self.bounds.guards.append(Guard(end, limit))

    def loaded(self, at: Expr) -> tuple[str, Expr] | None:
        atom = self.bounds.atoms.get(at)
        for _ in range(8):
            if atom is None:
                return None
            if atom.loaded is not None:
                return atom.loaded
            inner = atom.definition
            atom = self.bounds.atoms.get(inner) if inner is not None else None
        return None

    def from_data(self, e: Expr) -> bool:
        """Return whether an expression depends on what a tensor holds."""
        whole = self.bounds.expanded(e)
        return any(
            (s in self.bounds.atoms and self.bounds.atoms[s].loaded is not None)
            or s.name == "unknown__"
            for s in whole.free_symbols
        )

    def use_as_index(self, name: str) -> None:
        self.found.limits.setdefault(name, symbol(f"{name}_limit"))

    # --- expressions --------------------------------------------------------------------------

    def evaluate(self, node: Node, scope: dict[str, Value]) -> Value:
        match node.type:
            case "number_literal":
                found = literal(text_of(node))
                return Number(found[0]) if found is not None and not found[1] else Opaque()
            case "true" | "false":
                return Number(number(int(node.type == "true")))
            case "identifier":
                return self.name(text_of(node), scope)
            case "parenthesized_expression" | "condition_clause" | "init_declarator":
                inner = [c for c in node.named_children if c.type != "comment"]
                return self.evaluate(inner[-1], scope) if inner else Opaque()
            case "field_expression":
                return self.field(node, scope)
            case "subscript_expression":
                return self.access(node, scope, write=False)
            case "pointer_expression":
                return self.pointer(node, scope)
            case "assignment_expression":
                return self.assign(node, scope)
            case "update_expression":
                return self.update(node, scope)
            case "binary_expression":
                return self.binary(node, scope)
            case "unary_expression":
                inner = node.child_by_field_name("argument")
                value = self.evaluate(inner, scope) if inner is not None else Opaque()
                if isinstance(value, Number) and text_of(node)[0] in "-!":
                    negated = text_of(node)[0] == "-"
                    return Number(-value.expr if negated else Logic(sp.Symbol("not"), value.expr))
                return Opaque()
            case "cast_expression":
                return self.cast(node, scope)
            case "conditional_expression":
                return self.conditional(node, scope)
            case "call_expression":
                return self.call(node, scope)
            case "sizeof_expression":
                return Opaque()
            case (
                "comma_expression"
                | "initializer_list"
                | "compound_literal_expression"
                | "argument_list"
            ):
                result: Value = Opaque()
                for item in node.named_children:
                    result = self.evaluate(item, scope)
                return result if node.type == "comma_expression" else Opaque()
        return Opaque()

    def name(self, name: str, scope: Mapping[str, Value]) -> Value:
        if name in scope:
            return scope[name]
        if name == "warpSize":
            return Number(number(32))
        if name in self.module.macros:
            return Number(symbol(name))
        if name in self.module.constants:
            return Number(number(self.module.constants[name]))
        if name in self.module.symbols:
            return Pointer(Buffer(name, None, line=-1))
        return Opaque(name)

    def field(self, node: Node, scope: dict[str, Value]) -> Value:
        holder, item = node.child_by_field_name("argument"), node.child_by_field_name("field")
        if holder is None or item is None:
            return Opaque()
        name, axis = text_of(holder), text_of(item)
        if name in _BUILTINS and axis in _AXES:
            return Number(self.builtin(name, axis))
        value = self.evaluate(holder, scope)
        if isinstance(value, Record):
            found = value.fields.get(axis, Opaque(axis))
            return found if isinstance(found, Number | Pointer | Record) else Opaque(axis)
        return Opaque()

    def pointer(self, node: Node, scope: dict[str, Value]) -> Value:
        inner = node.child_by_field_name("argument")
        if inner is None:
            return Opaque()
        if text_of(node).startswith("&"):
            if inner.type == "subscript_expression":
                return self.address(inner, scope)
            return Opaque()
        value = self.evaluate(inner, scope)
        if isinstance(value, Pointer):
            return self.touch(value, value.offset, node, write=False)
        return Opaque()

    def address(self, node: Node, scope: dict[str, Value]) -> Value:
        """The address of an element, without an access to it."""
        base, index = self.element(node, scope)
        if isinstance(base, Pointer) and index is not None:
            return Pointer(base.buffer, sp.expand(base.offset + index * self.width(base)))
        return base if isinstance(base, Pointer) else Opaque()

    def element(self, node: Node, scope: dict[str, Value]) -> tuple[Value, Expr | None]:
        base = node.child_by_field_name("argument")
        listed = node.child_by_field_name("indices")
        value = self.evaluate(base, scope) if base is not None else Opaque()
        index: Value = Opaque()
        for item in listed.named_children if listed is not None else ():
            index = self.evaluate(item, scope)
        return value, index.expr if isinstance(index, Number) else None

    def width(self, pointer: Pointer) -> int:
        """Return how many elements one step of a pointer moves (vector types)."""
        return pointer.width if isinstance(pointer, _Wide) else 1

    def access(self, node: Node, scope: dict[str, Value], *, write: bool) -> Value:
        base = node.child_by_field_name("argument")
        if base is not None and base.type == "subscript_expression":
            # a[i][j] of memory of the kernel's own
            self.access(base, scope, write=write)
            _, index = self.element(node, scope)
            return Opaque()
        value, index = self.element(node, scope)
        if not isinstance(value, Pointer):
            return Opaque()
        offset = None
        if index is not None:
            offset = sp.expand(value.offset + index * self.width(value))
        return self.touch(value, offset, node, write=write)

    def touch(
        self, pointer: Pointer, offset: Expr | None, node: Node, *, write: bool,
        atomic: bool = False,
    ) -> Value:  # fmt: skip
        buffer = pointer.buffer
        if buffer.line == -1:
            return Opaque()
        use = self.found.uses.setdefault(buffer.name, Use())
        if write and not atomic:
            use.conditional = use.conditional and self.data_dependent > 0
            use.partial = use.partial and self.leaves_out(offset)
            use.written = True
        elif atomic:
            use.read = use.written = use.atomic = True
            use.partial = use.conditional = False
            use.read_first = use.read_first or not use.touched
            self.found.atomics = self.found.atomics or (buffer.dtype or "").startswith(
                ("float", "bfloat")
            )
        else:
            use.read = True
            use.read_first = use.read_first or not use.written
        use.touched = True
        self.reach(use, offset, self.width(pointer), node)
        if write or buffer.dtype is None or "int" not in buffer.dtype or offset is None:
            return Opaque()
        if self.width(pointer) > 1:
            return Opaque()
        return Number(
            self.atom(f"{buffer.name}_value", low=number(0), loaded=(buffer.name, offset))
        )

    def leaves_out(self, offset: Expr | None) -> bool:
        """Return whether the first elements lie outside the guards of an access."""
        if offset is None:
            return False
        whole = {*self.bounds.atoms_of(offset), *self.bounds.atoms_of(self.bounds.expanded(offset))}
        for guard in self.bounds.guards:
            if (
                guard.high.is_Integer
                and guard.high < 0
                and set(self.bounds.atoms_of(guard.expr)) & whole
            ):
                return True
        lows = [self.bounds.atoms[s].low for s in whole]
        return any(low is not None and low.is_Integer and low >= 1 for low in lows)

    def reach(self, use: Use, offset: Expr | None, width: int, node: Node) -> None:
        """Record how far an access goes."""
        line = int(node.start_point[0]) + 1
        if offset is None:
            use.blind = use.blind or line
            return
        for at in self.bounds.expanded(offset).free_symbols:
            source = self.loaded(at) if at in self.bounds.atoms else None
            if source is not None and self.bounds.atoms[at].high is None:
                # Data used as an index: its values are below a size of their own.
                self.use_as_index(source[0])
                self.bounds.atoms[at].high = self.found.limits[source[0]] - 1
        opened = self.bounds.expanded(offset)
        for at in self.bounds.atoms_of(opened):
            share = opened.coeff(at, 1)
            if share != 0 and not self.bounds.atoms_of(share):
                use.strides.add(share)
        for at in self.bounds.atoms_of(offset):
            share = offset.coeff(at, 1)
            if share != 0 and not self.bounds.atoms_of(share):
                use.strides.add(share)
        high = self.bounds.largest(offset)
        if high is None:
            use.blind = use.blind or line
            return
        extent = sp.expand(high + width)
        use.extent = extent if use.extent is None else greater(use.extent, extent)

    def assign(self, node: Node, scope: dict[str, Value]) -> Value:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None:
            return Opaque()
        op = text_of(operator)
        value = self.evaluate(right, scope)
        target = left
        while target.type == "field_expression":
            inner = target.child_by_field_name("argument")
            if inner is None or inner.type not in ("subscript_expression", "field_expression",
                                                   "pointer_expression"):  # fmt: skip
                break
            target = inner
        if target.type == "subscript_expression":
            if op != "=":
                self.access(target, scope, write=False)
            self.access(target, scope, write=True)
            return value
        if target.type in ("pointer_expression", "parenthesized_expression"):
            star = target
            while star.type == "parenthesized_expression" and star.named_children:
                star = star.named_children[0]
            inner = (
                star.child_by_field_name("argument") if star.type == "pointer_expression" else None
            )
            held = self.evaluate(inner, scope) if inner is not None else Opaque()
            if isinstance(held, Pointer):
                if op != "=":
                    self.touch(held, held.offset, node, write=False)
                self.touch(held, held.offset, node, write=True)
            return value
        name = text_of(left)
        old = scope.get(name, Opaque(name))
        if op != "=":
            if isinstance(old, Pointer) and isinstance(value, Number) and op in ("+=", "-="):
                moved = combine(op[0], old.offset, value.expr * self.width(old))
                scope[name] = _like(old, moved) if moved is not None else Opaque()
                return scope[name]
            if isinstance(old, Number) and isinstance(value, Number):
                combined = combine(op[:-1], old.expr, value.expr)
                value = Number(combined) if combined is not None else Opaque(name)
            else:
                value = Opaque(name)
        if name in scope:
            keeps = isinstance(value, Number) and not isinstance(old, Opaque)
            if keeps:
                scope[name] = self.held(name, "int", value, pointer=False)
            else:
                scope[name] = value if isinstance(value, Pointer) else Opaque(name)
        return value

    def update(self, node: Node, scope: dict[str, Value]) -> Value:
        inner = node.child_by_field_name("argument")
        if inner is None:
            return Opaque()
        if inner.type == "subscript_expression":
            self.access(inner, scope, write=False)
            self.access(inner, scope, write=True)
            return Opaque()
        name = text_of(inner)
        value = scope.get(name)
        step = 1 if "++" in text_of(node) else -1
        if isinstance(value, Number):
            scope[name] = Number(sp.expand(value.expr + step))
            return value
        if isinstance(value, Pointer):
            scope[name] = _like(value, sp.expand(value.offset + step * self.width(value)))
            return value
        return Opaque()

    def binary(self, node: Node, scope: dict[str, Value]) -> Value:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None:
            return Opaque()
        op = text_of(operator)
        a = self.evaluate(left, scope)
        guards = len(self.bounds.guards)
        if op == "&&" and isinstance(a, Number):
            self.guard(a.expr, True)  # the right side is only reached where the left one holds
        b = self.evaluate(right, scope)
        del self.bounds.guards[guards:]
        if isinstance(a, Pointer) and isinstance(b, Number) and op in "+-":
            moved = combine(op, a.offset, b.expr * self.width(a))
            return _like(a, moved) if moved is not None else Opaque()
        if isinstance(b, Pointer) and isinstance(a, Number) and op == "+":
            return _like(b, sp.expand(b.offset + a.expr * self.width(b)))
        if isinstance(a, Number) and isinstance(b, Number):
            found = combine(op, a.expr, b.expr)
            return Number(found) if found is not None else self.bits(op, a.expr, b.expr)
        if op == "&&" and (isinstance(a, Number) or isinstance(b, Number)):
            # Half of the condition is known: it bounds, and the rest is data.
            known = a if isinstance(a, Number) else b
            assert isinstance(known, Number)
            return Number(Logic(sp.Symbol("and"), known.expr, symbol("unknown__")))
        return Opaque()

    def bits(self, op: str, a: Expr, b: Expr) -> Value:
        """A & b and a >> b are at most a; a ^ b is below the next power of two of both."""
        if op in ("&", ">>"):
            high = self.bounds.largest(a)
            return Number(self.atom("bits", high=high, low=number(0)))
        if op in ("^", "|", "<<"):
            high = None
            if op != "<<":
                x, y = self.bounds.largest(a), self.bounds.largest(b)
                if x is not None and y is not None and y.is_Integer:
                    high = greater(x, y)
            return Number(self.atom("bits", high=high, low=number(0)))
        return Opaque()

    def cast(self, node: Node, scope: dict[str, Value]) -> Value:
        inner, kind = node.child_by_field_name("value"), node.child_by_field_name("type")
        value = self.evaluate(inner, scope) if inner is not None else Opaque()
        return self.converted(value, text_of(kind) if kind is not None else "")

    def converted(self, value: Value, kind: str) -> Value:
        if "*" in kind:
            return self.viewed(value, kind)
        return (
            value
            if isinstance(value, Number) and self.concrete(kind) in INTEGERS
            else (Opaque() if isinstance(value, Number) else value)
        )

    def viewed(self, value: Value, kind: str) -> Value:
        """A pointer seen as one to vectors: a step moves several elements."""
        if not isinstance(value, Pointer):
            return value
        name = self.concrete(kind.replace("*", "").strip())
        vector = {**VECTORS, **self.module.vectors}.get(name)
        if vector is None:
            return Pointer(value.buffer, value.offset)
        return _Wide(value.buffer, value.offset, vector[1])

    def conditional(self, node: Node, scope: dict[str, Value]) -> Value:
        parts = [node.child_by_field_name(n) for n in ("condition", "consequence", "alternative")]
        if any(p is None for p in parts):
            return Opaque()
        c = self.evaluate(parts[0], scope)
        values = []
        for part, positive in ((parts[1], True), (parts[2], False)):
            guards = len(self.bounds.guards)
            if isinstance(c, Number):
                if c.expr.is_Integer and bool(c.expr != 0) != positive:
                    continue
                self.guard(c.expr, positive)
            values.append(self.evaluate(part, scope))
            del self.bounds.guards[guards:]
        if len(values) == 1:
            return values[0]
        a, b = values
        if isinstance(a, Number) and isinstance(b, Number):
            test = c.expr if isinstance(c, Number) else symbol("unknown__")
            return Number(Choose(test, a.expr, b.expr))
        return a if isinstance(a, Pointer) else Opaque()

    def call(self, node: Node, scope: dict[str, Value]) -> Value:
        function = node.child_by_field_name("function")
        name = text_of(function) if function is not None else ""
        head = re.sub(r"<.*", "", name)
        short = head.split("::")[-1]
        listed = node.child_by_field_name("arguments")
        items = [c for c in (listed.named_children if listed else ()) if c.type != "comment"]
        if head in ("static_cast", "reinterpret_cast", "const_cast"):
            kind = name[len(head) :].strip("<>")
            return self.converted(self.evaluate(items[0], scope), kind) if items else Opaque()
        if short.startswith("atomic") and items:
            target = self.evaluate(items[0], scope)
            for item in items[1:]:
                self.evaluate(item, scope)
            if isinstance(target, Pointer):
                self.touch(target, target.offset, node, write=True, atomic=True)
            return Opaque()
        if function is not None and function.type == "field_expression":
            return self.group(function, items, scope)
        values = [self.evaluate(i, scope) for i in items]
        self.found.gathers = self.found.gathers or short.startswith(("__shfl", "__reduce"))
        if short in _LOADS and values and isinstance(values[0], Pointer):
            return self.touch(values[0], values[0].offset, node, write=False)
        if short in _STORES and values and isinstance(values[0], Pointer):
            return self.touch(values[0], values[0].offset, node, write=True)
        numbers = [v.expr for v in values if isinstance(v, Number)]
        if short in ("min", "max") and len(numbers) == 2 == len(values):
            return Number((sp.Min if short == "min" else sp.Max)(*numbers))
        if short in ("__mul24", "__umul24") and len(numbers) == 2:
            return Number(sp.expand(numbers[0] * numbers[1]))
        if DTYPES.get(self.concrete(head)) and len(values) == 1:
            return self.converted(values[0], head)
        candidates = [
            f for f in self.module.functions.get(short, ()) if len(f.parameters) >= len(values)
        ]
        if candidates and self.depth < _MAX_DEPTH:
            return self.inline(candidates[0], values, name, scope)
        for value in values:
            # A library's function may touch what its pointers lead to: how far is not known.
            if isinstance(value, Pointer) and value.buffer.line != -1:
                use = self.found.uses.setdefault(value.buffer.name, Use())
                use.read = use.touched = True
                use.read_first = True
                if not value.buffer.const:
                    use.written = True
                use.blind = use.blind or int(node.start_point[0]) + 1
        return Opaque()

    def group(self, function: Node, items: Sequence[Node], scope: dict[str, Value]) -> Value:
        """Methods of cooperative groups: ranks and sizes."""
        for item in items:
            self.evaluate(item, scope)
        holder = text_of(function.child_by_field_name("argument"))
        name = text_of(function.child_by_field_name("field"))
        if name == "thread_rank" and "grid" in holder:
            x = self.builtin("blockIdx", "x") * self.builtin("blockDim", "x")
            return Number(sp.expand(x + self.builtin("threadIdx", "x")))
        if name == "thread_rank" and ("block" in holder or "cta" in holder):
            return Number(self.builtin("threadIdx", "x"))
        if name in ("thread_rank", "meta_group_rank"):
            return Number(self.atom("rank", high=number(31), low=number(0)))
        if name in ("size", "num_threads") and "grid" in holder:
            return Number(sp.expand(self.builtin("gridDim", "x") * self.builtin("blockDim", "x")))
        if name in ("size", "num_threads") and ("block" in holder or "cta" in holder):
            return Number(self.builtin("blockDim", "x"))
        return Opaque()

    def inline(
        self, function: Function, values: Sequence[Value], name: str, scope: dict[str, Value]
    ) -> Value:
        del scope
        inner: dict[str, Value] = {}
        outer_types = self.types
        explicit = [
            t.strip() for t in name.partition("<")[2].rpartition(">")[0].split(",") if t.strip()
        ]
        bound = dict(outer_types)
        for (parameter, (kind, _)), given in zip(
            function.templates.items(), explicit, strict=False
        ):
            if kind in ("typename", "class"):
                bound[parameter] = self.concrete(given)
            else:
                known = literal(given)
                inner[parameter] = Number(known[0]) if known else self.name(given, {})
        for own, value in zip(function.parameters, values, strict=False):
            inner[own.name] = value
        self.types, self.depth = bound, self.depth + 1
        kept, self.result = self.result, Opaque()
        guards = len(self.bounds.guards)
        try:
            self.block(function.body, inner)
        except _LeftError:
            pass
        finally:
            self.types, self.depth = outer_types, self.depth - 1
            del self.bounds.guards[guards:]
        result, self.result = self.result, kept
        return result


@dataclass(frozen=True)
class _Wide(Pointer):
    """A pointer to vectors of ``width`` elements."""

    width: int = 1


def _like(pointer: Pointer, offset: Expr) -> Pointer:
    if isinstance(pointer, _Wide):
        return _Wide(pointer.buffer, offset, pointer.width)
    return Pointer(pointer.buffer, offset)


def follow_launch(module: Module, step: LaunchStep) -> Found:
    """Return what a launch's kernel does to the buffers it is given."""
    types, values = {}, {}
    for (name, (kind, _)), given in zip(
        step.kernel.templates.items(), step.template_arguments, strict=False
    ):
        if kind in ("typename", "class"):
            types[name] = given
        elif given.lstrip("-").isdigit():
            values[name] = number(int(given))
        else:
            values[name] = symbol(given) if given.isidentifier() else _parsed(given)
    reader = KernelReader(module, step.grid, step.block)
    return reader.follow(step.kernel, step.arguments, types, values)


def _parsed(text: str) -> Expr:
    known = {n: symbol(n) for n in re.findall(r"[A-Za-z_]\w*", text)}
    known |= {"ceildiv": lambda a, b: FloorDivide(a + b - 1, b)}
    try:
        return sp.sympify(text.replace("//", "/"), locals=known)
    except (sp.SympifyError, TypeError, SyntaxError):
        return symbol("unknown__")
