"""The operator spmv_csr: a sparse matrix in compressed rows times a dense vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import draw
from kernelsearch.operator import Arrays, ErrorModel, Operator, Rows, Tensor, Workload

STRUCTURES = ("power_law", "banded", "empty_rows")
# Exponent of the power law: 2^21 rows of 16 on average then have 3 to 365,000 nonzeros.
_POWER = 0.8


def _entries(arrays: Arrays, rows: Rows) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    """Return where each wanted row starts in the list of its entries, and the two factors."""
    pointer = arrays["row_ptr"].astype(np.int64)
    if rows is None:
        starts, values, columns = pointer, arrays["values"], arrays["col_idx"]
    else:
        lengths = pointer[rows + 1] - pointer[rows]
        starts = np.concatenate(([0], np.cumsum(lengths)))
        picks = np.arange(starts[-1]) + np.repeat(pointer[rows] - starts[:-1], lengths)
        values, columns = arrays["values"][picks], arrays["col_idx"][picks]
    return starts, values.astype(np.float64), arrays["x"].astype(np.float64)[columns]


def _row_sums(products: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    sums = np.zeros(len(starts) - 1)
    filled = np.flatnonzero(starts[1:] > starts[:-1])
    if len(filled):
        sums[filled] = np.add.reduceat(products, starts[filled])
    return sums


def reference(arrays: Arrays, scalars: Mapping[str, float], rows: Rows) -> dict[str, NDArray[Any]]:
    """Return y[i] = sum of values[j] * x[col_idx[j]] over row_ptr[i] <= j < row_ptr[i + 1]."""
    starts, values, picked = _entries(arrays, rows)
    return {"y": _row_sums(values * picked, starts)}


def error_scale(
    arrays: Arrays, scalars: Mapping[str, float], rows: Rows
) -> dict[str, NDArray[Any]]:
    """Return a typical partial sum's size, scaled from cols terms to the row's own length."""
    starts, values, picked = _entries(arrays, rows)
    products = values * picked
    scale = np.abs(_row_sums(products, starts))
    scale += np.sqrt(_row_sums(products * products, starts))
    return {"y": scale * np.sqrt(np.diff(starts) / max(1, len(arrays["x"])))}


def _lengths(rows: int, nnz: int, structure: str, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the rows' numbers of nonzeros; they add up to ``nnz``."""
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    filled = np.arange(rows)
    if structure == "empty_rows" and rows > 2:
        inner = np.arange(1, rows - 1)
        filled = inner[rng.random(rows - 2) < 0.5]
        filled = filled if len(filled) else inner
    if structure == "power_law":
        weights = np.arange(1, rows + 1, dtype=np.float64) ** -_POWER
        ends = np.rint(np.cumsum(weights) * (nnz / weights.sum())).astype(np.int64)
        ends[-1] = nnz
        return rng.permutation(np.diff(ends, prepend=0))
    lengths = np.zeros(rows, dtype=np.int64)
    lengths[filled] = nnz // len(filled)
    lengths[rng.choice(filled, nnz % len(filled), replace=False)] += 1
    return lengths


def _columns(
    lengths: NDArray[np.int64], cols: int, structure: str, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Return column indices, in order inside each row."""
    nnz = int(lengths.sum())
    row = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    if structure == "banded":
        width = max(1, min(cols, 2 * int(lengths.max(initial=1))))
        first = row * cols // max(1, len(lengths)) - width // 2
        column = np.clip(first, 0, cols - width) + rng.integers(0, width, nnz)
    else:
        column = rng.integers(0, max(1, cols), nnz, dtype=np.int64)
    # Sorting the pair as one number keeps the rows in place and orders the columns inside each.
    key = row * cols + column
    key.sort()
    key -= row * cols
    return key.astype(np.int32)


def generate(
    sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
) -> dict[str, NDArray[Any]]:
    """Draw a matrix of exactly nnz entries; the values' distribution or the structure varies."""
    rows, nnz, cols = sizes["rows"], sizes["nnz"], sizes["cols"]
    structure = distribution if distribution in STRUCTURES else "uniform"
    lengths = _lengths(rows, nnz, structure, rng)
    arrays: dict[str, NDArray[Any]] = {
        "row_ptr": np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        "col_idx": _columns(lengths, cols, structure, rng),
    }
    if distribution == "exact_integers":
        magnitude = draw.exact_magnitude(dtype, int(lengths.max(initial=1)))
        arrays["values"] = draw.integers((nnz,), magnitude, rng, dtype)
        arrays["x"] = draw.integers((cols,), 1, rng, dtype)
        return arrays
    numbers = "default" if distribution in STRUCTURES else distribution
    arrays["values"] = draw.draw((nnz,), numbers, rng, dtype, large=1e12, tiny=1e-12)
    # A one-hot x would meet almost no entry, so there the entries of x are all ones.
    arrays["x"] = (
        np.ones(cols, dtype=arrays["values"].dtype)
        if distribution == "one_hot"
        else draw.draw((cols,), numbers, rng, dtype, large=1e12, tiny=1e-12)
    )
    return arrays


def torch_spmv(arrays: Mapping[str, Any], scalars: Mapping[str, float]) -> dict[str, Any]:
    """The vendor's sparse product (cuSPARSE)."""
    import torch

    x = arrays["x"]
    shape = (len(arrays["row_ptr"]) - 1, len(x))
    matrix = torch.sparse_csr_tensor(
        arrays["row_ptr"], arrays["col_idx"], arrays["values"], shape, check_invariants=False
    )
    return {"y": torch.mv(matrix, x)}


def scipy_spmv(arrays: Arrays, scalars: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """SciPy's compressed-row product."""
    from scipy.sparse import csr_array

    shape = (len(arrays["row_ptr"]) - 1, len(arrays["x"]))
    matrix = csr_array((arrays["values"], arrays["col_idx"], arrays["row_ptr"]), shape=shape)
    return {"y": matrix @ arrays["x"]}


def _matrix(rows: int, cols: int, nnz: int, distribution: str = "default") -> Workload:
    return Workload({"rows": rows, "nnz": nnz, "cols": cols}, distribution)


def _square(power: int, distributions: tuple[str, ...]) -> tuple[Workload, ...]:
    return tuple(_matrix(1 << power, 1 << power, 16 << power, d) for d in distributions)


operator = Operator(
    name="spmv_csr",
    doc="y = A x, A sparse in compressed rows (32-bit indices)",
    arguments=(
        Tensor("y", "elem", ("rows",), role="out"),
        Tensor("row_ptr", "int32", ("rows + 1",)),
        Tensor("col_idx", "int32", ("nnz",)),
        Tensor("values", "elem", ("nnz",)),
        Tensor("x", "elem", ("cols",)),
    ),
    reference=reference,
    generate=generate,
    workloads={
        "paper": tuple(_matrix(1 << e, 2048, (2048 << e) // 100) for e in range(10, 16)),
        "large": _square(21, ("default", "power_law", "banded")),
        "large@cpu": _square(18, ("default", "power_law")),
        "heldout": (
            _matrix(1, 1, 1), _matrix(1, 1, 0), _matrix(0, 4, 0), _matrix(5, 3, 0),
            _matrix(1, 4099, 2053), _matrix(131, 1, 131), _matrix(1021, 509, 9973),
            _matrix(1021, 509, 9973, "power_law"), _matrix(769, 1031, 1543, "empty_rows"),
            _matrix(331, 331, 2311, "banded"),
        ),
        "smoke": (_matrix(64, 48, 512), _matrix(37, 41, 173, "power_law")),
    },
    error=ErrorModel(
        terms="max(cols, 1)",
        scale=error_scale,
        reasoning="a row's products are added: the argument of a dense product, with the row's own "
        "number of entries in place of cols (the scale carries the ratio of the two roots).",
    ),
    flops="2 * nnz",
    bytes="(nnz + rows + cols) * elem_bytes + (nnz + rows + 1) * 4",
    dtypes={"cuda": ("float32",), "cpu": ("float32", "float64")},
    distributions=(*draw.COMMON, *STRUCTURES, "exact_integers"),
    exact_distributions=("exact_integers",),
    vendor={
        "cuda": ("cuSPARSE through torch.mv", torch_spmv),
        "cpu": ("SciPy", scipy_spmv),
    },
    checks=("nnz == 0 or (rows >= 1 and cols >= 1)", "nnz < 2147483648"),
    derived=("nnz",),
)  # fmt: skip
