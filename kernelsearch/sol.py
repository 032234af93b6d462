"""Speed of light and the floor under it: what a device allows for a workload at the very best.

Speed of light is max(bytes / bandwidth, operations / rate) with measured ceilings: a target to
reach. The floor uses only what must happen (compulsory reads at peak bandwidth, operations at peak
rate) with a margin: a time below it is impossible, so whoever shows one has cheated.
"""

from __future__ import annotations

from kernelsearch.operator import Operator, Workload
from kernelsearch.records import CacheState, Device, dtype_bytes

# Datasheet peaks can be passed a little by boost clocks; a false alarm costs as much as a miss.
FLOOR_MARGIN = 0.85
# Last-level caches answer many times faster than memory; where no rate is known this is assumed.
CACHE_FACTOR = 8.0


def rate_name(dtype: str, precision: str) -> str:
    """Return the ceiling that bounds arithmetic on ``dtype`` under a precision policy."""
    if dtype in ("bfloat16", "float16"):
        return "bf16_tflops"
    if dtype == "float64":
        return "fp64_tflops"
    return "fp32_tflops" if precision == "strict" else "tf32_tflops"


def sol_us(operator: Operator, workload: Workload, dtype: str, device: Device) -> float | None:
    """Return the speed of light of a workload, microseconds (None: no ceiling is known)."""
    flops, traffic = operator.cost(workload, dtype)
    times = _times(flops, traffic, device, rate_name(dtype, operator.precision), "dram_gbps")
    return max(times) if times else None


def floor_us(
    operator: Operator, workload: Workload, dtype: str, device: Device, cache: CacheState
) -> float | None:
    """Return the time below which a result cannot be honest, microseconds (None: unknown)."""
    flops, traffic = operator.cost(workload, dtype)
    written = sum(
        _count(t.concrete_shape(workload.sizes)) * dtype_bytes(operator.tensor_dtype(t, dtype))
        for t in operator.outputs
    )
    # Writes may still lie in the cache when the clock stops; reads of cold data cannot.
    compulsory = max(0.0, traffic - written)
    fits = traffic < 2 * device.facts.get("l2_bytes", 0)
    bandwidth = "dram_gbps" if cache == "cold" and not fits else "l2_gbps"
    ceilings = dict(device.ceilings)
    if "l2_gbps" not in ceilings and "dram_gbps" in ceilings:
        ceilings["l2_gbps"] = CACHE_FACTOR * ceilings["dram_gbps"]
    peak = {k: max(v, float(device.ceilings.get("peak_" + k, 0))) for k, v in ceilings.items()}
    scaled = Device(device.target, device.name, device.arch, device.facts, device.driver, peak)
    times = _times(flops, compulsory, scaled, rate_name(dtype, operator.precision), bandwidth)
    return FLOOR_MARGIN * max(times) if times else None


def _times(flops: float, traffic: float, device: Device, rate: str, bandwidth: str) -> list[float]:
    times = []
    if device.ceilings.get(bandwidth):
        times.append(traffic / (device.ceilings[bandwidth] * 1e3))
    if device.ceilings.get(rate):
        times.append(flops / (device.ceilings[rate] * 1e6))
    return times


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count
