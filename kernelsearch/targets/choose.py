"""Turn a target's name into a target for this machine."""

from __future__ import annotations

from pathlib import Path

from kernelsearch.errors import MissingExtraError, TargetUnavailableError, UnknownNameError
from kernelsearch.protocols import Target

NAMES = ("auto", "cpu", "cuda")


def choose_target(name: str, cache: Path, arch: str | None = None) -> Target:
    """Return the target called ``name``; ``auto`` takes the GPU where there is one.

    Args:
        name: ``auto``, ``cpu`` or ``cuda``.
        cache: folder for compiled binaries.
        arch: compile for this architecture only (CUDA; then no device is needed).

    Raises:
        UnknownNameError: no such target.
        TargetUnavailableError: ``cuda`` was asked for by name and no device answers.
        MissingExtraError: ``cuda`` was asked for and its packages are not installed.
    """
    if name not in NAMES:
        raise UnknownNameError("target", name, NAMES, "(cuda is an NVIDIA GPU)")
    if name == "cpu":
        return _cpu()
    if name == "cuda":
        try:
            return _cuda(cache, arch)
        except TargetUnavailableError as error:
            raise TargetUnavailableError(
                f"{error}; `kernelsearch doctor` says what works here, and --target cpu does"
            ) from error
    try:
        return _cuda(cache, arch)
    except (TargetUnavailableError, MissingExtraError):
        return _cpu()


def _cpu() -> Target:
    from kernelsearch.targets.cpu import CpuTarget

    return CpuTarget()


def _cuda(cache: Path, arch: str | None) -> Target:
    from kernelsearch.targets.cuda import CudaTarget

    return CudaTarget(arch=arch, cache_folder=cache)
