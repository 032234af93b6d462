"""The error bound of one output: how far from the float64 reference a right result may be.

|out - ref| <= u(out) |ref| + c u(acc) growth scale + underflow. A unit u is half the distance from
1 to the next number of a type; ``out`` is the output's type, ``acc`` the type its sums are granted.
Where the operator's precision is not strict, operands may be rounded to TF32: that adds
c u(tf32) scale, without growth, since each operand is rounded once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kernelsearch.operator import Operator, Tensor, Workload
from kernelsearch.shm import numpy_dtype

_FLOATS = ("float64", "float32", "float16", "bfloat16")
# TF32 keeps ten bits behind the point.
TF32_UNIT = 2.0**-11
_DEFAULT_ACCUMULATOR = {"float16": "float32", "bfloat16": "float32"}


def is_float(dtype: str) -> bool:
    """Return whether ``dtype`` is one of the floating-point types (and so may hold NaN)."""
    return dtype in _FLOATS


def unit(dtype: str) -> float:
    """Return the rounding unit of a floating-point dtype."""
    return 0.5 * float(_info(dtype).eps)


def smallest_normal(dtype: str) -> float:
    """Return the smallest positive number a dtype holds at full precision."""
    return float(_info(dtype).smallest_normal)


@cache
def _info(dtype: str) -> Any:
    return ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]


def accumulator(operator: Operator, dtype: str) -> str:
    """Return the dtype whose rounding unit the operator grants to sums for ``dtype``."""
    return operator.error.accumulator.get(dtype, _DEFAULT_ACCUMULATOR.get(dtype, dtype))


def rounds_operands(operator: Operator, out: str) -> bool:
    """Return whether the policy lets operands of a result of dtype ``out`` be rounded to TF32."""
    return operator.precision != "strict" and out == "float32"


def is_exact(operator: Operator, workload: Workload, output: Tensor, dtype: str) -> bool:
    """Return whether the result must equal the correctly rounded reference."""
    out = operator.tensor_dtype(output, dtype)
    drawn_exact = workload.distribution in operator.exact_distributions
    return (
        operator.error.exact
        or not is_float(out)
        or (drawn_exact and not rounds_operands(operator, out))
    )


def rounded(reference: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Return the reference rounded to ``dtype``, as float64."""
    with np.errstate(over="ignore"):
        return reference.astype(numpy_dtype(dtype)).astype(np.float64)


def default_scale(reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the largest |ref| of each row, for operators that give no scale of their own."""
    size = np.abs(np.where(np.isfinite(reference), reference, 0.0))
    if size.size == 0 or size.ndim == 0:
        return size
    return np.broadcast_to(size.max(axis=-1, keepdims=True), size.shape).copy()


def bound(
    operator: Operator,
    workload: Workload,
    output: Tensor,
    dtype: str,
    reference: NDArray[np.float64],
    scale: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the largest allowed |out - ref| of every element of an inexact output."""
    out = operator.tensor_dtype(output, dtype)
    acc = accumulator(operator, out)
    allowance = operator.allowance(workload)
    allowed = np.abs(reference)
    allowed *= unit(out)
    allowed += allowance * unit(acc) * scale
    if rounds_operands(operator, out):
        allowed += operator.error.factor * TF32_UNIT * scale
    # Devices may flush what is below the normal numbers to zero, in every term of a sum.
    allowed += smallest_normal(out) + allowance * smallest_normal(acc)
    return allowed
