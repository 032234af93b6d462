"""Small kernels, and the requests to run and time them, for the CUDA tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernelsearch.records import (
    Binary,
    BufferSpec,
    CompileJob,
    Contender,
    KernelStep,
    LaunchPlan,
    RunReport,
    RunRequest,
    ScalarArg,
    TimeReport,
    TimeRequest,
    TimingSettings,
)
from kernelsearch.shm import SharedBlock, numpy_dtype
from kernelsearch.targets.cuda import CudaExecutable, CudaTarget

PAGE = 4096
SCALE = """
__global__ void scale(elem_t* y, const elem_t* x, long long n, float f) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n;
         i += (long long)gridDim.x * blockDim.x) y[i] = (elem_t)((float)x[i] * f);
}
"""


def job(source: str, *kernels: str, arch: str = "sm_90a", **defines: int) -> CompileJob:
    options = (("defines", tuple(sorted(defines.items()))), ("dtype", "float32"))
    return CompileJob("cuda", source, kernels, arch, "test.cu", options)


class Bench:
    """A target and its executable, with requests built from NumPy arrays."""

    def __init__(self, target: CudaTarget) -> None:
        self.target = target
        self.executable: CudaExecutable = target.open()

    def load(self, source: str, *kernels: str, **defines: int) -> Binary:
        binary = self.target.compile(job(source, *kernels, arch=self.target.device.arch, **defines))
        self.executable.load(binary)
        return binary

    def run(
        self, binary: Binary, plan: LaunchPlan, inputs: Mapping[str, Any],
        outputs: Mapping[str, tuple[str, tuple[int, ...]]], poison: int = 0xFF, misalign: int = 0,
    ) -> tuple[dict[str, Any], RunReport]:  # fmt: skip
        specs, views = buffers(inputs, outputs, misalign)
        report = self.executable.run(RunRequest(binary.key, plan, tuple(specs), poison))
        return {n: np.array(v) for n, v in views.items()}, report

    def time(
        self, contenders: Sequence[tuple[Binary, LaunchPlan]], sets: Sequence[Mapping[str, Any]],
        outputs: Mapping[str, tuple[str, tuple[int, ...]]], **settings: Any,
    ) -> tuple[TimeReport, list[dict[str, Any]]]:  # fmt: skip
        limits = TimingSettings(**settings)
        if not hasattr(self, "_sets"):
            self._sets: dict[int, Any] = {}
        key = id(sets)
        if key not in self._sets:
            # Kept: the executable recognises input sets by their shared blocks.
            self._sets[key] = (sets, [tuple(_no_sinks(buffers(s, outputs)[0])) for s in sets])
        prepared = self._sets[key][1]
        captures, views = [], []
        for _ in range(limits.verify_calls):
            specs, found = buffers({}, outputs)
            captures.append(tuple(specs))
            views.append(found)
        request = TimeRequest(
            tuple(Contender(b.key, p) for b, p in contenders), tuple(prepared), tuple(captures),
            limits, seed=1,
        )  # fmt: skip
        report = self.executable.time(request)
        return report, [{n: np.array(v) for n, v in found.items()} for found in views]


def _no_sinks(specs: list[BufferSpec]) -> list[BufferSpec]:
    return [BufferSpec(s.name, s.dtype, s.shape, s.role, s.source) for s in specs]


_KEPT: list[SharedBlock] = []


def buffers(
    inputs: Mapping[str, Any], outputs: Mapping[str, tuple[str, tuple[int, ...]]],
    misalign: int = 0,
) -> tuple[list[BufferSpec], dict[str, Any]]:  # fmt: skip
    """Return buffer specs with their shared memory, and views of the outputs."""
    sizes = [a.nbytes for a in inputs.values()]
    sizes += [math.prod(s) * numpy_dtype(d).itemsize for d, s in outputs.values()]
    offsets = np.concatenate([[0], np.cumsum([-(-s // PAGE) * PAGE for s in sizes])]).tolist()
    block = SharedBlock(int(offsets[-1]) + PAGE)
    _KEPT.append(block)
    specs, views, at = [], {}, iter(offsets)
    for name, array in inputs.items():
        offset = int(next(at))
        block.array(str(array.dtype), array.shape, offset)[...] = array
        source = block.ref(offset, array.nbytes)
        specs.append(BufferSpec(name, str(array.dtype), array.shape, "in", source, None, misalign))
    for name, (dtype, shape) in outputs.items():
        offset = int(next(at))
        views[name] = block.array(dtype, shape, offset)
        sink = block.ref(offset, views[name].nbytes)
        specs.append(BufferSpec(name, dtype, shape, "out", None, sink, misalign))
    return specs, views


def scale_plan(n: int, factor: float = 2.0, grid: int = 0, block: int = 256) -> LaunchPlan:
    args = ("y", "x", ScalarArg("i64", n), ScalarArg("f32", factor))
    blocks = grid or max(1, min(132 * 16, -(-n // block)))
    return LaunchPlan((KernelStep("scale", args, (blocks, 1, 1), (block, 1, 1)),))


def one_step(kernel: str, *args: Any, grid: int = 1, block: int = 32, **more: Any) -> LaunchPlan:
    return LaunchPlan((KernelStep(kernel, args, (grid, 1, 1), (block, 1, 1), **more),))
