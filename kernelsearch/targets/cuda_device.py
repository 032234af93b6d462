"""Say which CUDA device this machine has, and what is known of devices it has not.

The driver is asked in a child process with a deadline: a damaged driver may hang, and a process
without one must never load object code.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from kernelsearch.errors import MissingExtraError, SpecError, TargetUnavailableError
from kernelsearch.records import Device

PROBE_DEADLINE_S = 60.0
# Facts that launch plans may use, by the name of the driver's attribute.
ATTRIBUTES = {
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "max_shared_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "max_shared_per_sm": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "regs_per_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "max_threads_per_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "sm_count": "MULTIPROCESSOR_COUNT",
    "warp_size": "WARP_SIZE",
    "l2_bytes": "L2_CACHE_SIZE",
}
CACHE_LINE_BYTES = 128

# For compiling without a device: the largest product of each architecture that is common, from the
# vendor's architecture white papers and tuning guides. A device that is there overrides this.
_KIB, _MIB = 1 << 10, 1 << 20
_ARCHITECTURES: dict[str, tuple[str, int, int, int, int, int]] = {
    # arch: (device, shared a block, shared an SM, threads an SM, SMs, L2 bytes)
    "sm_80": ("A100", 163 * _KIB, 164 * _KIB, 2048, 108, 40 * _MIB),
    "sm_86": ("RTX 3090", 99 * _KIB, 100 * _KIB, 1536, 82, 6 * _MIB),
    "sm_89": ("RTX 4090", 99 * _KIB, 100 * _KIB, 1536, 128, 72 * _MIB),
    "sm_90a": ("H200", 227 * _KIB, 228 * _KIB, 2048, 132, 60 * _MIB),
    "sm_100a": ("B200", 227 * _KIB, 228 * _KIB, 2048, 148, 126 * _MIB),
    "sm_120a": ("RTX 5090", 99 * _KIB, 100 * _KIB, 1536, 170, 96 * _MIB),
}

# Fallback for what ``measure_ceilings`` measures. DRAM and arithmetic rates are those of the
# vendor's datasheets (dense, without sparsity). L2 rates are not published; these are rough
# guesses that only serve until somebody measures.
_DATASHEET: dict[str, dict[str, float]] = {
    "H200": {"dram_gbps": 4800, "l2_gbps": 7500, "fp32_tflops": 67, "bf16_tflops": 989,
             "tf32_tflops": 494},
    "H100": {"dram_gbps": 3350, "l2_gbps": 7500, "fp32_tflops": 67, "bf16_tflops": 989,
             "tf32_tflops": 494},
    "A100": {"dram_gbps": 2039, "l2_gbps": 5000, "fp32_tflops": 19.5, "bf16_tflops": 312,
             "tf32_tflops": 156},
    "RTX 4090": {"dram_gbps": 1008, "l2_gbps": 5000, "fp32_tflops": 82.6, "bf16_tflops": 165,
                 "tf32_tflops": 82.6},
}  # fmt: skip


def datasheet_ceilings(name: str) -> dict[str, float]:
    """Return published rates of a device by its name, or {} if it is not in our table."""
    for key, rates in _DATASHEET.items():
        if key in name:
            return dict(rates)
    return {}


def architecture_device(arch: str) -> Device:
    """Return the device record used to compile for ``arch`` where there is no such device.

    Raises:
        SpecError: the architecture is not in our table.
    """
    if arch not in _ARCHITECTURES:
        raise SpecError(
            f"arch must be one of {', '.join(_ARCHITECTURES)} (got {arch!r}); "
            "other architectures need a device on this machine"
        )
    name, block, shared, threads, count, cache = _ARCHITECTURES[arch]
    facts = {
        "max_threads_per_block": 1024, "max_shared_per_block": block, "max_shared_per_sm": shared,
        "regs_per_sm": 65536, "max_threads_per_sm": threads, "sm_count": count, "warp_size": 32,
        "l2_bytes": cache, "cache_line_bytes": CACHE_LINE_BYTES,
    }  # fmt: skip
    return Device("cuda", f"{arch} (no device; sizes of {name})", arch, facts, "none",
                  datasheet_ceilings(name))  # fmt: skip


def arch_name(major: int, minor: int) -> str:
    """Return the architecture to compile for: with family features from 9.0 on."""
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


@lru_cache(maxsize=8)
def probe_device(ordinal: int = 0, deadline_s: float = PROBE_DEADLINE_S) -> Device:
    """Ask the driver, in a child process, which device it has.

    Raises:
        MissingExtraError: the CUDA packages are not installed.
        TargetUnavailableError: no driver, no such device, or no answer within the deadline.
    """
    if not _bindings_installed():
        raise MissingExtraError("the CUDA target", "cuda", "cuda-core")
    root = str(Path(__file__).resolve().parents[2])
    code = (
        f"import sys; sys.path.insert(0, {root!r}); "
        f"from kernelsearch.targets import cuda_device; cuda_device.answer_probe({ordinal})"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=deadline_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TargetUnavailableError(
            f"the CUDA driver did not answer within {deadline_s:.0f} s; check the device with "
            "nvidia-smi, or use target='cpu'"
        ) from None
    answer = _probe_answer(done.stdout)
    if "error" in answer:
        raise TargetUnavailableError(answer["error"])
    if "name" not in answer:
        tail = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise TargetUnavailableError(
            f"asking the CUDA driver ended with exit code {done.returncode} "
            f"({tail[0] if tail else 'no message'}); use target='cpu'"
        )
    return Device("cuda", answer["name"], answer["arch"], answer["facts"], answer["driver"],
                  datasheet_ceilings(answer["name"]))  # fmt: skip


def _bindings_installed() -> bool:
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


def _probe_answer(output: bytes) -> dict[str, Any]:
    for line in reversed(output.decode(errors="replace").splitlines()):
        if line.startswith("{"):
            try:
                return dict(json.loads(line))
            except ValueError:
                continue
    return {}


def answer_probe(ordinal: int) -> None:
    """Write what the driver says as one line of JSON to standard output (child side)."""
    sys.stdout.write(json.dumps(_ask_driver(ordinal)) + "\n")
    sys.stdout.flush()


def _ask_driver(ordinal: int) -> Mapping[str, Any]:
    from cuda.bindings import driver

    looked_for = "looked for libcuda.so.1 and a device behind it"
    try:
        status = driver.cuInit(0)[0]
    except RuntimeError as error:
        return {"error": f"there is no CUDA driver on this machine ({looked_for}: {error})"}
    if int(status) != 0:
        return {"error": f"the CUDA driver cannot be initialised ({looked_for}: {status.name})"}
    count = driver.cuDeviceGetCount()[1]
    if ordinal >= count:
        return {
            "error": f"there is no CUDA device {ordinal} ({looked_for}; the driver has {count})"
        }
    handle = driver.cuDeviceGet(ordinal)[1]

    def attribute(name: str) -> int:
        kind = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(driver.cuDeviceGetAttribute(kind, handle)[1])

    facts = {fact: attribute(name) for fact, name in ATTRIBUTES.items()}
    facts["cache_line_bytes"] = CACHE_LINE_BYTES
    raw = driver.cuDeviceGetName(256, handle)[1]
    version = int(driver.cuDriverGetVersion()[1])
    return {
        "name": raw.split(b"\0")[0].decode(errors="replace"),
        "arch": arch_name(attribute("COMPUTE_CAPABILITY_MAJOR"),
                          attribute("COMPUTE_CAPABILITY_MINOR")),
        "facts": facts,
        "driver": _versions(version),
    }  # fmt: skip


def _versions(cuda: int) -> str:
    from kernelsearch.targets.cuda_compile import nvrtc_version
    from kernelsearch.targets.cuda_nvml import driver_version

    parts = [f"cuda {cuda // 1000}.{cuda % 1000 // 10}"]
    if driver_version():
        parts.append(f"driver {driver_version()}")
    if nvrtc_version():
        parts.append(f"nvrtc {nvrtc_version()}")
    return ", ".join(parts)
