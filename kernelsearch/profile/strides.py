"""How addresses grow from lane to lane, from machine code alone: coalescing and bank conflicts.

Every register is followed as ``c * threadIdx.x + uniform``, in address order, once. What cannot be
followed (indices read from memory, divisions) counts as unknown, never as good or bad.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernelsearch.profile.mix import class_of, weight, width_bytes

LANES = 32
SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
_REGISTER = re.compile(r"[-|~]*(U?R(?:\d+|Z))(?:\.\w+)*\|?\Z")
_PREDICATE = re.compile(r"[!~]*U?P(?:\d+|T)\Z")
_BRACKET = re.compile(r"\[([^\[\]]*)\]\Z")
_AND, _OR, _XOR = 0xC0, 0xFC, 0x3C


@dataclass(frozen=True, slots=True)
class _Value:
    """``lane * coefficient + uniform``; None: unknown, infinity: not zero, known at run time."""

    lane: float | None
    number: int | None = None


_UNKNOWN = _Value(None)
_UNIFORM = _Value(0.0)
Row = tuple[str, Sequence[str], str, int]


def strides(rows: Sequence[Row]) -> dict[str, float]:
    """Return what the addresses of a kernel's memory instructions say.

    Args:
        rows: (opcode, operands, guard, loop depth) of each instruction, in address order.

    Returns:
        ``global_excess``: sectors a warp touches / those its data fill; ``global_runtime_stride``:
        share of accesses whose lanes lie a run-time number of elements apart; ``shared_conflict``:
        passes a shared access takes / those its width needs; ``*_known``: share of the accesses
        that this could be told of; ``atomic_same_address``: share of atomics all of whose lanes
        meet.
    """
    state = _State()
    sums: dict[str, float] = {}

    def add(name: str, amount: float) -> None:
        sums[name] = sums.get(name, 0.0) + amount

    for opcode, operands, guard, depth in rows:
        kind = class_of(opcode, operands)
        if kind in ("global_load", "global_store", "shared_load", "shared_store", "atomic"):
            _record(kind, opcode, state.address(operands), weight(depth), add)
        state.step(opcode, operands, bool(guard))
    return _shares(sums)


def _record(kind: str, opcode: str, address: _Value, share: float, add: object) -> None:
    assert callable(add)
    space = "shared" if kind.startswith("shared") else kind if kind == "atomic" else "global"
    add(f"{space}_all", share)
    if address.lane is None or opcode.startswith(("LDSM", "STSM")):
        return
    add(f"{space}_seen", share)
    width = width_bytes(opcode)
    if space == "global":
        add("global_sum", share * sector_excess(address.lane, width))
        add("global_runtime", share * math.isinf(address.lane))
    elif space == "shared":
        add("shared_sum", share * conflict_degree(address.lane, width))
    else:
        add("atomic_same", share * (address.lane == 0))


def _shares(sums: dict[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for space in ("global", "shared", "atomic"):
        everything, seen = sums.get(f"{space}_all", 0.0), sums.get(f"{space}_seen", 0.0)
        if not everything:
            continue
        found[f"{space}_known"] = round(seen / everything, 4)
        if not seen:
            continue
        if space == "global":
            found["global_excess"] = round(sums["global_sum"] / seen, 3)
            found["global_runtime_stride"] = round(sums["global_runtime"] / seen, 4)
        elif space == "shared":
            found["shared_conflict"] = round(sums["shared_sum"] / seen, 3)
        else:
            found["atomic_same_address"] = round(sums["atomic_same"] / seen, 4)
    return found


def sector_excess(stride: float, width: int) -> float:
    """Return sectors touched by a warp / sectors its data fill, for lanes ``stride`` bytes apart.

    All lanes at one address fill what they touch.
    """
    if stride == 0:
        return 1.0
    if math.isinf(stride):
        touched = LANES * max(1, width // SECTOR_BYTES)
    else:
        firsts = [math.floor(abs(stride) * lane) for lane in range(LANES)]
        touched = len({
            sector for a in firsts
            for sector in range(a // SECTOR_BYTES, (a + width - 1) // SECTOR_BYTES + 1)
        })  # fmt: skip
    filled = max(1.0, LANES * width / SECTOR_BYTES)
    # Lanes that share elements (a stride below the width) fill fewer sectors.
    if not math.isinf(stride) and abs(stride) < width:
        filled = max(1.0, abs(stride) * LANES / SECTOR_BYTES)
    return max(1.0, touched / filled)


def conflict_degree(stride: float, width: int) -> float:
    """Return the passes of a shared access over those that its width needs."""
    if stride == 0:
        return 1.0
    if math.isinf(stride):
        return 1.0  # a run-time stride may be odd: nothing can be said
    group = LANES * BANK_BYTES // max(BANK_BYTES, width)
    words: dict[int, set[int]] = {}
    for lane in range(group):
        first = math.floor(stride * lane)
        for word in range(first // BANK_BYTES, (first + width - 1) // BANK_BYTES + 1):
            words.setdefault(word % BANKS, set()).add(word)
    return float(max(len(w) for w in words.values()))


class _State:
    """What is known of every register at one point of the code."""

    def __init__(self) -> None:
        self._registers: dict[str, _Value] = {}

    def address(self, operands: Sequence[str]) -> _Value:
        """Return the lane dependence of a memory operand's byte address."""
        for operand in operands:
            # desc[UR4][R2.64+0x10]: the last bracket is the address.
            bracket = _BRACKET.search(operand)
            if bracket is None or operand.startswith("c["):
                continue
            total = _Value(0.0, 0)
            for part in bracket[1].replace("-", "+-").split("+"):
                if part and part != "-":
                    name, _, scale = part.partition(".X")
                    value = self.read(name)
                    factor = int(scale) if scale.isdigit() else 1
                    total = _plus(total, _times(value, _Value(0.0, factor)))
            return total
        return _UNKNOWN

    def read(self, text: str) -> _Value:
        """Return the value of an operand."""
        text = text.strip()
        if text.startswith(("c[", "cx[")):
            return _UNIFORM
        match = _REGISTER.match(text)
        if match:
            if match[1] in ("RZ", "URZ"):
                return _Value(0.0, 0)
            if match[1].startswith("U"):
                return self._registers.get(match[1], _UNIFORM)
            value = self._registers.get(match[1], _UNKNOWN)
            return _times(value, _Value(0.0, -1)) if text.startswith("-") else value
        try:
            return _Value(0.0, int(text, 0))
        except ValueError:
            return _UNIFORM if text.startswith("SR_") else _UNKNOWN

    def step(self, opcode: str, operands: Sequence[str], guarded: bool) -> None:
        """Take one instruction's effect on the registers."""
        if not operands:
            return
        match = _REGISTER.match(operands[0])
        if match is None or operands[0] in ("RZ", "URZ"):
            return
        base = opcode.split(".", 1)[0]
        if base.startswith(("ST", "RED", "BAR", "BRA")) and base != "STSM":
            return
        name = match[1]
        inputs = [o for o in operands[1:] if not _PREDICATE.match(o)]
        value = self._result(opcode, inputs)
        if guarded and name in self._registers and self._registers[name] != value:
            old = self._registers[name]
            value = _Value(old.lane) if old.lane == value.lane else _UNKNOWN
        self._registers[name] = value
        for high in _more_registers(opcode, name):
            self._registers[high] = _UNKNOWN if base in _LOADS else _UNIFORM

    def _result(self, opcode: str, inputs: Sequence[str]) -> _Value:
        base = opcode.split(".", 1)[0]
        if base in ("S2R", "S2UR", "CS2R"):
            special = inputs[0] if inputs else ""
            return _Value(1.0) if special in ("SR_TID.X", "SR_LANEID") else _UNIFORM
        if base in _LOADS:
            address = self.address(inputs)
            return _UNIFORM if address.lane == 0 else _UNKNOWN
        values = [self.read(i) for i in inputs if "[" not in i or i.startswith(("c[", "cx["))]
        if base in ("LDC", "ULDC", "LDCU") or base.startswith("R2U"):
            return _UNIFORM
        if ".X" in opcode and base.lstrip("U") in ("IADD3", "LEA", "IMAD"):
            return _UNIFORM  # the high word of an address: the low one says it all
        return _arithmetic(base.lstrip("U"), opcode, inputs, values)


_LOADS = ("LDG", "LD", "LDS", "LDL", "LDSM", "SHFL", "ATOM", "ATOMG", "ATOMS")


def _more_registers(opcode: str, name: str) -> Iterator[str]:
    """Yield the further registers that a wide result takes up."""
    prefix = "UR" if name.startswith("U") else "R"
    first = int(name.removeprefix(prefix))
    wide = ".64" in opcode or ".WIDE" in opcode
    for more in range(1, 4 if ".128" in opcode else 2 if wide else 1):
        yield f"{prefix}{first + more}"


def _arithmetic(base: str, opcode: str, inputs: Sequence[str], values: list[_Value]) -> _Value:
    if base in ("MOV", "MOV32I") or (base == "IMAD" and ".MOV" in opcode):
        return values[-1] if values else _UNKNOWN
    if base in ("IADD3", "IADD", "VIADD", "IADD32I"):
        return _sum(values)
    if base == "IMAD" and len(values) >= 3:
        if ".HI" in opcode:
            return _uniform_or_unknown(values)
        return _plus(_times(values[0], values[1]), values[2])
    if base == "LEA" and len(values) >= 2:
        if ".HI" in opcode:
            return _uniform_or_unknown(values)
        shift = values[2].number if len(values) > 2 else 0
        return _plus(_times(values[0], _power(shift)), values[1])
    if base in ("SHF", "SHL", "SHR"):
        return _shifted(base, opcode, values)
    if base in ("LOP3", "LOP"):
        return _logic(inputs, values)
    if base in ("SEL", "VIMNMX", "IMNMX", "VIADDMNMX"):
        known = {v.lane for v in values if v.number is None}
        return _Value(known.pop()) if len(known) == 1 else _uniform_or_unknown(values)
    return _uniform_or_unknown(values)


def _shifted(base: str, opcode: str, values: list[_Value]) -> _Value:
    if len(values) < 2:
        return _UNKNOWN
    high = base == "SHF" and ".HI" in opcode
    source = values[2] if high and len(values) > 2 else values[0]
    amount = values[1].number
    if source.lane == 0:
        return _UNIFORM
    if amount is None or not 0 <= amount < 64:
        return _UNKNOWN
    if ".R" not in opcode and base != "SHR":
        return _times(source, _power(amount))
    if source.lane is None:
        return _UNKNOWN
    lane = source.lane / (1 << amount)
    # What is the same for the 32 lanes of a warp is uniform here.
    return _UNIFORM if abs(lane) * LANES <= 1 else _Value(lane)


def _logic(inputs: Sequence[str], values: list[_Value]) -> _Value:
    """AND with a mask keeps or removes the lane; OR and XOR with what is uniform shift nothing."""
    if not values:
        return _UNKNOWN
    varied = [v for v in values[:3] if v.lane != 0]
    if not varied:
        return _UNIFORM
    tables = [int(i, 16) for i in inputs if re.fullmatch(r"0x[0-9a-f]{1,2}", i)]
    if len(varied) > 1 or varied[0].lane is None or not tables:
        return _UNKNOWN
    table = tables[-1]
    masks = [v.number for v in values[:2] if v.number is not None]
    if table == _AND and masks:
        return _masked(varied[0], masks[0] & 0xFFFFFFFF)
    return varied[0] if table in (_AND, _OR, _XOR) else _UNKNOWN


def _masked(value: _Value, mask: int) -> _Value:
    """Keep a lane number whose five bits the mask keeps, drop one of which it keeps none."""
    lane = value.lane
    if lane is None or math.isinf(lane) or lane != int(lane):
        return _UNKNOWN
    step = abs(int(lane))
    low = (step & -step).bit_length() - 1
    bits = (LANES * step - 1) >> low << low
    if not mask & bits:
        return _UNIFORM
    return value if mask & bits == bits else _UNKNOWN


def _power(shift: int | None) -> _Value:
    return _Value(0.0, 1 << shift) if shift is not None and 0 <= shift < 64 else _UNIFORM


def _sum(values: Sequence[_Value]) -> _Value:
    total = _Value(0.0, 0)
    for value in values:
        total = _plus(total, value)
    return total


def _plus(a: _Value, b: _Value) -> _Value:
    number = a.number + b.number if a.number is not None and b.number is not None else None
    if a.lane is None or b.lane is None:
        return _UNKNOWN
    lane = a.lane + b.lane
    return _UNKNOWN if math.isnan(lane) else _Value(lane, number)


def _times(a: _Value, b: _Value) -> _Value:
    if a.lane is None or b.lane is None:
        return _UNKNOWN
    if a.lane == 0 and b.lane == 0:
        both = a.number is not None and b.number is not None
        return _Value(0.0, a.number * b.number) if both else _UNIFORM  # type: ignore[operator]
    varied, other = (a, b) if a.lane else (b, a)
    if other.lane:
        return _UNKNOWN
    if other.number is None:
        return _Value(math.inf)
    return _Value(0.0) if other.number == 0 else _Value(varied.lane * other.number)  # type: ignore[operator]


def _uniform_or_unknown(values: Sequence[_Value]) -> _Value:
    return _UNIFORM if all(v.lane == 0 for v in values) else _UNKNOWN


def chases(rows: Sequence[Row]) -> bool:
    """Tell whether a load in the deepest loop takes its address from its own last result."""
    deepest = max((r[3] for r in rows), default=0)
    if not deepest:
        return False
    body = [r for r in rows if r[3] == deepest]
    needs: dict[str, set[str]] = {}
    for _, operands, _, _ in body:
        target = _REGISTER.match(operands[0]) if operands else None
        if target:
            sources = {m for o in operands[1:] for m in re.findall(r"\bU?R\d+\b", o)}
            needs.setdefault(target[1], set()).update(sources)
    for opcode, operands, _, _ in body:
        if class_of(opcode, operands) not in ("global_load", "shared_load") or not operands:
            continue
        reached: set[str] = set()
        waiting = re.findall(r"\bR\d+\b", operands[-1])
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting.extend(needs.get(name, ()))
        if operands[0].split(".")[0] in reached:
            return True
    return False
