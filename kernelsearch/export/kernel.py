"""One kernel of a bundle: a variant with its params, compiled for named architectures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernelsearch.errors import ArgumentError
from kernelsearch.records import Params
from kernelsearch.variant import Variant

_ARCH = re.compile(r"sm_(\d{2,3})([af]?)\Z")
SCALAR_BYTES = {"i32": 4, "u32": 4, "i64": 8, "u64": 8, "f32": 4, "f64": 8}


@dataclass(frozen=True, slots=True)
class Image:
    """Machine code of one architecture (``sm_90a``), or PTX that newer devices compile."""

    arch: str
    ptx: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload on which the kernel was measured: where, and how long it took (microseconds)."""

    device: str
    arch: str
    sizes: tuple[int, ...]
    time_us: float
    low_us: float
    high_us: float
    baseline_us: float | None = None
    distribution: str = "default"


@dataclass(frozen=True)
class ExportedKernel:
    """A variant with its params and machine code.

    Attributes:
        symbols: name in the images by kernel name of the launch plan.
        measured: workloads it was measured on; empty where nobody has.
        verified: keys of the cases that passed; empty where nobody has looked.
        origin: JSON-able facts on where it comes from (device, lineage, result, toolchain).
    """

    variant: Variant
    params: Params
    dtype: str
    images: tuple[Image, ...]
    symbols: Mapping[str, str]
    measured: tuple[Measured, ...] = ()
    verified: tuple[str, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Readable name that differs where variant, params or element type do."""
        name = re.sub(r"\W", "_", self.variant.name)
        return f"{name}_{self.dtype}_{self.variant.candidate(self.params, self.dtype).key[:8]}"


def architecture(text: str) -> tuple[int, int, bool]:
    """Return (major, minor, exact) of ``sm_90a``: exact ones run on no other device.

    Raises:
        ArgumentError: it is not of that form.
    """
    match = _ARCH.match(text)
    if match is None:
        raise ArgumentError(
            f"an architecture must look like sm_90 or sm_90a (got {text!r}); CMake's 90a is sm_90a"
        )
    return int(match[1][:-1]), int(match[1][-1]), bool(match[2])


def check_arguments(kernel: ExportedKernel, sizes: Mapping[str, Sequence[int] | None]) -> None:
    """Check that a launch plan gives each kernel parameters of the sizes it was compiled with.

    Args:
        kernel: what is exported.
        sizes: bytes of each parameter by kernel name, None where the binary does not say.

    Raises:
        ArgumentError: a count or a size differs.
    """
    for step in kernel.variant.steps:
        if not step.kernel:
            continue
        name = kernel.variant.kernel_name(step.kernel, kernel.params)
        compiled = sizes.get(name)
        given = [
            SCALAR_BYTES[a[1]] if isinstance(a, tuple)
            else 128 if a in kernel.variant.tensormaps else 8
            for a in step.args
        ]  # fmt: skip
        if compiled is not None and list(compiled) != given:
            raise ArgumentError(
                f"{kernel.variant.path}: {name} was compiled with parameters of {list(compiled)} "
                f"bytes, its launch step gives {given}; make args match the kernel's parameters"
            )
