"""Evaluate expressions of device code: indices symbolically, accesses recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sympy as sp

from kernelsearch.importing.arithmetic import combine, literal
from kernelsearch.importing.bounds import greater
from kernelsearch.importing.kernel_facts import Use, Value, Wide, like
from kernelsearch.importing.kernel_scope import KernelScope
from kernelsearch.importing.symbols import Choose, Expr, FloorDivide, Logic, number, symbol
from kernelsearch.importing.syntax import DTYPES, INTEGERS, VECTORS, Function, Node, text_of
from kernelsearch.importing.values import Buffer, Number, Opaque, Pointer, Record

_AXES = ("x", "y", "z")
_BUILTINS = ("threadIdx", "blockIdx", "blockDim", "gridDim")
_MAX_DEPTH = 16
_LOADS = ("__ldg", "__ldcs", "__ldca", "__ldcg", "__ldcv", "__ldlu")
_STORES = ("__stcs", "__stcg", "__stwb", "__stwt")


def is_null_pointer(value: object) -> bool:
    """Return whether a value is nullptr or NULL (0 is a number in device code)."""
    return isinstance(value, Opaque) and value.what == "null"


class LeftError(Exception):
    """The function returns on every path."""


class KernelValues(KernelScope):
    """Expressions of device code; ``KernelReader`` adds the statements."""

    def held(self, name: str, kind: str, value: Value, pointer: bool) -> Value:
        if pointer or isinstance(value, Pointer | Record):
            return value
        if isinstance(value, Number) and (kind in INTEGERS or kind == "auto" or kind == "dim3"):
            if value.expr.is_Symbol or value.expr.is_Integer:
                return value
            return Number(self.atom(name, definition=value.expr))
        return Opaque(name)

    def evaluate(self, node: Node, scope: dict[str, Value]) -> Value:
        match node.type:
            case "number_literal":
                found = literal(text_of(node))
                return Number(found[0]) if found is not None and not found[1] else Opaque()
            case "null" | "nullptr":
                return Opaque("null")
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
        if isinstance(value, Pointer) and "->" in text_of(node)[len(name) :]:
            return self.touch(value, value.offset, node, write=False)
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

    def access(self, node: Node, scope: dict[str, Value], *, write: bool) -> Value:
        base = node.child_by_field_name("argument")
        if base is not None and base.type == "subscript_expression":
            # a[i][j] of memory of the kernel's own
            self.access(base, scope, write=write)
            self.element(node, scope)
            return Opaque()
        value, index = self.element(node, scope)
        if not isinstance(value, Pointer):
            return Opaque()
        offset = None
        if index is not None:
            offset = sp.expand(value.offset + index * self.width(value))
        return self.touch(value, offset, node, write=write)

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
        holder = left.child_by_field_name("argument") if left.type == "field_expression" else None
        if holder is not None and "->" in text_of(left)[len(text_of(holder)) :]:
            held = self.evaluate(holder, scope)
            if isinstance(held, Pointer):
                if op != "=":
                    self.touch(held, held.offset, node, write=False)
                self.touch(held, held.offset, node, write=True)
                return value
        old = scope.get(name, Opaque(name))
        if op != "=":
            if isinstance(old, Pointer) and isinstance(value, Number) and op in ("+=", "-="):
                moved = combine(op[0], old.offset, value.expr * self.width(old))
                scope[name] = like(old, moved) if moved is not None else Opaque()
                return scope[name]
            if isinstance(old, Number) and isinstance(value, Number):
                combined = combine(op[:-1], old.expr, value.expr)
                value = Number(combined) if combined is not None else Opaque(name)
            else:
                value = Opaque(name)
        if name in scope:
            # int k; k = 0; what is only declared holds nothing yet.
            fresh = not isinstance(old, Opaque) or old.what == name
            keeps = isinstance(value, Number) and fresh
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
            scope[name] = like(value, sp.expand(value.offset + step * self.width(value)))
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
            return like(a, moved) if moved is not None else Opaque()
        if op in ("==", "!=", "&&", "||"):
            known = self.null_test(op, a, b)
            if known is not None:
                return known
        if isinstance(a, Pointer) and isinstance(b, Opaque) and op in "+-":
            return like(a, self.atom("offset"))
        if isinstance(b, Pointer) and isinstance(a, Number) and op == "+":
            return like(b, sp.expand(b.offset + a.expr * self.width(b)))
        if isinstance(a, Number) and isinstance(b, Number):
            found = combine(op, a.expr, b.expr)
            return Number(found) if found is not None else self.bits(op, a.expr, b.expr)
        if op == "&&" and (isinstance(a, Number) or isinstance(b, Number)):
            # Half of the condition is known: it bounds, and the rest is data.
            known = a if isinstance(a, Number) else b
            assert isinstance(known, Number)
            return Number(Logic(sp.Symbol("and"), known.expr, symbol("unknown__")))
        return Opaque()

    def null_test(self, op: str, a: Value, b: Value) -> Value | None:
        """Decide whether pointers are null: what a launch passes tells."""
        addresses = [v for v in (a, b) if isinstance(v, Pointer) or is_null_pointer(v)]
        if op in ("==", "!="):
            if len(addresses) < 2:
                return None
            both = all(is_null_pointer(v) for v in addresses)
            one = any(is_null_pointer(v) for v in addresses)
            return Number(number(int(both == (op == "==")))) if one else None
        if not addresses:
            return None
        first = addresses[0]
        other = b if first is a else a
        if isinstance(first, Pointer) == (op == "&&"):
            return other  # a pointer that is there, or one that is not: the other side decides
        return Number(number(int(op == "||")))

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
        return Wide(value.buffer, value.offset, vector[1])

    def conditional(self, node: Node, scope: dict[str, Value]) -> Value:
        parts = [node.child_by_field_name(n) for n in ("condition", "consequence", "alternative")]
        if any(p is None for p in parts):
            return Opaque()
        c = self.evaluate(parts[0], scope)
        values, highs = [], []
        for part, positive in ((parts[1], True), (parts[2], False)):
            guards = len(self.bounds.guards)
            if isinstance(c, Number):
                if c.expr.is_Integer and bool(c.expr != 0) != positive:
                    continue
                self.guard(c.expr, positive)
            values.append(self.evaluate(part, scope))
            highs.append(self.high_of(values[-1]))
            del self.bounds.guards[guards:]
        if len(values) == 1:
            return values[0]
        a, b = values
        if isinstance(a, Number) and isinstance(b, Number):
            test = c.expr if isinstance(c, Number) else symbol("unknown__")
            chosen = Choose(test, a.expr, b.expr)
            if None not in highs and not self.from_data(chosen):
                # y == rows - 1 ? y : y + 1 is below rows, whichever it is
                high = greater(*highs)
                if high != self.high_of(Number(chosen)):
                    return Number(self.atom("choice", high=high, low=number(0)))
            return Number(chosen)
        return a if isinstance(a, Pointer) else Opaque()

    def high_of(self, value: Value) -> Expr | None:
        return self.bounds.largest(value.expr) if isinstance(value, Number) else None

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
        if name == "thread_rank":
            return Number(self.atom("rank", high=number(31), low=number(0)))
        if name == "meta_group_size":
            return Number(FloorDivide(self.builtin("blockDim", "x"), number(32)))
        if name == "meta_group_rank":
            warps = FloorDivide(self.builtin("blockDim", "x"), number(32))
            return Number(self.atom("warp", high=sp.expand(warps - 1), low=number(0)))
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
        except LeftError:
            pass
        finally:
            self.types, self.depth = outer_types, self.depth - 1
            del self.bounds.guards[guards:]
        result, self.result = self.result, kept
        return result

    def block(self, node: Node, scope: dict[str, Value]) -> None:
        """Follow a compound statement."""
        raise NotImplementedError
