"""A file with a kernel and no host code that launches it: the launch is told from the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernelsearch.errors import ExpressionError
from kernelsearch.importing.host import HostReader
from kernelsearch.importing.kernel import KernelReader
from kernelsearch.importing.symbols import CeilDivide, Expr, from_plan, number, symbol
from kernelsearch.importing.syntax import Function, Module
from kernelsearch.importing.values import Dim3, HostPlan, LaunchStep

_BLOCKS = {1: (256,), 2: (16, 16), 3: (8, 8, 4)}
_AXES = ("x", "y", "z")


def plan_of_kernel(
    module: Module, kernel: Function, given: Mapping[str, int], grid: Sequence[str],
    block: Sequence[str],
) -> HostPlan:  # fmt: skip
    """Return a plan with one launch of ``kernel``.

    Args:
        module: the file.
        kernel: the kernel.
        given: integers fixed by the user.
        grid: its dimensions as the user gives them, as expressions; empty: to be told.
        block: likewise.

    Raises:
        CannotImportError: the grid or the block cannot be told.
    """
    reader = HostReader(module, given)
    reader.plan.entry = kernel
    reader.types = reader.default_types(kernel)
    arguments = tuple(reader.parameter(p, kernel) for p in kernel.parameters)
    templates, values = [], {}
    for name, (kind, default) in kernel.templates.items():
        if kind in ("typename", "class"):
            templates.append(reader.types[name])
            continue
        value = given.get(name, int(default) if default.isdigit() else None)
        if value is None:
            raise module.fail(kernel.node, f"the template parameter {name} of {kernel.name} has no "
                              "value here", f"give it: --set {name}=VALUE")  # fmt: skip
        templates.append(str(value))
        values[name] = number(value)
    probe = KernelReader(module, None, None)
    found = probe.follow(kernel, arguments, reader.types, values)
    axes = [a for a in _AXES if any(a in found.axes.get(b, ()) for b in
                                    ("threadIdx", "blockIdx", "blockDim"))] or ["x"]  # fmt: skip
    count = _AXES.index(axes[-1]) + 1

    def parse(text: str, what: str) -> Expr:
        try:
            return from_plan(text)
        except ExpressionError as error:
            raise module.fail(None, f"{what} {text!r} is no expression ({error})") from error

    if block:
        dims = [parse(b, "--block") for b in block]
    else:
        shared = [s for s in found.shared_arrays if len(s) == count and 0 not in s]
        if shared:
            dims = list(reversed(shared[0]))
        elif (
            found.shared_arrays
            and len(found.shared_arrays[0]) == 1
            and count == 1
            and (found.shared_arrays[0][0] != 0)
        ):
            dims = [found.shared_arrays[0][0]]
        else:
            names = ("BLOCK",) if count == 1 else tuple(f"BLOCK_{a.upper()}" for a in _AXES[:count])
            dims = [symbol(n) for n in names]
            reader.plan.defaults.update(dict(zip(names, _BLOCKS[count], strict=True)))
        reader.note("the block dimensions are taken to be "
                    f"{' x '.join(str(d) for d in dims)} (--block)")  # fmt: skip
    block_dim = Dim3(*dims)
    second = KernelReader(module, None, block_dim)
    guards = second.follow(kernel, arguments, reader.types, values).global_guards
    if grid:
        sizes = [parse(g, "--grid") for g in grid]
    else:
        sizes = []
        for axis, dim in zip(_AXES[:count], dims, strict=False):
            if axis in guards:
                sizes.append(CeilDivide(guards[axis], dim))
            elif f"block_{axis}" in guards:
                sizes.append(guards[f"block_{axis}"])
            elif axis in found.axes.get("blockIdx", ()):
                raise module.fail(
                    kernel.node, f"how many blocks {kernel.name} needs along {axis} cannot be "
                    "told: no guard compares its index with a size", "give it: --grid EXPR[,EXPR]",
                )  # fmt: skip
            else:
                sizes.append(number(1))
        reader.note("the grid is taken to cover the guarded range (--grid)")
    reader.plan.steps.append(LaunchStep(
        kernel, tuple(templates), Dim3(*sizes), block_dim, number(0), arguments, False, None,
        kernel.line,
    ))  # fmt: skip
    return reader.plan
