"""The indices of a kernel: guards bound them, accesses show how far they reach."""

from __future__ import annotations

import sympy as sp

from kernelsearch.importing.bounds import Atom, Bounds, Guard, greater
from kernelsearch.importing.kernel_facts import Found, Use, Value, Wide
from kernelsearch.importing.symbols import Expr, Logic, number, symbol
from kernelsearch.importing.syntax import Module, Node, plain
from kernelsearch.importing.values import Dim3, Number, Opaque, Pointer

_AXES = ("x", "y", "z")


class KernelScope:
    """The indices of one kernel: their bounds, the guards that are active, what accesses reach.

    Args:
        module: the parsed file.
        grid: of the launch, over sizes and tunables; None for a kernel without a launch.
        block: likewise.
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

    def concrete(self, kind: str) -> str:
        kind = self.module.plain_type(plain(kind))
        kind = self.types.get(kind, kind)
        return self.module.plain_type(kind)

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

    def is_global(self, e: Expr) -> bool:
        """Return whether a loop starts at the thread's own index: it spreads, and does not sum."""
        whole = self.bounds.expanded(e)
        return any(s.name.startswith("blockIdx") for s in whole.free_symbols)

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

    def width(self, pointer: Pointer) -> int:
        """Return how many elements one step of a pointer moves (vector types)."""
        return pointer.width if isinstance(pointer, Wide) else 1

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
        whole: set[Expr] = set()
        reached = self.bounds.atoms_of(offset)
        while reached:
            at = reached.pop()
            definition = self.bounds.atoms[at].definition
            if at not in whole and definition is not None:
                reached += self.bounds.atoms_of(definition)
            whole.add(at)
        for guard in self.bounds.guards:
            if (
                guard.high.is_Integer
                and guard.high < 0
                and any(
                    guard.expr.coeff(s).could_extract_minus_sign()
                    for s in set(self.bounds.atoms_of(guard.expr)) & whole
                )
            ):
                return True
        # (y + 1) * nx + x + 1: the first row and column are never written.
        opened = self.bounds.expanded(offset)
        atoms = self.bounds.atoms_of(opened)
        shares = [opened.coeff(s, 1) for s in atoms]
        if not opened.atoms(sp.Function, sp.Max, sp.Min) and not any(
            s == 0 or s.could_extract_minus_sign() for s in shares
        ):
            lowest = opened.subs(dict.fromkeys(atoms, 0))
            if lowest != 0 and not lowest.could_extract_minus_sign():
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
