"""Numba mutations: changes of a kernel's syntax tree that keep what it computes."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kernelsearch.propose.draft import Change, Draft, Rule, Site

_PURE = frozenset({
    "abs", "min", "max", "int", "float", "bool", "len", "range", "prange", "round", "ELEM",
})  # fmt: skip
_SAFE_FLAGS = ("contract", "reassoc", "nsz", "arcp")
_REDUCERS = frozenset({"max", "min"})


@dataclass(frozen=True, slots=True)
class Place:
    """A statement's place in the tree: the list that holds it, and its index there."""

    block: list[ast.stmt]
    index: int

    @property
    def node(self) -> ast.stmt:
        return self.block[self.index]


class Kernel:
    """One kernel function of a fresh copy of the parent's tree, so that it can be changed."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.draft = site.draft.copy()
        self.tree = ast.parse(self.draft.body)
        functions = {n.name: n for n in self.tree.body if isinstance(n, ast.FunctionDef)}
        self.function = functions[name]
        self.helpers = {n: f for n, f in functions.items() if n != name and _is_pure(f)}

    def loops(self) -> list[Place]:
        """Return the plain ``for i in range(...)`` loops, outer before inner."""
        return [p for p in _places(self.function.body) if _range_of(p.node) is not None]

    def finish(self, note: str) -> Draft:
        """Return the draft with the changed tree."""
        ast.fix_missing_locations(self.tree)
        self.draft.body = ast.unparse(self.tree)
        self.draft.note(note)
        return self.draft


def kernel_names(site: Site) -> list[str]:
    """Return the kernels that the launch plan names and the file defines."""
    tree = ast.parse(site.draft.body)
    defined = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    return [n for n in dict.fromkeys(s["kernel"] for s in site.draft.steps) if n in defined]


def _places(block: list[ast.stmt]) -> Iterator[Place]:
    for index, node in enumerate(block):
        yield Place(block, index)
        for field in ("body", "orelse"):
            yield from _places(getattr(node, field, []))


def _range_of(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return (start, stop) of ``for name in range(...)`` (or prange), step 1 and no ``else``."""
    if not isinstance(node, ast.For) or node.orelse or not isinstance(node.target, ast.Name):
        return None
    call = node.iter
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        return None
    if call.func.id not in ("range", "prange") or not 1 <= len(call.args) <= 2:
        return None
    start = call.args[0] if len(call.args) == 2 else ast.Constant(0)
    return start, call.args[-1]


def _loop_var(node: ast.stmt) -> str:
    assert isinstance(node, ast.For)
    assert isinstance(node.target, ast.Name)
    return node.target.id


def _in_parallel(*loops: ast.stmt) -> bool:
    return any(n.iter.func.id == "prange" for n in loops)  # type: ignore[attr-defined]


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _same(a: ast.AST, b: ast.AST) -> bool:
    return _text(a) == _text(b)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _assigned(nodes: list[ast.stmt]) -> set[str]:
    """Return the names that statements bind, loop variables included."""
    return {
        n.id
        for node in nodes
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _stores(nodes: list[ast.stmt]) -> list[ast.Subscript]:
    return [
        n
        for node in nodes
        for n in ast.walk(node)
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)
    ]


def _indices(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_pure(function: ast.FunctionDef) -> bool:
    return not _stores(function.body)


def _calls_are_pure(nodes: list[ast.stmt], kernel: Kernel) -> bool:
    """Return whether a block calls only functions that change nothing."""
    for call in (n for node in nodes for n in ast.walk(node) if isinstance(n, ast.Call)):
        func = call.func
        if isinstance(func, ast.Name) and (func.id in _PURE or func.id in kernel.helpers):
            continue
        module = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)
        if module and func.value.id in ("math", "np"):  # type: ignore[attr-defined]
            continue
        return False
    return True


def _leaves(nodes: list[ast.stmt]) -> bool:
    """Return whether control may leave a block in a way that a rewrite would change."""
    kinds = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.While)
    return any(isinstance(n, kinds) for node in nodes for n in ast.walk(node))


def _private(nodes: list[ast.stmt]) -> bool:
    """Return whether every name that a block binds is bound before the block reads it.

    Such names carry nothing from one pass of a loop to the next.
    """
    return _flow(nodes, set(), _assigned(nodes)) is not None


def _flow(nodes: list[ast.stmt], bound: set[str], local: set[str]) -> set[str] | None:
    bound = set(bound)
    for node in nodes:
        reads: list[ast.AST]
        if isinstance(node, ast.For):
            if not isinstance(node.target, ast.Name) or _unbound([node.iter], bound, local):
                return None
            # The body may not run at all, so what it binds counts only inside it.
            if _flow(node.body, bound | {node.target.id}, local) is None or node.orelse:
                return None
            continue
        if isinstance(node, ast.If):
            if _unbound([node.test], bound, local):
                return None
            one = _flow(node.body, bound, local)
            two = _flow(node.orelse, bound, local)
            if one is None or two is None:
                return None
            bound |= one & two
            continue
        if isinstance(node, ast.AugAssign):
            reads = [node.value, node.target]
            if isinstance(node.target, ast.Name) and node.target.id not in bound:
                return None
        elif isinstance(node, ast.Assign):
            reads = [node.value, *[t for t in node.targets if not isinstance(t, ast.Name)]]
        elif isinstance(node, ast.Expr | ast.Pass):
            reads = [node]
        else:
            return None
        if _unbound(reads, bound, local):
            return None
        bound |= {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
    return bound


def _unbound(reads: list[ast.AST], bound: set[str], local: set[str]) -> bool:
    used = {
        n.id
        for node in reads
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }
    return bool((used & local) - bound)


def _independent(kernel: Kernel, body: list[ast.stmt], variables: set[str]) -> bool:
    """Return whether passes with different loop variables touch different elements.

    Every store must have each of ``variables`` alone at one index, and what is stored may be read
    only at the same place.
    """
    stores = _stores(body)
    if not stores or _leaves(body) or not _calls_are_pure(body, kernel):
        return False
    parameters = {a.arg for a in kernel.function.args.args}
    where: dict[str, dict[str, int]] = {}
    for store in stores:
        if not isinstance(store.value, ast.Name) or store.value.id not in parameters:
            return False
        plain = {i.id: n for n, i in enumerate(_indices(store)) if isinstance(i, ast.Name)}
        if not variables <= set(plain):
            return False
        mine = {v: plain[v] for v in variables}
        if where.setdefault(store.value.id, mine) != mine:
            return False
    if variables & _assigned(body):
        return False
    return all(_reads_own(node, where) for node in body)


def _reads_own(node: ast.AST, where: dict[str, dict[str, int]]) -> bool:
    """Return whether arrays in ``where`` are used only with the loop variables at their places."""
    allowed: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
            name, indices = part.value.id, _indices(part)
            at = where.get(name)
            if at is not None and all(
                n < len(indices) and isinstance(i := indices[n], ast.Name) and i.id == v
                for v, n in at.items()
            ):
                allowed.add(id(part.value))
        if isinstance(part, ast.Attribute) and part.attr in ("shape", "size"):
            allowed.add(id(part.value))
    return all(
        not isinstance(p, ast.Name) or p.id not in where or id(p) in allowed for p in ast.walk(node)
    )


def _name(text: str, store: bool = False) -> ast.Name:
    return ast.Name(text, ast.Store() if store else ast.Load())


def _expr(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _for(var: str, text: str, body: list[ast.stmt]) -> ast.For:
    return ast.For(_name(var, True), _expr(text), body, [])


def _each(site: Site, rule: Callable[[Kernel, int], Change | None]) -> list[Change]:
    """Apply ``rule`` to every loop of every kernel, on a fresh tree each."""
    changes = []
    for name in kernel_names(site):
        for number in range(len(Kernel(site, name).loops())):
            change = rule(Kernel(site, name), number)
            if change is not None:
                changes.append(change)
    return changes


# --- the rules ----------------------------------------------------------------------------------


def parallel(site: Site) -> list[Change]:
    """Run the outermost independent loops on all cores."""
    changes = []
    for name in kernel_names(site):
        kernel = Kernel(site, name)
        found: list[ast.For] = []
        if any(_in_parallel(p.node) for p in kernel.loops()):
            continue
        for place in kernel.loops():
            node = place.node
            assert isinstance(node, ast.For)
            nested = any(node in list(ast.walk(f)) for f in found)
            if nested or not _independent(kernel, node.body, {_loop_var(node)}):
                continue
            if not _private(node.body) or _outlives(kernel, place):
                continue
            node.iter.func = _name("prange")  # type: ignore[attr-defined]
            found.append(node)
        if not found:
            continue
        imports = "from numba import prange"
        if imports not in {_text(n) for n in kernel.tree.body}:
            kernel.tree.body.insert(0, ast.parse(imports).body[0])
        kernel.draft.meta.setdefault("numba", {})["parallel"] = True
        variables = ", ".join(_loop_var(f) for f in found)
        changes.append(Change(
            kernel.finish(f"parallel over {variables}"),
            f"Passes of the loop over {variables} write different elements, so all cores can share "
            "them.",
            gain=max(1.0, 0.8 * site.request.device.facts.get("cores", 2)),
        ))  # fmt: skip
    return changes


def _nest(node: ast.stmt) -> ast.For | None:
    """Return the inner loop of a perfect nest of two, or None."""
    if not isinstance(node, ast.For) or len(node.body) != 1:
        return None
    inner = node.body[0]
    if _range_of(inner) is None or not isinstance(inner, ast.For) or _in_parallel(inner):
        return None
    ranges = _range_of(inner) or ()
    if any(_loop_var(node) in _names(r) for r in ranges):
        return None
    return inner


def _permutable(kernel: Kernel, outer: ast.For, inner: ast.For) -> bool:
    """Return whether the passes of a nest may run in any order."""
    pair = {_loop_var(outer), _loop_var(inner)}
    if len(pair) == 2 and _independent(kernel, inner.body, pair) and _private(inner.body):
        return True
    # One sum into memory, c[i, j] += ..., may run over its terms in any order.
    body = inner.body
    if len(body) != 1 or not isinstance(body[0], ast.AugAssign) or len(pair) != 2:
        return False
    update = body[0]
    if not isinstance(update.op, ast.Add) or not isinstance(update.target, ast.Subscript):
        return False
    target = update.target.value
    return (
        isinstance(target, ast.Name)
        and target.id not in _names(update.value)
        and _calls_are_pure(body, kernel)
    )


def tile(site: Site) -> list[Change]:
    """Work through a nest of two loops in square tiles."""
    return _each(site, _tile)


def _tile(kernel: Kernel, number: int) -> Change | None:
    place = kernel.loops()[number]
    outer = place.node
    inner = _nest(outer)
    if inner is None or not isinstance(outer, ast.For) or not _permutable(kernel, outer, inner):
        return None
    if _outlives(kernel, place):
        return None
    size = kernel.site.fresh("TILE")
    i, j = _loop_var(outer), _loop_var(inner)
    (i0, i1), (j0, j1) = _range_of(outer) or (), _range_of(inner) or ()  # type: ignore[misc]
    ii, jj = kernel.site.fresh(f"{i}_tile"), kernel.site.fresh(f"{j}_tile")
    rows: list[ast.stmt] = [
        _for(jj, f"range({_text(j0)}, {_text(j1)}, {size})", [
            _for(i, f"range({ii}, min({ii} + {size}, {_text(i1)}))", [
                _for(j, f"range({jj}, min({jj} + {size}, {_text(j1)}))", inner.body),
            ]),
        ]),
    ]  # fmt: skip
    if _in_parallel(outer):
        # prange only counts by ones, so it counts tiles.
        block = kernel.site.fresh(f"{i}_block")
        count = f"({_text(i1)} - {_text(i0)} + {size} - 1) // {size}"
        rows = [*ast.parse(f"{ii} = {_text(i0)} + {block} * {size}").body, *rows]
        place.block[place.index] = _for(block, f"prange({count})", rows)
    else:
        place.block[place.index] = _for(ii, f"range({_text(i0)}, {_text(i1)}, {size})", rows)
    kernel.draft.tunables[size] = [16, 32, 64, 128, 256]
    return Change(
        kernel.finish(f"loops over {i} and {j} in tiles"),
        f"In tiles of the loops over {i} and {j}, what both reuse stays in cache between uses.",
        {size: 64},
    )


def interchange(site: Site) -> list[Change]:
    """Swap two loops where that makes the inner one run along memory."""
    return _each(site, _interchange) + _each(site, _expand_sum)


def _stride_score(nodes: list[ast.stmt], var: str) -> int:
    """Return how many subscripts run along memory with ``var``, less those that stride."""
    score = 0
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Subscript):
                indices = _indices(part)
                used = [var in _names(i) for i in indices]
                score += 1 if used[-1] else -1 if any(used) else 0
    return score


def _interchange(kernel: Kernel, number: int) -> Change | None:
    place = kernel.loops()[number]
    outer = place.node
    inner = _nest(outer)
    if inner is None or not isinstance(outer, ast.For) or not _permutable(kernel, outer, inner):
        return None
    if _in_parallel(outer, inner):
        return None
    i, j = _loop_var(outer), _loop_var(inner)
    if _stride_score(inner.body, i) <= _stride_score(inner.body, j) or _outlives(kernel, place):
        return None
    outer.target, inner.target = inner.target, outer.target
    outer.iter, inner.iter = inner.iter, outer.iter
    return Change(
        kernel.finish(f"loop over {i} inside that over {j}"),
        f"With {i} innermost the accesses run along memory instead of striding over rows.",
    )


def _expand_sum(kernel: Kernel, number: int) -> Change | None:
    """``for j: s = 0; for k: s += f; c[i, j] = s`` to ``for j: c = 0; for k: for j: c += f``."""
    site = kernel.site
    accumulator = site.operator.error.accumulator.get(site.request.dtype, site.request.dtype)
    place = kernel.loops()[number]
    outer = place.node
    if accumulator != site.request.dtype or not isinstance(outer, ast.For) or len(outer.body) != 3:
        return None
    first, inner, last = outer.body
    if not isinstance(first, ast.Assign) or not isinstance(inner, ast.For):
        return None
    if not isinstance(last, ast.Assign) or len(first.targets) != 1 or len(last.targets) != 1:
        return None
    total, target = first.targets[0], last.targets[0]
    bounds = _range_of(inner)
    if not isinstance(total, ast.Name) or not _is_zero(first.value) or bounds is None:
        return None
    if _in_parallel(outer, inner):
        return None
    if not isinstance(target, ast.Subscript) or not isinstance(target.value, ast.Name):
        return None
    # The last assignment may convert the sum to the element type; then the array does it instead.
    value = last.value
    if isinstance(value, ast.Call) and _text(value.func) == "ELEM" and len(value.args) == 1:
        value = value.args[0]
    update = inner.body[0]
    if _text(value) != total.id or len(inner.body) != 1 or not isinstance(update, ast.AugAssign):
        return None
    if not isinstance(update.op, ast.Add) or _text(update.target) != total.id:
        return None
    j, k = _loop_var(outer), _loop_var(inner)
    used = _names(update.value) | {n for b in bounds for n in _names(b)}
    if target.value.id in used or total.id in used or j in {n for b in bounds for n in _names(b)}:
        return None
    if not isinstance(_indices(target)[-1], ast.Name) or _text(_indices(target)[-1]) != j:
        return None
    if k in _names(target) or _stride_score([update], j) <= 0 or _outlives(kernel, place):
        return None
    if not _calls_are_pure([update], kernel):
        return None
    place.block[place.index : place.index + 1] = [
        ast.For(copy.deepcopy(outer.target), copy.deepcopy(outer.iter), [
            ast.Assign([copy.deepcopy(target)], ast.Constant(0)),
        ], []),
        ast.For(inner.target, inner.iter, [
            ast.For(outer.target, outer.iter, [
                ast.AugAssign(copy.deepcopy(target), ast.Add(), update.value),
            ], []),
        ], []),
    ]  # fmt: skip
    return Change(
        kernel.finish(f"sums over {k} kept in memory, loop over {j} innermost"),
        f"With {j} innermost every access runs along memory and the loop vectorises; the sums move "
        "from a register into the output row.",
        gain=3.0,
    )


def _is_zero(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        return _text(node.func) in ("ELEM", "float", "np.float32", "np.float64") and _is_zero(
            node.args[0]
        )
    return isinstance(node, ast.Constant) and node.value == 0 and not isinstance(node.value, bool)


def split_accumulator(site: Site) -> list[Change]:
    """Reduce into four independent accumulators."""
    return _each(site, _split)


def _split(kernel: Kernel, number: int) -> Change | None:
    place = kernel.loops()[number]
    loop = place.node
    bounds = _range_of(loop)
    if bounds is None or not isinstance(loop, ast.For) or _leaves(loop.body):
        return None
    if _in_parallel(loop):
        return None
    if not _calls_are_pure(loop.body, kernel) or _stores(loop.body):
        return None
    found = _reduced(loop.body)
    if found is None or _loop_var(loop) in _assigned(loop.body):
        return None
    total, how = found
    others = _assigned(loop.body) - {total}
    if any(isinstance(n, ast.For) for b in loop.body for n in ast.walk(b)):
        return None
    if others and not _private([s for s in loop.body if total not in _names(s)]):
        return None
    if (_names(bounds[0]) | _names(bounds[1])) & _assigned(loop.body):
        return None
    start = _start_value(place, total, how)
    if start is None or _read_elsewhere(kernel, loop, others | {_loop_var(loop)}):
        return None
    var, site = _loop_var(loop), kernel.site
    lo, hi = site.fresh(f"{var}_first"), site.fresh(f"{var}_whole")
    base = site.fresh(f"{var}_base")
    parts = [total] + [site.fresh(f"{total}_part{n}") for n in (1, 2, 3)]
    head: list[ast.stmt] = ast.parse(
        f"{lo} = {_text(bounds[0])}\n"
        f"{hi} = {lo} + max(0, {_text(bounds[1])} - {lo}) // 4 * 4\n"
        + "\n".join(f"{p} = {_text(start)}" for p in parts[1:])
    ).body
    wide: list[ast.stmt] = []
    for offset, part in enumerate(parts):
        wide += ast.parse(f"{var} = {base}" + (f" + {offset}" if offset else "")).body
        for statement in loop.body:
            wide.append(_Rename({total: part}).visit(copy.deepcopy(statement)))
    join = {"+": "{0} + {1} + ({2} + {3})", "max": "max(max({0}, {1}), max({2}, {3}))",
            "min": "min(min({0}, {1}), min({2}, {3}))"}[how]  # fmt: skip
    tail = _for(var, f"range({hi}, {_text(bounds[1])})", loop.body)
    place.block[place.index : place.index + 1] = [
        *head,
        _for(base, f"range({lo}, {hi}, 4)", wide),
        *ast.parse(f"{total} = {join.format(*parts)}").body,
        tail,
    ]
    return Change(
        kernel.finish(f"four accumulators for {total}"),
        f"Each addition to {total} waits for the one before; four independent sums overlap, and "
        "loads run ahead.",
    )


class _Rename(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)


def _reduced(body: list[ast.stmt]) -> tuple[str, str] | None:
    """Return (accumulator, how) if a loop body reduces into exactly one name, once."""
    found: list[tuple[str, str]] = []
    for node in body:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if not isinstance(node.op, ast.Add) or node.target.id in _names(node.value):
                return None
            found.append((node.target.id, "+"))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            if not isinstance(target, ast.Name) or _text(call.func) not in _REDUCERS:
                continue
            if len(call.args) == 2 and _text(call.args[0]) == target.id:
                if target.id in _names(call.args[1]):
                    return None
                found.append((target.id, _text(call.func)))
        elif not isinstance(node, ast.Assign):
            return None
    if len(found) != 1:
        return None
    uses = sum(
        isinstance(n, ast.Name) and n.id == found[0][0] for node in body for n in ast.walk(node)
    )
    return found[0] if uses == (1 if found[0][1] == "+" else 2) else None


def _start_value(place: Place, total: str, how: str) -> ast.expr | None:
    """Return what the other accumulators start from."""
    if how != "+":
        return _name(total)
    for node in reversed(place.block[: place.index]):
        if total in _assigned([node]):
            plain = isinstance(node, ast.Assign) and _text(node.targets[0]) == total
            if plain and _is_zero(node.value):  # type: ignore[attr-defined]
                return node.value  # type: ignore[attr-defined, no-any-return]
            return None
    return None


def _outlives(kernel: Kernel, place: Place) -> bool:
    """Return whether anything that a loop binds is read outside it."""
    loop = place.node
    assert isinstance(loop, ast.For)
    return _read_elsewhere(kernel, loop, _assigned([loop]))


def _read_elsewhere(kernel: Kernel, loop: ast.For, names: set[str]) -> bool:
    """Return whether ``names`` keep a value from this loop that something else reads.

    A later loop that binds the name again is no reader.
    """
    inside = {id(n) for n in ast.walk(loop)}
    rebound = {
        id(n)
        for other in ast.walk(kernel.function)
        if isinstance(other, ast.For) and id(other) not in inside and loop not in ast.walk(other)
        for n in ast.walk(other)
        if isinstance(other.target, ast.Name) and isinstance(n, ast.Name) and (
            n.id == other.target.id or (_private(other.body) and n.id in _assigned(other.body))
        )
    }  # fmt: skip
    return any(
        isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in names
        and id(n) not in inside and id(n) not in rebound
        for n in ast.walk(kernel.function)
    )  # fmt: skip


def relax_math(site: Site) -> list[Change]:
    """Allow the compiler to reorder and fuse arithmetic, as far as the precision policy goes."""
    options = site.draft.meta.get("numba", {})
    now = options.get("fastmath", False)
    changes = []
    if site.operator.precision == "fast" and now is not True:
        draft = site.draft.copy()
        draft.meta.setdefault("numba", {})["fastmath"] = True
        draft.meta.setdefault("requires", {})["precision"] = "fast"
        draft.note("fast arithmetic")
        changes.append(Change(draft, "The operator allows fast arithmetic, so sums vectorise."))
    flags = now if isinstance(now, list) else []
    missing = [f for f in _SAFE_FLAGS if f not in flags]
    if now is not True and missing:
        for wanted in (("contract", "reassoc"), _SAFE_FLAGS):
            merged = sorted({*flags, *wanted})
            if merged == sorted(flags):
                continue
            draft = site.draft.copy()
            draft.meta.setdefault("numba", {})["fastmath"] = merged
            draft.note(f"arithmetic may be {', '.join(merged)}")
            changes.append(Change(
                draft,
                "A sum in source order cannot use vector registers; reordering keeps the error "
                "within the bound of any order, and fused products round less.",
            ))  # fmt: skip
    return changes


def hoist(site: Site) -> list[Change]:
    """Compute what does not change in a loop before it."""
    return _each(site, _hoist)


def _hoist(kernel: Kernel, number: int) -> Change | None:
    place = kernel.loops()[number]
    loop = place.node
    bounds = _range_of(loop)
    if bounds is None or not isinstance(loop, ast.For):
        return None
    changing = _assigned([loop]) | {
        s.value.id for s in _stores(loop.body) if isinstance(s.value, ast.Name)
    }
    changing |= _aliased(kernel.function, changing)
    if any(not isinstance(s.value, ast.Name) for s in _stores(loop.body)):
        return None
    if not _calls_are_pure(loop.body, kernel):
        return None
    found: dict[str, ast.expr] = {}
    for statement in loop.body:
        # Only what every pass evaluates: the branches of an if, or an inner loop, may not run.
        if not isinstance(statement, ast.Assign | ast.AugAssign):
            continue
        roots = [statement.value]
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        roots += [i for t in targets if isinstance(t, ast.Subscript) for i in _indices(t)]
        for root in roots:
            for node in _invariant(root, changing):
                found.setdefault(_text(node), node)
    if not found:
        return None
    names: dict[str, str] = {}
    for text in found:
        names[text] = kernel.site.fresh("kept", names.values())
    block: list[ast.stmt] = [*ast.parse(
        "\n".join(f"{names[t]} = {t}" for t in found)
    ).body]  # fmt: skip
    replace = _Replace(names)
    for index, statement in enumerate(loop.body):
        loop.body[index] = replace.visit(statement)  # type: ignore[call-overload]
    # An empty loop evaluates nothing, so neither may what was taken out of it.
    guard = ast.If(_expr(f"{_text(bounds[0])} < {_text(bounds[1])}"), [*block, loop], [])
    place.block[place.index] = guard
    return Change(
        kernel.finish(f"{', '.join(found)} computed before the loop over {_loop_var(loop)}"[:120]),
        f"The loop over {_loop_var(loop)} computes {', '.join(found)} again in every pass although "
        "it does not change there.",
    )


def _aliased(function: ast.FunctionDef, arrays: set[str]) -> set[str]:
    """Return the names from which local arrays among ``arrays`` were made: they share elements."""
    found: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and _assigned([node]) & arrays:
            found |= _names(node.value)
    return found


def _invariant(node: ast.expr, changing: set[str]) -> Iterator[ast.expr]:
    """Yield the largest parts of an expression that read nothing in ``changing``."""
    if isinstance(node, ast.IfExp | ast.BoolOp | ast.Constant | ast.Name | ast.Attribute):
        return
    worth = isinstance(node, ast.BinOp | ast.Subscript | ast.Call) and not isinstance(
        getattr(node, "ctx", None), ast.Store
    )
    names = _names(node)
    conditional = any(isinstance(n, ast.IfExp | ast.BoolOp) for n in ast.walk(node))
    shape = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute)
    if worth and names and not names & changing and not conditional and not shape:
        if _costs(node):
            yield node
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _invariant(child, changing)


def _costs(node: ast.expr) -> bool:
    """Return whether the compiler may be unable to move an expression out of a loop by itself.

    Plain arithmetic it moves; loads might alias a store, and divisions might raise.
    """
    return any(
        isinstance(n, ast.Subscript)
        or (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div | ast.FloorDiv | ast.Pow))
        or (isinstance(n, ast.Call) and _text(n.func).startswith(("math.", "np.")))
        for n in ast.walk(node)
    )


class _Replace(ast.NodeTransformer):
    """Puts a name in the place of every expression with a given text."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and not isinstance(getattr(node, "ctx", None), ast.Store):
            name = self.names.get(_text(node))
            if name is not None:
                return _name(name)
        result: ast.AST = self.generic_visit(node)
        return result


def row_slice(site: Site) -> list[Change]:
    """Take ``x[i]`` once as a row, and index the row in the inner loops."""
    return _each(site, _row_slice)


def _row_slice(kernel: Kernel, number: int) -> Change | None:
    place = kernel.loops()[number]
    loop = place.node
    bounds = _range_of(loop)
    if not isinstance(loop, ast.For) or bounds is None or _text(bounds[0]) != "0":
        return None
    var = _loop_var(loop)
    parameters = {a.arg for a in kernel.function.args.args}
    if var in _assigned(loop.body) or not any(isinstance(n, ast.For) for n in ast.walk(loop)):
        return None
    if not any(isinstance(n, ast.For) for s in loop.body for n in ast.walk(s)):
        return None
    arrays: dict[str, str] = {}
    extents = _extents(kernel)
    for node in ast.walk(loop):
        if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name):
            continue
        indices, name = _indices(node), node.value.id
        row = name in parameters and len(indices) == 2 and _text(indices[0]) == var
        # The row must exist in every pass, so the loop's end must be the array's own extent.
        if row and _text(bounds[1]) in extents.get(name, ()):
            arrays.setdefault(name, kernel.site.fresh(f"{name}_row"))
    if not arrays or arrays.keys() & _assigned(kernel.function.body):
        return None
    loop.body = [
        *ast.parse("\n".join(f"{row} = {a}[{var}]" for a, row in arrays.items())).body,
        *[_ToRow(arrays, var).visit(s) for s in loop.body],
    ]
    return Change(
        kernel.finish(f"rows of {', '.join(arrays)} taken once for each {var}"),
        f"With the row of {', '.join(arrays)} taken once, the inner loop has a single index and no "
        "row arithmetic, which helps it to vectorise.",
    )


def _extents(kernel: Kernel) -> dict[str, set[str]]:
    """Return, by tensor, the texts that stand for its first extent."""
    result: dict[str, set[str]] = {}
    steps = [s for s in kernel.draft.steps if s["kernel"] == kernel.function.name]
    names = [a.arg for a in kernel.function.args.args]
    for step in steps:
        bound = dict(zip(names, step["args"], strict=False))
        for name, arg in bound.items():
            tensor = kernel.site.tensor(arg)
            if tensor is None:
                continue
            extent = str(tensor.shape[0])
            sizes = {n for n, a in bound.items() if a.rpartition(":")[0] == extent}
            result[name] = {f"{name}.shape[0]", f"len({name})", *sizes}
    # "rows = x.shape[0]" or "rows, cols = x.shape" gives the extent a name of its own.
    for node in ast.walk(kernel.function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], _text(node.value)
            if isinstance(target, ast.Tuple) and value.endswith(".shape"):
                target, value = target.elts[0], f"{value}[0]"
            if not isinstance(target, ast.Name) or _bound_twice(kernel, target.id):
                continue
            owner = value.removesuffix(".shape[0]")
            first = _first_extent(kernel, owner) if owner != value else None
            for name in result:
                if first is not None and _first_extent(kernel, name) == first:
                    result[name].add(target.id)
    return result


def _bound_twice(kernel: Kernel, name: str) -> bool:
    return sum(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        for n in ast.walk(kernel.function)
    ) > 1  # fmt: skip


def _first_extent(kernel: Kernel, name: str) -> str | None:
    names = [a.arg for a in kernel.function.args.args]
    for step in kernel.draft.steps:
        if step["kernel"] == kernel.function.name and name in names:
            tensor = kernel.site.tensor(step["args"][names.index(name)])
            if tensor is not None:
                return str(tensor.shape[0])
    return None


class _ToRow(ast.NodeTransformer):
    def __init__(self, arrays: dict[str, str], var: str) -> None:
        self.arrays, self.var = arrays, var

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self.arrays:
            indices = _indices(node)
            if len(indices) == 2 and _text(indices[0]) == self.var:
                return ast.Subscript(_name(self.arrays[node.value.id]), indices[1], node.ctx)
        return node


def reciprocal(site: Site) -> list[Change]:
    """Multiply by a reciprocal taken once instead of dividing in every pass."""
    return _each(site, _reciprocal)


def _reciprocal(kernel: Kernel, number: int) -> Change | None:
    place = kernel.loops()[number]
    loop = place.node
    bounds = _range_of(loop)
    if bounds is None or not isinstance(loop, ast.For):
        return None
    if any(isinstance(n, ast.For) for s in loop.body for n in ast.walk(s)):
        return None
    changing = _assigned([loop])
    top = [s for s in loop.body if isinstance(s, ast.Assign | ast.AugAssign)]
    divisors = [
        n.right.id
        for s in top
        for n in ast.walk(s.value)
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div) and isinstance(n.right, ast.Name)
    ]
    divisors += [
        s.value.id
        for s in top
        if isinstance(s, ast.AugAssign)
        and isinstance(s.op, ast.Div)
        and isinstance(s.value, ast.Name)
    ]
    divisors = [d for d in dict.fromkeys(divisors) if d not in changing and not d.isupper()]
    if not divisors:
        return None
    divisor = divisors[0]
    inverse = kernel.site.fresh(f"inverse_{divisor}")
    for statement in top:
        divides = isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div)
        if divides and _text(statement.value) == divisor:
            statement.op, statement.value = ast.Mult(), _name(inverse)  # type: ignore[union-attr]
        statement.value = _Multiply(divisor, inverse).visit(statement.value)
    guard = ast.If(
        _expr(f"{_text(bounds[0])} < {_text(bounds[1])}"),
        [*ast.parse(f"{inverse} = ELEM(1) / {divisor}").body, loop], [],
    )  # fmt: skip
    place.block[place.index] = guard
    return Change(
        kernel.finish(f"one reciprocal of {divisor} instead of divisions"),
        f"{divisor} does not change in the loop over {_loop_var(loop)}: one division, then "
        "multiplications, at the price of one more rounding.",
    )


class _Multiply(ast.NodeTransformer):
    def __init__(self, divisor: str, inverse: str) -> None:
        self.divisor, self.inverse = divisor, inverse

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div) and _text(node.right) == self.divisor:
            return ast.BinOp(node.left, ast.Mult(), _name(self.inverse))
        return node


def narrow_accumulator(site: Site) -> list[Change]:
    """Sum in the element type where the error bound grants no wider accumulator."""
    dtype = site.request.dtype
    if dtype != "float32" or site.operator.error.accumulator.get(dtype, dtype) != dtype:
        return []
    changes = []
    for name in kernel_names(site):
        kernel = Kernel(site, name)
        summed = {
            n.target.id
            for n in ast.walk(kernel.function)
            if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
        }
        touched = []
        for place in _places(kernel.function.body):
            node = place.node
            if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                continue
            plain = isinstance(node.value, ast.Constant) and isinstance(node.value.value, float)
            if node.targets[0].id in summed and plain:
                node.value = _expr(f"ELEM({_text(node.value)})")
                touched.append(node.targets[0].id)
        if touched:
            changes.append(Change(
                kernel.finish(f"{', '.join(dict.fromkeys(touched))} in the element type"),
                "A plain 0.0 makes the sum a float64: every element is widened and vectors hold "
                "half as many. The error bound grants sums in the element type.",
                gain=1.5,
            ))  # fmt: skip
    return changes


RULES = (
    Rule("parallel", "cpu", parallel,
         frozenset({"parallelism", "compute", "memory-bandwidth", "memory-latency"}), 1.8),
    Rule("tile", "cpu", tile,
         frozenset({"memory-bandwidth", "memory-latency", "dram", "l2"}), 1.2),
    Rule("interchange", "cpu", interchange,
         frozenset({"memory-bandwidth", "memory-latency", "uncoalesced", "compute"}), 1.5),
    Rule("split_accumulator", "cpu", split_accumulator,
         frozenset({"compute", "memory-latency", "issue"}), 1.2),
    Rule("relax_math", "cpu", relax_math, frozenset({"compute", "issue", "fp32"}), 1.5),
    Rule("hoist", "cpu", hoist, frozenset({"compute", "issue", "integer", "overhead"}), 1.05),
    Rule("row_slice", "cpu", row_slice, frozenset({"compute", "issue", "integer"}), 1.1),
    Rule("reciprocal", "cpu", reciprocal, frozenset({"compute", "fp32", "issue"}), 1.1),
    Rule("narrow_accumulator", "cpu", narrow_accumulator,
         frozenset({"compute", "fp32", "fp64", "issue"}), 1.5),
)  # fmt: skip
