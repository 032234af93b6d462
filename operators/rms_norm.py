"""The operator rms_norm: root-mean-square normalisation of each row, with weight and bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import draw
from kernelsearch.operator import Arrays, ErrorModel, Operator, Rows, Scalar, Tensor, Workload


def _parts(
    arrays: Arrays, scalars: Mapping[str, float], rows: Rows
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = arrays["x"] if rows is None else arrays["x"][rows]
    x = x.astype(np.float64)
    rms = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + scalars["eps"])
    return x / rms * arrays["weight"].astype(np.float64), arrays["bias"].astype(np.float64)


def reference(arrays: Arrays, scalars: Mapping[str, float], rows: Rows) -> dict[str, NDArray[Any]]:
    """Return y = x / sqrt(mean(x^2) + eps) * weight + bias."""
    scaled, bias = _parts(arrays, scalars, rows)
    return {"y": scaled + bias}


def error_scale(
    arrays: Arrays, scalars: Mapping[str, float], rows: Rows
) -> dict[str, NDArray[Any]]:
    """Return the sizes of the two numbers that are added last."""
    scaled, bias = _parts(arrays, scalars, rows)
    return {"y": np.abs(scaled) + np.abs(bias)}


def generate(
    sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
) -> dict[str, NDArray[Any]]:
    """Draw x by the distribution; weight and bias always vary."""
    shape, cols = (sizes["rows"], sizes["cols"]), (sizes["cols"],)
    if distribution == "shifted":
        x = draw.uniform(shape, rng, dtype, shift=100.0)
    elif distribution == "scaled":
        x = draw.uniform(shape, rng, dtype, scale=1000.0)
    else:
        x = draw.draw(shape, distribution, rng, dtype)
    return {
        "x": x,
        "weight": draw.uniform(cols, rng, dtype),
        "bias": draw.uniform(cols, rng, dtype),
    }


def torch_rms_norm(arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> dict[str, Any]:
    """PyTorch's fused normalisation, then its addition (it has no fused bias)."""
    import torch.nn.functional as functional

    x, weight = arrays["x"], arrays["weight"]
    y = functional.rms_norm(x, (x.shape[-1],), weight, scalars["eps"])
    return {"y": y.add_(arrays["bias"])}


def numpy_rms_norm(arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """NumPy in the element type."""
    x = arrays["x"]
    square_sum = np.einsum("ij,ij->i", x, x)[:, None]
    scale = 1 / np.sqrt(square_sum / x.dtype.type(x.shape[-1]) + x.dtype.type(scalars["eps"]))
    return {"y": x * scale * arrays["weight"] + arrays["bias"]}


def _sizes(*pairs: tuple[int, int]) -> tuple[Workload, ...]:
    return tuple(Workload({"rows": rows, "cols": cols}) for rows, cols in pairs)


operator = Operator(
    name="rms_norm",
    doc="y = x / sqrt(mean(x^2) + eps) * weight + bias, row by row",
    arguments=(
        Tensor("y", "elem", ("rows", "cols"), role="out"),
        Tensor("x", "elem", ("rows", "cols")),
        Tensor("weight", "elem", ("cols",)),
        Tensor("bias", "elem", ("cols",)),
        Scalar("eps", "float32", 1e-5),
    ),
    reference=reference,
    generate=generate,
    workloads={
        "paper": _sizes(*((1, 1 << e) for e in range(6, 11))),
        "large": _sizes((131072, 4096)),
        "large@cpu": _sizes((4096, 4096)),
        "heldout": _sizes((1, 1), (3, 1), (0, 64), (1, 7), (13, 1021), (2, 4099), (257, 66)),
        "smoke": _sizes((4, 64), (5, 33)),
    },
    error=ErrorModel(
        terms="cols",
        scale=error_scale,
        factor=6.0,
        reasoning="cols squares are summed; then mean, eps, root, division and two products: at "
        "most six roundings act on |x / rms * weight|, one on the sum with the bias.",
    ),
    flops="5 * rows * cols",
    bytes="(2 * rows * cols + 2 * cols) * elem_bytes",
    dtypes={"cuda": ("float32", "bfloat16"), "cpu": ("float32", "float64")},
    distributions=(*draw.COMMON, "shifted", "scaled"),
    vendor={
        "cuda": ("torch.nn.functional.rms_norm + add", torch_rms_norm),
        "cpu": ("NumPy", numpy_rms_norm),
    },
    checks=("cols >= 1",),
)
