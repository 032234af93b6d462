"""Make a compute kernel faster and prove that it still computes the same thing.

``tune`` is the front door; ``Operator`` and its parts describe what must be computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernelsearch.errors import KernelSearchError
from kernelsearch.operator import ErrorModel, Operator, Scalar, Tensor, Workload

if TYPE_CHECKING:
    from kernelsearch.api import tune
    from kernelsearch.export.loading import load
    from kernelsearch.operators_io import load_operator
    from kernelsearch.result import Result
    from kernelsearch.runtime import TunedKernel
    from kernelsearch.study import Study

__all__ = [
    "ErrorModel", "KernelSearchError", "Operator", "Result", "Scalar", "Study", "Tensor",
    "TunedKernel", "Workload", "load", "load_operator", "tune",
]  # fmt: skip

# Loaded on first use: importing the package must stay quick, and Optuna takes its time.
_LAZY = {
    "tune": "kernelsearch.api",
    "load": "kernelsearch.export.loading",
    "load_operator": "kernelsearch.operators_io",
    "Result": "kernelsearch.result",
    "TunedKernel": "kernelsearch.runtime",
    "Study": "kernelsearch.study",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
