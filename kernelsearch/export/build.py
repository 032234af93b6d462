"""Compile what is exported: machine code for named architectures, and PTX for newer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernelsearch.errors import ArgumentError
from kernelsearch.export.kernel import (
    ExportedKernel,
    Image,
    Measured,
    architecture,
    check_arguments,
)
from kernelsearch.operator import Operator
from kernelsearch.records import Device, Evaluation, Params, Timing
from kernelsearch.targets.cuda_compile import compile_cuda, nvrtc_version
from kernelsearch.targets.cuda_ptx import compile_ptx
from kernelsearch.variant import Variant


def build_kernel(
    operator: Operator, variant: Variant, params: Params, dtype: str, archs: Sequence[str],
    *, device: Device | None = None, evaluation: Evaluation | None = None,
    origin: Mapping[str, Any] | None = None, cache: str | None = None,
) -> ExportedKernel:  # fmt: skip
    """Compile a variant with its params for each architecture; needs NVRTC and no device.

    PTX is added for the oldest architecture asked for.

    Args:
        operator: what it computes.
        variant: a CUDA variant.
        params: values of all its tunables.
        dtype: element type.
        archs: like ``sm_80``, ``sm_90a``.
        device: where ``evaluation`` was measured.
        evaluation: what is known of it; None: nobody has verified it.
        origin: more facts for the manifest.
        cache: folder of compiled programs.

    Raises:
        ArgumentError: an architecture is malformed, or too old for the variant.
        CandidateError: it does not compile.
    """
    variant.check_against(operator)
    variant.check_params(params)
    operator.check_dtype("cuda", dtype)
    if dtype not in variant.dtypes:
        raise ArgumentError(
            f"{variant.path} is for {', '.join(variant.dtypes)} (got --dtype {dtype})"
        )
    wanted = list(dict.fromkeys(archs))
    if not wanted:
        raise ArgumentError("name at least one architecture with --archs, like sm_90a")
    for arch in wanted:
        _check_arch(variant, arch)
    images, symbols = [], {}
    sizes: dict[str, Sequence[int] | None] = {}
    for arch in sorted(wanted, key=architecture):
        binary = compile_cuda(variant.compile_job(params, dtype, arch), cache)
        images.append(Image(arch, False, binary.image))
        symbols = dict(binary.symbols)
        sizes = {f.name: f.param_bytes for f in binary.facts}
    oldest = images[0].arch
    ptx, names = compile_ptx(variant.compile_job(params, dtype, oldest))
    if names != symbols:
        raise ArgumentError(f"{variant.path}: its kernels have other names in PTX than in cubins")
    images.append(Image(oldest, True, ptx))
    kernel = ExportedKernel(
        variant=variant, params=dict(params), dtype=dtype, images=tuple(images), symbols=symbols,
        measured=_measured(operator, device, evaluation),
        verified=evaluation.verified if evaluation is not None else (),
        origin={"nvrtc": nvrtc_version(), **(origin or {})},
    )  # fmt: skip
    check_arguments(kernel, sizes)
    return kernel


def _check_arch(variant: Variant, arch: str) -> None:
    major, minor, _ = architecture(arch)
    if not variant.arch:
        return
    least_major, least_minor, exact = architecture(variant.arch)
    if exact and arch != variant.arch:
        raise ArgumentError(
            f"{variant.name} is for {variant.arch} alone (got {arch} in --archs); export another "
            "variant for other architectures"
        )
    if (major, minor) < (least_major, least_minor):
        raise ArgumentError(
            f"{variant.name} needs {variant.arch} or newer (got {arch} in --archs); leave it out, "
            "or export another variant for it"
        )


def _measured(
    operator: Operator, device: Device | None, evaluation: Evaluation | None
) -> tuple[Measured, ...]:
    if device is None or evaluation is None:
        return ()
    return tuple(_record(operator, device, timing) for timing in evaluation.timings)


def _record(operator: Operator, device: Device, timing: Timing) -> Measured:
    text, _, distribution = timing.workload.partition("@")
    sizes = {k: int(v) for k, _, v in (p.partition("=") for p in text.split(",")) if k}
    return Measured(
        device=device.name, arch=device.arch,
        sizes=tuple(sizes[s] for s in operator.symbols), time_us=timing.median_us,
        low_us=min(timing.samples_us), high_us=max(timing.samples_us),
        distribution=distribution or "default",
    )  # fmt: skip
