"""Time plans with the host's clock on inputs that rotate, contenders interleaved."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import measure
from kernelsearch.errors import CheatedError, NondeterministicError
from kernelsearch.records import BufferSpec, TimeReport, TimeRequest
from kernelsearch.targets.cpu_flush import flusher
from kernelsearch.targets.cpu_guard import last_words
from kernelsearch.targets.cpu_load import Kernel
from kernelsearch.targets.cpu_memory import GAP, Arena, copy_in, copy_out
from kernelsearch.targets.cpu_noise import Neighbours, pinned, thread_times, workers_since
from kernelsearch.targets.cpu_run import (
    Call,
    bind_step,
    describe,
    step_name,
    translated,
    workspace_specs,
)

POISON = 0xFF
MAX_COPIES = 256
MAX_BYTES = 6 << 30
# Data that can be flushed need no rotation beyond one sample: with this much, a kernel that moves
# less than 600 GB/s fills a sample of 100 us without using any of it twice.
FLUSHED_BYTES = 64 << 20
# So much of a sample's outputs is compared with those of earlier calls on the same inputs.
COMPARED_BYTES = 8 << 20


def time_plans(
    request: TimeRequest, kernels: Sequence[Mapping[str, Kernel]], cache_bytes: int
) -> TimeReport:
    """Time one or two contenders.

    Cold: no call of a sample uses the data of another one. Small data are flushed from all caches
    before the sample, where the processor can do that; otherwise the data of all copies together,
    or a sweep through other memory before the sample, push what was used before out of the
    last-level cache (``cache_bytes``). Hot: all copies together fit in half of it.

    Every call of a sample has outputs and workspaces of its own that hold nothing but poison: a
    result that is already there, or kept in a workspace, would make a call look free.

    Raises:
        CheatedError: a batch took no time.
        NondeterministicError: calls on the same inputs gave different results.
        LaunchError and others: as when run once.
    """
    settings = request.settings
    with contextlib.ExitStack() as stack:
        bench = _Bench(request, kernels, cache_bytes, stack)
        before = thread_times()
        with translated(request.contenders[0].plan.steps[0], bench.shapes):
            bench.first_touch()
        threads = workers_since(before) or [os.getpid()]
        on_own = stack.enter_context(pinned(threads))
        bench.neighbours = Neighbours(threads)
        stack.callback(bench.neighbours.close)
        last_words(f"was timing {bench.shapes}")
        enabled = gc.isenabled()
        gc.disable()
        try:
            with translated(request.contenders[0].plan.steps[0], bench.shapes):
                samples = measure.sample(
                    bench.batch, len(request.contenders), settings, request.seed, bench.max_calls,
                    bench.neighbours.clock,
                )  # fmt: skip
        finally:
            if enabled:
                gc.enable()
        others = bench.neighbours.report()
        corrupted = bench.corrupted()
        last_words("")
    medians = tuple(float(np.median(s)) for s in samples.samples_us)
    return TimeReport(
        samples_us=samples.samples_us,
        end_to_end_us=medians,
        calls_per_sample=samples.calls_per_sample,
        captured_sets=tuple(bench.captured),
        cache=settings.cache,
        corrupted_guards=corrupted,
        conditions={
            **conditions(),
            **others,
            "threads": len(threads),
            "pinned": on_own,
            "copies": len(bench.arenas),
            "emptied": bench.emptied,
            "dropped": samples.dropped,
            "disturbed": samples.disturbed or others["others"],
        },
    )


class _Bench:
    """Copies of the input sets, the calls on them, and the timer ``measure.sample`` drives."""

    def __init__(
        self,
        request: TimeRequest,
        kernels: Sequence[Mapping[str, Kernel]],
        cache_bytes: int,
        stack: contextlib.ExitStack,
    ) -> None:
        self.request = request
        self.rng = random.Random(request.seed)
        sets = request.sets
        self.shapes = describe(sets[0])
        scratch = [workspace_specs(c.plan) for c in request.contenders]
        size = max(1, sum(s.nbytes for s in sets[0]))
        held = size + sum(s.nbytes for specs in scratch for s in specs)
        cold = request.settings.cache == "cold"
        self.flush = flusher() if cold and held <= FLUSHED_BYTES else None
        wanted = 2 * cache_bytes if cold else cache_bytes // 2
        if self.flush is not None:
            wanted = min(wanted, FLUSHED_BYTES)
        fitting = math.ceil(wanted / size) if cold else wanted // held
        count = max(len(sets), min(MAX_COPIES, fitting, MAX_BYTES // held))
        self.arenas = [_arena(sets[index % len(sets)], index, stack) for index in range(count)]
        self.sweep: NDArray[np.int64] | None = None
        if cold and self.flush is None and size * count < wanted:
            self.sweep = np.zeros(wanted // 8, np.int64)
        swept = "rotation" if self.sweep is None else "sweep"
        self.emptied = "hot" if not cold else swept if self.flush is None else "flush"
        # One sample never comes back to data it has used.
        self.max_calls = count
        self.spaces = [
            [_arena(specs, index, stack) for index in range(count)] if specs else []
            for specs in scratch
        ]
        self.calls: list[list[list[Call]]] = []
        for contender, table, spaces in zip(request.contenders, kernels, self.spaces, strict=True):
            buffers = [a.arrays for a in self.arenas]
            if spaces:
                buffers = [{**b, **s.arrays} for b, s in zip(buffers, spaces, strict=True)]
            steps = contender.plan.steps
            self.calls.append([[bind_step(s, b, table) for s in steps] for b in buffers])
        # Views keep nothing alive: drop them before the memory goes.
        stack.callback(self.calls.clear)
        self.position = 0
        self.batches = 0
        self.captured: list[int] = []
        # What came out first, by input set and output.
        self.results: dict[tuple[int, str], NDArray[np.uint8]] = {}
        self.inout = [s.name for s in sets[0] if s.role == "inout"]
        self.outputs = [s.name for s in sets[0] if s.role == "out"]
        self.neighbours: Neighbours
        for who in range(len(self.calls)):
            self._spoil(who, range(count))

    def first_touch(self) -> None:
        """Run every contender once, so that lazy costs of a first call fall outside of timing."""
        for who in range(len(self.calls)):
            last_words(
                f"was running {step_name(self.request.contenders[who].plan.steps[0])} "
                f"of contender {who} with {self.shapes}"
            )
            for function, arguments in self.calls[who][0]:
                function(*arguments)
            self._spoil(who, [0])
            self._restore([0])

    def batch(self, contender: int, calls: int) -> float:
        """Time ``calls`` calls, microseconds; outputs of one of them may be kept."""
        count = len(self.arenas)
        used = [(self.position + i) % count for i in range(calls)]
        self.position = (self.position + calls) % count
        slot = self._slot() if contender == 0 else None
        table = self.calls[contender]
        work = [call for index in used for call in table[index]]
        self._empty_caches(contender, used)
        self.neighbours.begin()
        started = time.perf_counter_ns()
        for function, arguments in work:
            function(*arguments)
        elapsed = time.perf_counter_ns() - started
        self.neighbours.end()
        if elapsed <= 0:
            raise CheatedError(
                f"{calls} calls took {elapsed} ns; no kernel is that fast", {"elapsed_ns": elapsed}
            )
        if slot is not None:
            self._capture(slot, self.rng.choice(used))
        if contender == 0 and self.request.deterministic:
            self._compare(used)
        # After the call, not before the next one: that would bring the outputs into the cache.
        self._spoil(contender, used)
        self._restore(used)
        return elapsed / 1000.0

    def _empty_caches(self, contender: int, used: Sequence[int]) -> None:
        if self.sweep is not None:
            self.sweep += 1
        if self.flush is not None:
            held = [self.arenas[index] for index in used]
            if self.spaces[contender]:
                held += [self.spaces[contender][index] for index in used]
            self.flush([(a.region.address, a.region.nbytes) for a in held])

    def _slot(self) -> int | None:
        """Choose whether this batch is captured, and where: every batch is equally likely."""
        wanted = min(self.request.settings.verify_calls, len(self.request.captures))
        self.batches += 1
        if len(self.captured) < wanted:
            self.captured.append(-1)
            return len(self.captured) - 1
        slot = self.rng.randrange(self.batches)
        return slot if slot < wanted else None

    def _spoil(self, contender: int, used: Iterable[int]) -> None:
        """Leave no result of the calls that used these copies behind."""
        spaces = self.spaces[contender]
        for index in used:
            for name in self.outputs:
                self.arenas[index].raw(name).fill(POISON)
            if spaces:
                for name in spaces[index].arrays:
                    spaces[index].raw(name).fill(POISON)

    def _capture(self, slot: int, index: int) -> None:
        for spec in self.request.captures[slot]:
            if spec.sink is not None:
                copy_out(self.arenas[index].raw(spec.name), spec.sink)
        self.captured[slot] = index % len(self.request.sets)

    def _compare(self, used: Sequence[int]) -> None:
        """Compare results of these calls, as many as can be afforded, with the first ones.

        Raises:
            NondeterministicError: a call did something else than others on the same inputs.
        """
        names = [*self.outputs, *self.inout]
        size = sum(self.arenas[used[0]].raw(name).nbytes for name in names)
        affordable = COMPARED_BYTES // max(1, size)
        for index in self.rng.sample(used, min(len(used), affordable)):
            which = index % len(self.request.sets)
            for name in names:
                found = self.arenas[index].raw(name)
                first = self.results.get((which, name))
                if first is None:
                    self.results[which, name] = found.copy()
                elif not np.array_equal(first, found):
                    raise NondeterministicError(
                        f"{name} is not the same after all timed calls on the same inputs",
                        {"output": name, "input_set": which, "timed_call": self.batches},
                    )

    def _restore(self, used: Sequence[int]) -> None:
        if not self.inout:
            return
        for index in set(used):
            for spec in self.request.sets[index % len(self.request.sets)]:
                if spec.role == "inout" and spec.source is not None:
                    copy_in(spec.source, self.arenas[index].raw(spec.name))

    def corrupted(self) -> tuple[str, ...]:
        held = [*self.arenas, *(arena for spaces in self.spaces for arena in spaces)]
        return tuple(sorted(set().union(*(a.corrupted() for a in held))))


def _arena(specs: Sequence[BufferSpec], index: int, stack: contextlib.ExitStack) -> Arena:
    arena = Arena(specs, POISON, stagger=GAP * (index % 8))
    stack.callback(arena.close)
    return arena


def conditions() -> dict[str, Any]:
    """Return what else may have moved the times: load, processors, clock."""
    found: dict[str, Any] = {"cpus": os.cpu_count()}
    with contextlib.suppress(OSError):
        found["load_average"] = [round(x, 2) for x in os.getloadavg()]
    if hasattr(os, "sched_getaffinity"):
        found["affinity"] = sorted(os.sched_getaffinity(0))
    frequency = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
    with contextlib.suppress(OSError, ValueError), open(frequency, encoding="ascii") as file:
        found["mhz"] = int(file.read()) // 1000
    return found
