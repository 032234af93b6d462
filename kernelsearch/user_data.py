"""Workloads from a user's own data: NumPy archives, Matrix Market files, and lists of shapes.

A file becomes the distribution ``user:<file stem>`` of the operator: every later stage treats it as
any other workload.
"""

from __future__ import annotations

import dataclasses
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import ExpressionError, MissingExtraError, WorkloadError
from kernelsearch.expressions import Expression
from kernelsearch.operator import USER_DATA, Arrays, Operator, Scalar, Tensor, Workload
from kernelsearch.shm import numpy_dtype

# What follows an output's name in a recorded archive.
AFTER = "@after"
_CSR = ("row_ptr", "col_idx", "values", "x")
_INT32_MAX = 2**31 - 1
# What the readers of NumPy and SciPy raise for files that are cut, garbled, or claim to be huge.
_BROKEN = (
    ArithmeticError, EOFError, LookupError, MemoryError, NotImplementedError, OSError,
    RuntimeError, ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def distribution_name(path: Path) -> str:
    """Return the name of the distribution that a file's data gets."""
    return USER_DATA + path.stem


def workload_from_file(operator: Operator, path: Path) -> Workload:
    """Return the workload that the data of a ``.npz`` or ``.mtx`` file is.

    Raises:
        WorkloadError: the file cannot be read or does not fit the operator.
        MissingExtraError: Matrix Market needs SciPy.
    """
    return _workload(operator, path, _read(operator, path)[0])


def workload_from_npz(operator: Operator, path: Path) -> Workload:
    """Return the workload of an archive with one array for every input, named like it."""
    return _workload(operator, path, _read_npz(operator, path)[0])


def workload_from_matrix_market(operator: Operator, path: Path) -> Workload:
    """Return the workload of a sparse matrix, for operators that take compressed rows."""
    return _workload(operator, path, _read_matrix_market(operator, path))


def with_data(operator: Operator, path: Path) -> Operator:
    """Return the operator with the file's data as one more distribution.

    Raises:
        WorkloadError: the file cannot be read or does not fit the operator.
    """
    arrays, recorded = _read(operator, path)
    operator = _with_scalars(operator, recorded, path)
    name = distribution_name(path)
    fixed = dict(_workload(operator, path, arrays).sizes)
    drawn = operator.generate

    def generate(
        sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
    ) -> dict[str, NDArray[Any]]:
        if distribution != name:
            return drawn(sizes, distribution, rng, dtype)
        if dict(sizes) != fixed:
            raise WorkloadError(
                f"{operator.name}: workload of {path.name} must have its sizes {fixed} "
                f"(got {dict(sizes)})"
            )
        return {
            t.name: arrays[t.name].astype(numpy_dtype(operator.tensor_dtype(t, dtype)))
            for t in operator.inputs
        }

    names = (*(d for d in operator.distributions if d != name), name)
    trusted = _trusted(operator, recorded, fixed, path)
    return dataclasses.replace(
        operator, distributions=names, generate=generate,
        trusted={**operator.trusted, name: trusted} if trusted else operator.trusted,
    )  # fmt: skip


def workloads_from_shapes(
    operator: Operator, shapes: Sequence[Mapping[str, Sequence[int]]]
) -> tuple[Workload, ...]:
    """Return workloads for shapes captured from a running program, weighted by how often each came.

    Args:
        operator: the contract.
        shapes: for every call, tensor name = shape (as many tensors as fix all sizes).

    Raises:
        WorkloadError: shapes contradict each other or leave a size open.
    """
    counts: dict[str, tuple[dict[str, int], int]] = {}
    for call, given in enumerate(shapes):
        sizes = _sizes(operator, given, f"shapes of call {call}")
        workload = Workload(sizes)
        operator.check_workload(workload, f"shapes of call {call}")
        counts[workload.key] = (sizes, counts.get(workload.key, (sizes, 0))[1] + 1)
    return tuple(Workload(sizes, weight=float(n)) for sizes, n in counts.values())


# --- reading ------------------------------------------------------------------------------------


def _read(operator: Operator, path: Path) -> tuple[Arrays, Arrays]:
    """Return the inputs, and what else was recorded: by-value arguments and trusted outputs."""
    if path.suffix == ".npz":
        return _read_npz(operator, path)
    if path.name.endswith((".mtx", ".mtx.gz")):
        return _read_matrix_market(operator, path), {}
    raise WorkloadError(f"data file must end in .npz, .mtx or .mtx.gz (got {str(path)!r})")


def _read_npz(operator: Operator, path: Path) -> tuple[Arrays, Arrays]:
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise WorkloadError(
                f"{path}: must be a NumPy archive (.npz), not one array; write it with numpy.savez"
            )
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    except _BROKEN as error:
        raise WorkloadError(f"{path}: must be a NumPy archive (.npz): {error}") from error
    wanted = [t.name for t in operator.inputs]
    missing = [n for n in wanted if n not in arrays]
    if missing:
        raise WorkloadError(
            f"{path}: must hold an array for every input of {operator.name} "
            f"({', '.join(wanted)}); missing: {', '.join(missing)}"
        )
    inputs = {t.name: _numeric(arrays.pop(t.name), t, path) for t in operator.inputs}
    return inputs, arrays


def _with_scalars(operator: Operator, recorded: Mapping[str, NDArray[Any]], path: Path) -> Operator:
    """Return the operator with the by-value arguments that were recorded as its defaults."""
    arguments = []
    for argument in operator.arguments:
        given = recorded.get(argument.name)
        if isinstance(argument, Scalar) and given is not None:
            if given.shape != () or given.dtype.kind not in "fiub":
                raise WorkloadError(
                    f"{path}: {argument.name} is passed by value: it must be one number "
                    f"(got shape {given.shape}, dtype {given.dtype})"
                )
            argument = dataclasses.replace(argument, value=float(given))
        arguments.append(argument)
    return dataclasses.replace(operator, arguments=tuple(arguments))


def _trusted(
    operator: Operator, recorded: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], path: Path
) -> dict[str, NDArray[Any]]:
    """Return the outputs that the application computed: ``y@after``."""
    found = {}
    for tensor in operator.outputs:
        given = recorded.get(f"{tensor.name}{AFTER}")
        if given is None:
            continue
        shape = tensor.concrete_shape(sizes)
        if given.shape != shape or given.dtype.kind not in "fiub":
            raise WorkloadError(
                f"{path}: {tensor.name}{AFTER} must hold numbers of shape {shape} "
                f"(got shape {given.shape}, dtype {given.dtype})"
            )
        found[tensor.name] = given
    return found


def _numeric(array: Any, tensor: Tensor, path: Path) -> NDArray[Any]:
    # An index that is no whole number would be cut, and NaN would become some index.
    real = tensor.dtype == "elem" or "float" in tensor.dtype
    kinds, what = ("fiub", "real numbers") if real else ("iu", "whole numbers")
    if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
        got = getattr(array, "dtype", type(array).__name__)
        raise WorkloadError(f"{path}: {tensor.name} must hold {what} (got dtype {got})")
    return np.asarray(array, order="C")


def _read_matrix_market(operator: Operator, path: Path) -> dict[str, NDArray[Any]]:
    names = {t.name for t in operator.inputs}
    if names != set(_CSR):
        raise WorkloadError(
            f"{path}: Matrix Market data fits operators with inputs {', '.join(_CSR)} "
            f"({operator.name} has {', '.join(sorted(names))})"
        )
    if find_spec("scipy") is None:
        raise MissingExtraError("reading Matrix Market files", "scipy", "scipy")
    from scipy.io import mmread

    try:
        matrix = mmread(path)
        # A few bytes can claim more rows than fit in memory.
        rows = matrix.tocsr() if hasattr(matrix, "tocsr") else None
    except _BROKEN as error:
        raise WorkloadError(f"{path}: must be a Matrix Market file: {error}") from error
    if rows is None:
        raise WorkloadError(f"{path}: must hold a sparse (coordinate) matrix (got a dense one)")
    if rows.dtype.kind not in "fiub":
        raise WorkloadError(f"{path}: values must be real (got {rows.dtype})")
    rows.sort_indices()
    if max(rows.nnz, *rows.shape) > _INT32_MAX:
        raise WorkloadError(
            f"{path}: must have fewer than 2^31 entries, rows and columns (got {rows.nnz} entries, "
            f"shape {rows.shape})"
        )
    # The file has no vector: one that gives every column a weight of its own.
    x = np.random.default_rng(0).uniform(-1.0, 1.0, rows.shape[1])
    return {"row_ptr": rows.indptr, "col_idx": rows.indices, "values": rows.data, "x": x}


# --- sizes --------------------------------------------------------------------------------------


def _workload(operator: Operator, path: Path, arrays: Mapping[str, NDArray[Any]]) -> Workload:
    sizes = _sizes(operator, {n: a.shape for n, a in arrays.items()}, str(path))
    operator.check_workload(Workload(sizes), str(path))
    if set(_CSR) == set(arrays):
        _check_csr(arrays, sizes, path)
    return Workload(sizes, distribution_name(path))


def _check_csr(arrays: Mapping[str, NDArray[Any]], sizes: Mapping[str, int], path: Path) -> None:
    """Refuse indices that would send a right kernel out of bounds."""
    pointer, columns = arrays["row_ptr"], arrays["col_idx"]
    lengths = np.diff(pointer)
    if pointer[0] != 0 or pointer[-1] != len(columns) or (len(lengths) and lengths.min() < 0):
        raise WorkloadError(
            f"{path}: row_ptr must rise from 0 to the number of entries, {len(columns)} "
            f"(got first {pointer[0]}, last {pointer[-1]})"
        )
    cols = sizes.get("cols", 0)
    if len(columns) and not (columns.min() >= 0 and columns.max() < cols):
        raise WorkloadError(
            f"{path}: col_idx must lie in 0 to {cols - 1} (got {columns.min()} to {columns.max()})"
        )


def _sizes(operator: Operator, shapes: Mapping[str, Sequence[int]], where: str) -> dict[str, int]:
    """Return the size of every symbol from the shapes of some tensors."""
    tensors = {t.name: t for t in operator.tensors}
    found: dict[str, int] = {}
    for name, shape in shapes.items():
        if name not in tensors:
            raise WorkloadError(
                f"{where}: {name!r} must be a tensor of {operator.name} ({', '.join(tensors)})"
            )
        tensor = tensors[name]
        if len(shape) != len(tensor.shape):
            raise WorkloadError(
                f"{where}: {name} must have {len(tensor.shape)} dimensions, "
                f"{_shape_text(tensor)} (got shape {tuple(shape)})"
            )
        for extent, size in zip(tensor.shape, shape, strict=True):
            if isinstance(extent, str):
                _solve(extent, int(size), found)
    for name, shape in shapes.items():
        _check_shape(tensors[name], tuple(shape), found, where)
    missing = [s for s in operator.symbols if s not in found]
    if missing:
        raise WorkloadError(
            f"{where}: must fix every size of {operator.name} (open: {', '.join(missing)}); give "
            "the shapes of more tensors"
        )
    return {s: found[s] for s in operator.symbols}


def _solve(extent: str, size: int, found: dict[str, int]) -> None:
    """Learn a symbol from ``symbol`` or ``symbol + constant``; anything else is only checked."""
    expression = Expression.parse(extent)
    if len(expression.names) != 1:
        return
    (symbol,) = expression.names
    if symbol in found:
        return
    offset = expression.integer({symbol: 0})
    value = size - offset
    if value >= 0 and expression.integer({symbol: value}) == size:
        found[symbol] = value


def _check_shape(
    tensor: Tensor, shape: tuple[int, ...], sizes: Mapping[str, int], where: str
) -> None:
    try:
        wanted = tensor.concrete_shape(sizes)
    except ExpressionError:
        return  # a size is still open, which is reported for all of them at once
    if wanted != shape:
        raise WorkloadError(
            f"{where}: {tensor.name} must have shape {_shape_text(tensor)} = {wanted} (got {shape})"
        )


def _shape_text(tensor: Tensor) -> str:
    return f"({', '.join(map(str, tensor.shape))})"
