"""The operator stencil_2d: one step of five-point diffusion, the boundary copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import draw
from kernelsearch.operator import Arrays, ErrorModel, Operator, Rows, Scalar, Tensor, Workload


def _step(arrays: Arrays, alpha: float, rows: Rows, *, magnitudes: bool) -> NDArray[np.float64]:
    """Return the step on some rows, or with every term replaced by its magnitude."""
    src = arrays["src"]
    nx = src.shape[0]
    wanted = np.arange(nx) if rows is None else rows
    middle = src[wanted].astype(np.float64)
    above = src[np.maximum(wanted - 1, 0)].astype(np.float64)
    below = src[np.minimum(wanted + 1, nx - 1)].astype(np.float64)
    centre = 4.0
    if magnitudes:
        middle, above, below = np.abs(middle), np.abs(above), np.abs(below)
        alpha, centre = abs(alpha), -4.0
    result: NDArray[np.float64] = middle.copy()
    around = above[:, 1:-1] + below[:, 1:-1] + middle[:, :-2] + middle[:, 2:]
    result[:, 1:-1] += alpha * (around - centre * middle[:, 1:-1])
    edge = (wanted == 0) | (wanted == nx - 1)
    result[edge] = middle[edge]
    return result


def reference(arrays: Arrays, scalars: Mapping[str, float], rows: Rows) -> dict[str, NDArray[Any]]:
    """Return src + alpha * (north + south + west + east - 4 src) inside, src on the boundary."""
    return {"dst": _step(arrays, scalars["alpha"], rows, magnitudes=False)}


def error_scale(
    arrays: Arrays, scalars: Mapping[str, float], rows: Rows
) -> dict[str, NDArray[Any]]:
    """Return the sum of the terms' magnitudes."""
    return {"dst": _step(arrays, scalars["alpha"], rows, magnitudes=True)}


def generate(
    sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
) -> dict[str, NDArray[Any]]:
    """Draw the field."""
    shape = (sizes["nx"], sizes["ny"])
    if distribution == "shifted":
        return {"src": draw.uniform(shape, rng, dtype, shift=100.0)}
    return {"src": draw.draw(shape, distribution, rng, dtype, large=1e30, tiny=1e-30)}


def numpy_stencil(arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """NumPy in the element type."""
    src = arrays["src"]
    dst = src.copy()
    alpha = src.dtype.type(scalars["alpha"])
    around = src[:-2, 1:-1] + src[2:, 1:-1] + src[1:-1, :-2] + src[1:-1, 2:]
    dst[1:-1, 1:-1] += alpha * (around - 4 * src[1:-1, 1:-1])
    return {"dst": dst}


def _sizes(*pairs: tuple[int, int]) -> tuple[Workload, ...]:
    return tuple(Workload({"nx": nx, "ny": ny}) for nx, ny in pairs)


operator = Operator(
    name="stencil_2d",
    doc="dst = src + alpha * (sum of four neighbours - 4 src) inside, copied on the boundary",
    arguments=(
        Tensor("dst", "elem", ("nx", "ny"), role="out"),
        Tensor("src", "elem", ("nx", "ny")),
        Scalar("alpha", "float32", 0.1),
    ),
    reference=reference,
    generate=generate,
    workloads={
        "paper": _sizes(*((1 << a, 1 << b) for a in (10, 12, 14) for b in (10, 12, 14))),
        "large": _sizes((32768, 32768)),
        "large@cpu": _sizes((4096, 4096)),
        "heldout": _sizes(
            (1, 1), (1, 17), (19, 1), (2, 2), (3, 3), (127, 131), (33, 1025), (5, 4099), (263, 7)
        ),
        "smoke": _sizes((32, 64), (13, 37)),
    },
    error=ErrorModel(
        terms="5",
        scale=error_scale,
        reasoning="five terms, a product with alpha and one last addition, each rounded relative "
        "to at most the sum of the magnitudes.",
    ),
    flops="7 * nx * ny",
    bytes="2 * nx * ny * elem_bytes",
    dtypes={"cuda": ("float32",), "cpu": ("float32", "float64")},
    distributions=(*draw.COMMON, "shifted"),
    vendor={"cpu": ("NumPy", numpy_stencil)},
    checks=("nx >= 1", "ny >= 1"),
)
