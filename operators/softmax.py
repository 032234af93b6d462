"""The operator softmax: exponentials of each row, normalised to sum one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import draw
from kernelsearch.operator import Arrays, ErrorModel, Operator, Rows, Tensor, Workload


def _parts(arrays: Arrays, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = arrays["x"] if rows is None else arrays["x"][rows]
    below = x.astype(np.float64)
    below -= below.max(axis=-1, keepdims=True)
    y = np.exp(below)
    y /= y.sum(axis=-1, keepdims=True)
    return below, y


def reference(arrays: Arrays, scalars: Mapping[str, float], rows: Rows) -> dict[str, NDArray[Any]]:
    """Return exp(x - max) / sum(exp(x - max)) along the last axis."""
    return {"y": _parts(arrays, rows)[1]}


def error_scale(
    arrays: Arrays, scalars: Mapping[str, float], rows: Rows
) -> dict[str, NDArray[Any]]:
    """Return y times the relative error of its exponential and of the sum, per square root."""
    below, y = _parts(arrays, rows)
    mean = -np.sum(y * np.maximum(below, -1e5), axis=-1, keepdims=True)
    return {"y": y * (1 + (np.minimum(-below, 1e5) + mean) / np.sqrt(y.shape[-1]))}


def generate(
    sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
) -> dict[str, NDArray[Any]]:
    """Draw the logits."""
    shape = (sizes["rows"], sizes["cols"])
    if distribution == "huge_logits":
        return {"x": draw.uniform(shape, rng, dtype, scale=1e4)}
    if distribution == "ties":
        return {"x": draw.integers(shape, 1, rng, dtype)}
    return {"x": draw.draw(shape, distribution, rng, dtype, large=40.0)}


def torch_softmax(arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> dict[str, Any]:
    """PyTorch's own kernel."""
    import torch

    return {"y": torch.softmax(arrays["x"], dim=-1)}


def numpy_softmax(arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """NumPy in the element type."""
    y = np.exp(arrays["x"] - arrays["x"].max(axis=-1, keepdims=True))
    y /= y.sum(axis=-1, keepdims=True)
    return {"y": y}


def _sizes(*pairs: tuple[int, int]) -> tuple[Workload, ...]:
    return tuple(Workload({"rows": rows, "cols": cols}) for rows, cols in pairs)


operator = Operator(
    name="softmax",
    doc="y = exp(x - max(x)) / sum(exp(x - max(x))), row by row",
    arguments=(
        Tensor("y", "elem", ("rows", "cols"), role="out"),
        Tensor("x", "elem", ("rows", "cols")),
    ),
    reference=reference,
    generate=generate,
    workloads={
        "paper": _sizes(*((r, 1 << e) for r in (16, 32, 64, 128) for e in (8, 10, 12, 14))),
        "large": _sizes((65536, 8192)),
        "large@cpu": _sizes((4096, 4096)),
        "heldout": _sizes((1, 1), (5, 1), (0, 32), (1, 3), (11, 1023), (3, 16411), (131, 257)),
        "smoke": _sizes((4, 64), (5, 37)),
    },
    error=ErrorModel(
        terms="cols",
        scale=error_scale,
        reasoning="the argument x - max carries a relative rounding, which exp turns into a "
        "relative error |x - max| u; the sum adds the mean of these over the row and the rounding "
        "of cols additions (square root of cols); exp and the division add a few units.",
    ),
    flops="4 * rows * cols",
    bytes="2 * rows * cols * elem_bytes",
    dtypes={"cuda": ("float32", "bfloat16"), "cpu": ("float32", "float64")},
    distributions=(*draw.COMMON, "huge_logits", "ties"),
    vendor={"cuda": ("torch.softmax", torch_softmax), "cpu": ("NumPy", numpy_softmax)},
    checks=("cols >= 1",),
)
