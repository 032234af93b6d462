"""A tiny operator, sources for it, and what tests of the CPU target need to run them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.operator import ErrorModel, Operator, Scalar, Tensor
from kernelsearch.records import Binary, BufferSpec, RunRequest, dtype_bytes
from kernelsearch.shm import SharedBlock
from kernelsearch.targets.cpu import CpuExecutable, CpuTarget
from kernelsearch.variant import Variant, parse_variant

SCALE = Operator(
    name="scale",
    doc="y = factor * x",
    arguments=(
        Tensor("y", "elem", ("n",), "out"),
        Tensor("x", "elem", ("n",)),
        Scalar("factor", "float32", 3.0),
    ),
    reference=lambda arrays, scalars, rows: {"y": arrays["x"] * scalars["factor"]},
    generate=lambda sizes, distribution, rng, dtype: {
        "x": rng.uniform(-1, 1, sizes["n"]).astype(dtype)
    },
    workloads={},
    error=ErrorModel(),
    flops="n",
    bytes="2 * n * elem_bytes",
    dtypes={"cpu": ("float32", "float64")},
)
HEAD = '''"""kernelsearch
format = 1
operator = "scale"
dtypes = ["float32", "float64"]
{extra}
[[launch]]
kernel = "scale"
args = ["y", "x", "factor:f32"{args}]
"""
import numpy as np
from numba import prange

'''
SERIAL = """def scale(y, x, factor):
    for i in range(x.shape[0]):
        y[i] = x[i] * factor
"""
PARALLEL = SERIAL.replace("in range", "in prange")


def variant(body: str = SERIAL, extra: str = "", args: str = "") -> Variant:
    return parse_variant(HEAD.format(extra=extra, args=args) + body, "cpu", "scale.py")


def compiled(target: CpuTarget, it: Variant, dtype: str = "float32", **params: int) -> Binary:
    return target.compile(it.compile_job(params, dtype, target.device.arch, SCALE))


class Data:
    """Input and output of one call in shared memory."""

    def __init__(self, n: int, dtype: str = "float32", misalign: int = 0, seed: int = 0) -> None:
        self.n, self.dtype = n, dtype
        size = n * dtype_bytes(dtype)
        self.blocks = [SharedBlock(size), SharedBlock(size)]
        self.y: NDArray[Any] = self.blocks[0].array(dtype, (n,))
        self.x: NDArray[Any] = self.blocks[1].array(dtype, (n,))
        self.x[:] = np.random.default_rng(seed).uniform(-1, 1, n)
        self.specs = (
            BufferSpec("y", dtype, (n,), "out", sink=self.blocks[0].ref(0, size),
                       misalign=misalign),
            BufferSpec("x", dtype, (n,), "in", source=self.blocks[1].ref(0, size),
                       misalign=misalign),
        )  # fmt: skip

    def request(
        self, binary: Binary, it: Variant, poison: int = 0xFF, *, bounds: bool = False
    ) -> RunRequest:
        plan = it.plan(
            dict(dict(binary.job.options)["defines"]), {"n": self.n}, SCALE.scalar_values(),
            {"cores": 2}, self.dtype,
        )  # fmt: skip
        return RunRequest(binary.key, plan, self.specs, poison, bounds)

    def right(self) -> bool:
        return bool(np.allclose(self.y, self.x * 3, rtol=1e-6))


def opened(target: CpuTarget, *binaries: Binary) -> CpuExecutable:
    executable = target.open()
    for binary in binaries:
        executable.load(binary)
    return executable


def page_elements(dtype: str = "float32") -> int:
    return math.prod((4096,)) // dtype_bytes(dtype)
