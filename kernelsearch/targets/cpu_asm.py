"""Read x86 assembly that LLVM writes: what the loops of a kernel are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelsearch.loops import loop_depths

MAX_TEXT = 8 << 20
LOOP_WEIGHT = 16.0
MAX_DEPTH = 6
_FUNCTION = re.compile(r'^"?([\w.$<>]+)"?:')
_LABEL = re.compile(r"^(\.L\w+):")
_JUMP = re.compile(r"^(j\w+)\s+(\.L\w+)")
_MEMORY = re.compile(r"-?\w*\((%\w+)?(?:,(%\w+))?(?:,\d)?\)")
_VECTOR = re.compile(r"%([xyz])mm\d+")
_BYTES = {"x": 16, "y": 32, "z": 64}
# Wrappers that Numba adds for callers from Python and C, and its reference counting.
_NOT_OURS = ("_ZN7cpython", "cfunc.", "NRT_", "numba_", "printf")
_FLOATING = re.compile(
    r"^v?(add|sub|mul|div|sqrt|min|max|f(?:n?m(?:add|sub))(?:132|213|231)?|rcp14|rsqrt14)"
    r"([sp][sd])$"
)


def assembly_facts(text: str) -> dict[str, float]:
    """Return the numbers of a module's kernel code; {} if it is not x86 assembly.

    Returns:
        ``instructions``, ``loops``, ``depth``; of the deepest loops, weighted: ``w_packed`` and
        ``w_scalar`` floating-point operations, ``w_fma``, ``w_divide`` (and square roots),
        ``w_load``, ``w_store``, ``w_gather``, ``w_spill`` (stack accesses), ``w_call``,
        ``w_branch``, ``w_integer``; ``vector_bytes``: mean width of floating-point operations;
        ``fp64``: the share of them on doubles.
    """
    if len(text) > MAX_TEXT or "%r" not in text:
        return {}
    sums: dict[str, float] = {}
    count = loops = deepest = 0
    functions = {name: _depths(lines) for name, lines in _functions(text)}
    outside = _call_depths(functions)
    for name, (code, depths, found) in functions.items():
        loops += found
        count += len(code)
        for line, inside in zip(code, depths, strict=True):
            depth = outside[name] + inside
            deepest = max(deepest, depth)
            _add(sums, line, float(LOOP_WEIGHT ** min(depth, MAX_DEPTH)))
    if not count:
        return {}
    return {
        "instructions": float(count), "loops": float(loops), "depth": float(deepest),
        **_shares(sums),
    }  # fmt: skip


def _functions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield name and lines of each function that is the kernel's own."""
    current: list[str] | None = None
    name = ""
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith((".cfi", ".p2align", "#", ".loc")):
            continue
        match = None if line.startswith(".") else _FUNCTION.match(line)
        if match:
            if current:
                yield name, current
            name = match[1]
            current = None if name.startswith(_NOT_OURS) else []
        elif line.startswith((".section", ".data", ".size")):
            if current:
                yield name, current
            current = None
        elif current is not None:
            current.append(line)
    if current:
        yield name, current


def _call_depths(functions: dict[str, tuple[list[str], list[int], int]]) -> dict[str, int]:
    """Return in how many loops of its callers each function is called."""
    outside = dict.fromkeys(functions, 0)
    for _ in range(MAX_DEPTH):
        for caller, (code, depths, _) in functions.items():
            text = "\n".join(code)
            # The address is often loaded outside the loop that calls.
            calls = [d for c, d in zip(code, depths, strict=True) if c.startswith("call")]
            for name in functions:
                if name != caller and calls and f"${name}" in text:
                    depth = outside[caller] + max(calls)
                    outside[name] = min(MAX_DEPTH, max(outside[name], depth))
    return outside


def _depths(lines: list[str]) -> tuple[list[str], list[int], int]:
    """Return a function's instructions, their loop depths and the number of loops."""
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in lines:
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = len(code)
        elif not line.startswith("."):
            code.append(line)
    jumps = []
    ends = []
    for number, line in enumerate(code):
        match = _JUMP.match(line)
        to = labels.get(match[2], len(code)) if match else len(code)
        if match and to < len(code):
            jumps.append((number, to, match[1] != "jmp"))
        elif line.startswith(("ret", "jmp", "ud2")):
            ends.append(number)
    return code, *loop_depths(len(code), jumps, ends)


def _add(sums: dict[str, float], line: str, share: float) -> None:
    def add(name: str, amount: float = share) -> None:
        sums[name] = sums.get(name, 0.0) + amount

    opcode, _, rest = line.partition("\t") if "\t" in line else line.partition(" ")
    add("all")
    floating = _FLOATING.match(opcode)
    if floating:
        packed = floating[2].startswith("p")
        width = _width(rest) if packed else 8 if floating[2].endswith("d") else 4
        add("packed" if packed else "scalar")
        add("floating")
        add("width", share * width)
        add("doubles", share * floating[2].endswith("d"))
        if floating[1].startswith("f"):
            add("fma")
        if floating[1] in ("div", "sqrt"):
            add("divide")
    elif opcode.startswith("call"):
        add("call")
    elif opcode.startswith("j"):
        add("branch")
    elif not opcode.startswith("v"):
        add("integer")
    if "gather" in opcode:
        add("gather")
    memory = _MEMORY.search(rest)
    if memory and not opcode.startswith(("lea", "nop", "prefetch", "call", "j")):
        stack = memory[1] in ("%rsp", "%rbp") and memory[2] is None
        store = rest.rstrip().endswith(")") and opcode.startswith(("mov", "vmov", "vextract"))
        add("spill" if stack else "store" if store else "load")


def _width(operands: str) -> int:
    return max((_BYTES[m] for m in _VECTOR.findall(operands)), default=16)


def _shares(sums: dict[str, float]) -> dict[str, float]:
    total = sums.get("all", 0.0)
    names = ("packed", "scalar", "fma", "divide", "load", "store", "gather", "spill", "call",
             "branch", "integer")  # fmt: skip
    found = {f"w_{n}": round(sums.get(n, 0.0) / total, 5) for n in names}
    floating = sums.get("floating", 0.0)
    if floating:
        found["vector_bytes"] = round(sums["width"] / floating, 2)
        found["fp64"] = round(sums.get("doubles", 0.0) / floating, 4)
    return found
