"""Read machine code of CUDA kernels: disassemble a cubin with ``nvdisasm`` where there is one."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from kernelsearch.loops import loop_depths
from kernelsearch.profile.mix import summary
from kernelsearch.profile.strides import chases, strides
from kernelsearch.records import Binary, KernelFacts

DEADLINE_S = 30.0
MAX_TEXT = 64 << 20
NO_TOOL = (
    "nvdisasm is not installed, so nothing is known of the machine code; "
    "pip install 'kernelsearch[cuda]' brings it"
)
_SECTION = re.compile(r"^\s*\.section\s+\.text\.([^\s,]+),")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P[T\d]+\s+)?([A-Z][\w.]*)\s*([^;]*);")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: its place, guard (``@!P0``), opcode and operands as written."""

    address: int
    guard: str
    opcode: str
    operands: tuple[str, ...]

    @property
    def base(self) -> str:
        return self.opcode.split(".", 1)[0]


@dataclass(frozen=True, slots=True)
class Listing:
    """A kernel's instructions in order, the loop depth of each, and how many loops there are."""

    instructions: tuple[Instruction, ...]
    depths: tuple[int, ...]
    loops: int


@cache
def find_nvdisasm() -> str | None:
    """Return the path of nvdisasm: from the Python package, on PATH, or in a CUDA toolkit."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        for path in sorted(folder.glob("*/bin/nvdisasm"), reverse=True):
            return str(path)
    found = shutil.which("nvdisasm")
    if found:
        return found
    toolkits = sorted(Path("/usr/local").glob("cuda*/bin/nvdisasm"), reverse=True)
    return str(toolkits[0]) if toolkits else None


def with_code(binary: Binary) -> tuple[tuple[KernelFacts, ...], str]:
    """Return a CUDA binary's facts with what its machine code shows, and why it is not known.

    The second value is empty where all went well. Takes about half a second.
    """
    tool = find_nvdisasm()
    if tool is None:
        return binary.facts, NO_TOOL
    try:
        text = disassemble(binary.image, tool)
    except (OSError, subprocess.SubprocessError) as error:
        return binary.facts, f"nvdisasm failed ({_reason(error)})"
    listings = parse(text)
    facts = []
    missing = []
    for fact in binary.facts:
        listing = listings.get(binary.symbols.get(fact.name, ""))
        if listing is None or not listing.instructions:
            missing.append(fact.name)
            facts.append(fact)
        else:
            facts.append(replace(fact, code=code_facts(listing)))
    why = f"nvdisasm shows no code of {', '.join(missing)}" if missing else ""
    return tuple(facts), why


def code_facts(listing: Listing) -> dict[str, float]:
    """Return the numbers of a kernel's machine code (see docs/diagnosis.md for their names)."""
    pairs = list(zip(listing.instructions, listing.depths, strict=True))
    found = summary([(i.opcode, i.operands, d) for i, d in pairs])
    found["loops"] = float(listing.loops)
    rows = [(i.opcode, i.operands, i.guard, d) for i, d in pairs]
    found["chase"] = float(chases(rows))
    found.update(strides(rows))
    return found


def disassemble(image: bytes, tool: str) -> str:
    """Return nvdisasm's listing of a cubin.

    Raises:
        OSError: the tool cannot be started.
        subprocess.SubprocessError: it failed, or took longer than the deadline.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        done = subprocess.run(
            [tool, "-c", file.name], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=DEADLINE_S, check=True,
        )  # fmt: skip
    return done.stdout[:MAX_TEXT].decode(errors="replace")


def parse(text: str) -> dict[str, Listing]:
    """Return the kernels of a listing by symbol. Lines that are not understood are passed over."""
    found: dict[str, Listing] = {}
    for symbol, lines in _sections(text):
        instructions: list[Instruction] = []
        labels: dict[str, int] = {}
        waiting: list[str] = []
        for line in lines:
            label = _LABEL.match(line)
            if label:
                waiting.append(label[1])
                continue
            match = _LINE.match(line)
            if match is None:
                continue
            address = int(match[1], 16)
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            operands = tuple(o.strip() for o in _split(match[4])) if match[4].strip() else ()
            instructions.append(Instruction(address, (match[2] or "").strip(), match[3], operands))
        found[symbol] = _listing(instructions, labels)
    return found


def _sections(text: str) -> Iterator[tuple[str, list[str]]]:
    symbol: str | None = None
    lines: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith(".section"):
            if symbol is not None:
                yield symbol, lines
            match = _SECTION.match(line)
            symbol, lines = (match[1], []) if match else (None, [])
        elif symbol is not None:
            lines.append(line)
    if symbol is not None:
        yield symbol, lines


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _listing(instructions: list[Instruction], labels: Mapping[str, int]) -> Listing:
    places = {one.address: number for number, one in enumerate(instructions)}
    kept = len(instructions)
    jumps = []
    ends = []
    for number, one in enumerate(instructions):
        if one.base in ("EXIT", "RET") and not one.guard:
            ends.append(number)
        if one.base not in ("BRA", "JMP"):
            continue
        target = _TARGET.search(" ".join(one.operands))
        to = places.get(labels.get(target[1], -1)) if target else None
        if to == number:
            # The trap loop that fills the end of every kernel; what follows it is padding.
            kept = min(kept, number)
        elif to is not None:
            jumps.append((number, to, bool(one.guard) or len(one.operands) > 1))
    inside = [j for j in jumps if j[0] < kept and j[1] < kept]
    depths, loops = loop_depths(kept, inside, [e for e in ends if e < kept])
    return Listing(tuple(instructions[:kept]), tuple(depths), loops)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        text = (error.stderr or b"").decode(errors="replace").strip()
        return f"exit code {error.returncode}: {text.splitlines()[-1][:200] if text else ''}"
    return str(error)[:200]
