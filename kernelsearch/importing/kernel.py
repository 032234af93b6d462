"""Follow a kernel's body once with unknown indices: what it reads and writes, and how far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import sympy as sp

from kernelsearch.errors import ExpressionError
from kernelsearch.importing.bounds import Guard
from kernelsearch.importing.kernel_facts import Found, Value
from kernelsearch.importing.kernel_values import KernelValues, LeftError
from kernelsearch.importing.symbols import Choose, Expr, from_plan, number, symbol
from kernelsearch.importing.syntax import DTYPES, Function, Module, Node, declared, text_of, walk
from kernelsearch.importing.values import Buffer, LaunchStep, Number, Opaque, Pointer, Record


class KernelReader(KernelValues):
    """Follows one launch of a kernel, statement by statement."""

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
        with suppress(LeftError):
            self.block(kernel.body, scope)
        return self.found

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
                raise LeftError
            case "switch_statement":
                self.data_dependent += 1
                body = node.child_by_field_name("body")
                for case in body.named_children if body is not None else ():
                    for item in case.named_children:
                        if item.type.endswith("statement") or item.type == "declaration":
                            try:
                                self.statement(item, scope)
                            except LeftError:
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
            except LeftError:
                left.append(True)
            finally:
                self.data_dependent -= int(data and no is None)
                del self.bounds.guards[guards:]
            results.append(inner)
        if all(left):
            raise LeftError
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
        except LeftError:
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
        first = node.child_by_field_name("initializer")
        start = first.id if first is not None else None  # for (p = 0; ...): where it begins
        for item in (i for c in node.children if c.id != start for i in walk(c)):
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


def follow_launch(module: Module, step: LaunchStep) -> Found:
    """Return what a launch's kernel does to the buffers it is given."""
    types, values = {}, {}
    for (name, (kind, _)), given in zip(
        step.kernel.templates.items(), step.template_arguments, strict=False
    ):
        if kind in ("typename", "class"):
            types[name] = given
        else:
            try:
                values[name] = from_plan(given)
            except ExpressionError:
                values[name] = symbol("unknown__")
    reader = KernelReader(module, step.grid, step.block)
    return reader.follow(step.kernel, step.arguments, types, values)
