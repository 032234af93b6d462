"""Measure what the device can do at most: memory and L2 copy rates, and the cost of a launch."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from kernelsearch.targets.cuda_context import CudaContext

COPY_BYTES = 1 << 30
REPEATS = 7


def measure_ceilings(context: CudaContext) -> dict[str, float]:
    """Return ``dram_gbps`` and ``l2_gbps`` (bytes read and written) and two launch overheads.

    ``launch_us`` is what one more kernel in a graph takes, ``host_launch_us`` a plain launch with
    the wait for its end. The best of several repeats counts: a ceiling is what is possible.
    """
    with context.faults("measuring the ceilings"):
        dram = _copy_gbps(context, min(COPY_BYTES, context.total_bytes // 16), 1)
        # Half of the L2 for both buffers together: what one partition holds without evictions.
        l2 = _copy_gbps(context, context.l2_bytes // 4, 20)
        return {"dram_gbps": dram, "l2_gbps": max(l2, dram), **_launch_overheads(context)}


def _copy_gbps(context: CudaContext, nbytes: int, calls: int) -> float:
    nbytes = nbytes // 4096 * 4096
    start, to = context.allocate(nbytes), context.allocate(nbytes)
    # Zeros would be copied faster than real data (less power): any mixed pattern will do.
    context.fill_guard(start, nbytes)
    sms = context.device.facts["sm_count"]
    count = ctypes.c_uint64(nbytes // 16)
    best = 0.0
    for blocks, threads in (
        (sms * 2, 1024),
        (sms * 8, 256),
        (sms * 16, 512),
        (nbytes // 16384, 256),
    ):

        def copies(stream: object, blocks: int = blocks, threads: int = threads) -> None:
            for _ in range(calls):
                context.helper("copy", (max(1, blocks), 1), to, start, count,
                               stream=stream, threads=threads)  # fmt: skip

        best = max(best, 2e-3 * nbytes * calls / _graph_us(context, copies))
    context.free(start)
    context.free(to)
    return best


def _graph_us(context: CudaContext, fill: Callable[[object], None]) -> float:
    builder = context.handle.create_graph_builder()
    builder.begin_building()
    fill(builder)
    graph = builder.end_building().complete()
    builder.close()
    options = {"timing_enabled": True}
    first, last = context.handle.create_event(options), context.handle.create_event(options)
    times = []
    for _ in range(REPEATS):
        context.delay(30)
        context.stream.record(first)
        graph.launch(context.stream)
        context.stream.record(last)
        last.sync()
        times.append(1000.0 * float(last - first))
    graph.close()
    return min(times)


def _launch_overheads(context: CudaContext) -> dict[str, float]:
    def empty(count: int) -> Callable[[object], None]:
        def fill(stream: object) -> None:
            for _ in range(count):
                context.helper("nothing", (1, 1), stream=stream, threads=32)

        return fill

    short, long = _graph_us(context, empty(8)), _graph_us(context, empty(72))
    host = []
    for _ in range(20):
        context.sync()
        started = time.perf_counter()
        context.helper("nothing", (1, 1), threads=32)
        context.sync()
        host.append(1e6 * (time.perf_counter() - started))
    return {"launch_us": max(0.0, (long - short) / 64), "host_launch_us": sorted(host)[10]}
