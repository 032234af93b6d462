"""What is known about this machine's processors, and how fast they are measured to be."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import time
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kernelsearch.records import Device

_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_CGROUP = Path("/sys/fs/cgroup")


@lru_cache(maxsize=1)
def cpu_device() -> Device:
    """Return the device of this process: affinity and container limits count."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return Device(
        target="cpu",
        name=_processor_name(),
        arch=llvm.get_host_cpu_name(),
        facts={
            "cores": usable_cores(),
            "l2_bytes": last_level_cache_bytes(),
            "simd_bytes": _simd_bytes(features),
            "cache_line_bytes": _line_bytes(),
        },
        driver=f"numba {version('numba')} llvm {'.'.join(map(str, llvm.llvm_version_info))}",
    )


def usable_cores() -> int:
    """Return how many processors this process may keep busy, at least one."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    quota = _quota()
    return max(1, min(count, math.ceil(quota) if quota is not None else count))


def _quota() -> float | None:
    """Return the container's processor quota, None where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        own = Path("/proc/self/cgroup").read_text(encoding="ascii").rpartition("::")[2].strip()
        for folder in (_CGROUP / own.lstrip("/"), _CGROUP):
            file = folder / "cpu.max"
            if file.is_file():
                limit, period = file.read_text(encoding="ascii").split()
                if limit != "max":
                    return float(limit) / float(period)
    with contextlib.suppress(OSError, ValueError):
        limit = (_CGROUP / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii")
        period = (_CGROUP / "cpu/cpu.cfs_period_us").read_text(encoding="ascii")
        if int(limit) > 0:
            return int(limit) / int(period)
    return None


def last_level_cache_bytes() -> int:
    """Return the size of the largest cache level (8 MiB where it cannot be read)."""
    best = (0, 0)
    for folder in _CPU.glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            level = int((folder / "level").read_text(encoding="ascii"))
            text = (folder / "size").read_text(encoding="ascii").strip()
            unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1], 1)
            best = max(best, (level, int(text.rstrip("KMG")) * unit))
    return best[1] or 8 << 20


def _line_bytes() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int((_CPU / "index0/coherency_line_size").read_text(encoding="ascii"))
    return 64


def _simd_bytes(features: Any) -> int:
    if features.get("avx512f"):
        return 64
    return 32 if features.get("avx") else 16


def _processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "cpu"


def measure_ceilings() -> dict[str, float]:
    """Measure bandwidth and arithmetic rate with all cores.

    ``dram_gbps`` and ``l2_gbps`` are copies (bytes read plus written) beyond and within the
    last-level cache; the ``peak_`` values lie above anything that this machine can do.
    """
    import numba
    import numpy as np
    from numba import prange

    cores = usable_cores()
    numba.set_num_threads(min(cores, numba.get_num_threads()))
    serial = numba.njit(fastmath=True)
    parallel = numba.njit(parallel=True)

    @serial  # type: ignore[untyped-decorator]
    def copy_part(out: Any, source: Any, repeats: int) -> None:
        for _ in range(repeats):
            for i in range(out.shape[0]):
                out[i] = source[i]

    @serial  # type: ignore[untyped-decorator]
    def read_part(out: Any, source: Any, repeats: int) -> None:
        total = source[0] - source[0]
        for k in range(repeats):
            for i in range(source.shape[0]):
                total += source[i] * k
        out[0] = total

    def multiply_part(width: int) -> Any:
        @serial  # type: ignore[untyped-decorator]
        def part(out: Any, source: Any, repeats: int) -> None:
            factor = source[0]
            for _ in range(repeats):
                for i in range(width):
                    out[i] = out[i] * factor + factor

        return part

    def spread(part: Any) -> Callable[..., None]:
        @parallel  # type: ignore[untyped-decorator]
        def run(out: Any, source: Any, repeats: int) -> None:
            for index in prange(out.shape[0]):
                part(out[index], source[index], repeats)

        function: Callable[..., None] = run
        return function

    copy, read = spread(copy_part), spread(read_part)
    cache = last_level_cache_bytes()
    # The cached case keeps well inside: what the system reports may be shared with others.
    sizes = {"dram": max(128 << 20, 4 * cache), "l2": max(64 << 10, min(cache // 8, 2 << 20))}
    ceilings: dict[str, float] = {}
    for name, nbytes in sizes.items():
        source = np.ones((cores, nbytes // (16 * cores)), np.float64)
        out = np.zeros_like(source)
        repeats = max(1, (64 << 20) // nbytes)
        traffic = source.nbytes * repeats / 1e9
        copied = 2 * traffic / _best(copy, out, source, repeats)
        ceilings[f"{name}_gbps"] = copied
        peak = max(copied, traffic / _best(read, out, source, repeats))
        # Small data sit in caches nearer to the core, several times faster.
        ceilings[f"peak_{name}_gbps"] = (1.5 if name == "dram" else 4.0) * peak
    repeats = 2_000_000  # milliseconds: well above the cost of waking the threads
    # Twelve vectors of 32 bytes: enough independent chains to hide the latency of one, few enough
    # to stay in registers.
    width = 96
    factors = np.full((cores, 1024), 0.5, np.float32)
    seconds = _best(spread(multiply_part(width)), np.zeros_like(factors), factors, repeats)
    ceilings["fp32_tflops"] = 2 * cores * width * repeats / seconds / 1e12
    # A vector register holds half as many doubles. (The same loop on them is no measurement: LLVM
    # unrolls it in a way that spills.)
    ceilings["fp64_tflops"] = ceilings["fp32_tflops"] / 2
    for name in ("fp32_tflops", "fp64_tflops"):
        ceilings[f"peak_{name}"] = 1.5 * ceilings[name]
    for name, bound in _unreachable(cores).items():
        ceilings[name] = max(ceilings[name], bound)
    return ceilings


def _unreachable(cores: int) -> dict[str, float]:
    """Return rates no processor of this kind reaches, however busy it is while it is measured.

    A floor must never lie above what an honest kernel can do: two fused multiply-adds a cycle on
    the widest vectors at 6 GHz, 60 GB/s a core from memory, one vector load and store a cycle from
    cache.
    """
    vector = cpu_device().facts["simd_bytes"]
    vectors_per_s = 6e9 * cores
    return {
        "peak_dram_gbps": 60.0 * cores,
        "peak_l2_gbps": 2 * vector * vectors_per_s / 1e9,
        "peak_fp32_tflops": 4 * (vector // 4) * vectors_per_s / 1e12,
        "peak_fp64_tflops": 4 * (vector // 8) * vectors_per_s / 1e12,
    }


def _best(function: Callable[..., None], *arguments: Any) -> float:
    function(*arguments)
    best = math.inf
    for _ in range(9):
        started = time.perf_counter()
        function(*arguments)
        best = min(best, time.perf_counter() - started)
    return best
