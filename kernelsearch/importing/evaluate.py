"""Evaluate expressions of host code: numbers symbolically, pointers to the buffer they lead to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sympy as sp

from kernelsearch.importing import calls
from kernelsearch.importing.arithmetic import combine, literal
from kernelsearch.importing.problem import CannotImportError
from kernelsearch.importing.symbols import (
    CeilDivide,
    Choose,
    Expr,
    FloorDivide,
    NextPowerOfTwo,
    logic,
    number,
    symbol,
)
from kernelsearch.importing.syntax import (
    DTYPES,
    INTEGERS,
    VECTORS,
    Function,
    Module,
    Node,
    Parameter,
    expression,
    plain,
    text_of,
    walk,
)
from kernelsearch.importing.values import (
    Address,
    Buffer,
    Dim3,
    Frame,
    HostPlan,
    KernelName,
    Number,
    Opaque,
    Pointer,
    Record,
    Value,
)
from kernelsearch.records import DTYPE_BYTES

_MAXIMA = {"max": sp.Max, "std::max": sp.Max, "fmax": sp.Max, "min": sp.Min, "std::min": sp.Min,
           "fmin": sp.Min}  # fmt: skip
_NUMERIC = {
    "sqrt": sp.sqrt, "sqrtf": sp.sqrt, "std::sqrt": sp.sqrt, "fabs": sp.Abs, "fabsf": sp.Abs,
    "abs": sp.Abs, "std::abs": sp.Abs,
}  # fmt: skip
# Fields of cudaDeviceProp, as a launch plan knows them.
_PROPERTIES = {
    "multiProcessorCount": symbol("sm_count"),
    "maxThreadsPerBlock": symbol("max_threads_per_block"),
    "maxThreadsPerMultiProcessor": symbol("max_threads_per_sm"), "warpSize": number(32),
}  # fmt: skip
MAX_POINTERS = 64
_UP = ("ceil", "ceilf", "std::ceil")
_DOWN = ("floor", "floorf", "std::floor")


class Evaluator:
    """Expressions of one module's host code; ``HostReader`` adds the statements."""

    def __init__(self, module: Module, plan: HostPlan, given: Mapping[str, int]) -> None:
        self.module = module
        self.plan = plan
        self.given = given
        self.types: dict[str, str] = {}
        self.when: Expr | None = None
        self.in_main = False
        self.outers: dict[str, Value] = {}  # variables of the file, and members, once met
        self.first: dict[str, int] = {}  # what integer variables were set to where they appear
        self._matter: dict[int, bool] = {}

    def fail(self, at: Node | int | None, reason: str, remedy: str = "") -> CannotImportError:
        return self.module.fail(at, reason, remedy)

    def note(self, text: str) -> None:
        if text not in self.plan.notes:
            self.plan.notes.append(text)

    def concrete(self, kind: str) -> str:
        """Return a type with aliases and template parameters looked through."""
        kind = self.module.plain_type(plain(kind))
        kind = self.types.get(kind, kind)
        return self.module.plain_type(kind)

    @property
    def vectors(self) -> Mapping[str, tuple[str, int]]:
        """Types of several equal numbers: the built-in ones, and structures of this file."""
        return {**VECTORS, **self.module.vectors}

    def dtype_of(self, kind: str) -> str | None:
        kind = self.concrete(kind)
        if kind in self.vectors:
            return self.vectors[kind][0]
        return DTYPES.get(kind)

    def size_of(self, kind: str, at: Node) -> int:
        """Return sizeof a type, bytes."""
        kind = self.concrete(kind.rstrip("*& "))
        if kind in DTYPES:
            return DTYPE_BYTES[DTYPES[kind]]
        if kind in VECTORS:
            dtype, count = VECTORS[kind]
            return DTYPE_BYTES[dtype] * count
        if kind in self.module.structs:
            return sum(self.size_of(f.type, at) for f in self.module.structs[kind])
        raise self.fail(at, f"the size of {kind!r} is not known here",
                        "write it as a number of elements of a plain type")  # fmt: skip

    def real_symbol(self, name: str) -> Expr:
        return sp.Symbol(name, real=True)

    def next_power(self, e: Expr) -> Expr:
        return NextPowerOfTwo(e)

    def settle(self, e: Expr) -> Expr:
        """Return a condition with the values that are fixed by the source put in.

        A branch of main is decided by the numbers that main itself sets.
        """
        if not self.in_main:
            known = {**self.module.constants, **self.plan.fixed}
        else:
            known = {**self.module.constants, **self.plan.defaults, **self.plan.fixed}
        return e.subs({symbol(n): v for n, v in known.items()})

    def truncated(self, e: Expr) -> Expr:
        """Return a real quotient as C converts it to an integer."""
        top, bottom = sp.fraction(sp.together(sp.nsimplify(e)))
        return FloorDivide(sp.expand(top), sp.expand(bottom))

    def matters(self, node: Node) -> bool:
        """Return whether there is a launch or a call of the CUDA runtime that counts below."""
        key = node.id
        if key not in self._matter:
            self._matter[key] = False  # a function that calls itself
            self._matter[key] = any(self._counts(n) for n in walk(node))
        return self._matter[key]

    def _counts(self, node: Node) -> bool:
        if node.type == "kernel_call_syntax":
            return True
        if node.type != "call_expression":
            return False
        name = self.called(node)
        if calls.counts(name):
            return True
        return any(
            not f.device and not f.kernel and self.matters(f.body)
            for f in self.module.functions.get(name.split("::")[-1], ())
        )

    def called(self, node: Node) -> str:
        function = node.child_by_field_name("function")
        if function is None:
            return ""
        if function.type == "template_function":
            function = function.child_by_field_name("name") or function
        # std::min<long long>
        return re.sub(r"<.*", "", text_of(function))

    # --- expressions --------------------------------------------------------------------------

    def evaluate(self, node: Node, frame: Frame) -> Value:
        match node.type:
            case "number_literal":
                found = literal(text_of(node))
                return Number(*found) if found is not None else Opaque(text_of(node))
            case "true" | "false":
                return Number(number(int(node.type == "true")))
            case "null" | "nullptr" | "string_literal" | "char_literal" | "lambda_expression":
                return Opaque(node.type)
            case "identifier":
                return self.name(text_of(node), frame)
            case "parenthesized_expression" | "condition_clause" | "init_statement":
                inner = [c for c in node.named_children if c.type != "comment"]
                return self.evaluate(inner[-1], frame) if inner else Opaque()
            case "comma_expression":
                result: Value = Opaque()
                for item in node.named_children:
                    result = self.evaluate(item, frame)
                return result
            case "binary_expression":
                return self.binary(node, frame)
            case "unary_expression":
                return self.unary(node, frame)
            case "pointer_expression":
                return self.pointer(node, frame)
            case "cast_expression":
                return self.cast(node, frame)
            case "sizeof_expression":
                return Number(number(self.sizeof(node, frame)))
            case "conditional_expression":
                return self.conditional(node, frame)
            case "assignment_expression":
                return self.assign(node, frame)
            case "update_expression":
                return self.update(node, frame)
            case "field_expression":
                return self.field(node, frame)
            case "subscript_expression":
                return self.subscript(node, frame)
            case "call_expression":
                return self.call(node, frame)
            case "new_expression":
                return self.new(node, frame)
            case "compound_literal_expression" | "initializer_list":
                return self.compound(node, frame)
            case "template_function" | "qualified_identifier":
                return self.kernel_name(node, frame)
        return Opaque(text_of(node)[:40])

    def name(self, name: str, frame: Frame) -> Value:
        if name in frame.values:
            return frame.values[name]
        if name in self.given:
            return Number(number(self.given[name]))
        if name in self.module.macros:
            return Number(symbol(name))
        if name in self.module.constants:
            return Number(number(self.module.constants[name]))
        kernels = [f for f in self.module.functions.get(name, ()) if f.kernel]
        if kernels:
            return KernelName(kernels[0], ())
        if name in self.types:
            return Opaque(self.types[name])
        found = self.outer(name)
        return found if found is not None else Opaque(name)

    def outer(self, name: str) -> Value | None:
        """Return a variable that no function declares, None where there is none."""
        raise NotImplementedError

    def kernel_name(self, node: Node, frame: Frame) -> Value:
        head = node.child_by_field_name("name") or node
        if head is not node and head.type in ("template_function", "qualified_identifier"):
            return self.kernel_name(head, frame)
        text = text_of(head).split("::")[-1]
        kernels = [f for f in self.module.functions.get(text, ()) if f.kernel]
        if not kernels:
            if text in frame.values or text in self.module.constants:
                return self.name(text, frame)
            return Opaque(text_of(node))
        listed = node.child_by_field_name("arguments")
        return KernelName(kernels[0], self.template_arguments(listed, frame))

    def template_arguments(self, listed: Node | None, frame: Frame) -> tuple[str, ...]:
        """Return template arguments as a launch plan names them."""
        from kernelsearch.importing.symbols import plan_text

        result = []
        for item in listed.named_children if listed is not None else ():
            text = text_of(item)
            value = self.types.get(text)
            if value is None and (
                re.fullmatch(r"\w+", text)
                and (text in frame.values or text in self.module.constants or text in self.given)
            ):
                found = self.name(text, frame)
                value = plan_text(found.expr) if isinstance(found, Number) else text
            elif value is None and item.type not in ("type_descriptor",):
                found = self.evaluate(item, frame)
                value = plan_text(found.expr) if isinstance(found, Number) else text
            result.append(value if value is not None else self.concrete(text))
        return tuple(result)

    def binary(self, node: Node, frame: Frame) -> Value:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None:
            return Opaque()
        a, b = self.evaluate(left, frame), self.evaluate(right, frame)
        op = text_of(operator)
        if isinstance(a, Pointer) and isinstance(b, Number) and op in "+-":
            moved = combine(op, a.offset, b.expr)
            return Pointer(a.buffer, moved) if moved is not None else Opaque()
        if isinstance(b, Pointer) and isinstance(a, Number) and op == "+":
            return Pointer(b.buffer, sp.expand(b.offset + a.expr))
        if isinstance(a, Number) and isinstance(b, Number):
            real = a.real or b.real
            found = combine(op, a.expr, b.expr, real=real)
            if found is not None:
                logical = op in ("<", "<=", ">", ">=", "==", "!=", "&&", "||")
                return Number(found, real=real and not logical)
        if op in ("&&", "||"):
            # What is not known is an error code: taken to be as it should be.
            return a if isinstance(a, Number) and op == "&&" else Opaque()
        return Opaque(text_of(node)[:40])

    def unary(self, node: Node, frame: Frame) -> Value:
        inner = node.child_by_field_name("argument")
        value = self.evaluate(inner, frame) if inner is not None else Opaque()
        op = text_of(node)[:1]
        if not isinstance(value, Number):
            return Opaque()
        match op:
            case "-":
                return Number(-value.expr, value.real)
            case "+":
                return value
            case "!":
                return Number(logic("not", value.expr))
            case "~" if value.expr.is_Integer:
                return Number(number(~int(value.expr)))
        return Opaque()

    def pointer(self, node: Node, frame: Frame) -> Value:
        inner = node.child_by_field_name("argument")
        if inner is None:
            return Opaque()
        if text_of(node).startswith("&"):
            if inner.type == "subscript_expression":
                return self.subscript(inner, frame, address=True)
            return Address(text_of(inner).replace("this->", ""), frame)
        value = self.evaluate(inner, frame)
        whole = text_of(inner) == "this" or isinstance(value, Record)
        return value if whole else Opaque(text_of(node))

    def cast(self, node: Node, frame: Frame) -> Value:
        inner = node.child_by_field_name("value")
        kind = node.child_by_field_name("type")
        value = self.evaluate(inner, frame) if inner is not None else Opaque()
        if kind is None:
            return value
        return self.converted(value, text_of(kind), frame)

    def converted(self, value: Value, kind: str, frame: Frame) -> Value:
        del frame
        if "*" in kind:
            return value
        target = self.concrete(kind)
        if isinstance(value, Number):
            if target in INTEGERS:
                return Number(self.truncated(value.expr)) if value.real else value
            if target in DTYPES:
                return Number(value.expr, real=True)
        return value

    def sizeof(self, node: Node, frame: Frame) -> int:
        kind = node.child_by_field_name("type")
        if kind is not None:
            if "*" in text_of(kind):
                return 8
            return self.size_of(text_of(kind), node)
        inner = node.child_by_field_name("value")
        text = text_of(inner).strip("()") if inner is not None else ""
        known = {*DTYPES, *VECTORS, *self.module.structs}
        if text in self.types or self.concrete(text) in known:
            return self.size_of(text, node)
        bare = re.match(r"\*?(\w+)(\[\w+\])?$", text)
        value = frame.values.get(bare[1]) if bare else None
        if isinstance(value, Pointer) and value.buffer.dtype and bare:
            size = DTYPE_BYTES[value.buffer.dtype]
            if text.startswith("*") or bare[2] or value.buffer.extent is None:
                return size
            whole = self.settle(value.buffer.extent * size)
            if whole.is_Integer:
                return int(whole)
        if isinstance(value, Record):
            return self.size_of(value.type, node)
        if bare and bare[1] in self.module.symbols:
            return self.symbol_bytes(bare[1], node)
        raise self.fail(node, f"{text_of(node)} is not known here", "write the size out")

    def symbol_bytes(self, name: str, at: Node) -> int:
        """Return the size of a ``__constant__`` variable."""
        declaration = self.module.symbols[name]
        kind = declaration.child_by_field_name("type")
        count: Expr = number(1)
        for item in declaration.children_by_field_name("declarator"):
            if name not in text_of(item):
                continue
            while item.type == "array_declarator":
                size = item.child_by_field_name("size")
                found = self.evaluate(size, Frame()) if size is not None else Opaque()
                if isinstance(found, Number):
                    count = count * self.settle(found.expr)
                item = item.child_by_field_name("declarator")
        count = count.subs({symbol(n): v for n, v in self.module.constants.items()})
        if not count.is_Integer or kind is None:
            raise self.fail(at, f"the size of {name} is not known here", "write it as a number")
        return int(count) * self.size_of(text_of(kind), at)

    def conditional(self, node: Node, frame: Frame) -> Value:
        parts = [node.child_by_field_name(n) for n in ("condition", "consequence", "alternative")]
        if any(p is None for p in parts):
            return Opaque()
        c, a, b = (self.evaluate(p, frame) for p in parts)
        if not isinstance(c, Number):
            return a
        if c.expr.is_Integer:
            return a if c.expr != 0 else b
        if isinstance(a, Number) and isinstance(b, Number):
            return Number(Choose(c.expr, a.expr, b.expr), a.real or b.real)
        return a if a == b else Opaque()

    def assign(self, node: Node, frame: Frame) -> Value:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None:
            return Opaque()
        value = self.evaluate(right, frame)
        op = text_of(operator)
        if op != "=":
            old = self.evaluate(left, frame)
            if isinstance(old, Number) and isinstance(value, Number):
                found = combine(op[:-1], old.expr, value.expr, real=old.real or value.real)
                value = Number(found, old.real) if found is not None else Opaque()
            elif isinstance(old, Pointer) and isinstance(value, Number) and op in ("+=", "-="):
                moved = combine(op[:-1], old.offset, value.expr)
                value = Pointer(old.buffer, moved) if moved is not None else Opaque()
            else:
                value = Opaque()
        self.store(text_of(left), value, frame)
        return value

    def store(self, name: str, value: Value, frame: Frame) -> None:
        element = re.fullmatch(r"(\w+) ?\[(.+)\]", name)
        if element is not None:
            array = self.name(element[1], frame)
            at = self.element_of(self.evaluate(expression(element[2]), frame))
            if isinstance(array, Record) and at is not None:
                array.fields[at] = value
            return
        parts = re.split(r"\.|->", name)
        if len(parts) == 1:
            old = frame.values.get(name)
            if isinstance(value, Number) and isinstance(old, Number) and not old.real:
                self.plan.defaults.pop(name, None) if old.expr != symbol(name) else None
            if name in self.outers and name not in frame.values:
                self.outers[name] = value
            else:
                frame.values[name] = value
            return
        if parts[0] == "this" and len(parts) == 2:
            self.name(parts[1], frame)
            self.store(parts[1], value, frame)
            return
        holder = frame.values.get(parts[0])
        if isinstance(holder, Record):
            holder.fields[parts[1]] = value
        elif isinstance(holder, Dim3) and isinstance(value, Number) and parts[1] in "xyz":
            frame.values[parts[0]] = Dim3(**{
                axis: value.expr if axis == parts[1] else getattr(holder, axis) for axis in "xyz"
            })  # fmt: skip

    def update(self, node: Node, frame: Frame) -> Value:
        inner = node.child_by_field_name("argument")
        name = text_of(inner) if inner is not None else ""
        value = frame.values.get(name)
        if isinstance(value, Number):
            step = 1 if "++" in text_of(node) else -1
            frame.values[name] = Number(sp.expand(value.expr + step), value.real)
        return value if value is not None else Opaque()

    def field(self, node: Node, frame: Frame) -> Value:
        holder = node.child_by_field_name("argument")
        name = node.child_by_field_name("field")
        if holder is None or name is None:
            return Opaque()
        item = text_of(name)
        if text_of(holder) == "this":
            return self.name(item, frame)
        value = self.evaluate(holder, frame)
        if isinstance(value, Record):
            return value.fields.get(item, Opaque(item))
        if isinstance(value, Dim3) and item in "xyz":
            return Number(getattr(value, item))
        if item in _PROPERTIES:
            return Number(_PROPERTIES[item])
        return Opaque(text_of(node))

    def subscript(self, node: Node, frame: Frame, *, address: bool = False) -> Value:
        base = node.child_by_field_name("argument")
        listed = child_arguments(node)
        value = self.evaluate(base, frame) if base is not None else Opaque()
        index = self.evaluate(listed[0], frame) if listed else Opaque()
        if address and isinstance(value, Pointer) and isinstance(index, Number):
            return Pointer(value.buffer, sp.expand(value.offset + index.expr))
        at = self.element_of(index) if isinstance(value, Record) else None
        if isinstance(value, Record) and at is not None:
            if address and base is not None:
                return Address(f"{text_of(base)}[{at}]", frame)
            return value.fields.get(at, Opaque(text_of(node)))
        return Opaque(text_of(node))

    def element_of(self, index: Value) -> str | None:
        """Return which element of an array of pointers an index is."""
        if not isinstance(index, Number):
            return None
        known = {symbol(n): v for n, v in {**self.module.constants, **self.first}.items()}
        settled = self.settle(index.expr).subs(known)
        return str(settled) if settled.is_Integer else None

    def compound(self, node: Node, frame: Frame) -> Value:
        kind = node.child_by_field_name("type")
        listed = node if node.type == "initializer_list" else node.child_by_field_name("value")
        name = self.concrete(text_of(kind)) if kind is not None else ""
        if name == "dim3" and listed is not None:
            return self.dim3(listed, frame)
        if name in self.module.structs and listed is not None:
            return self.record(name, listed, "", frame)
        return Opaque(text_of(node)[:40])

    def dim3(self, listed: Node | None, frame: Frame) -> Value:
        """Return the dimensions that an initialiser gives."""
        if listed is None:
            return Dim3(number(1))
        if listed.type not in ("argument_list", "initializer_list", "parameter_list"):
            value = self.evaluate(listed, frame)
            return Dim3(value.expr) if isinstance(value, Number) else value
        parts = []
        for item in listed.named_children:
            if item.type == "comment":
                continue
            if item.type == "parameter_declaration":
                # dim3 grid(n * m) reads like the declaration of a function.
                inner = self.evaluate(expression(text_of(item)), frame)
            else:
                inner = self.evaluate(item, frame)
            if isinstance(inner, Dim3) and len(listed.named_children) == 1:
                return inner
            if not isinstance(inner, Number):
                raise self.fail(listed, f"the dimension {text_of(item)!r} is not known here",
                                "write it as an expression of sizes")  # fmt: skip
            parts.append(self.truncated(inner.expr) if inner.real else inner.expr)
        return Dim3(*parts) if parts else Dim3(number(1))

    def record(self, kind: str, listed: Node | None, name: str, frame: Frame) -> Value:
        record = Record(kind)
        fields = self.module.structs[kind]
        for item in fields:
            record.fields[item.name] = Opaque(f"{name}.{item.name}")
        if listed is None:
            return record
        if listed.type not in ("initializer_list", "argument_list"):
            value = self.evaluate(listed, frame)
            return Record(value.type, dict(value.fields)) if isinstance(value, Record) else record
        given = [c for c in listed.named_children if c.type != "comment"]
        for item, value_node in zip(fields, given, strict=False):
            target, source = item.name, value_node
            if value_node.type == "initializer_pair":
                designator = value_node.child_by_field_name("designator")
                source = value_node.child_by_field_name("value")
                target = text_of(designator).lstrip(".") if designator is not None else target
            record.fields[target] = self.evaluate(source, frame)
        return record

    def pointer_array(
        self, parsed: Parameter, value: Node | None, length: Node | None, frame: Frame
    ) -> Value:
        """Return the elements of a local array of pointers, each a buffer until it is set."""
        given = [c for c in value.named_children if c.type != "comment"] if value else []
        count = self.evaluate(length, frame) if length is not None else Number(number(len(given)))
        whole = self.element_of(count)
        if whole is None or not 0 < int(whole) <= MAX_POINTERS:
            return Opaque(parsed.name)
        record = Record("")
        for at in range(int(whole)):
            if at < len(given):
                record.fields[str(at)] = self.evaluate(given[at], frame)
                continue
            buffer = Buffer(f"{parsed.name}{at}", self.dtype_of(parsed.type))
            self.plan.buffers.append(buffer)
            record.fields[str(at)] = Pointer(buffer)
        return record

    def new(self, node: Node, frame: Frame) -> Value:
        kind = node.child_by_field_name("type")
        declarator = node.child_by_field_name("declarator")
        length = declarator.child_by_field_name("length") if declarator is not None else None
        if kind is None or length is None:
            return Opaque()
        count = self.evaluate(length, frame)
        buffer = Buffer("", self.dtype_of(text_of(kind)), line=node.start_point[0] + 1)
        if isinstance(count, Number):
            buffer.extent = count.expr
        self.plan.buffers.append(buffer)
        return Pointer(buffer)

    def named(self, pointer: Pointer, name: str, kind: str) -> Pointer:
        """Give a buffer that has just been made the name and type of its first variable."""
        if not pointer.buffer.name:
            pointer.buffer.name = name
        if pointer.buffer.dtype is None:
            calls.settle_dtype(pointer.buffer, self.dtype_of(kind))
        return pointer

    def container(self, kind: str, name: str, value: Node | None, frame: Frame, at: Node) -> Value:
        """Return the host memory that a vector or a unique_ptr holds."""
        if "device_vector" in kind:
            raise self.fail(at, "thrust::device_vector hides the device's memory",
                            "allocate it with cudaMalloc in the wrapper")  # fmt: skip
        inner = re.search(r"<\s*([\w: ]+?)\s*(\[\])?\s*(,.*)?>", kind)
        buffer = Buffer(name, self.dtype_of(inner[1]) if inner else None,
                        line=at.start_point[0] + 1)  # fmt: skip
        if value is not None and value.named_children:
            first = value.named_children[0]
            count = (
                self.evaluate(expression(text_of(first)), frame)
                if first.type == "parameter_declaration"
                else self.evaluate(first, frame)
            )  # fmt: skip
            if isinstance(count, Number):
                buffer.extent = count.expr
        self.plan.buffers.append(buffer)
        return Pointer(buffer)

    def host_array(self, node: Node, parsed: Parameter, item: Node, frame: Frame) -> Value:
        """Return the memory of a local array."""
        size: Expr = number(1)
        while item.type == "array_declarator":
            length = item.child_by_field_name("size")
            found = self.evaluate(length, frame) if length is not None else Opaque()
            if not isinstance(found, Number):
                return Opaque(parsed.name)
            size = size * found.expr
            item = item.child_by_field_name("declarator")
        buffer = Buffer(parsed.name, self.dtype_of(parsed.type), sp.expand(size),
                        line=node.start_point[0] + 1)  # fmt: skip
        self.plan.buffers.append(buffer)
        return Pointer(buffer)

    def call(self, node: Node, frame: Frame) -> Value:
        if any(c.type == "kernel_call_syntax" for c in node.children):
            return calls.launch(self, node, frame)
        name = self.called(node)
        listed = child_arguments(node)
        short = name.split("::")[-1]
        if calls.is_runtime(name):
            return calls.runtime(self, name, node, listed, frame)
        if name in ("std::swap", "swap") and len(listed) == 2:
            a, b = (text_of(x) for x in listed)
            va, vb = self.evaluate(listed[0], frame), self.evaluate(listed[1], frame)
            self.store(a, vb, frame)
            self.store(b, va, frame)
            return Opaque()
        if name in ("static_cast", "reinterpret_cast", "const_cast"):
            function = node.child_by_field_name("function")
            types = function.child_by_field_name("arguments") if function is not None else None
            value = self.evaluate(listed[0], frame) if listed else Opaque()
            return self.converted(value, text_of(types).strip("<>") if types else "", frame)
        if short == "dim3" or self.concrete(name) == "dim3":
            arguments = node.child_by_field_name("arguments")
            return self.dim3(arguments, frame)
        function_node = node.child_by_field_name("function")
        if function_node is not None and function_node.type == "field_expression":
            return self.method(function_node, frame)
        if name in ("malloc", "std::malloc", "calloc", "std::calloc", "aligned_alloc"):
            return self.allocation(name, node, listed, frame)
        if self.concrete(name) in DTYPES and len(listed) == 1:
            return self.converted(self.evaluate(listed[0], frame), name, frame)
        values = [self.evaluate(x, frame) for x in listed]
        numbers = [v for v in values if isinstance(v, Number)]
        if len(numbers) == len(values) and values:
            found = self.numeric(name, numbers)
            if found is not None:
                return found
        functions = [
            f for f in self.module.functions.get(short, ())
            if not f.kernel and len(f.parameters) >= len(values)
        ]  # fmt: skip
        if functions:
            return self.follow(functions[0], values, node, frame)
        if "printf" not in name and calls.launches_elsewhere(name):
            raise self.fail(node, f"{name} computes on the device in a library",
                            "import the kernel alone with --entry")  # fmt: skip
        return Opaque(f"{name}()")

    def numeric(self, name: str, values: Sequence[Number]) -> Number | None:
        exprs = [v.expr for v in values]
        real = any(v.real for v in values)
        if name in _MAXIMA and len(exprs) == 2:
            return Number(_MAXIMA[name](*exprs), real)
        if name in _NUMERIC:
            return Number(_NUMERIC[name](exprs[0]), real=real or "sqrt" in name)
        if name in (*_UP, *_DOWN):
            top, bottom = sp.fraction(sp.together(sp.nsimplify(exprs[0])))
            divide = CeilDivide if name in _UP else FloorDivide
            return Number(divide(sp.expand(top), sp.expand(bottom)))
        if name in ("pow", "powf", "std::pow") and exprs[1].is_number:
            return Number(exprs[0] ** sp.nsimplify(exprs[1]), real)
        return None

    def follow(
        self, function: Function, values: Sequence[Value], node: Node, frame: Frame
    ) -> Value:
        if (
            function.device
            and not self.matters(function.body)
            and all(isinstance(v, Opaque) for v in values)
        ):
            return Opaque()
        listed = node.child_by_field_name("function")
        while listed is not None and listed.type == "qualified_identifier":
            listed = listed.child_by_field_name("name")
        explicit = listed.child_by_field_name("arguments") if listed is not None else None
        bound: dict[str, str] = {}
        if explicit is not None:
            given = self.template_arguments(explicit, frame)
            bound = dict(zip(function.templates, given, strict=False))
        for parameter, value in zip(function.parameters, values, strict=False):
            if parameter.type in function.templates and isinstance(value, Record) and value.type:
                bound.setdefault(parameter.type, value.type)
            if parameter.type in function.templates and isinstance(value, Pointer):
                known = calls.c_type(value.buffer.dtype)
                if known is not None:
                    bound.setdefault(parameter.type, known)
        made = len(self.plan.buffers)
        result = self.invoke(function, values, bound, node, frame)
        if isinstance(result, Pointer) and result.buffer in self.plan.buffers[made:]:
            result.buffer.name = ""  # the caller's variable names what a helper allocates
        return result

    def invoke(
        self, function: Function, arguments: Sequence[Value], types: Mapping[str, str], at: Node,
        outer: Frame,
    ) -> Value:  # fmt: skip
        raise NotImplementedError

    def method(self, function: Node, frame: Frame) -> Value:
        holder, item = (
            function.child_by_field_name("argument"),
            function.child_by_field_name("field"),
        )
        value = self.evaluate(holder, frame) if holder is not None else Opaque()
        name = text_of(item) if item is not None else ""
        if isinstance(value, Pointer):
            if name in ("data", "get", "begin"):
                return value
            if name in ("size", "length") and value.buffer.extent is not None:
                return Number(value.buffer.extent)
        return Opaque(text_of(function))

    def allocation(self, name: str, node: Node, listed: Sequence[Node], frame: Frame) -> Value:
        values = [self.evaluate(x, frame) for x in listed]
        buffer = Buffer("", None, line=node.start_point[0] + 1)
        sizes = [v.expr for v in values if isinstance(v, Number)]
        if len(sizes) == len(values) and values:
            buffer.size_bytes = sizes[-1] if "calloc" not in name else sizes[0] * sizes[-1]
        self.plan.buffers.append(buffer)
        return Pointer(buffer)


def child_arguments(node: Node) -> list[Node]:
    """Return the arguments of a call or a subscript, comments left out."""
    listed = node.child_by_field_name("arguments") or node.child_by_field_name("indices")
    if listed is None:
        return []
    return [c for c in listed.named_children if c.type != "comment"]
