"""Run a plan once on fresh, poisoned, guarded buffers, and report what it touched."""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

from kernelsearch.errors import ResourceLimitError
from kernelsearch.records import BufferSpec, RunReport, RunRequest, dtype_bytes
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_crowd import Crowd
from kernelsearch.targets.cuda_inputs import GUARD_BYTES, InputStore, Resident
from kernelsearch.targets.cuda_layout import Item, Layout, lay_out
from kernelsearch.targets.cuda_load import BoundCall, BoundKernel, LoadedBinary, Placed, launch

# From this size on an input is used where the store keeps it, instead of being sent again.
RESIDENT_BYTES = 16 << 20


class Block:
    """One block of device memory that grows when it must and is used again and again."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._pointer = 0
        self._nbytes = 0

    def reserve(self, nbytes: int) -> int:
        """Return the address of at least ``nbytes``; earlier contents may be gone."""
        if nbytes > self._nbytes:
            self.release()
            self._pointer = self._context.allocate(nbytes)
            self._nbytes = nbytes
        return self._pointer

    def release(self) -> None:
        if self._pointer:
            self._context.free(self._pointer)
            self._pointer, self._nbytes = 0, 0


class RunFrame:
    """The buffers of one run: where they lie, and what must still be true afterwards."""

    def __init__(
        self, context: CudaContext, store: InputStore, block: Block, request: RunRequest
    ) -> None:
        self._context, self._store, self._request = context, store, request
        self._base, self._nbytes = 0, 0
        large = [b for b in request.buffers if _stays(b)]
        small = [b for b in request.buffers if not _stays(b)]
        self._residents: dict[str, Resident] = {}
        try:
            for spec in large:
                self._residents[spec.name] = store.get(spec)
                self._residents[spec.name].pins += 1
            self._place(small, block)
        except ResourceLimitError:
            self.release()
            raise

    def _place(self, small: list[BufferSpec], block: Block) -> None:
        request = self._request
        items = [Item(b.name, b.nbytes, b.misalign) for b in small]
        spaces = {
            w.name: Placed(0, size, w.dtype, w.shape)
            for w in request.plan.workspaces
            for size in [math.prod(w.shape) * dtype_bytes(w.dtype)]
        }
        items += [Item(name, space.nbytes) for name, space in spaces.items()]
        shuffle = random.Random(secrets.randbits(64))
        self._layout: Layout = lay_out(items, GUARD_BYTES, shuffle)
        self._base, self._nbytes = block.reserve(self._layout.nbytes), self._layout.nbytes
        starts = {s.name: self._base + s.start for s in self._layout.slots}
        starts.update({n: r.pointer for n, r in self._residents.items()})
        self.placed: dict[str, Placed] = {
            b.name: Placed(starts[b.name], b.nbytes, b.dtype, b.shape) for b in request.buffers
        }
        for name, space in spaces.items():
            self.placed[name] = Placed(starts[name], space.nbytes, space.dtype, space.shape)
        self._read_only = [b.name for b in small if b.role == "in"]
        self._before: Any = None
        self._fill(small, list(spaces))

    def _fill(self, small: list[BufferSpec], spaces: list[str]) -> None:
        context, poison = self._context, self._request.poison
        context.fill_guard(self._base, self._layout.nbytes)
        for name in [b.name for b in small if b.source is None] + spaces:
            context.fill_bytes(self.placed[name].pointer, poison, self.placed[name].nbytes)
        for spec in small:
            if spec.source is not None:
                context.upload(self.placed[spec.name].pointer, spec.source)
        self._before = context.hashes(self._regions())

    def _regions(self) -> list[tuple[int, int]]:
        return [(self.placed[n].pointer, self.placed[n].nbytes) for n in self._read_only]

    def inspect(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of damaged guards and of changed inputs."""
        context = self._context
        after = context.hashes(self._regions())
        modified = {
            n for n, a, b in zip(self._read_only, self._before, after, strict=True) if a != b
        }
        gaps = list(self._layout.gaps())
        broken = context.broken([(self._base + g.start, g.nbytes) for g in gaps])
        damaged = {g.name for g, bad in zip(gaps, broken, strict=True) if bad}
        changed, outside = self._store.check(list(self._residents.values()))
        return tuple(sorted(damaged.union(outside))), tuple(sorted(modified.union(changed)))

    def release(self) -> None:
        """Let go of the inputs that the store keeps, and leave no result for the next to find."""
        if self._base and not self._context.dead:
            self._context.fill_guard(self._base, self._nbytes)
        for resident in self._residents.values():
            resident.pins -= 1
        self._residents.clear()

    def deliver(self) -> None:
        """Copy outputs to where the request wants them."""
        for spec in self._request.buffers:
            if spec.sink is not None:
                self._context.download(spec.sink, self.placed[spec.name].pointer)


class ExactFrame:
    """Every buffer in an allocation of exactly its size, for tools that watch allocations.

    Nothing is poisoned, as that would count as written; no guards: the tool is one.
    """

    def __init__(self, context: CudaContext, request: RunRequest) -> None:
        self._context, self._request = context, request
        self._blocks: list[int] = []
        self.placed: dict[str, Placed] = {}
        try:
            for spec in request.buffers:
                pointer = self._take(spec.nbytes + spec.misalign) + spec.misalign
                self.placed[spec.name] = Placed(pointer, spec.nbytes, spec.dtype, spec.shape)
                if spec.source is not None:
                    context.upload(pointer, spec.source)
            for space in request.plan.workspaces:
                size = math.prod(space.shape) * dtype_bytes(space.dtype)
                self.placed[space.name] = Placed(self._take(size), size, space.dtype, space.shape)
        except ResourceLimitError:
            self.release()
            raise

    def _take(self, nbytes: int) -> int:
        self._blocks.append(self._context.allocate(nbytes, exact=True))
        return self._blocks[-1]

    def inspect(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return nothing: see the class."""
        return (), ()

    def deliver(self) -> None:
        """Copy outputs to where the request wants them."""
        for spec in self._request.buffers:
            if spec.sink is not None:
                self._context.download(spec.sink, self.placed[spec.name].pointer)

    def release(self) -> None:
        """Free the allocations, unless they went with the context."""
        while self._blocks:
            block = self._blocks.pop()
            if not self._context.dead:
                self._context.free(block)


def _stays(spec: BufferSpec) -> bool:
    return spec.role == "in" and spec.source is not None and spec.nbytes >= RESIDENT_BYTES


def run_plan(
    context: CudaContext, loaded: LoadedBinary, request: RunRequest, store: InputStore, block: Block
) -> RunReport:
    """Run the plan once, waiting after every step so that an error names its step.

    Shared memory is poisoned before every step. ``request.bounds_checked`` gives each buffer an
    allocation of its own, which is what compute-sanitizer looks at.

    Raises:
        CheatedError: the module's own variables were written to.
        CandidateError: a launch is refused, or ends in a device error.
    """

    def work(call: BoundCall) -> float:
        started = time.perf_counter()
        for step in call:
            with context.faults(step.label):
                if isinstance(step, BoundKernel) and not request.bounds_checked:
                    context.poison_shared(request.poison)
                launch(context, (step,))
                context.sync()
        return time.perf_counter() - started

    return _run_framed(context, loaded, request, store, block, work)


def run_crowded(
    context: CudaContext, loaded: LoadedBinary, request: RunRequest, store: InputStore,
    block: Block, crowd: Crowd,
) -> RunReport:  # fmt: skip
    """Run the plan once alone, then on fresh buffers beside a crowd, which is what is reported.

    Raises:
        CandidateTimeoutError: it does not end with few multiprocessors.
        CandidateError: a launch is refused, or ends in a device error.
    """
    calm = run_plan(context, loaded, request, store, block).elapsed_s

    def work(call: BoundCall) -> float:
        started = time.perf_counter()
        crowd.run(call, request.schedule, calm)
        return time.perf_counter() - started

    return _run_framed(context, loaded, request, store, block, work)


def _run_framed(
    context: CudaContext, loaded: LoadedBinary, request: RunRequest, store: InputStore,
    block: Block, work: Callable[[BoundCall], float],
) -> RunReport:  # fmt: skip
    loaded.prepare(request.plan)
    frame: RunFrame | ExactFrame
    with context.faults("preparing the buffers"):
        if request.bounds_checked:
            frame = ExactFrame(context, request)
        else:
            frame = RunFrame(context, store, block, request)
        # What is on its way now must not be found unfinished, nor its faults laid at a step's door.
        context.sync()
    try:
        elapsed = work(loaded.bind(request.plan, frame.placed))
        with context.faults("inspecting the buffers"):
            loaded.state.check("in a verified run")
            damaged, modified = frame.inspect()
            frame.deliver()
    finally:
        frame.release()
    return RunReport(damaged, modified, elapsed)
