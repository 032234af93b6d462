"""Run a plan once on fresh, poisoned, guarded buffers, and report what it touched."""

from __future__ import annotations

import math
import random
import secrets
import time
from typing import Any

from kernelsearch.errors import ResourceLimitError
from kernelsearch.records import BufferSpec, RunReport, RunRequest, dtype_bytes
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_inputs import GUARD_BYTES, InputStore, Resident
from kernelsearch.targets.cuda_layout import Item, Layout, lay_out
from kernelsearch.targets.cuda_load import LoadedBinary, Placed, launch

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
        self._base = block.reserve(self._layout.nbytes)
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
        """Let go of the inputs that the store keeps."""
        for resident in self._residents.values():
            resident.pins -= 1
        self._residents.clear()

    def deliver(self) -> None:
        """Copy outputs to where the request wants them."""
        for spec in self._request.buffers:
            if spec.sink is not None:
                self._context.download(spec.sink, self.placed[spec.name].pointer)


def _stays(spec: BufferSpec) -> bool:
    return spec.role == "in" and spec.source is not None and spec.nbytes >= RESIDENT_BYTES


def run_plan(
    context: CudaContext, loaded: LoadedBinary, request: RunRequest, store: InputStore, block: Block
) -> RunReport:
    """Run the plan once, waiting after every step so that an error names its step.

    ``request.bounds_checked`` means nothing here: guards and the sanitizer do that work on CUDA.

    Raises:
        CandidateError: a launch is refused, or ends in a device error.
    """
    loaded.prepare(request.plan)
    with context.faults("preparing the buffers"):
        frame = RunFrame(context, store, block, request)
    try:
        call = loaded.bind(request.plan, frame.placed)
        started = time.perf_counter()
        for step in call:
            with context.faults(step.label):
                launch(context, (step,))
                context.sync()
        elapsed = time.perf_counter() - started
        with context.faults("inspecting the buffers"):
            damaged, modified = frame.inspect()
            frame.deliver()
    finally:
        frame.release()
    return RunReport(damaged, modified, elapsed)
