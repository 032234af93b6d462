"""Follow host code from a wrapper's first line to its last, and note what it launches on what."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from keyword import iskeyword

from kernelsearch.importing import calls
from kernelsearch.importing.arithmetic import literal
from kernelsearch.importing.evaluate import MAX_POINTERS, Evaluator, child_arguments
from kernelsearch.importing.symbols import Choose, Expr, logic, number, symbol
from kernelsearch.importing.syntax import (
    DTYPES,
    FLOATS,
    INTEGERS,
    Function,
    Module,
    Node,
    Parameter,
    declared,
    expression,
    text_of,
    walk,
)
from kernelsearch.importing.values import (
    Buffer,
    Dim3,
    Frame,
    HostPlan,
    LaunchStep,
    Number,
    Opaque,
    Pointer,
    Record,
    Value,
)

MAX_LAUNCHES = 32
MAX_ITERATIONS = 256
PASSES = 2
USUAL_BLOCK = 256


class _ReturnError(Exception):
    """The function that is followed returns."""


class HostReader(Evaluator):
    """Follows one entry function.

    Args:
        module: the parsed file.
        given: values of integer variables and parameters that the user fixed (``--set``).
    """

    def __init__(self, module: Module, given: Mapping[str, int]) -> None:
        super().__init__(module, HostPlan(None), given)
        self.depth = 0

    def read(self, entry: Function) -> HostPlan:
        """Return what ``entry`` does.

        Raises:
            CannotImportError: host code that no launch plan can say.
        """
        self.plan.entry = entry
        self.in_main = entry.name == "main"
        self.types = self.default_types(entry)
        frame = Frame()
        for parameter in () if self.in_main else entry.parameters:
            frame.values[parameter.name] = self.parameter(parameter, entry)
        with suppress(_ReturnError):
            self.block(entry.body, frame)
        self.plan.steps = self.once(self.plan.steps)
        if len(self.plan.launches()) > MAX_LAUNCHES:
            raise self.fail(
                entry.node, f"{entry.name} makes more than {MAX_LAUNCHES} launches",
                "import one step of it with --entry, or fewer steps with --set NAME=VALUE",
            )  # fmt: skip
        return self.plan

    def default_types(self, function: Function) -> dict[str, str]:
        """Return concrete types for a template's parameters: the defaults, else float."""
        types = {}
        for name, (kind, default) in function.templates.items():
            if kind in ("typename", "class"):
                types[name] = default or "float"
                if not default:
                    self.note(f"{function.name}: {name} is taken to be float")
        return types

    def parameter(self, parameter: Parameter, entry: Function) -> Value:
        kind = self.concrete(parameter.type)
        if parameter.pointers == 1:
            if kind not in DTYPES and kind != "void" and kind not in self.vectors:
                if any(f.pointers for f in self.module.structs.get(kind, ())):
                    return self.outside_record(parameter.name, kind, entry)  # of the host
                if kind in self.module.structs:
                    raise self.fail(
                        entry.node, f"parameter {parameter.name} points to structures ({kind})",
                        "use one array for each field",
                    )  # fmt: skip
                return Opaque(parameter.name)
            buffer = Buffer(parameter.name, self.dtype_of(kind), outside=True,
                            const=parameter.const, line=entry.line)  # fmt: skip
            self.plan.buffers.append(buffer)
            return Pointer(buffer)
        if parameter.pointers == 2 and kind == "char":
            return Opaque(parameter.name)  # argv
        length = re.search(rf"\*\s*{parameter.name}\s*\[\s*(\d+)\s*\]", text_of(entry.node))
        if parameter.pointers == 2 and length is not None and int(length[1]) <= MAX_POINTERS:
            array = Record("")
            for at in range(int(length[1])):
                inner = replace(parameter, name=f"{parameter.name}{at}", pointers=1)
                array.fields[str(at)] = self.parameter(inner, entry)
            return array
        if parameter.pointers:
            raise self.fail(entry.node, f"parameter {parameter.name} is a pointer to pointers",
                            "pass each array by itself")  # fmt: skip
        if kind in INTEGERS and kind != "bool":
            if parameter.name in self.given:
                self.plan.integers[parameter.name] = kind
                return Number(number(self.given[parameter.name]))
            # int in: a size needs a name that operator files can use.
            name = f"{parameter.name}_" if iskeyword(parameter.name) else parameter.name
            self.plan.integers[name] = kind
            return Number(symbol(name))
        if kind == "bool":
            usual = int(parameter.default != "false")
            taken = self.given.get(parameter.name, usual)
            if parameter.name not in self.given:
                self.note(f"{parameter.name} is taken to be {bool(taken)} "
                          f"(--set {parameter.name}={1 - usual})")  # fmt: skip
            return Number(number(taken))
        if kind in FLOATS:
            self.plan.scalars[parameter.name] = (FLOATS[kind], None)
            return Number(self.real_symbol(parameter.name), real=True)
        if kind == "dim3":
            return Dim3(*(symbol(f"{parameter.name}_{axis}") for axis in "xyz"))
        if kind in self.module.structs:
            return self.outside_record(parameter.name, kind, entry)
        return Opaque(parameter.name)

    def outside_record(self, name: str, kind: str, entry: Function) -> Record:
        record = Record(kind)
        for item in self.module.structs[kind]:
            inner = Parameter(f"{name}_{item.name}", item.type, item.pointers, item.const)
            record.fields[item.name] = self.parameter(inner, entry)
        return record

    def once(self, steps: list[calls.Step]) -> list[calls.Step]:
        """Return the steps, a run that a program repeats to time or warm up taken once."""
        if not self.in_main:
            return steps
        for size in range(1, len(steps) // 2 + 1):
            count = len(steps) // size
            if count * size == len(steps) and steps[:size] * count == steps:
                self.note(f"the {size} steps of main that are repeated {count} times count once")
                return steps[:size]
        kept: list[calls.Step] = []
        for step in steps:
            same = kept and isinstance(step, LaunchStep) and _same(kept[-1], step)
            if same:
                self.note(f"line {step.line}: the same launch again, as for timing, counts once")
            else:
                kept.append(step)
        return kept

    def outer(self, name: str) -> Value | None:
        """Return a variable of the file, or a member of the entry's class.

        Memory that nothing followed here allocates comes from outside, as a parameter does.
        """
        if name in self.outers:
            return self.outers[name]
        entry = self.plan.entry
        if entry is None:
            return None
        member = next((f for f in self.module.structs.get(entry.owner, ()) if f.name == name), None)
        if member is not None:
            self.outers[name] = self.parameter(member, entry)
            return self.outers[name]
        if name not in self.module.variables:
            return None
        node, item = self.module.variables[name]
        parsed = declared(node, item)
        bare = item.type in ("identifier", "pointer_declarator") or (
            parsed is not None and parsed.pointers == 1 and item.type == "init_declarator"
        )
        if parsed is not None and bare and pointer_array(item) is None:
            self.outers[name] = self.parameter(parsed, entry)
            return self.outers[name]
        frame, depth, self.depth = Frame(), self.depth, 0
        try:
            self.declaration(node, frame)
        finally:
            self.depth = depth
        self.outers[name] = frame.values.get(name, Opaque(name))
        return self.outers[name]

    # --- statements ---------------------------------------------------------------------------

    def block(self, node: Node, frame: Frame) -> None:
        for item in node.named_children:
            self.statement(item, frame)

    def statement(self, node: Node, frame: Frame) -> None:
        match node.type:
            case "compound_statement":
                self.block(node, frame)
            case "declaration":
                self.declaration(node, frame)
            case "expression_statement":
                for item in node.named_children:
                    self.evaluate(item, frame)
            case "if_statement":
                self.branch(node, frame)
            case "for_statement" | "while_statement":
                self.loop(node, frame)
            case "for_range_loop":
                self.unknown_body(node, frame)
            case "do_statement":
                body = node.child_by_field_name("body")
                if body is not None:
                    again = node.child_by_field_name("condition")
                    once = again is not None and text_of(again).strip("()") in ("0", "false")
                    if self.matters(body) and not once:
                        self.note(f"line {node.start_point[0] + 1}: a do loop around launches, "
                                  "which its results end, counts once")  # fmt: skip
                    self.statement(body, frame)
            case "return_statement":
                for item in node.named_children:
                    frame.result = self.evaluate(item, frame)
                if not frame.conditional:
                    raise _ReturnError
            case "switch_statement":
                self.switch(node, frame)
            case "labeled_statement" | "attributed_statement" | "else_clause" | "case_statement":
                for item in node.named_children:
                    if item.type.endswith("statement") or item.type == "declaration":
                        self.statement(item, frame)
            case "try_statement":
                body = node.child_by_field_name("body")
                if body is not None:
                    self.statement(body, frame)
            case "goto_statement":
                raise self.fail(node, "goto cannot be followed", "restructure the wrapper")
            case "ERROR":
                if self.matters(node):
                    raise self.fail(node, "cannot be parsed", "check that nvcc compiles it")
            case _:
                pass

    def declaration(self, node: Node, frame: Frame) -> None:
        kind = node.child_by_field_name("type")
        for item in node.children_by_field_name("declarator"):
            parsed = declared(node, item)
            if parsed is None or not parsed.name or kind is None:
                continue
            value = None
            if item.type == "init_declarator":
                value = item.child_by_field_name("value")
            elif item.type == "function_declarator":
                # dim3 grid(n); and std::vector<float> h(n); may parse as a function.
                value = item.child_by_field_name("parameters")
            frame.values[parsed.name] = self.initial(node, parsed, item, value, frame)

    def initial(
        self, node: Node, parsed: Parameter, item: Node, value: Node | None, frame: Frame
    ) -> Value:
        kind = self.concrete(parsed.type)
        if kind == "dim3":
            return self.dim3(value, frame)
        if kind in self.module.structs and not parsed.pointers:
            record = self.record(kind, value, parsed.name, frame)
            listed = value is not None and value.type == "initializer_list"
            if isinstance(record, Record) and listed and self.depth == 0:
                # Grid g = {1000, 500}: sizes, as variables of their own would be.
                for member in self.module.structs[kind]:
                    held = record.fields.get(member.name)
                    if isinstance(held, Number) and held.expr.is_Integer and held.expr > 0:
                        own = self.variable(member.name, self.concrete(member.type), held, node)
                        record.fields[member.name] = own
            return record
        if "vector<" in kind or "unique_ptr<" in kind:
            return self.container(kind, parsed.name, value, frame, node)
        length = pointer_array(item)
        if length is not None:
            return self.pointer_array(parsed, value, length.child_by_field_name("size"), frame)
        if item.type == "array_declarator":
            return self.host_array(node, parsed, item, frame)
        found: Value = Opaque(parsed.name)
        if value is not None and value.type not in ("initializer_list", "parameter_list"):
            if value.type == "argument_list":
                inner = value.named_children
                found = self.evaluate(inner[0], frame) if len(inner) == 1 else found
            else:
                found = self.evaluate(value, frame)
        if parsed.pointers:
            if isinstance(found, Pointer):
                return self.named(found, parsed.name, kind)
            if kind in DTYPES or kind in self.vectors or kind == "void":
                buffer = Buffer(parsed.name, self.dtype_of(kind), line=node.start_point[0] + 1)
                self.plan.buffers.append(buffer)
                return Pointer(buffer)
            return Opaque(parsed.name)
        if isinstance(found, Number):
            return self.variable(parsed.name, kind, found, node)
        if kind in INTEGERS and kind != "bool" and value is not None:
            # What a program reads at run time (argv, a file, the device) is a size of its own.
            return Number(symbol(parsed.name))
        return found

    def variable(self, name: str, kind: str, found: Number, node: Node) -> Value:
        """Return a variable's first value: whole literals get a symbol of their own."""
        del node
        if kind in INTEGERS and name in self.given:
            return Number(number(self.given[name]))
        if kind in FLOATS:
            if found.expr.is_number and self.depth == 0:
                self.plan.scalars.setdefault(name, (FLOATS[kind], float(found.expr)))
                return Number(self.real_symbol(name), real=True)
            return Number(found.expr, real=True)
        if kind in INTEGERS and found.real:
            return Number(self.truncated(found.expr))
        if kind in INTEGERS and found.expr.is_Integer and found.expr >= 0 and self.depth == 0:
            known = self.plan.defaults.get(name)
            if known is None or known == int(found.expr):
                self.plan.defaults[name] = self.first[name] = int(found.expr)
                return Number(symbol(name))
        return found

    def branch(self, node: Node, frame: Frame) -> None:
        condition = node.child_by_field_name("condition")
        yes = node.child_by_field_name("consequence")
        no = node.child_by_field_name("alternative")
        value = self.evaluate(condition, frame) if condition is not None else Opaque()
        matters = [b is not None and self.matters(b) for b in (yes, no)]
        assigns = [b is not None and self.assigned(b) for b in (yes, no)]
        decided: Expr | None = None
        if isinstance(value, Number):
            decided = self.settle(value.expr)
        if decided is not None and decided.is_Integer:
            taken = yes if decided != 0 else no
            if taken is not None:
                self.statement(taken, frame)
            return
        if not any(matters) and not any(assigns):
            return  # an error check, a message, an early return
        if decided is None:
            if any(matters):
                raise self.fail(
                    node, "launches depend on a condition that is not one on sizes: "
                    f"{text_of(condition)[:60]}", "fix it with --set NAME=VALUE",
                )  # fmt: skip
            for b in (yes, no):
                if b is not None:
                    self.forget(b, frame)
            return
        if not any(matters) and yes is not None and _leaves(yes):
            return
        self.both(node, decided, yes, no, frame)

    def both(
        self, node: Node, decided: Expr, yes: Node | None, no: Node | None, frame: Frame
    ) -> None:
        """Follow both branches, each step of them under its condition."""
        before = dict(frame.values)
        results = []
        for body, condition in ((yes, decided), (no, logic("not", decided))):
            frame.values = dict(before)
            if body is not None:
                outer = self.when
                self.when = condition if outer is None else logic("and", outer, condition)
                frame.conditional += 1
                try:
                    self.statement(body, frame)
                finally:
                    self.when = outer
                    frame.conditional -= 1
            results.append(frame.values)
        merged = dict(before)
        for name in {**results[0], **results[1]}:
            a, b = results[0].get(name), results[1].get(name)
            if a == b or a is None or b is None:
                merged[name] = a or b or Opaque(name)
            elif isinstance(a, Number) and isinstance(b, Number) and not a.real:
                merged[name] = Number(Choose(decided, a.expr, b.expr))
            elif isinstance(a, Dim3) and isinstance(b, Dim3):
                merged[name] = Dim3(*(
                    Choose(decided, p, q) for p, q in zip((a.x, a.y, a.z), (b.x, b.y, b.z),
                                                         strict=True)
                ))  # fmt: skip
            elif isinstance(a, Pointer) and isinstance(b, Pointer):
                raise self.fail(node, f"which memory {name} leads to depends on a size",
                                "fix it with --set NAME=VALUE")  # fmt: skip
            else:
                merged[name] = Opaque(name)
        frame.values = merged

    def switch(self, node: Node, frame: Frame) -> None:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if body is None or condition is None or not self.matters(body):
            return
        value = self.evaluate(condition, frame)
        decided = self.settle(value.expr) if isinstance(value, Number) else None
        labels = [
            int(v.expr) for c in walk(body) if c.type == "case_statement"
            and (at := c.child_by_field_name("value")) is not None
            and isinstance(v := self.evaluate(at, frame), Number) and v.expr.is_Integer
        ]  # fmt: skip
        if (
            decided is not None
            and decided.is_Symbol
            and labels
            and (decided.name in self.plan.integers)
        ):
            chosen = min(labels, key=lambda n: (n != USUAL_BLOCK, -n))
            self.plan.fixed[decided.name] = chosen
            self.note(f"{decided.name} chooses the launch and is taken to be {chosen} "
                      f"(--set {decided.name}=VALUE)")  # fmt: skip
            decided = self.settle(decided)
        if decided is None or not decided.is_Integer:
            names = sorted({s.name for s in decided.free_symbols}) if decided is not None else []
            hint = f"--set {names[0]}=VALUE" if names else "--set NAME=VALUE"
            raise self.fail(node, "which launch is made depends on a switch over "
                            f"{text_of(condition)}", f"fix it with {hint}")  # fmt: skip
        default: Node | None = None
        cases = [c for c in body.named_children if c.type == "case_statement"]
        for at, case in enumerate(cases):
            label = case.child_by_field_name("value")
            if label is None:
                default = case
                continue
            known = self.evaluate(label, frame)
            if isinstance(known, Number) and known.expr == decided:
                self.from_case(cases[at:], frame)
                return
        if default is not None:
            self.from_case(cases[cases.index(default) :], frame)

    def from_case(self, cases: Sequence[Node], frame: Frame) -> None:
        for case in cases:
            label = case.child_by_field_name("value")
            for item in case.named_children:
                if label is not None and item.start_byte == label.start_byte:
                    continue
                if item.type == "break_statement":
                    return
                self.statement(item, frame)
                if item.type == "compound_statement" and any(
                    c.type == "break_statement" for c in item.named_children
                ):
                    return

    def loop(self, node: Node, frame: Frame) -> None:
        body = node.child_by_field_name("body")
        if body is None:
            return
        if not self.matters(body):
            self.unknown_body(node, frame)
            return
        first = node.child_by_field_name("initializer")
        if first is not None:
            self.depth += 1
            try:
                self.statement(first if first.type == "declaration" else _wrapped(first), frame)
            finally:
                self.depth -= 1
        condition = node.child_by_field_name("condition")
        update = node.child_by_field_name("update")
        before, passes = len(self.plan.steps), []
        for _ in range(MAX_ITERATIONS):
            value = self.evaluate(condition, frame) if condition is not None else Opaque()
            decided = self.settle(value.expr) if isinstance(value, Number) else None
            if decided is None or not decided.is_Integer:
                if self.in_main and not self.uses_counter(node):
                    self.note(f"line {node.start_point[0] + 1}: a loop of unknown length around "
                              "launches that do not change counts once")  # fmt: skip
                    self.statement(body, frame)
                    return
                free = decided.free_symbols if decided is not None else ()
                names = sorted({s.name for s in free if s.name.isidentifier()})
                if (
                    len(names) == 1
                    and names[0] in self.plan.integers
                    and names[0] not in self.plan.fixed
                ):
                    # How often is no size: two passes say what one does, and where results end up.
                    self.plan.fixed[names[0]] = PASSES
                    self.plan.passes[names[0]] = int(node.start_point[0]) + 1
                    self.note(f"{names[0]} decides how often the launches run and is taken to be "
                              f"{PASSES} (--set {names[0]}=VALUE)")  # fmt: skip
                    continue
                hint = " ".join(f"--set {n}=VALUE" for n in names) or "--set NAME=VALUE"
                raise self.fail(
                    node, "how often the launches in this loop run depends on "
                    f"{' and '.join(names) or 'what is not known before it runs'}",
                    f"fix it with {hint}, or import one iteration of it as a function of its own "
                    "with --entry",
                )  # fmt: skip
            if decided == 0:
                return
            self.depth += 1
            try:
                self.statement(body, frame)
                if update is not None:
                    self.evaluate(update, frame)
            finally:
                self.depth -= 1
            if self.in_main and not self.uses_counter(node):
                self.note(f"line {node.start_point[0] + 1}: a loop around launches that do not "
                          "change counts once")  # fmt: skip
                return
            passes.append((len(self.plan.steps), dict(frame.values)))
            if len(self.plan.launches()) > MAX_LAUNCHES:
                if self.repeats(node, before, passes, frame):
                    return
                break
        raise self.fail(node, f"this loop makes more than {MAX_LAUNCHES} launches",
                        "import one iteration of it, as a function, with --entry")  # fmt: skip

    def repeats(
        self, node: Node, before: int, passes: list[tuple[int, dict[str, Value]]], frame: Frame
    ) -> bool:
        """Take two passes for many, where the third and fourth do what those two did."""
        if len(passes) < 2 * PASSES:
            return False
        first = self.plan.steps[before : passes[PASSES - 1][0]]
        again = self.plan.steps[passes[PASSES - 1][0] : passes[2 * PASSES - 1][0]]
        if len(first) != len(again) or not all(
            a == b or _same(a, b) for a, b in zip(first, again, strict=True)
        ):
            return False
        count, frame.values = passes[PASSES - 1]
        del self.plan.steps[count:]
        self.note(f"line {node.start_point[0] + 1}: the many passes of this loop are taken to be "
                  f"{PASSES}, which say what one does and where results end up")  # fmt: skip
        return True

    def uses_counter(self, node: Node) -> bool:
        """Return whether an iteration differs from the one before: a counter, or a swap."""
        body = node.child_by_field_name("body")
        first = node.child_by_field_name("initializer")
        counters = set()
        if first is not None:
            for item in walk(first):
                if item.type == "init_declarator":
                    name = item.child_by_field_name("declarator")
                    counters.add(text_of(name) if name is not None else "")
                if item.type == "assignment_expression":
                    left = item.child_by_field_name("left")
                    counters.add(text_of(left) if left is not None else "")
        for item in walk(body):
            if item.type == "identifier" and text_of(item) in counters:
                return True
            if item.type in ("assignment_expression", "update_expression"):
                return True
            if item.type == "call_expression" and "swap" in text_of(item)[:12]:
                return True
        return False

    def unknown_body(self, node: Node, frame: Frame) -> None:
        """A loop that launches nothing: what it changes is not known afterwards."""
        if self.halves(node, frame):
            return
        self.forget(node, frame)

    def halves(self, node: Node, frame: Frame) -> bool:
        """``while (t < n) t *= 2;``: the next power of two."""
        condition = node.child_by_field_name("condition")
        body = node.child_by_field_name("body")
        words = text_of(node).replace(" ", "")
        if condition is None or body is None or len(words) > 80:
            return False
        for name, value in list(frame.values.items()):
            doubled = (f"{name}<<=1", f"{name}*=2")
            if any(d in words for d in doubled) and isinstance(value, Number):
                limit = self.evaluate(
                    next((c for c in walk(condition) if c.type == "binary_expression"), condition),
                    frame,
                )
                if isinstance(limit, Number) and (
                    len(limit.expr.args) == 3 and str(limit.expr.args[0]) == "<"
                ):
                    frame.values[name] = Number(self.next_power(limit.expr.args[2]))
                    return True
        return False

    def forget(self, node: Node, frame: Frame) -> None:
        for name in self.assigned(node):
            value = frame.values.get(name)
            if isinstance(value, Number) and not value.real:
                frame.values[name] = Number(symbol(name))
                self.plan.defaults.pop(name, None)
            elif isinstance(value, Number):
                frame.values[name] = Opaque(name)

    def assigned(self, node: Node) -> set[str]:
        names = set()
        for item in walk(node):
            left = None
            if item.type == "assignment_expression":
                left = item.child_by_field_name("left")
            elif item.type == "update_expression":
                left = item.child_by_field_name("argument")
            if left is not None and left.type == "identifier":
                names.add(text_of(left))
        return names

    def invoke(self, function: Function, arguments: Sequence[Value], types: Mapping[str, str],
               at: Node, outer: Frame) -> Value:  # fmt: skip
        """Follow a call of another host function of the file."""
        if self.depth > 12:
            raise self.fail(at, f"{function.name} calls itself too deeply")
        frame = Frame()
        for name, (kind, default) in function.templates.items():
            if kind not in ("typename", "class"):
                known = self.number_of(types.get(name, default))
                frame.values[name] = known if known is not None else Opaque(name)
        for parameter, value in zip(function.parameters, arguments, strict=False):
            frame.values[parameter.name] = value
        for parameter in function.parameters[len(arguments) :]:
            if parameter.default:
                frame.values[parameter.name] = self.evaluate(expression(parameter.default), frame)
        outer_types, self.types = self.types, {**self.types, **types}
        self.depth += 1
        try:
            self.block(function.body, frame)
        except _ReturnError:
            pass
        finally:
            self.types = outer_types
            self.depth -= 1
        for parameter, node in zip(function.parameters, child_arguments(at), strict=False):
            if parameter.reference and parameter.pointers and node.type == "identifier":
                self.store(text_of(node), frame.values[parameter.name], outer)
        return frame.result

    def number_of(self, text: str) -> Number | None:
        found = literal(text)
        return Number(*found) if found is not None else None


def pointer_array(item: Node) -> Node | None:
    """Return the array of ``float *d[5]``; None for ``float (*d)[5]`` and all else."""
    if item.type == "init_declarator":
        item = item.child_by_field_name("declarator") or item
    inner = item.child_by_field_name("declarator") if item.type == "pointer_declarator" else None
    return inner if inner is not None and inner.type == "array_declarator" else None


def _same(a: calls.Step, b: calls.Step) -> bool:
    """Return whether two launches are one, but for the line."""
    if not isinstance(a, LaunchStep) or not isinstance(b, LaunchStep):
        return False
    return (a.kernel is b.kernel and a.template_arguments == b.template_arguments
            and a.grid == b.grid and a.block == b.block and a.shared == b.shared
            and a.arguments == b.arguments and a.when == b.when)  # fmt: skip


def _leaves(node: Node) -> bool:
    return any(n.type in ("return_statement", "throw_statement") for n in walk(node))


class _Statement:
    """An expression where a statement is wanted (the first part of a for)."""

    def __init__(self, node: Node) -> None:
        self.type = "expression_statement"
        self.named_children = [node]


def _wrapped(node: Node) -> Node:
    return _Statement(node)
