"""CUDA mutations of how work is spread and what it may use: blocks, grids, registers, caches."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from typing import Any

from kernelsearch.propose.draft import Change, Draft, Rule, Site, is_integer
from kernelsearch.propose.source import CudaSource, Function, Parameter, Pointer, Rewrite
from kernelsearch.records import dtype_bytes

# A kernel that mentions one of these talks to other blocks, or to hardware that keeps state.
_ENTANGLED = ("asm", "__asm__", "goto", "cooperative_groups", "__cluster_dims__", "CUtensorMap")
_WARP_WORDS = re.compile(
    r"__(shfl|ballot|any|all|reduce|match|syncwarp|activemask)\w*\Z|warpSize\Z"
)
_BLOCK_WORDS = ("__shared__", "__syncthreads", "__syncthreads_or", "__syncthreads_and")
_CACHED_TYPES = ("elem_t", "float", "double", "int", "unsigned int", "long long")


def kernels(site: Site) -> Iterator[tuple[Function, dict[str, Any]]]:
    """Yield each kernel that exactly one plain launch step names, with that step."""
    source = site.cuda
    if not source.balanced:
        return
    steps = site.draft.steps
    names = [base_name(s["kernel"]) for s in steps]
    for step, name in zip(steps, names, strict=True):
        function = source.kernel(name)
        if function is None or names.count(name) != 1:
            continue
        if len(function.parameters) == len(step.get("args", [])):
            yield function, step


def launched(site: Site) -> Iterator[tuple[Function, dict[str, Any]]]:
    """Yield each kernel whose steps agree on the block, with the first: for edits of its body."""
    source = site.cuda
    if not source.balanced:
        return
    groups: dict[str, list[dict[str, Any]]] = {}
    for step in site.draft.steps:
        groups.setdefault(base_name(step["kernel"]), []).append(step)
    for name, steps in groups.items():
        function = source.kernel(name)
        if function is None or any(s["block"] != steps[0]["block"] for s in steps):
            continue
        if all(len(function.parameters) == len(s.get("args", [])) for s in steps):
            yield function, steps[0]


def base_name(kernel: str) -> str:
    """Return the function's own name in a kernel name expression."""
    return kernel.split("<", 1)[0].split("::")[-1].strip()


def own_step(draft: Draft, step: dict[str, Any]) -> dict[str, Any]:
    """Return the step of ``draft`` that launches the same kernel as ``step``."""
    return next(s for s in draft.steps if s["kernel"] == step["kernel"])


def bound_tensors(function: Function, step: dict[str, Any]) -> dict[str, str]:
    """Return which plan buffer each pointer parameter receives; {} if one is passed twice."""
    pairs = zip(function.parameters, step["args"], strict=True)
    found = {p.name: a for p, a in pairs if p.pointee and ":" not in a}
    return found if len(set(found.values())) == len(found) else {}


def c_expression(text: str | int, draft: Draft) -> str | None:
    """Return a plan expression of tunables and integers as C, or None if it has anything else."""
    try:
        tree = ast.parse(str(text).strip(), mode="eval").body
    except SyntaxError:
        return None
    return _c_text(tree, draft)


def _c_text(node: ast.expr, draft: Draft) -> str | None:
    signs = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "/", ast.Mod: "%"}
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return str(node.value)
    if isinstance(node, ast.Name):
        choices = draft.tunables.get(node.id, [])
        return node.id if choices and all(isinstance(c, int) for c in choices) else None
    if isinstance(node, ast.BinOp) and type(node.op) in signs:
        left, right = _c_text(node.left, draft), _c_text(node.right, draft)
        if left is not None and right is not None:
            return f"({left} {signs[type(node.op)]} {right})"
    return None


def threads_of(step: dict[str, Any]) -> str:
    """Return the plan expression of a step's threads in a block."""
    parts = [str(b) for b in step["block"] if str(b) != "1"]
    if len(parts) <= 1:
        return parts[0] if parts else "1"
    return " * ".join(p if re.fullmatch(r"\w+", p) else f"({p})" for p in parts)


def inserted_before(source: CudaSource, function: Function) -> int:
    """Return the character at which a helper for ``function`` is put."""
    return source.tokens[function.first].start


# --- blocks -------------------------------------------------------------------------------------


def expose_block(site: Site) -> list[Change]:
    """Turn a fixed block size into a tunable, or give a fixed tunable more choices."""
    return [
        c for f, s in kernels(site) for c in (_widen(site, f, s), _name_literal(site, f, s)) if c
    ]


def _choices(site: Site, function: Function, value: int, two_d: bool) -> list[int]:
    """Return powers of two around ``value`` that the kernel's source leaves room for."""
    source = site.cuda
    reach = source.reachable(function)
    words = {w for f in reach for w in source.words(f.first, f.close_brace)}
    if value <= 0 or value & (value - 1) or source.uses(reach, _ENTANGLED):
        return []
    warps = any(_WARP_WORDS.match(w) for w in words)
    if two_d:
        return [] if warps else [v for v in (4, 8, 16, 32, 64, 128) if value // 4 <= v <= value * 4]
    roof = 1024
    for at in range(function.open_brace, function.close_brace):
        # An array of another fixed length was sized for the largest block that was thought of.
        if source.at(at) == "__shared__":
            end = source.statement_end(at) or at
            sizes = [int(w) for w in source.words(at, end) if w.isdigit() and int(w) > 4]
            roof = min([roof, *(s for s in sizes if s != value)])
    if value < 32 or (warps and value == 32):
        return []
    return [v for v in (32, 64, 128, 256, 512, 1024) if v <= roof]


def _widen(site: Site, function: Function, step: dict[str, Any]) -> Change | None:
    fixed = {}
    for axis in step["block"]:
        choices = site.draft.tunables.get(str(axis), [])
        if len(choices) == 1 and isinstance(choices[0], int):
            wider = _choices(site, function, choices[0], len(step["block"]) > 1)
            if len(wider) > 1:
                fixed[str(axis)] = (choices[0], wider)
    if not fixed:
        return None
    draft = site.draft.copy()
    for name, (_, wider) in fixed.items():
        draft.tunables[name] = list(wider)
    draft.constrain("block", f"{threads_of(step)} <= max_threads_per_block")
    draft.note(f"{' and '.join(fixed)} tunable")
    return Change(
        draft,
        f"The block size is fixed ({', '.join(f'{n} = {v}' for n, (v, _) in fixed.items())}); "
        "other sizes trade occupancy against work per block and the cost of a barrier.",
        {n: v for n, (v, _) in fixed.items()},
    )


def _name_literal(site: Site, function: Function, step: dict[str, Any]) -> Change | None:
    source, block = site.cuda, [b for b in step["block"] if str(b) != "1"]
    if len(block) != 1 or not is_integer(block[0]) or len(site.draft.steps) != 1:
        return None
    value = int(block[0])
    choices = _choices(site, function, value, False)
    if len(choices) < 2:
        return None
    rewrite = Rewrite(source.text)
    name = _named_constant(source, function, value, rewrite)
    if name is None:
        name = site.fresh("THREADS")
        uses = [
            i
            for i in range(function.first, function.close_brace)
            if source.tokens[i].kind == "number" and source.at(i) == str(value)
        ]
        if not all(_is_block_size(source, i) for i in uses):
            return None
        if not uses and "blockDim" not in source.words(function.open_brace, function.close_brace):
            return None
        for index in uses:
            rewrite.replace(source.tokens[index].start, source.tokens[index].end, name)
    draft = site.draft.copy()
    draft.body = rewrite.result()
    _replace_in_plan(draft, value, name)
    draft.tunables[name] = list(choices)
    draft.constrain("block", f"{name} <= max_threads_per_block")
    draft.note(f"block size tunable as {name}")
    return Change(
        draft,
        f"The block size {value} is written into the source; as a tunable it can follow the "
        "device's occupancy and the length of a row.",
        {name: value},
    )


def _named_constant(
    source: CudaSource, function: Function, value: int, rewrite: Rewrite
) -> str | None:
    """Remove the constant that holds the block size and return its name, if there is just one."""
    found: list[tuple[str, int, int]] = []
    for index, token in enumerate(source.tokens):
        macro = re.fullmatch(rf"#\s*define\s+(\w+)\s+\(?{value}u?\)?\s*(//.*)?", token.text)
        if token.kind == "directive" and macro:
            found.append((macro[1], token.start, token.end))
        if token.text in ("constexpr", "const") and (
            source.at(index - 1) not in ("const", "constexpr")
        ):
            end = source.statement_end(index)
            words = source.words(index, end) if end else []
            kept = [w for w in words if w not in ("static", "constexpr", "const", "unsigned", "int",
                                                  "long", "inline", "size_t")]  # fmt: skip
            if end and len(kept) == 4 and kept[1:] == ["=", str(value), ";"]:
                found.append((kept[0], token.start, source.tokens[end - 1].end))
    used = set(source.words(function.open_brace, function.close_brace))
    found = [f for f in found if f[0] in used]
    if len(found) != 1 or _declared_again(source, found[0][0]):
        return None
    name, start, end = found[0]
    rewrite.replace(start, end, "")
    # "static constexpr int N" begins one token earlier.
    lead = re.search(r"\b(static|inline)\s*\Z", source.text[:start])
    if lead:
        rewrite.replace(lead.start(), start, "")
    return name


def _declared_again(source: CudaSource, name: str) -> bool:
    """Return whether ``name`` is also a parameter or member somewhere: a macro would break it."""
    if any(p.name == name for f in source.functions for p in f.parameters):
        return True
    places = [i for i, t in enumerate(source.tokens) if t.text == name]
    declared = [i for i in places if source.at(i - 1) in ("int", "unsigned", "typename", "class")]
    return len(declared) > 1 or any(source.at(i - 1) in (".", "->", "::") for i in places)


def _is_block_size(source: CudaSource, index: int) -> bool:
    """Return whether a literal stands where only the block size can stand."""
    before, after = source.words(index - 4, index), source.words(index + 1, index + 3)
    if before == ["blockIdx", ".", "x", "*"]:
        return True
    if before[-1:] == ["*"] and before[-2:-1] == [")"]:
        return source.words(index - 5, index - 2) == ["blockIdx", ".", "x"]
    if before[-1:] == ["+="]:
        return after[:1] == [")"]
    if before[-1:] == ["["] and after[:1] == ["]"]:
        start = index
        while start > 0 and source.at(start) not in (";", "{", "}"):
            start -= 1
        return "__shared__" in source.words(start, index)
    if before[-1:] == ["="] and after[:2] in (["/", "2"], [">>", "1"]):
        return True
    return before[-2:] == ["__launch_bounds__", "("]


def _replace_in_plan(draft: Draft, value: int, name: str) -> None:
    pattern = re.compile(rf"(?<![\w.]){value}(?![\w.])")
    for step in draft.steps:
        for key in ("grid", "block", "args"):
            step[key] = [pattern.sub(name, str(e)) for e in step.get(key, [])]
        if "shared" in step:
            step["shared"] = pattern.sub(name, str(step["shared"]))
    for spec in draft.meta.get("workspace", {}).values():
        spec["shape"] = [pattern.sub(name, str(e)) for e in spec["shape"]]


def coarsen(site: Site) -> list[Change]:
    """Let each block do the work of COARSEN neighbouring blocks."""
    return [c for f, s in kernels(site) if (c := _block_loop(site, f, s, persistent=False))]


def persistent(site: Site) -> list[Change]:
    """Launch as many blocks as the device holds, each striding over the grid's work."""
    return [c for f, s in kernels(site) if (c := _block_loop(site, f, s, persistent=True))]


def _block_loop(
    site: Site, function: Function, step: dict[str, Any], persistent: bool
) -> Change | None:
    source = site.cuda
    places = _block_indices(source, function)
    if not places or (persistent and len(step["grid"]) > 1):
        return None
    if step.get("cooperative") or step.get("cluster"):
        return None
    reach = source.reachable(function)
    if source.uses(reach, _ENTANGLED) or source.uses(reach[1:], ("blockIdx", "gridDim")):
        return None
    if source.has_conditionals(function.open_brace, function.close_brace):
        return None
    returns = _top_returns(source, function)
    shared = source.uses(reach, _BLOCK_WORDS)
    # After a barrier-using body every thread must reach the loop's own barrier.
    if returns is None or (returns and shared):
        return None
    block, blocks = site.fresh("block_x"), site.fresh("blocks_x")
    at = dict.fromkeys(returns, "continue")
    for place in places:
        at |= {place: block, place + 1: "", place + 2: ""}
    body = _indented(source.substitute(function.open_brace + 1, function.close_brace, at))
    draft = site.draft.copy()
    mine = own_step(draft, step)
    work = str(mine["grid"][0])
    barrier = (
        "\n        __syncthreads();  // shared memory is free for the next block's work"
        if shared
        else ""
    )
    if persistent:
        tunable, first = site.fresh("BLOCKS_PER_SM"), 4
        head = (
            f"for (unsigned int {block} = blockIdx.x; {block} < {blocks}; {block} += gridDim.x) {{"
        )
        mine["grid"] = [f"min({work}, sm_count * {tunable})"]
        why = ("Launching only as many blocks as run at once saves the start of a block for every "
               "piece of work, and ends the partly filled last wave.")  # fmt: skip
        note = "persistent blocks stride over the grid"
    else:
        tunable, first = site.fresh("COARSEN"), 2
        item = site.fresh("item")
        head = (
            f"for (unsigned int {item} = 0; {item} < {tunable}; ++{item}) {{\n"
            f"        const unsigned int {block} = blockIdx.x * {tunable} + {item};\n"
            f"        if ({block} >= {blocks}) break;"
        )
        mine["grid"][0] = f"ceildiv({work}, {tunable})"
        why = ("More work in each thread amortises index arithmetic and block starts, and lets "
               "loads of several items be in flight together.")  # fmt: skip
        note = "COARSEN blocks' work in each block"
    rewrite = Rewrite(source.text)
    comma = ", " if function.parameters else ""
    rewrite.insert(source.tokens[function.close_paren].start, f"{comma}unsigned int {blocks}")
    rewrite.replace(
        source.tokens[function.open_brace].end, source.tokens[function.close_brace].start,
        f"\n    {head}\n{body}{barrier}\n    }}\n",
    )  # fmt: skip
    draft.body = rewrite.result()
    mine["args"] = [*mine["args"], f"{work}:u32"]
    draft.tunables[tunable] = [1, 2, 4, 8, 16] if persistent else [1, 2, 4, 8]
    draft.note(note)
    return Change(draft, why, {tunable: first})


def _block_indices(source: CudaSource, function: Function) -> list[int] | None:
    """Return where the kernel reads ``blockIdx.x``; None if it needs the grid as it is."""
    found = []
    for index in range(function.open_brace, function.close_brace):
        if source.at(index) == "gridDim" and source.at(index + 2) == "x":
            return None
        if source.at(index) == "blockIdx":
            if source.at(index + 1) != ".":
                return None
            if source.at(index + 2) == "x":
                found.append(index)
    return found


def _top_returns(source: CudaSource, function: Function) -> list[int] | None:
    """Return the kernel's ``return`` tokens; None if one is inside a loop or a lambda."""
    lo, hi = function.open_brace + 1, function.close_brace
    found = [i for i in range(lo, hi) if source.at(i) == "return"]
    for index in range(lo, hi):
        word = source.at(index)
        if word in ("for", "while", "switch", "do"):
            end = source.statement_end(index)
            if word == "do" or end is None or any(index < r < end for r in found):
                return None
        # A lambda's own return: "](" only occurs where a lambda begins.
        if word == "]" and source.at(index + 1) in ("(", "{") and found:
            return None
    return found


def _indented(text: str) -> str:
    lines = text.strip("\n").split("\n")
    return "\n".join(
        x if not x.strip() or x.startswith("#") else "    " + x for x in lines
    ).rstrip()


# --- registers and instructions -----------------------------------------------------------------


def launch_bounds(site: Site) -> list[Change]:
    """Tell the compiler the block size, and how many blocks a multiprocessor should hold."""
    changes = []
    source = site.cuda
    for function, step in launched(site):
        threads = threads_of(step)
        bound = c_expression(threads, site.draft)
        head = range(function.first, function.name_at)
        places = [i for i in head if source.at(i) == "__launch_bounds__"]
        name = site.fresh("MIN_BLOCKS")
        rewrite = Rewrite(source.text)
        if places:
            lo, hi = places[0] + 2, source.pair[places[0] + 1]
            if any(source.at(i) == "," for i in source.level(lo, hi)):
                continue
            rewrite.insert(source.tokens[hi].start, f", {name}")
        elif bound is not None:
            end = source.tokens[function.kernel].end
            rewrite.insert(
                end,
                f" __launch_bounds__({bound}, {name})",
            )
        else:
            continue
        draft = site.draft.copy()
        draft.body = rewrite.result()
        draft.tunables[name] = [1, 2, 3, 4, 6, 8]
        draft.constrain("resident", f"({threads}) * {name} <= max_threads_per_sm")
        draft.note("registers bounded by the blocks a multiprocessor must hold")
        changes.append(Change(
            draft,
            "Without a bound the compiler does not know the block size and may take so many "
            "registers that few blocks fit; a wanted number of resident blocks trades the two.",
            {name: 1},
        ))  # fmt: skip
    return changes


def unroll(site: Site) -> list[Change]:
    """Make the unroll factor of an innermost loop a tunable."""
    changes = []
    source = site.cuda
    name = site.fresh("UNROLL")
    for function, _ in launched(site):
        loops = source.loops(function.open_brace, function.close_brace)
        for loop in loops:
            lo, hi = loop.body
            words = source.words(lo, hi)
            inner = {"for", "while", "do", "__syncthreads", "asm"} & set(words)
            if inner or not loop.canonical or len(words) < 4:
                continue
            rewrite = Rewrite(source.text)
            old = source.tokens[loop.pragma] if loop.pragma is not None else None
            if old is not None:
                number = re.fullmatch(r"#\s*pragma\s+unroll\s+\(?(\d+)\)?\s*", old.text)
                if number is None or int(number[1]) < 2:
                    continue
                rewrite.replace(old.start, old.end, f"#pragma unroll {name}")
                choices = sorted({1, 2, 4, 8, 16, int(number[1])})
                first = int(number[1])
            elif all(w.isdigit() for w in source.words(*loop.bound)):
                # The compiler unrolls short loops of known length as a whole already.
                continue
            else:
                start = source.tokens[loop.at].start
                line = source.text.rfind("\n", 0, start) + 1
                lead = source.text[line:start]
                if lead.strip():
                    continue
                rewrite.insert(line, f"#pragma unroll {name}\n")
                choices, first = [1, 2, 4, 8], 4
            draft = site.draft.copy()
            draft.body = rewrite.result()
            draft.tunables[name] = list(choices)
            draft.note(f"loop over {loop.var} unrolled {name} times")
            changes.append(Change(
                draft,
                f"Unrolling the loop over {loop.var} puts several loads in flight before the first "
                "is used and saves loop arithmetic; the factor is left to the tuner.",
                {name: first},
            ))  # fmt: skip
    # The last loop is the deepest or the one that runs at the end; offer inner work first.
    return changes[::-1]


# --- memory paths -------------------------------------------------------------------------------


def read_only(site: Site) -> list[Change]:
    """Promise that pointers do not overlap, and load inputs through the read-only path."""
    changes = []
    source = site.cuda
    for function, step in kernels(site):
        bound = bound_tensors(function, step)
        if not bound:
            continue
        rewrite = Rewrite(source.text)
        touched = _add_restrict(source, function, bound, rewrite)
        loads = [
            (pointer, index)
            for pointer in source.pointers(function).values()
            if _reads_input(site, pointer, bound)
            for index in _plain_reads(source, function, pointer)
        ]
        for _, index in loads:
            rewrite.insert(source.tokens[index].start, "__ldg(&")
            rewrite.insert(source.tokens[source.pair[index + 1]].end, ")")
        if not loads and not touched:
            continue
        nested = _nested(source, [i for _, i in loads])
        if nested:
            continue
        draft = site.draft.copy()
        draft.body = rewrite.result()
        draft.note("inputs through the read-only path")
        changes.append(Change(
            draft,
            "The compiler must assume that a store changes what is read next unless pointers are "
            "known not to overlap; read-only loads may also be moved ahead and cached.",
        ))  # fmt: skip
    return changes


def _add_restrict(
    source: CudaSource, function: Function, bound: dict[str, str], rewrite: Rewrite
) -> bool:
    touched = False
    for parameter in function.parameters:
        if parameter.name in bound and not parameter.restrict:
            rewrite.replace(
                source.tokens[parameter.star].end, source.tokens[parameter.name_at].start,
                " __restrict__ ",
            )  # fmt: skip
            touched = True
    return touched


def _reads_input(site: Site, pointer: Pointer, bound: dict[str, str]) -> bool:
    tensor = site.tensor(bound.get(pointer.root, ""))
    return (
        tensor is not None and tensor.role == "in" and pointer.const
        and pointer.pointee in _CACHED_TYPES
    )  # fmt: skip


def _plain_reads(source: CudaSource, function: Function, pointer: Pointer) -> list[int]:
    """Return where ``pointer[...]`` is read as a value."""
    found = []
    for index in range(function.open_brace, function.close_brace):
        if source.at(index) != pointer.name or source.at(index + 1) != "[":
            continue
        after = source.at(source.pair[index + 1] + 1)
        if source.at(index - 1) in ("&", ".", "->", "::", "++", "--") or after in (
            "=",
            "[",
            ".",
            "->",
        ):
            continue
        found.append(index)
    return found


def _nested(source: CudaSource, reads: list[int]) -> bool:
    """Return whether two insertions would begin or end at one character."""
    starts = [source.tokens[i].start for i in reads]
    ends = [source.tokens[source.pair[i + 1]].end for i in reads]
    return len(set(starts)) != len(starts) or len(set(ends)) != len(ends)


def streaming(site: Site) -> list[Change]:
    """Mark what is read or written once as first to leave the caches."""
    changes = []
    source = site.cuda
    for function, step in kernels(site):
        bound = bound_tensors(function, step)
        large = _largest_tensors(site)
        rewrite = Rewrite(source.text)
        stores, loads = 0, 0
        for pointer in source.pointers(function).values():
            name = bound.get(pointer.root, "")
            tensor = site.tensor(name)
            if tensor is None or pointer.pointee not in _CACHED_TYPES:
                continue
            if tensor.role == "out" and not _reads_back(source, function, pointer):
                stores += _stream_stores(source, function, pointer, rewrite)
            elif name in large and _reads_input(site, pointer, bound):
                reads = _plain_reads(source, function, pointer)
                # Two reads of one array find each other in cache: no hint then.
                if len(reads) == 1 and _root_reads(source, function, pointer) == 1:
                    rewrite.insert(source.tokens[reads[0]].start, "__ldcs(&")
                    rewrite.insert(source.tokens[source.pair[reads[0] + 1]].end, ")")
                    loads += 1
        if not stores and not loads:
            continue
        draft = site.draft.copy()
        draft.body = rewrite.result()
        draft.note("streaming cache hints")
        changes.append(Change(
            draft,
            "Data that is touched once pushes reused data out of the caches; evict-first hints on "
            f"{stores} stores and {loads} loads keep what is shared.",
        ))  # fmt: skip
    return changes


def _largest_tensors(site: Site) -> set[str]:
    """Return the inputs that hold at least half the bytes of the largest one."""
    sizes: dict[str, float] = {}
    for workload in site.request.workloads:
        for tensor in site.operator.inputs:
            count = math.prod(tensor.concrete_shape(workload.sizes))
            kind = site.operator.tensor_dtype(tensor, site.request.dtype)
            sizes[tensor.name] = sizes.get(tensor.name, 0) + count * dtype_bytes(kind)
    top = max(sizes.values(), default=0)
    return {n for n, s in sizes.items() if s * 2 >= top > 0}


def _root_reads(source: CudaSource, function: Function, pointer: Pointer) -> int:
    """Return how many subscripts, of any alias, read the array behind ``pointer``."""
    aliases = [p for p in source.pointers(function).values() if p.root == pointer.root]
    return sum(len(_plain_reads(source, function, p)) for p in aliases)


def _reads_back(source: CudaSource, function: Function, pointer: Pointer) -> bool:
    return any(
        source.at(i) == pointer.name and source.at(i + 1) == "["
        and source.at(source.pair[i + 1] + 1) != "="
        for i in range(function.open_brace, function.close_brace)
    )  # fmt: skip


def _stream_stores(
    source: CudaSource, function: Function, pointer: Pointer, rewrite: Rewrite
) -> int:
    count = 0
    for index in range(function.open_brace, function.close_brace):
        if source.at(index) != pointer.name or source.at(index + 1) != "[":
            continue
        close = source.pair[index + 1]
        end = source.statement_end(index)
        starts = source.at(index - 1) in (";", "{", "}", ")") or (
            source.tokens[index - 1].kind == "directive"
        )
        if source.at(close + 1) != "=" or end is None or not starts:
            continue
        if any(source.at(i) == "," for i in source.level(close + 2, end - 1)):
            continue
        rewrite.insert(source.tokens[index].start, "__stcs(&")
        rewrite.replace(
            source.tokens[close].end, source.tokens[close + 2].start,
            f", static_cast<{pointer.pointee}>(",
        )  # fmt: skip
        rewrite.insert(source.tokens[end - 1].start, "))")
        count += 1
    return count


def parameter_of(function: Function, name: str) -> Parameter | None:
    """Return a function's parameter by name, or None."""
    return next((p for p in function.parameters if p.name == name), None)


RULES = (
    Rule("expose_block", "cuda", expose_block,
         frozenset({"parallelism", "occupancy", "memory-latency", "tail", "overhead"}), 1.15),
    Rule("coarsen", "cuda", coarsen,
         frozenset({"overhead", "integer", "issue", "compute", "memory-latency"}), 1.1),
    Rule("persistent", "cuda", persistent, frozenset({"tail", "launch", "overhead", "parallelism"}),
         1.05),
    Rule("launch_bounds", "cuda", launch_bounds,
         frozenset({"occupancy", "spills", "memory-latency", "parallelism"}), 1.05),
    Rule("unroll", "cuda", unroll,
         frozenset({"memory-latency", "issue", "compute", "integer"}), 1.1),
    Rule("read_only", "cuda", read_only,
         frozenset({"memory-latency", "memory-bandwidth", "l2", "issue"}), 1.05),
    Rule("streaming", "cuda", streaming, frozenset({"memory-bandwidth", "dram", "l2"}), 1.03),
)  # fmt: skip
