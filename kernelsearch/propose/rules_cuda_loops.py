"""CUDA mutations of what a loop does: wide loads, split sums, shuffles, staging, reciprocals."""

from __future__ import annotations

import itertools
import re
from typing import Any

from kernelsearch.propose.draft import Change, Draft, Rule, Site
from kernelsearch.propose.rules_cuda import (
    bound_tensors,
    inserted_before,
    kernels,
    launched,
    own_step,
    threads_of,
)
from kernelsearch.propose.source import SIGNED, CudaSource, Function, Loop, Pointer, Rewrite

_BARRED = frozenset({
    "break", "continue", "return", "goto", "asm", "while", "do", "switch", "for", "__syncthreads",
    "__syncwarp", "__shared__", "static",
})  # fmt: skip
_BRANCHES = frozenset({"if", "?", "&&", "||"})
_SUM_TYPES = frozenset({"float", "double", "elem_t", "int", "long long"})
_BYTES = {"float": "4", "double": "8", "elem_t": "elem_bytes", "int": "4"}


# --- vector loads -------------------------------------------------------------------------------


def vectorise(site: Site) -> list[Change]:
    """Let each thread move VEC neighbouring elements of a contiguous loop at once."""
    changes = []
    source = site.cuda
    for function, _ in launched(site):
        pack, name = site.fresh("Packed"), site.fresh("VEC")
        pointers = source.pointers(function)
        rewrite = Rewrite(source.text)
        done = 0
        for loop in source.loops(function.open_brace, function.close_brace):
            text = _vector_loop(source, function, loop, pointers, pack, name, done)
            if text is not None:
                rewrite.replace(
                    source.tokens[source.begin(loop)].start,
                    source.tokens[loop.body[1] - 1].end,
                    text,
                )
                done += 1
        if not done:
            continue
        rewrite.insert(
            inserted_before(source, function),
            "// N neighbours that are loaded and stored by one instruction.\n"
            "template <typename T, int N>\n"
            f"struct alignas(sizeof(T) * N) {pack} {{\n    T item[N];\n}};\n\n",
        )
        draft = site.draft.copy()
        draft.body = rewrite.result()
        draft.tunables[name] = [1, 2, 4, 8]
        draft.constrain("widest", f"{name} * elem_bytes <= 16")
        draft.note(f"{name} neighbouring elements a thread where the addresses allow it")
        changes.append(Change(
            draft,
            "Loads of 16 bytes need fewer instructions and keep more bytes in flight than loads of "
            "one element; rows that are not aligned, and tails, go one by one.",
            {name: 4 if site.request.dtype in ("float32", "int32") else 2},
        ))  # fmt: skip
    return changes


def _vector_loop(
    source: CudaSource, function: Function, loop: Loop, pointers: dict[str, Pointer], pack: str,
    vec: str, number: int,
) -> str | None:  # fmt: skip
    lo, hi = source.inside(loop)
    words = set(source.words(lo, hi))
    if not loop.canonical or loop.ctype not in SIGNED or words & (_BARRED | _BRANCHES):
        return None
    if not source.in_block(source.begin(loop)):
        return None
    if source.has_conditionals(lo, hi) or not _thread_start(source, function, loop):
        return None
    written = source.written(lo, hi)
    if written is None or loop.var in written or not _fixed(source, loop, written):
        return None
    access = _accesses(source, loop, pointers)
    if access is None or not access:
        return None
    suffix = "" if number == 0 else str(number + 1)
    wide, packed, lane = f"wide{suffix}", f"packed{suffix}", f"lane_item{suffix}"
    taken = set(source.words(function.first, function.close_brace))
    if {wide, packed, lane, f"{loop.var}_pack{suffix}"} & taken:
        return None
    at: dict[int, str] = {}
    for index in range(lo, hi):
        if source.at(index) == loop.var:
            at[index] = f"({loop.var} + {lane})"
    loads, stores, addresses = [], [], []
    for name, (places, stored) in access.items():
        pointee = pointers[name].pointee
        held = f"{name}_pack{suffix}"
        if held in taken:
            return None
        kind = f"{pack}<{pointee}, {vec}>"
        for index in places:
            at |= {index: held, index + 1: ".item[", index + 2: lane}
        addresses.append(f"reinterpret_cast<unsigned long long>({name}) % sizeof({kind}) == 0")
        if stored:
            loads.append(f"{kind} {held};")
            stores.append(f"*reinterpret_cast<{kind}*>({name} + {loop.var}) = {held};")
        else:
            loads.append(
                f"const {kind} {held} = *reinterpret_cast<const {kind}*>({name} + {loop.var});"
            )
    start, bound = source.slice(*loop.start), source.slice(*loop.bound)
    inner = source.substitute(lo, hi, at)
    lead = "\n        "
    return (
        f"const bool {wide} = {' && '.join(addresses)};\n"
        f"    const {loop.ctype} {packed} = {wide} ? ({bound}) / {vec} * {vec} : 0;\n"
        f"    for ({loop.ctype} {loop.var} = ({start}) * {vec}; {loop.var} < {packed}; "
        f"{loop.var} += ({loop.step}) * {vec}) {{\n        "
        f"{lead.join(loads)}\n"
        f"#pragma unroll\n        for (int {lane} = 0; {lane} < {vec}; ++{lane}) {{\n"
        f"            {inner}\n        }}\n        {lead.join(stores)}\n    }}\n"
        f"    for ({loop.ctype} {loop.var} = {packed} + ({start}); {loop.var} < {bound}; "
        f"{loop.var} += {loop.step}) {source.slice(*loop.body)}"
    )


def _thread_start(source: CudaSource, function: Function, loop: Loop) -> bool:
    """Return whether a loop begins at a number that depends on the thread's place alone.

    Then the threads together visit 0 .. bound whatever the bound is, and whole packs instead of
    elements can be dealt out in the same way.
    """
    names = _thread_names(source, function, *loop.start)
    return names is not None and bool(names)


def _thread_names(source: CudaSource, function: Function, lo: int, hi: int) -> set[str] | None:
    found: set[str] = set()
    for name in source.names(lo, hi) - {"static_cast", "long", "int", "unsigned"}:
        if name == "threadIdx":
            found.add(name)
            continue
        if name.isupper():
            continue
        local = source.declaration(name, function.open_brace, function.close_brace)
        if local is None or _assigned(source, function, name) > 1:
            return None
        inner = _thread_names(source, function, local[1], local[2])
        if inner is None:
            return None
        found |= inner
    return found


def _assigned(source: CudaSource, function: Function, name: str) -> int:
    marks = {"=", "+=", "-=", "*=", "/=", "%=", "++", "--", ">>=", "<<=", "|=", "&=", "^="}
    return sum(
        source.at(i) == name
        and (source.at(i + 1) in marks or source.at(i - 1) in ("++", "--", "&"))
        for i in range(function.open_brace, function.close_brace)
    )


def _fixed(source: CudaSource, loop: Loop, written: set[str]) -> bool:
    """Return whether neither bound nor step changes while the loop runs."""
    used = source.names(*loop.bound) | set(re.findall(r"[A-Za-z_]\w*", loop.step))
    return not used & (written | {loop.var})


def _accesses(
    source: CudaSource, loop: Loop, pointers: dict[str, Pointer]
) -> dict[str, tuple[list[int], bool]] | None:
    """Return, by array, where the body has ``array[var]`` and whether it stores there.

    None if an array is used in any other way, is both read and written, or is written more than
    once: moving its elements in packs might then change what the loop computes.
    """
    lo, hi = source.inside(loop)
    found: dict[str, tuple[list[int], bool]] = {}
    written: set[str] = set()
    for index in range(lo, hi):
        name = source.at(index)
        if name not in pointers or source.at(index - 1) in (".", "->"):
            continue
        plain = source.words(index + 1, index + 4) == ["[", loop.var, "]"]
        if not plain or source.at(index - 1) in ("&", "*", "++", "--"):
            if source.at(index - 1) == "*" and plain and _binary(source, index - 1):
                pass
            else:
                return None
        if pointers[name].pointee not in _SUM_TYPES or not pointers[name].root:
            return None
        stored = source.at(index + 4) == "="
        if stored:
            if name in found or source.at(index - 1) not in (";", "{", "}", ")"):
                return None
            written.add(pointers[name].root)
        elif source.at(index + 4) in ("+=", "-=", "*=", "/=", "++", "--") or (
            name in found and found[name][1]
        ):
            return None
        found.setdefault(name, ([], stored))[0].append(index)
    roots = {pointers[n].root for n, (_, stored) in found.items() if not stored}
    return None if roots & written else found


def _binary(source: CudaSource, star: int) -> bool:
    """Return whether a ``*`` multiplies (something ends right before it)."""
    before = source.tokens[star - 1]
    return (before.kind in ("name", "number") and before.text != "return") or before.text in ")]"


# --- reductions ---------------------------------------------------------------------------------


def split_accumulator(site: Site) -> list[Change]:
    """Sum into several independent accumulators, so that one addition need not wait for another."""
    changes = []
    source = site.cuda
    for function, _ in launched(site):
        for number, loop in enumerate(source.loops(function.open_brace, function.close_brace)):
            name = site.fresh("PARTS")
            text = _split_loop(source, function, loop, name, number)
            if text is None:
                continue
            rewrite = Rewrite(source.text)
            start = source.tokens[source.begin(loop)].start
            rewrite.replace(start, source.tokens[loop.body[1] - 1].end, text)
            draft = site.draft.copy()
            draft.body = rewrite.result()
            draft.tunables[name] = [1, 2, 4, 8]
            draft.note(f"{name} accumulators in the loop over {loop.var}")
            changes.append(Change(
                draft,
                f"Every pass of the loop over {loop.var} waits for the addition before it; "
                "independent accumulators and loads overlap instead.",
                {name: 4},
            ))  # fmt: skip
    return changes


def _split_loop(
    source: CudaSource, function: Function, loop: Loop, parts: str, number: int
) -> str | None:
    lo, hi = source.inside(loop)
    words = set(source.words(lo, hi))
    if not loop.canonical or loop.ctype not in SIGNED or words & _BARRED:
        return None
    if not source.in_block(source.begin(loop)):
        return None
    if source.has_conditionals(lo, hi) or any(w.startswith("__shfl") for w in words):
        return None
    if source.uses(_called(source, lo, hi), ("__syncthreads", "__shared__", "asm")):
        return None
    written = source.written(lo, hi)
    if written is None:
        return None
    outer = written - source.declared(lo, hi)
    if len(outer) != 1 or not _fixed(source, loop, written):
        return None
    total = next(iter(outer))
    kind = _reduction(source, lo, hi, total)
    local = source.declaration(total, function.open_brace, loop.at)
    if kind is None or local is None or local[0] not in _SUM_TYPES:
        return None
    first, bound = source.slice(*loop.start), source.slice(*loop.bound)
    suffix = "" if number == 0 else str(number + 1)
    base, part, index = f"{loop.var}_base{suffix}", f"part{suffix}", f"part_index{suffix}"
    if {base, part, index} & set(source.words(function.first, function.close_brace)):
        return None
    ctype, var = local[0], loop.var
    body = source.slice(*loop.body)
    # Unsigned sizes would turn the loop's end, a difference, into a huge number.
    step, end = f"static_cast<{loop.ctype}>({loop.step})", f"static_cast<{loop.ctype}>({bound})"
    start_value = f"static_cast<{local[0]}>(0)" if kind == "+=" else total
    join = (
        f"{total} += {part}[{index}];"
        if kind == "+="
        else (f"{total} = {kind}({total}, {part}[{index}]);")
    )
    each = f"#pragma unroll\n    for (int {index} = 0; {index} < {parts}; ++{index})"
    return (
        f"{ctype} {part}[{parts}];\n{each} {part}[{index}] = {start_value};\n"
        f"    {loop.ctype} {base} = {first};\n"
        f"    for (; {base} < {end} - ({parts} - 1) * {step}; {base} += {parts} * {step}) {{\n"
        f"    {each} {{\n"
        f"            const {loop.ctype} {var} = {base} + {index} * {step};\n"
        f"            {ctype}& {total} = {part}[{index}];\n"
        f"            {body}\n        }}\n    }}\n"
        f"    for ({loop.ctype} {var} = {base}; {var} < {bound}; {var} += {loop.step}) {body}\n"
        f"{each} {join}"
    )


def _called(source: CudaSource, lo: int, hi: int) -> list[Function]:
    names = set(source.words(lo, hi))
    direct = [f for f in source.functions if f.kernel < 0 and f.name in names]
    return [g for f in direct for g in source.reachable(f)]


def _reduction(source: CudaSource, lo: int, hi: int, total: str) -> str | None:
    """Return ``+=`` or the name of a maximum if ``total`` is only ever reduced into."""
    places = [i for i in range(lo, hi) if source.at(i) == total]
    if len(places) == 1 and source.at(places[0] + 1) == "+=":
        return "+="
    if len(places) == 2:
        for function in ("fmaxf", "fmax", "max", "fminf", "fmin", "min"):
            if source.match(places[0], f"{total} = {function} ( {total} ,"):
                return function if places[1] == places[0] + 4 else None
        # fmaf(a, b, sum): a sum whose product is not rounded.
        start = source.match(places[0], f"{total} = fmaf (")
        if start is not None:
            close = source.pair[start[1] - 1]
            if places[1] == close - 1 and source.at(close - 2) == ",":
                return "+="
    return None


_TREE = (
    "$array [ $thread? ] = $value* ; __syncthreads ( ) ; for ( $type $half = $whole* ; $half > 0 ;"
)
_TREE_TYPES = ("$type", "unsigned int")
_TREE_STEPS = ("$half /= 2 )", "$half >>= 1 )")
_TREE_BODIES = (
    "{ if ( $thread? < $half ) $array [ $thread? ] += $array [ $thread? + $half ] ; "
    "__syncthreads ( ) ; }",
    "{ if ( $thread? < $half ) { $array [ $thread? ] += $array [ $thread? + $half ] ; } "
    "__syncthreads ( ) ; }",
    "{ if ( $thread? < $half ) $array [ $thread? ] = $combine ( $array [ $thread? ] , "
    "$array [ $thread? + $half ] ) ; __syncthreads ( ) ; }",
    "{ if ( $thread? < $half ) { $array [ $thread? ] = $combine ( $array [ $thread? ] , "
    "$array [ $thread? + $half ] ) ; } __syncthreads ( ) ; }",
)


def warp_shuffle(site: Site) -> list[Change]:
    """Replace a reduction tree in shared memory by warp shuffles and one value a warp."""
    changes = []
    source = site.cuda
    for function, step in kernels(site):
        if sum(str(b) != "1" for b in step["block"]) != 1:
            continue
        rewrite = Rewrite(source.text)
        trees: list[tuple[int, int, str]] = []
        for index in range(function.open_brace, function.close_brace):
            tree = _tree(source, index)
            if tree is None:
                continue
            bound, end = tree
            text = _shuffled(source, function, bound, len(trees))
            if text is not None:
                trees.append((index, end, bound["array"]))
                rewrite.replace(source.tokens[index].start, source.tokens[end - 1].end, text)
        if not trees or not _only_first_is_read(source, function, trees):
            continue
        draft = site.draft.copy()
        draft.body = rewrite.result()
        threads = threads_of(step)
        draft.constrain("whole_warps", f"({threads}) % 32 == 0")
        draft.note("reductions by warp shuffles")
        changes.append(Change(
            draft,
            "A tree in shared memory has a barrier for every halving; shuffles need two barriers "
            "in all, and a 32nd of the shared memory traffic.",
        ))  # fmt: skip
    return changes


def _tree(source: CudaSource, index: int) -> tuple[dict[str, str], int] | None:
    if source.at(index + 1) != "[" or not source.in_block(index):
        return None
    for step, body, kind in itertools.product(_TREE_STEPS, _TREE_BODIES, _TREE_TYPES):
        found = source.match(index, f"{_TREE} {step} {body}".replace("$type", kind))
        if found is not None:
            return found
    return None


def _shuffled(
    source: CudaSource, function: Function, bound: dict[str, str], number: int
) -> str | None:
    thread = bound["thread"].replace(" ", "")
    if thread != "threadIdx.x":
        local = source.declaration(thread, function.open_brace, function.close_brace)
        if local is None or source.words(local[1], local[2]) != ["threadIdx", ".", "x"]:
            return None
    whole = re.fullmatch(r"(.+?) (?:/ 2|>> 1)", bound["whole"])
    if whole is None:
        return None
    threads = whole[1].replace(" . ", ".")
    combine = bound.get("combine")
    if combine not in (None, "fmaxf", "fminf", "fmax", "fmin", "max", "min"):
        return None
    ctype = _array_type(source, function, bound["array"])
    if ctype not in ("float", "double", "int"):
        return None
    array, suffix = bound["array"], "" if number == 0 else str(number + 1)
    value, offset, warps = f"warp_value{suffix}", f"offset{suffix}", f"warps{suffix}"
    if {value, offset, warps} & set(source.words(function.first, function.close_brace)):
        return None
    shuffle = f"__shfl_xor_sync(0xffffffffu, {value}, {offset})"
    update = (
        f"{value} += {shuffle};"
        if combine is None
        else (f"{value} = {combine}({value}, {shuffle});")
    )
    # For a maximum any value that is in the result anyway can stand for the missing ones.
    rest = "0" if combine is None else f"{array}[0]"
    each = f"for (int {offset} = 16; {offset} > 0; {offset} /= 2) {update}"
    return (
        f"{ctype} {value} = {bound['value']};\n"
        f"#pragma unroll\n    {each}\n"
        f"    if ({thread} % 32 == 0) {array}[{thread} / 32] = {value};\n"
        f"    __syncthreads();\n"
        f"    if ({thread} < 32) {{\n"
        f"        const int {warps} = ({threads}) / 32;\n"
        f"        {value} = {thread} < {warps} ? {array}[{thread}] : {rest};\n"
        f"#pragma unroll\n        {each}\n"
        f"        if ({thread} == 0) {array}[0] = {value};\n"
        f"    }}\n"
        f"    __syncthreads();"
    )


def _array_type(source: CudaSource, function: Function, array: str) -> str | None:
    for index in range(function.open_brace, function.close_brace):
        if source.at(index) == "__shared__" and source.match(index, f"__shared__ $type {array} ["):
            return source.at(index + 1)
    return None


def _only_first_is_read(
    source: CudaSource, function: Function, trees: list[tuple[int, int, str]]
) -> bool:
    """Return whether outside the trees only element 0 is read, where the result lies."""
    for array in {a for _, _, a in trees}:
        for index in range(function.open_brace, function.close_brace):
            if source.at(index) != array or any(lo <= index < hi for lo, hi, _ in trees):
                continue
            declared = "__shared__" in source.words(index - 2, index)
            if not declared and source.words(index + 1, index + 4) != ["[", "0", "]"]:
                return False
            if source.at(index + 4) in ("=", "+=") and not declared:
                return False
    return True


# --- reuse --------------------------------------------------------------------------------------


def stage_row(site: Site) -> list[Change]:
    """Keep a row that several loops read in shared memory after its first read."""
    changes = []
    source = site.cuda
    for function, step in kernels(site):
        if step.get("shared") or step.get("cluster") or "extern" in source.identifiers():
            continue
        bound = bound_tensors(function, step)
        for pointer in source.pointers(function).values():
            tensor = site.tensor(bound.get(pointer.root, ""))
            if tensor is None or tensor.role != "in" or pointer.name == pointer.root:
                continue
            change = _stage(site, function, step, pointer)
            if change is not None:
                changes.append(change)
    return changes


def _stage(site: Site, function: Function, step: dict[str, Any], pointer: Pointer) -> Change | None:
    source = site.cuda
    loops = _row_loops(source, function, pointer)
    reserve = _static_shared(site.draft, source, function)
    if loops is None or reserve is None or pointer.pointee not in _BYTES:
        return None
    first = loops[0]
    length = _plan_length(function, step, source.slice(*first.bound))
    if length is None:
        return None
    held, raw = site.fresh("staged"), site.fresh("staged_bytes")
    rewrite = Rewrite(source.text)
    at = source.tokens[source.begin(first)].start
    loop_head = source.text[source.tokens[first.at].start : source.tokens[first.close_paren].end]
    var, kind = first.var, pointer.pointee
    rewrite.insert(at, (
        f"extern __shared__ __align__(16) unsigned char {raw}[];\n"
        f"    {kind}* const {held} = reinterpret_cast<{kind}*>({raw});\n"
        f"    // Every thread reads back only what it wrote itself, so this needs no barrier.\n"
        f"    {loop_head} {held}[{var}] = {pointer.name}[{var}];\n    "
    ))  # fmt: skip
    for loop in loops:
        for index in range(*loop.body):
            if source.at(index) == pointer.name:
                rewrite.replace(source.tokens[index].start, source.tokens[index].end, held)
    draft = site.draft.copy()
    draft.body = rewrite.result()
    size = f"({length}) * {_BYTES[kind]}"
    own_step(draft, step)["shared"] = size
    draft.restrict("row_fits_shared", f"{size} + {reserve} <= max_shared_per_block")
    draft.note(f"{pointer.name} staged in shared memory")
    return Change(
        draft,
        f"{len(loops)} loops read the same row; from shared memory only the first costs memory "
        "bandwidth.",
    )


def _row_loops(source: CudaSource, function: Function, pointer: Pointer) -> list[Loop] | None:
    """Return the equal top-level loops that hold every use of the row, if there are two or more."""
    inside = list(source.level(function.open_brace + 1, function.close_brace))
    loops = [
        loop
        for loop in source.loops(function.open_brace, function.close_brace)
        if loop.at in inside and pointer.name in source.words(*loop.body)
    ]
    if len(loops) < 2 or not all(x.canonical for x in loops):
        return None
    heads = {
        (x.ctype, x.var, source.slice(*x.start), source.slice(*x.bound), x.step) for x in loops
    }
    if not source.in_block(source.begin(loops[0])):
        return None
    if len(heads) != 1 or not _thread_start(source, function, loops[0]):
        return None
    fixed = source.names(*loops[0].bound) | set(re.findall(r"[A-Za-z_]\w*", loops[0].step))
    if any(_assigned(source, function, n) > 1 for n in fixed):
        return None
    uses = [
        i
        for i in range(function.open_brace, function.close_brace)
        if source.at(i) == pointer.name and i != pointer.declared
    ]
    var = loops[0].var
    for index in uses:
        in_loop = any(x.body[0] <= index < x.body[1] for x in loops)
        if not in_loop or source.words(index + 1, index + 4) != ["[", var, "]"]:
            return None
        if source.at(index - 1) == "&" or source.at(index + 4) in ("=", "+="):
            return None
    # A return before the loops leaves the others alone: nothing here waits for them.
    return loops


def _plan_length(function: Function, step: dict[str, Any], bound: str) -> str | None:
    """Return the plan expression that the kernel receives as the loop's bound."""
    for parameter, arg in zip(function.parameters, step["args"], strict=True):
        if parameter.name == bound and ":" in arg:
            return str(arg).rpartition(":")[0]
    return None


def _static_shared(draft: Draft, source: CudaSource, function: Function) -> str | None:
    """Return an expression for the bytes of static shared memory; None if that is unclear."""
    if source.uses(source.reachable(function)[1:], ("__shared__",)):
        return None
    parts = []
    for index in range(function.open_brace, function.close_brace):
        if source.at(index) != "__shared__":
            continue
        found = source.match(index, "__shared__ $type $name [ $size* ] ;")
        if found is None or found[0]["type"] not in _BYTES:
            return None
        size = found[0]["size"].replace("/", "//")
        names = set(re.findall(r"[A-Za-z_]\w*", size))
        if not names <= set(draft.tunables) or not re.fullmatch(r"[\w\s*+/()-]+", size):
            return None
        parts.append(f"({size}) * {_BYTES[found[0]['type']]}")
    return " + ".join(parts) or "0"


def hoist_reciprocal(site: Site) -> list[Change]:
    """Multiply by a reciprocal taken once instead of dividing in every pass of a loop."""
    changes = []
    source = site.cuda
    for function, _ in launched(site):
        for loop in source.loops(function.open_brace, function.close_brace):
            lo, hi = source.inside(loop)
            written = source.written(lo, hi)
            if written is None or not source.in_block(source.begin(loop)):
                continue
            places = [i for i in range(lo, hi) if source.at(i) == "/"]
            for name in sorted({source.at(i + 1) for i in places}):
                mine = [i for i in places if source.at(i + 1) == name]
                local = source.declaration(name, function.open_brace, loop.at)
                barred = any(source.at(i + 2) in ("[", "(", ".", "->", "::") for i in mine)
                if local is None or local[0] != "float" or name in written or barred:
                    continue
                changes.append(_reciprocal(site, loop, name, mine))
    return changes


def _reciprocal(site: Site, loop: Loop, name: str, places: list[int]) -> Change:
    source = site.cuda
    inverse = site.fresh(f"inverse_{name}")
    rewrite = Rewrite(source.text)
    rewrite.insert(
        source.tokens[source.begin(loop)].start, f"const float {inverse} = 1.0f / {name};\n    "
    )
    for index in places:
        rewrite.replace(source.tokens[index].start, source.tokens[index + 1].end, f"* {inverse}")
    draft = site.draft.copy()
    draft.body = rewrite.result()
    draft.note(f"one reciprocal of {name} instead of divisions")
    return Change(
        draft,
        f"{name} does not change in the loop over {loop.var or 'its items'}: one division, then "
        "multiplications, at the price of one more rounding.",
    )


def fast_intrinsics(site: Site) -> list[Change]:
    """Use the hardware's approximate functions, only where the operator's precision allows it."""
    if site.operator.precision != "fast":
        return []
    source = site.cuda
    fast = {"expf": "__expf", "logf": "__logf", "sinf": "__sinf", "cosf": "__cosf",
            "powf": "__powf", "tanf": "__tanf"}  # fmt: skip
    places = [
        i for i, t in enumerate(source.tokens)
        if t.text in fast and source.at(i + 1) == "(" and source.at(i - 1) not in (".", "->", "::")
    ]  # fmt: skip
    if not places or not source.balanced:
        return []
    rewrite = Rewrite(source.text)
    for index in places:
        token = source.tokens[index]
        rewrite.replace(token.start, token.end, fast[token.text])
    draft = site.draft.copy()
    draft.body = rewrite.result()
    draft.meta.setdefault("requires", {})["precision"] = "fast"
    draft.note("approximate functions of the hardware")
    return [Change(draft, "The special function unit gives these in one instruction each.")]


RULES = (
    Rule("vectorise", "cuda", vectorise,
         frozenset({"memory-bandwidth", "dram", "l2", "memory-latency", "issue", "uncoalesced"}),
         1.2),
    Rule("split_accumulator", "cuda", split_accumulator,
         frozenset({"memory-latency", "compute", "fp32", "fp64", "issue"}), 1.1),
    Rule("warp_shuffle", "cuda", warp_shuffle,
         frozenset({"barrier", "shared", "bank-conflicts", "memory-latency", "overhead"}), 1.15),
    Rule("stage_row", "cuda", stage_row, frozenset({"memory-bandwidth", "dram", "l2"}), 1.2),
    Rule("hoist_reciprocal", "cuda", hoist_reciprocal,
         frozenset({"compute", "fp32", "issue", "sfu"}), 1.05),
    Rule("fast_intrinsics", "cuda", fast_intrinsics, frozenset({"compute", "sfu"}), 1.1),
)  # fmt: skip
