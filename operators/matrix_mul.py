"""The operator matrix_mul: the product of two row-major matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import draw
from kernelsearch.operator import Arrays, ErrorModel, Operator, Rows, Tensor, Workload


def _operands(arrays: Arrays, rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a = arrays["a"] if rows is None else arrays["a"][rows]
    return a.astype(np.float64), arrays["b"].astype(np.float64)


def reference(arrays: Arrays, scalars: Mapping[str, float], rows: Rows) -> dict[str, NDArray[Any]]:
    """Return c = a b."""
    a, b = _operands(arrays, rows)
    return {"c": a @ b}


def error_scale(
    arrays: Arrays, scalars: Mapping[str, float], rows: Rows
) -> dict[str, NDArray[Any]]:
    """Return the size of a typical partial sum: sqrt(sum of squared products) + |c|."""
    a, b = _operands(arrays, rows)
    scale = np.abs(a @ b)
    np.square(a, out=a)
    np.square(b, out=b)
    scale += np.sqrt(a @ b)
    return {"c": scale}


def generate(
    sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
) -> dict[str, NDArray[Any]]:
    """Draw both factors; the exact distributions put the long mantissas in one of them."""
    m, n, k = sizes["m"], sizes["n"], sizes["k"]
    if distribution == "exact_integers":
        magnitude = draw.exact_magnitude(dtype, k)
        a = draw.integers((m, k), magnitude, rng, dtype)
        return {"a": a, "b": draw.integers((k, n), 1, rng, dtype)}
    if distribution == "exact_onehot":
        return {"a": draw.one_hot((m, k), rng, dtype), "b": draw.uniform((k, n), rng, dtype)}
    # Products of two inputs are summed: the scale of each must leave room for its square.
    a = draw.draw((m, k), distribution, rng, dtype, large=1e12, tiny=1e-12)
    return {"a": a, "b": draw.draw((k, n), distribution, rng, dtype, large=1e12, tiny=1e-12)}


def torch_matmul(arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> dict[str, Any]:
    """The vendor's matrix product (cuBLAS) without TF32 and without reduced-precision sums."""
    import torch

    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False
    return {"c": torch.matmul(arrays["a"], arrays["b"])}


def numpy_matmul(arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """The BLAS that NumPy was built with."""
    return {"c": arrays["a"] @ arrays["b"]}


def _sizes(*triples: tuple[int, int, int]) -> tuple[Workload, ...]:
    return tuple(Workload({"m": m, "n": n, "k": k}) for m, n, k in triples)


operator = Operator(
    name="matrix_mul",
    doc="c = a b, row-major",
    arguments=(
        Tensor("c", "elem", ("m", "n"), role="out"),
        Tensor("a", "elem", ("m", "k")),
        Tensor("b", "elem", ("k", "n")),
    ),
    reference=reference,
    generate=generate,
    workloads={
        "paper": _sizes(*((1 << e, 2048, 4096) for e in (6, 8, 10, 12, 14))),
        "large": _sizes((16384, 8192, 4096)),
        # Not a power of two: a column walk of the textbook loop would meet one cache set only.
        "large@cpu": _sizes((1000, 1000, 1000)),
        "skinny": _sizes(*((1 << e, 8192, 4096) for e in range(7))),
        "skinny@cpu": _sizes(*((1 << e, 2048, 2048) for e in range(7))),
        "heldout": _sizes(
            (1, 1, 1), (0, 8, 8), (1, 131, 67), (127, 1, 31), (67, 129, 257), (131, 263, 61),
            (257, 193, 1), (40, 24, 1031),
        ),
        "smoke": _sizes((32, 32, 32), (17, 19, 23)),
    },
    error=ErrorModel(
        terms="k",
        scale=error_scale,
        reasoning="k products are added; partial sums of random products have the size of the root "
        "of the summed squares, those of one-signed products grow to |c|; roundings relative to "
        "them add up like a random walk of k steps. Products are formed in the accumulator's type.",
    ),
    flops="2 * m * n * k",
    bytes="(m * k + k * n + m * n) * elem_bytes",
    dtypes={"cuda": ("float32", "bfloat16"), "cpu": ("float32", "float64")},
    distributions=(*draw.COMMON, "exact_integers", "exact_onehot"),
    exact_distributions=("exact_integers", "exact_onehot"),
    vendor={
        "cuda": ("cuBLAS through torch.matmul, no TF32", torch_matmul),
        "cpu": ("BLAS through NumPy", numpy_matmul),
    },
    checks=("k >= 1",),
)  # fmt: skip
