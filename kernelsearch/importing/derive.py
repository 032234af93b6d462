"""From what launches do to a contract and a plan: tensors, sizes, scalars, tunables."""

from __future__ import annotations

import re
from dataclasses import replace

import sympy as sp

from kernelsearch.expressions import Expression
from kernelsearch.importing.contract import Imported, TensorFact
from kernelsearch.importing.steps import PlanWriter, tunable_name
from kernelsearch.importing.symbols import CeilDivide, Expr, names, symbol
from kernelsearch.importing.uses import DEVICE_FACTS, numbers_of, outward, python_name
from kernelsearch.importing.values import ONE, Buffer, LaunchStep, Pointer, is_null
from kernelsearch.records import Role

# What an integer or a real parameter is taken to be where nothing tells.
GUESSED_INTEGER = 2
GUESSED_REAL = 0.75
# A block's dimension that a caller passes: alone, or one of several.
USUAL_BLOCK, USUAL_SIDE = 256, 16
# Of a block, on every device.
MAX_THREADS = 1024
_EPSILON = re.compile(r"eps|tol")


class Deriver(PlanWriter):
    """Derives the contract of one host plan."""

    def derive(self, name: str) -> Imported:
        """Return the contract and the plan.

        Raises:
            CannotImportError: extents that nothing tells, or a plan that cannot be said.
        """
        plan = self.plan
        entry = plan.entry.name if plan.entry is not None else name
        result = Imported(name, entry, notes=list(plan.notes))
        self.follow()
        used = [b for b in plan.buffers if id(b) in self.reads or id(b) in self.writes]
        self.shown(used)
        self.name_buffers(used)
        sizes = self.sizes(used)
        self.classify(sizes, result)
        for buffer in used:
            self.tensor(buffer, sizes[id(buffer)], result)
        self.element(result)
        self.scalars(result)
        self.moved = {
            (s.kernel.name, p.name) for s in plan.launches()
            for p, a in zip(s.kernel.parameters, s.arguments, strict=True)
            if isinstance(a, Pointer) and a.offset != 0
        }  # fmt: skip
        overloaded = {n for n, f in self.module.functions.items() if sum(k.kernel for k in f) > 1}
        self.entered = overloaded | {
            s.kernel.name for s in plan.launches()
            for p, a in zip(s.kernel.parameters, s.arguments, strict=True)
            if p.pointers and is_null(a)
        }  # fmt: skip
        for step in plan.steps:
            self.step(step, result)
        self.finish(result)
        return result

    def classify(self, sizes: dict[int, Expr], result: Imported) -> None:
        """Tell sizes from tunables from numbers that are simply fixed."""
        seen = [b for b in self.plan.buffers if id(b) in sizes and not self.is_workspace(b)]
        in_extents = set().union(*(names(sizes[id(b)]) for b in seen)) if seen else set()
        macros = self.module.macros
        fixed = {n: macros[n] for n in in_extents if n in macros}
        for key, extent in sizes.items():
            sizes[key] = sp.expand(extent.subs({symbol(n): v for n, v in fixed.items()}))
        result.fixed.update(fixed)
        in_extents -= set(fixed)
        for name, line in self.plan.passes.items():
            in_plan = {
                s for step in self.plan.launches() for e in (step.grid.x, step.grid.y, step.grid.z)
                for s in names(e)
            }  # fmt: skip
            if name in in_extents | in_plan:
                raise self.module.fail(
                    line, f"how often the launches in this loop run depends on the size {name}",
                    f"fix it with --set {name}=VALUE, or import one iteration with --entry",
                )  # fmt: skip
        for step in self.plan.launches():
            dims = (step.grid.x, step.grid.y, step.grid.z, step.block.x, step.block.y,
                    step.block.z, step.shared)  # fmt: skip
            in_plan = set().union(*(names(e) for e in dims))
            in_plan |= {w for t in step.template_arguments for w in re.findall(r"[A-Za-z_]\w*", t)}
            self.literal_blocks(step, result)
            in_block = names(step.block.x) | names(step.block.y) | names(step.block.z)
            for name in sorted(in_block & set(self.plan.integers) - in_extents):
                if name not in self.given and name not in self.plan.fixed:
                    wide = [e for e in (step.block.x, step.block.y, step.block.z) if e != 1]
                    usual = USUAL_BLOCK if len(wide) == 1 else USUAL_SIDE
                    self.plan.defaults.setdefault(name, usual)
                    result.notes.append(f"{name} is a block's dimension: it is tuned, from {usual}")
            for name in sorted(in_plan):
                default = self.plan.defaults.get(name, macros.get(name))
                if name in in_extents or name in fixed or default is None:
                    continue
                tied = name not in macros and any(
                    d.is_Integer and d > 1 for f in self.found for dims in f.shared_arrays
                    for d in dims
                )  # fmt: skip
                if default < 1 or tied or name in self.given:
                    result.fixed[name] = default
                    continue
                two = sum(1 for e in (step.block.x, step.block.y, step.block.z) if e != 1) > 1
                result.tunables.setdefault(name, _choices(default, two=two, block=name in in_block))
        for name, value in self.plan.defaults.items():
            if name in in_extents:
                result.defaults[name] = value
            elif name not in result.tunables:
                result.fixed[name] = value
        for name in macros:
            if name not in result.tunables:
                result.fixed.setdefault(name, macros[name])

    def literal_blocks(self, step: LaunchStep, result: Imported) -> None:
        """Make a tunable of <<<(n + 255) / 256, 256>>>, where nothing else knows the number."""
        index = self.plan.steps.index(step)
        sizes = {
            int(d) for f in self.found for dims in f.shared_arrays for d in dims if d.is_Integer
        }
        wide = [
            a for a in "xyz" if getattr(step.block, a).is_Integer and getattr(step.block, a) > 1
        ]
        grid, block = step.grid, step.block
        for axis in wide:
            size = getattr(block, axis)
            old = getattr(grid, axis)
            tied = int(size) in sizes or str(size) in step.template_arguments
            if (
                tied
                or (sizes - {0})
                or not any(f.args[1] == size for f in old.atoms(CeilDivide))
                or step.shared != 0
            ):
                continue
            name = "BLOCK_SIZE" if len(wide) == 1 else f"BLOCK_{axis.upper()}"
            if self.plan.defaults.get(name, int(size)) != int(size):
                name = f"{name}_{index}"
            self.plan.defaults[name] = int(size)
            at = symbol(name)
            swapped = old.replace(
                lambda f, s=size: isinstance(f, CeilDivide) and f.args[1] == s,
                lambda f, t=at: CeilDivide(f.args[0], t),
            )
            grid = replace(grid, **{axis: swapped})
            block = replace(block, **{axis: at})
            result.tunables[name] = _choices(int(size), two=len(wide) > 1, block=True)
        if block is not step.block:
            self.plan.steps[index] = replace(step, grid=grid, block=block)

    def tensor(self, buffer: Buffer, extent: Expr, result: Imported) -> None:
        key, name = id(buffer), self.names[id(buffer)]
        if buffer.dtype is None:
            raise self.module.fail(buffer.line or None, f"the element type of {buffer.name} is not "
                                   "known", "give its pointer a plain type")  # fmt: skip
        reads, writes = self.reads.get(key, False), self.writes.get(key, False)
        if buffer.name in self.inout or name in self.inout:
            reads = writes = True
        shape = self.shape(extent, result, self.strides.get(key, set()))
        shown = outward(buffer)
        if self.is_workspace(buffer):
            result.workspaces[name] = (buffer.dtype, self.text(extent, result))
            return
        if not buffer.outside and buffer.uploaded is None and not shown and reads and writes:
            result.notes.append(f"{buffer.name} is read before anything is written to it: its "
                                "first contents are taken as an input")  # fmt: skip
        role: Role = "inout" if reads and writes else "out" if writes else "in"
        if writes and not shown and buffer.uploaded is not None:
            role = "inout"
        fact = TensorFact(name, buffer.dtype, shape, role)
        if buffer.name in self.limits:
            limit = self.solved.get(self.limits[buffer.name], self.limits[buffer.name])
            fact.values = "offsets" if buffer.name in self.offsets else "index"
            fact.limit = self.text(limit, result)
        result.tensors.append(fact)

    def by_stride(
        self, factors: list[Expr], strides: set[Expr], stride: Expr = ONE
    ) -> list[Expr] | None:
        """Order the axes by the strides that the kernels use: the innermost one is 1."""
        rest, inner = list(factors), list[Expr]()
        while len(rest) > 1:
            fitting = [f for f in rest if stride * f in strides]
            if len(fitting) != 1:
                return None
            inner.insert(0, fitting[0])
            stride = stride * fitting[0]
            rest.remove(fitting[0])
        return rest + inner

    def shape(self, extent: Expr, result: Imported, strides: set[Expr]) -> tuple[str, ...]:
        """Return the axes: the factors of a product, the outermost first."""
        settled = self.whole(self.settled(extent, result))
        factored = sp.factor(settled)
        if (
            settled.is_Add
            and factored.is_Mul
            and not any(
                f.is_Integer or f.is_Pow or f.could_extract_minus_sign() for f in factored.args
            )
        ):
            found = self.by_stride(list(factored.args), strides)
            if found is not None:
                return tuple(self.text(f, result) for f in found)
        factors = list(sp.Mul.make_args(settled)) if settled.is_Mul else [settled]
        whole = [f for f in factors if f.is_Integer]
        factors = [f for f in factors if not f.is_Integer]
        if whole and len(factors) > 1 and all(f.is_Symbol for f in factors):
            # Vectors of a fixed length: the innermost axis.
            found = self.by_stride(factors, strides, whole[0])
            if found is not None:
                return tuple(self.text(f, result) for f in (*found, whole[0]))
        if whole or not factors:
            return (self.text(settled, result),)
        if len(factors) > 1 and all(f.is_Symbol for f in factors):
            found = self.by_stride(factors, strides)
            if found is not None:
                return tuple(self.text(f, result) for f in found)
            order = [symbol(n) for n in (*self.plan.integers, *self.plan.defaults)]
            factors.sort(key=lambda f: order.index(f) if f in order else len(order))
            return tuple(self.text(f, result) for f in factors)
        return (self.text(settled, result),)

    def element(self, result: Imported) -> None:
        floats = [t.dtype for t in result.tensors if t.dtype.startswith(("float", "bfloat"))]
        outputs = [t.dtype for t in result.tensors if t.role != "in" and t.dtype in floats]
        if floats:
            ordered = outputs + floats
            result.element = max(set(ordered), key=lambda d: (ordered.count(d), d))
        for tensor in result.tensors:
            for extent in tensor.shape:
                for name in sorted(Expression.parse(extent).names):
                    if name not in result.symbols:
                        result.symbols.append(name)
        result.defaults = {python_name(n): v for n, v in result.defaults.items()}
        result.derived = [
            t.limit for t in result.tensors
            if t.values == "offsets" and t.limit in result.symbols
        ]  # fmt: skip

    def scalars(self, result: Imported) -> None:
        used: set[str] = set()
        for step in self.plan.launches():
            for passed in numbers_of(step.arguments):
                used |= {s.name for s in self.settled(passed.expr, result).free_symbols}
        for name, (dtype, value) in self.plan.scalars.items():
            if name not in used:
                continue
            if value is None:
                value = 1e-5 if _EPSILON.search(name.lower()) else GUESSED_REAL
                result.notes.append(f"{name} is taken to be {value:g}, and varied from there")
            result.scalars.append((python_name(name), dtype, value))
        for name in sorted(self.free_integers(result) - set(result.symbols)):
            fixed = self.given.get(name, GUESSED_INTEGER)
            result.fixed[name] = fixed
            if name not in self.given:
                result.notes.append(f"{name} is no array's size and is taken to be {fixed} "
                                    f"(--set {name}=VALUE)")  # fmt: skip

    def free_integers(self, result: Imported) -> set[str]:
        """Return names that launches use and that nothing has a value for."""
        found: set[str] = set()
        for step in self.plan.launches():
            exprs = [step.grid.x, step.grid.y, step.grid.z, step.block.x, step.block.y,
                     step.block.z, step.shared]  # fmt: skip
            exprs += [v.expr for v in numbers_of(step.arguments)]
            if step.when is not None:
                exprs.append(step.when)
            for e in exprs:
                found |= names(self.settled(e, result))
        for condition in self.domain:
            found |= names(self.settled(condition.args[0], result))
        return found - set(self.plan.scalars) - set(result.tunables) - DEVICE_FACTS

    def finish(self, result: Imported) -> None:
        if not result.tensors or not any(t.role != "in" for t in result.tensors):
            raise self.module.fail(
                self.plan.entry.line if self.plan.entry is not None else None,
                "nothing that is launched writes to memory that a caller sees",
                "name the function with --entry, or the array with --inout",
            )  # fmt: skip
        for step in self.plan.launches():
            product = self.settled(step.block.x * step.block.y * step.block.z, result)
            if names(product) & set(result.symbols) and not names(product) - set(result.symbols):
                text = f"{self.text(product, result)} <= {MAX_THREADS}"
                if text not in result.checks:
                    result.checks.append(text)
        result.deterministic = not any(f.atomics for f in self.found)
        result.terms = self.terms(result)
        for condition in self.domain:
            a, b = condition.args
            text = f"{_wrapped(self.text(a, result))} % {_wrapped(self.text(b, result))} == 0"
            bound = {tunable_name(n, self.module): c[0] for n, c in result.tunables.items()}
            if (
                Expression.parse(text).names <= {*result.symbols, *bound}
                and text not in result.domain
            ):
                result.domain.append(text)
                default = Expression.parse(text).bind(
                    {tunable_name(n, self.module): self.default_of(n) for n in result.tunables}
                )
                result.checks.append(default.text)
        result.tunables = {tunable_name(n, self.module): c for n, c in result.tunables.items()}
        result.notes = list(dict.fromkeys([*result.notes, *self.plan.notes]))

    def default_of(self, name: str) -> int:
        return self.plan.defaults.get(name, self.module.macros.get(name, 1))

    def terms(self, result: Imported) -> str:
        """Return how many terms an output may sum: the longest loop, or all of the input."""
        parts: list[str] = []
        for found in self.found:
            for e in found.terms:
                tuned = {symbol(n): self.default_of(n) for n in result.tunables}
                text = self.text(e.subs(tuned), result)
                if Expression.parse(text).names <= set(result.symbols) and text not in parts:
                    parts.append(text)
        if any(f.atomics or (f.spread and f.gathers) for f in self.found):
            for tensor in result.tensors:
                product = " * ".join(_wrapped(s) for s in tensor.shape)
                if tensor.role != "out" and product not in parts:
                    parts.append(product)
        parts = [p for p in parts if p != "1"] or ["1"]
        return parts[0] if len(parts) == 1 else f"max({', '.join(parts[:8])})"


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+|\(.*\)", text) else f"({text})"


def _choices(default: int, *, two: bool, block: bool) -> list[int]:
    """Return what a tunable may be; its value in the source comes first."""
    if not block:
        others = [default // 2, default * 2, default * 4]
        most = 64 if default <= 64 else 1 << 16
        return [default, *(o for o in others if 1 <= o <= most and o != default)]
    around = (4, 8, 16, 32) if two else (32, 64, 128, 256, 512, 1024)
    return [default, *(c for c in around if c != default)]
