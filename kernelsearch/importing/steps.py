"""Write host steps as steps of a launch plan, with entries of our own where they are needed."""

from __future__ import annotations

import re
from dataclasses import replace

import sympy as sp

from kernelsearch.importing.calls import expression_type
from kernelsearch.importing.contract import Imported, Shim
from kernelsearch.importing.symbols import Expr, names, plan_text, symbol
from kernelsearch.importing.syntax import VECTORS, Module, Parameter
from kernelsearch.importing.uses import DEVICE_FACTS, Uses, python_name
from kernelsearch.importing.values import (
    FillBuffer,
    LaunchStep,
    Number,
    Opaque,
    Pointer,
    Record,
    SymbolCopy,
    is_null,
)


class PlanWriter(Uses):
    """Turns the steps of a host plan into tables of a variant file."""

    def settled(self, e: Expr, result: Imported) -> Expr:
        known = {symbol(n): v for n, v in result.fixed.items() if n not in result.tunables}
        return sp.expand(e.subs(self.solved).subs(known))

    def text(self, e: Expr, result: Imported) -> str:
        """Return an expression as the files write it, with the names that Python allows."""
        settled = self.settled(e, result)
        renamed = {
            symbol(n): symbol(python_name(n))
            for n in names(settled) - DEVICE_FACTS
            if python_name(n) != n
        }
        renamed |= {symbol(n): symbol(tunable_name(n, self.module)) for n in result.tunables}
        return plan_text(settled.subs(renamed))

    def step(self, step: LaunchStep | FillBuffer | SymbolCopy, result: Imported) -> None:
        if isinstance(step, SymbolCopy):
            result.constants[step.symbol] = self.names[id(step.source)]
            return
        table: dict[str, object] = {}
        if step.when is not None:
            table["when"] = self.text(step.when, result)
        if isinstance(step, FillBuffer):
            result.steps.append({"fill": self.names[id(step.buffer)], "value": step.value, **table})
            return
        kernel = self.kernel_text(step, result)
        arguments, shim = self.arguments(step, kernel, result)
        table = {
            "kernel": shim.name if shim is not None else kernel,
            "grid": [self.text(e, result) for e in step.grid.trimmed()],
            "block": [self.text(e, result) for e in step.block.trimmed()],
            "args": arguments, **table,
        }  # fmt: skip
        if self.settled(step.shared, result) != 0:
            table["shared"] = self.text(step.shared, result)
        if step.cooperative:
            table["cooperative"] = True
        result.steps.append(table)
        if shim is not None and shim not in result.shims:
            result.shims.append(shim)

    def kernel_text(self, step: LaunchStep, result: Imported) -> str:
        if not step.template_arguments:
            return step.kernel.qualified
        parts = []
        for text in step.template_arguments:
            known = {n: result.fixed[n] for n in re.findall(r"[A-Za-z_]\w*", text)
                     if n in result.fixed and n not in result.tunables}  # fmt: skip
            for name, value in known.items():
                text = re.sub(rf"\b{name}\b", str(value), text)
            for name in result.tunables:
                text = re.sub(rf"\b{name}\b", tunable_name(name, self.module), text)
            parts.append(text)
        return f"{step.kernel.qualified}<{', '.join(parts)}>"

    def arguments(
        self, step: LaunchStep, kernel: str, result: Imported
    ) -> tuple[list[str], Shim | None]:
        """Return the plan's arguments, and the entry that is needed to take them, if one is."""
        plain: list[str] = []
        parameters: list[tuple[str, str]] = []
        before: list[str] = []
        passed: list[str] = []
        wanted = step.kernel.name in {n for n, _ in self.moved} | self.entered

        def add(value: object, parameter: Parameter, label: str) -> str:
            nonlocal wanted
            kind = self.concrete(parameter.type, step)
            if parameter.pointers and is_null(value):
                return "nullptr"
            if isinstance(value, Pointer) and id(value.buffer) not in self.names:
                raise self.module.fail(
                    step.line, f"the memory that {label} of {step.kernel.name} leads to is not "
                    "followed here", "allocate it in the function that launches",
                )  # fmt: skip
            if isinstance(value, Pointer):
                plain.append(self.names[id(value.buffer)])
                const = "const " if parameter.const else ""
                parameters.append((f"{const}{kind}*", label))
                moved = (step.kernel.name, parameter.name) in self.moved
                if moved and kind in self.vector_types():
                    raise self.module.fail(
                        step.line, f"{label} is passed with an offset, to a pointer to {kind}",
                        "pass a pointer to plain numbers",
                    )  # fmt: skip
                if moved:
                    wanted = True
                    plain.append(f"{self.text(value.offset, result)}:i64")
                    parameters.append(("long long", f"{label}_offset"))
                    return f"{label} + {label}_offset"
                return label
            if isinstance(value, Record):
                wanted = True
                before.append(f"{value.type} {label};")
                for item in self.module.structs[value.type]:
                    inner = add(value.fields.get(item.name, Opaque()), item, f"{label}_{item.name}")
                    before.append(f"{label}.{item.name} = {inner};")
                return label
            ctype = expression_type(kind)
            if re.search(r"Texture|Surface|texture|surface", parameter.type):
                raise self.module.fail(
                    step.line, f"{parameter.name} of {step.kernel.name} is a texture or a surface, "
                    "which has no place in a launch plan", "read a plain array instead",
                )  # fmt: skip
            if not isinstance(value, Number):
                raise self.module.fail(
                    step.line, f"argument {parameter.name} of {step.kernel.name} is not known here",
                    "pass an array, a size or a number",
                )  # fmt: skip
            text = self.text(value.expr, result)
            if not ctype:
                wanted = True
                ctype = "f32" if kind in ("half", "__half", "__nv_bfloat16") else "i32"
                parameters.append(("float" if ctype == "f32" else "int", label))
                plain.append(f"{text}:{ctype}")
                return f"static_cast<{kind}>({label})"
            parameters.append((kind, label))
            plain.append(f"{text}:{ctype}")
            return label

        for number_, (value, parameter) in enumerate(
            zip(step.arguments, step.kernel.parameters, strict=True)
        ):
            passed.append(add(value, parameter, parameter.name or f"a{number_}"))
        for name, tensor in result.constants.items():
            if re.search(rf"\b{name}\b", step.kernel.body.text.decode()):
                plain.append(tensor)
        if not wanted:
            return plain, None
        shim = Shim(f"{step.kernel.name}_entry", kernel, tuple(parameters), tuple(before),
                    tuple(passed))  # fmt: skip
        # Launches that differ in what is passed as null need an entry each.
        same = [s for s in result.shims if s.kernel.split("<")[0] == kernel.split("<")[0]]
        equal = [s for s in same if replace(s, name=shim.name) == shim]
        if equal:
            return plain, equal[0]
        return plain, replace(shim, name=f"{shim.name}{len(same) + 1}") if same else shim

    def vector_types(self) -> set[str]:
        return {*VECTORS, *self.module.vectors}

    def concrete(self, kind: str, step: LaunchStep) -> str:
        bound = dict(zip(step.kernel.templates, step.template_arguments, strict=False))
        kind = bound.get(kind, kind)
        return self.module.plain_type(kind)


def tunable_name(name: str, module: Module) -> str:
    """A macro keeps its name; a host variable gets one that no device code has."""
    if name in module.macros:
        return name
    upper = name.upper()
    while re.search(rf"\b{upper}\b", module.text):
        upper += "_"
    return upper
