"""Runs Numba variants in this process on small arrays, interpreted or compiled, for tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.expressions import Value
from kernelsearch.operator import Operator
from kernelsearch.records import Params
from kernelsearch.targets.cpu_check import check_source
from kernelsearch.variant import Variant

_TYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}


def run_numba(
    operator: Operator, variant: Variant, params: Params, sizes: Mapping[str, int],
    arrays: Mapping[str, NDArray[Any]], compiled: bool,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Check the source against the allow-list, run the plan once, and return the outputs.

    Interpreted, the kernel is plain Python (a loop in parallel is one in order).
    """
    check_source(variant.source, variant.path, params)
    kernels = _kernels(variant, params, compiled)
    held: dict[str, NDArray[Any]] = {}
    for tensor in operator.tensors:
        dtype = operator.tensor_dtype(tensor, "float32")
        shape = tensor.concrete_shape(sizes)
        held[tensor.name] = (
            arrays[tensor.name] if tensor.name in arrays else np.full(shape, np.nan, dtype)
        )
    names: dict[str, Value] = {**sizes, **params, **operator.scalar_values(), "elem_bytes": 4}
    for step in variant.steps:
        args = [
            held[a] if isinstance(a, str) else _TYPES[a[1]](a[0].evaluate(names)) for a in step.args
        ]
        kernels[step.kernel](*args)
    return {t.name: held[t.name] for t in operator.outputs}


def _kernels(variant: Variant, params: Params, compiled: bool) -> dict[str, Any]:
    space: dict[str, Any] = {"np": np, "math": math, "ELEM": np.float32, **params}
    if not compiled:
        exec(variant.source.replace("from numba import prange", "prange = range"), space)
        return space
    import numba

    exec(variant.source, space)
    options = dict(variant.numba)
    fast = options.get("fastmath", False)
    options["fastmath"] = set(fast) if isinstance(fast, list) else fast
    named = {s.kernel for s in variant.steps}
    functions = [n for n, v in space.items() if getattr(v, "__code__", None) is not None]
    for name in functions:
        # Helpers first would be right; numba looks names up at the first call, so order is free.
        space[name] = numba.njit(
            **(options if name in named else {"fastmath": options["fastmath"]})
        )(space[name])
    return space
