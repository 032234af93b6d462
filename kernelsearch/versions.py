"""Versions of what a result depends on: this package, Python, compilers and libraries."""

from __future__ import annotations

import platform
from importlib import metadata

PACKAGE = "kernelsearch"
_LIBRARIES = (
    "numba", "llvmlite", "numpy", "optuna", "ml_dtypes", "cuda-core", "cuda-bindings",
    "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl",
)  # fmt: skip


def installed(name: str) -> str | None:
    """Return the installed version of a distribution, None where there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str]:
    """Return the version of everything that results depend on and that is installed."""
    found = {name: installed(name) for name in (PACKAGE, *_LIBRARIES)}
    known = {name: version for name, version in found.items() if version is not None}
    return {**known, "python": platform.python_version(), "platform": platform.platform()}
