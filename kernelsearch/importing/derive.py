"""From what host code and kernels do to a contract and a plan: roles, extents, sizes, tunables."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy as sp

from kernelsearch.errors import ExpressionError
from kernelsearch.expressions import Expression
from kernelsearch.importing.calls import expression_type
from kernelsearch.importing.kernel import Found, follow_launch
from kernelsearch.importing.symbols import (
    CeilDivide,
    Expr,
    FloorDivide,
    names,
    number,
    plan_text,
    symbol,
)
from kernelsearch.importing.syntax import VECTORS, Module, Parameter
from kernelsearch.importing.values import (
    ONE,
    Buffer,
    FillBuffer,
    HostPlan,
    LaunchStep,
    Number,
    Opaque,
    Pointer,
    Record,
    SymbolCopy,
)
from kernelsearch.records import Role

# What an integer or a real parameter is taken to be where nothing tells.
GUESSED_INTEGER = 2
# Of a block, on every device.
MAX_THREADS = 1024
# What a launch plan knows of the device by itself.
DEVICE_FACTS = {"sm_count", "max_threads_per_block", "max_threads_per_sm"}
GUESSED_REAL = 0.75
_EPSILON = re.compile(r"eps|tol")
_KEYWORDS = frozenset(keyword.kwlist) | {
    "min", "max", "abs", "ceildiv", "round_up", "ilog2", "next_pow2", "ispow2", "elem", "elem_t",
    "elem_bytes", "cores", "warp_size", "sm_count", "l2_bytes",
}  # fmt: skip


@dataclass
class TensorFact:
    """A tensor of the contract.

    Args:
        name, dtype, shape, role: as in ``operator.Tensor``; ``dtype`` is concrete.
        values: "" for real numbers, ``index`` or ``offsets`` for integers that lead elsewhere.
        limit: how many places an index may lead to, or what the offsets end at.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    role: Role
    values: str = ""
    limit: str = ""


@dataclass
class Imported:
    """All that an operator file and a variant file are written from.

    Args:
        name: of the operator.
        entry: the host function, or the kernel where there is none.
        tensors, scalars: the contract's arguments; scalars as (name, dtype, value).
        element: the element type of the run.
        symbols: sizes, in order of appearance.
        defaults: sizes that the source names a value for.
        workspaces: name = (dtype, shape).
        steps: launch steps as tables of the variant file.
        shims: launches that need an entry of their own: kernel name = call.
        tunables: name = choices.
        domain: conditions under which the original is right.
        checks: the same, with the tunables at their defaults.
        terms: how many roundings may add up.
        deterministic: no atomics on floating point.
        derived: symbols that the values decide.
        notes: what was assumed.
    """

    name: str
    entry: str
    tensors: list[TensorFact] = field(default_factory=list)
    scalars: list[tuple[str, str, float]] = field(default_factory=list)
    element: str = "float32"
    symbols: list[str] = field(default_factory=list)
    defaults: dict[str, int] = field(default_factory=dict)
    workspaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    steps: list[dict[str, object]] = field(default_factory=list)
    shims: list[Shim] = field(default_factory=list)
    tunables: dict[str, list[int]] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    domain: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    terms: str = "1"
    deterministic: bool = True
    derived: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Shim:
    """An entry of our own for a kernel whose arguments a plan cannot pass as they are.

    Args:
        name: of the entry.
        kernel: called by it, with its template arguments.
        parameters: (C type, name) of the entry.
        before: statements that build the arguments.
        arguments: of the call.
    """

    name: str
    kernel: str
    parameters: tuple[tuple[str, str], ...]
    before: tuple[str, ...]
    arguments: tuple[str, ...]


class Deriver:
    """Derives the contract of one host plan.

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
        for step in plan.steps:
            self.step(step, result)
        self.finish(result)
        return result

    # --- roles --------------------------------------------------------------------------------

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
        from kernelsearch.importing.host import HostReader
        from kernelsearch.records import DTYPE_BYTES

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
        buffers = {b.name: b for b in _buffers_of(step.arguments)}
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
                from kernelsearch.importing.bounds import greater

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
        if any(self.writes.get(id(b)) and _outward(b) for b in used):
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
            name = _python_name(name)
            if name in taken:
                name = f"{name}_out" if self.writes.get(id(buffer)) else f"{name}_in"
            while name in taken:
                name += "_"
            taken.add(name)
            self.names[id(buffer)] = name

    # --- extents ------------------------------------------------------------------------------

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
            Expression.parse(text)
        except ExpressionError as error:
            raise self.module.fail(None, f"--extent {buffer.name}={text}: {error}") from error
        known: dict[str, object] = {n: symbol(n) for n in re.findall(r"[A-Za-z_]\w*", text)}
        known |= {"ceildiv": CeilDivide, "max": sp.Max, "min": sp.Min}
        try:
            return sp.sympify(re.sub(r"//", "/", text), locals=known)
        except (sp.SympifyError, TypeError, SyntaxError) as error:
            raise self.module.fail(
                None, f"--extent {buffer.name}={text} is too involved ({type(error).__name__})",
                "use sums and products of sizes",
            ) from error  # fmt: skip

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
                    self.domain.append(_Multiple(a, b))
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
                self.solved[limit] = symbol(self.limit_name(name, targets))

    def limit_name(self, name: str, targets: list[Buffer]) -> str:
        if name in self.offsets:
            unused = [
                n for n in self.plan.integers
                if not any(symbol(n) in e.free_symbols for e in self.reached.values())
                and re.search(r"nnz|nz|edges|total|entries", n.lower())
            ]  # fmt: skip
            return unused[0] if unused else "nnz" if len(self.offsets) == 1 else f"{name}_total"
        passed = {
            s.name for step in self.plan.launches() for v in _numbers_of(step.arguments)
            for s in v.expr.free_symbols
        }  # fmt: skip
        passed |= {s.name for e in self.reached.values() for s in e.free_symbols}
        passed |= {str(v) for v in self.solved.values()}
        free = [n for n in self.plan.integers if n not in self.given and n not in passed]
        if len(free) == 1:
            self.plan.notes.append(f"the values of {name} are taken to be below {free[0]}")
            return free[0]
        return f"{targets[0].name}_size" if targets else f"{name}_values"

    # --- sizes, tunables, defaults ------------------------------------------------------------

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

    def settled(self, e: Expr, result: Imported) -> Expr:
        known = {symbol(n): v for n, v in result.fixed.items() if n not in result.tunables}
        return sp.expand(e.subs(self.solved).subs(known))

    def text(self, e: Expr, result: Imported) -> str:
        """Return an expression as the files write it, with the names that Python allows."""
        settled = self.settled(e, result)
        renamed = {
            symbol(n): symbol(_python_name(n))
            for n in names(settled) - DEVICE_FACTS
            if _python_name(n) != n
        }
        renamed |= {symbol(n): symbol(_tunable_name(n, self.module)) for n in result.tunables}
        return plan_text(settled.subs(renamed))

    # --- contract -----------------------------------------------------------------------------

    def tensor(self, buffer: Buffer, extent: Expr, result: Imported) -> None:
        key, name = id(buffer), self.names[id(buffer)]
        if buffer.dtype is None:
            raise self.module.fail(buffer.line or None, f"the element type of {buffer.name} is not "
                                   "known", "give its pointer a plain type")  # fmt: skip
        reads, writes = self.reads.get(key, False), self.writes.get(key, False)
        if buffer.name in self.inout or name in self.inout:
            reads = writes = True
        shape = self.shape(extent, result, self.strides.get(key, set()))
        outward = _outward(buffer)
        if self.is_workspace(buffer):
            result.workspaces[name] = (buffer.dtype, self.text(extent, result))
            return
        if not buffer.outside and buffer.uploaded is None and not outward and reads and writes:
            result.notes.append(f"{buffer.name} is read before anything is written to it: its "
                                "first contents are taken as an input")  # fmt: skip
        role: Role = "inout" if reads and writes else "out" if writes else "in"
        if writes and not outward and buffer.uploaded is not None:
            role = "inout"
        fact = TensorFact(name, buffer.dtype, shape, role)
        if buffer.name in self.limits:
            limit = self.solved.get(self.limits[buffer.name], self.limits[buffer.name])
            fact.values = "offsets" if buffer.name in self.offsets else "index"
            fact.limit = self.text(limit, result)
        result.tensors.append(fact)

    def is_workspace(self, buffer: Buffer) -> bool:
        """Return whether a buffer is scratch: made here, written first, never copied out."""
        key = id(buffer)
        kept = buffer.outside or buffer.uploaded is not None or buffer.downloaded is not None
        asked = buffer.name in self.inout or self.names.get(key) in self.inout
        return not (kept or asked or self.reads.get(key, False)) and self.writes.get(key, False)

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
        result.defaults = {_python_name(n): v for n, v in result.defaults.items()}
        result.derived = [
            t.limit for t in result.tensors
            if t.values == "offsets" and t.limit in result.symbols
        ]  # fmt: skip

    def scalars(self, result: Imported) -> None:
        used: set[str] = set()
        for step in self.plan.launches():
            for passed in _numbers_of(step.arguments):
                used |= {s.name for s in self.settled(passed.expr, result).free_symbols}
        for name, (dtype, value) in self.plan.scalars.items():
            if name not in used:
                continue
            if value is None:
                value = 1e-5 if _EPSILON.search(name.lower()) else GUESSED_REAL
                result.notes.append(f"{name} is taken to be {value:g}, and varied from there")
            result.scalars.append((_python_name(name), dtype, value))
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
            exprs += [v.expr for v in _numbers_of(step.arguments)]
            if step.when is not None:
                exprs.append(step.when)
            for e in exprs:
                found |= names(self.settled(e, result))
        for condition in self.domain:
            found |= names(self.settled(condition.args[0], result))
        return found - set(self.plan.scalars) - set(result.tunables) - DEVICE_FACTS

    # --- steps --------------------------------------------------------------------------------

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
                text = re.sub(rf"\b{name}\b", _tunable_name(name, self.module), text)
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
        wanted = step.kernel.name in {n for n, _ in self.moved}

        def add(value: object, parameter: Parameter, label: str) -> str:
            nonlocal wanted
            kind = self.concrete(parameter.type, step)
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
        return plain, Shim(f"{step.kernel.name}_entry", kernel, tuple(parameters), tuple(before),
                           tuple(passed))  # fmt: skip

    def vector_types(self) -> set[str]:
        return {*VECTORS, *self.module.vectors}

    def concrete(self, kind: str, step: LaunchStep) -> str:
        bound = dict(zip(step.kernel.templates, step.template_arguments, strict=False))
        kind = bound.get(kind, kind)
        return self.module.plain_type(kind)

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
            bound = {_tunable_name(n, self.module): c[0] for n, c in result.tunables.items()}
            if (
                Expression.parse(text).names <= {*result.symbols, *bound}
                and text not in result.domain
            ):
                result.domain.append(text)
                default = Expression.parse(text).bind(
                    {_tunable_name(n, self.module): self.default_of(n) for n in result.tunables}
                )
                result.checks.append(default.text)
        result.tunables = {_tunable_name(n, self.module): c for n, c in result.tunables.items()}
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


def _interior(e: Expr) -> Expr:
    """Return nx ny for nx ny - 1: a loop over a grid's interior stops short of the last one."""
    terms = list(sp.Add.make_args(e))
    whole = [t for t in terms if not t.could_extract_minus_sign()]
    if len(terms) > 1 and len(whole) == 1 and len(whole[0].free_symbols) > 1:
        return whole[0]
    return e


def _outward(buffer: Buffer) -> bool:
    """Return whether a caller sees what a buffer ends up holding."""
    return buffer.outside or buffer.downloaded is not None


class _Multiple:
    """``a`` must be a multiple of ``b``."""

    def __init__(self, a: Expr, b: Expr) -> None:
        self.args = (a, b)


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+|\(.*\)", text) else f"({text})"


def _buffers_of(arguments: object) -> list[Buffer]:
    found = []
    for value in arguments:  # type: ignore[attr-defined]
        if isinstance(value, Pointer):
            found.append(value.buffer)
        elif isinstance(value, Record):
            found += _buffers_of(value.fields.values())
    return found


def _numbers_of(arguments: object) -> list[Number]:
    found = []
    for value in arguments:  # type: ignore[attr-defined]
        if isinstance(value, Number):
            found.append(value)
        elif isinstance(value, Pointer):
            found.append(Number(value.offset))
        elif isinstance(value, Record):
            found += _numbers_of(value.fields.values())
    return found


def _choices(default: int, *, two: bool, block: bool) -> list[int]:
    """Return what a tunable may be; its value in the source comes first."""
    if not block:
        others = [default // 2, default * 2, default * 4]
        most = 64 if default <= 64 else 1 << 16
        return [default, *(o for o in others if 1 <= o <= most and o != default)]
    around = (4, 8, 16, 32) if two else (32, 64, 128, 256, 512, 1024)
    return [default, *(c for c in around if c != default)]


def _python_name(name: str) -> str:
    """Return a name that operator files can use."""
    name = re.sub(r"\W", "_", name) or "x"
    return f"{name}_" if name in _KEYWORDS or name.startswith("__") else name


def _tunable_name(name: str, module: Module) -> str:
    """A macro keeps its name; a host variable gets one that no device code has."""
    if name in module.macros:
        return name
    upper = name.upper()
    while re.search(rf"\b{upper}\b", module.text):
        upper += "_"
    return upper
