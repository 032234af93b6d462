"""Sort machine instructions of CUDA kernels into classes and sum them up, loops counted more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# How often a loop's body is thought to run for each run of what is around it. Only shares are made
# of this, and the deepest loop is to decide them.
LOOP_WEIGHT = 16.0
MAX_DEPTH = 4

_CLASSES: dict[str, str] = {
    "tensor": "HMMA IMMA DMMA BMMA QMMA OMMA HGMMA IGMMA QGMMA BGMMA UTCHMMA UTCQMMA UTCIMMA "
              "UTCOMMA UTCMMA",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "fp32": "FADD FMUL FFMA FADD32I FMUL32I FFMA32I FMNMX FMNMX3 FSEL FSETP FSET FCHK FSWZADD "
            "FADD2 FMUL2 FFMA2 FADD3",
    "fp16": "HADD2 HMUL2 HFMA2 HMNMX2 HSET2 HSETP2 HADD2_32I HMUL2_32I HFMA2_32I",
    "sfu": "MUFU POPC FLO BREV I2F F2I FRND F2F I2I",
    "integer": "IADD3 IADD IMAD IMUL LEA LOP3 LOP SHF SHL SHR ISETP IMNMX VIMNMX VIMNMX3 IABS "
               "ISCADD PRMT SEL SGXT BMSK IDP IDP4A VABSDIFF VABSDIFF4 XMAD IADD32I IMUL32I "
               "LOP32I PLOP3 VIADD VIADDMNMX I2FP I2IP F2FP LOP3_LUT LEPC",
    "global_load": "LDG LD LDGSTS",
    "global_store": "STG ST",
    "bulk_copy": "UBLKCP UBLKPF UTMALDG UTMASTG UTMAREDG UTMAPF",
    "shared_load": "LDS LDSM",
    "shared_store": "STS STSM",
    "local_load": "LDL",
    "local_store": "STL",
    "constant": "LDC ULDC LDCU",
    "atomic": "RED REDG ATOM ATOMG REDAS",
    "shared_atomic": "ATOMS",
    "barrier": "BAR B2R",
    "fence": "MEMBAR FENCE ERRBAR CCTL DEPBAR LDGDEPBAR ARRIVES SYNCS WARPGROUP",
    "shuffle": "SHFL VOTE VOTEU MATCH REDUX CREDUX",
    "texture": "TEX TLD TLD4 TXQ SULD SUST SUATOM SURED",
    "control": "BRA BRX JMP JMX CALL RET EXIT BSSY BSYNC BREAK YIELD WARPSYNC NANOSLEEP KILL "
               "ELECT ENDCOLLECTIVE BMOV BPT",
    "move": "MOV MOV32I S2R CS2R S2UR R2UR P2R R2P UMOV NOP ACQBULK PREEXIT UR2UP S2UR",
}  # fmt: skip
CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names.split()}
MEMORY = ("global_load", "global_store", "shared_load", "shared_store", "local_load", "local_store")

# Lanes a streaming multiprocessor serves a cycle (CUDA's table of arithmetic throughput, 9.0); a
# class of warp instructions takes 32 / lanes cycles. Memory: what the load/store unit takes in.
LANES: dict[str, float] = {
    "fp64": 64, "fp32": 128, "fp16": 256, "sfu": 16, "integer": 64, "memory": 32, "shared": 32,
    "shuffle": 32, "barrier": 16, "atomic": 8,
}  # fmt: skip
ISSUE_A_CYCLE = 4.0
_WIDTH = re.compile(r"\.(128|64|256)\b")
_NARROW = re.compile(r"\.([US])(8|16)\b")


def class_of(opcode: str, operands: Sequence[str]) -> str:
    """Return the class of one instruction."""
    base = opcode.split(".", 1)[0]
    # Ways to write a move that keep other pipes busy: no arithmetic.
    if base == "IMAD" and ".MOV" in opcode:
        return "move"
    if base in ("HFMA2", "HFMA2_32I") and [o.lstrip("-") for o in operands[1:3]] == ["RZ", "RZ"]:
        return "move"
    if base in CLASS_OF:
        return CLASS_OF[base]
    return "uniform" if base.startswith("U") else "other"


def width_bytes(opcode: str) -> int:
    """Return how many bytes a thread moves with one memory instruction."""
    wide, narrow = _WIDTH.search(opcode), _NARROW.search(opcode)
    if wide:
        return int(wide[1]) // 8
    return int(narrow[2]) // 8 if narrow else 4


def weight(depth: int) -> float:
    """Return how much an instruction counts that lies in so many loops."""
    return float(LOOP_WEIGHT ** min(depth, MAX_DEPTH))


def summary(rows: Sequence[tuple[str, Sequence[str], int]]) -> dict[str, float]:
    """Sum up (opcode, operands, loop depth) of a kernel's instructions.

    Returns:
        ``instructions``, ``depth``, ``hot_instructions`` (those in the deepest loops); ``n_*``:
        instructions of a class; ``w_*``: their weighted share; ``cycles_*``: the share of a pipe's
        weighted cycles in those of the busiest one; ``*_bytes``: mean width of memory operations;
        ``loads_in_flight``: global loads in the deepest loop that has any.
    """
    counts: dict[str, int] = {}
    weights: dict[str, float] = {}
    widths: dict[str, float] = {}
    loads: dict[int, int] = {}
    total = 0.0
    for opcode, operands, depth in rows:
        kind = class_of(opcode, operands)
        share = weight(depth)
        counts[kind] = counts.get(kind, 0) + 1
        weights[kind] = weights.get(kind, 0.0) + share
        total += share
        if kind in MEMORY:
            widths[kind] = widths.get(kind, 0.0) + share * width_bytes(opcode)
        if kind == "global_load":
            loads[depth] = loads.get(depth, 0) + 1
    deepest = max((d for _, _, d in rows), default=0)
    found = {
        "instructions": float(len(rows)),
        "depth": float(deepest),
        "hot_instructions": float(sum(d == deepest for _, _, d in rows)),
    }
    found |= {f"n_{k}": float(n) for k, n in sorted(counts.items())}
    if total:
        found |= {f"w_{k}": round(w / total, 5) for k, w in sorted(weights.items())}
    found |= {f"{k}_bytes": round(w / weights[k], 2) for k, w in sorted(widths.items())}
    if loads:
        found["loads_in_flight"] = float(loads[max(loads)])
    found |= _cycles(weights, total)
    found["async_copy"] = float(sum(r[0].startswith("LDGSTS") for r in rows)
                                + counts.get("bulk_copy", 0))  # fmt: skip
    return found


def _cycles(weights: dict[str, float], total: float) -> dict[str, float]:
    """Return each pipe's share of the busiest one's cycles, as far as the code alone says."""
    groups = {
        "fp64": ("fp64",), "fp32": ("fp32",), "fp16": ("fp16",), "sfu": ("sfu",),
        "integer": ("integer",), "shuffle": ("shuffle",), "barrier": ("barrier",),
        "atomic": ("atomic", "shared_atomic"), "shared": ("shared_load", "shared_store"),
        "memory": ("global_load", "global_store", "local_load", "local_store", "texture"),
    }  # fmt: skip
    cycles = {
        name: sum(weights.get(k, 0.0) for k in kinds) * 32.0 / LANES[name]
        for name, kinds in groups.items()
    }
    cycles["issue"] = total / ISSUE_A_CYCLE
    most = max(cycles.values(), default=0.0)
    return {f"cycles_{k}": round(c / most, 4) for k, c in cycles.items()} if most else {}


def per_cycle(facts: Mapping[str, float], dram_bytes_per_cycle: float) -> dict[str, float]:
    """Return how busy each pipe is against the busiest, device memory among them.

    ``busy_dram`` takes every global access to go to device memory: caches are not seen in code.
    """
    if not facts.get("cycles_issue"):
        return {}
    # Issue takes a quarter of a cycle for each instruction: that sets the scale of all.
    most = 1.0 / ISSUE_A_CYCLE / facts["cycles_issue"]
    moved = sum(
        facts.get(f"w_{k}", 0.0) * facts.get(f"{k}_bytes", 4.0)
        for k in ("global_load", "global_store")
    )
    dram = 32.0 * moved * facts.get("global_excess", 1.0) / dram_bytes_per_cycle
    top = max(most, dram)
    busy = {f"busy_{k.removeprefix('cycles_')}": v * most / top
            for k, v in facts.items() if k.startswith("cycles_")}  # fmt: skip
    # A pipe with conflicts takes as many passes more.
    busy["busy_shared"] = min(1.0, busy.get("busy_shared", 0.0) * facts.get("shared_conflict", 1.0))
    return {k: round(v, 4) for k, v in {**busy, "busy_dram": dram / top}.items()}
