"""Run a user's own Python function in float64, compiled, as the reference of an operator.

Only for functions the user passes as a Python object in their own process: it is their code, not a
candidate's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=64)
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` compiled in nopython mode, strict arithmetic, serial."""
    import numba

    plain = getattr(function, "py_func", function)
    result: Callable[..., Any] = numba.njit(plain)
    return result
