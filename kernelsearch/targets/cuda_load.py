"""Load a binary's kernels, check a launch plan against them, and launch it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernelsearch.errors import LaunchError, ResourceLimitError
from kernelsearch.records import (
    Binary,
    FillStep,
    KernelStep,
    LaunchPlan,
    ScalarArg,
    TensorMapSpec,
    dtype_bytes,
)
from kernelsearch.shm import numpy_dtype
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_state import ModuleState

WORKSPACE_SHARE = 0.25
_CTYPES: dict[str, Any] = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64,
    "f32": ctypes.c_float, "f64": ctypes.c_double,
}  # fmt: skip
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_PORTABLE_CLUSTER = 8
_MAX_CLUSTER = 16
TENSOR_MAP_BYTES = 128


@dataclass(frozen=True, slots=True)
class Placed:
    """A buffer on the device, as a launch plan sees it."""

    pointer: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """One launch with everything in it: nothing left to look up."""

    label: str
    config: Any
    kernel: Any
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BoundFill:
    label: str
    pointer: int
    nbytes: int
    value: int


BoundCall = tuple[BoundKernel | BoundFill, ...]


class LoadedBinary:
    """A binary's module on the device. A fresh one has fresh (zeroed) module state."""

    def __init__(self, context: CudaContext, binary: Binary) -> None:
        self.context = context
        self.binary = binary
        if binary.job.arch != context.device.arch:
            raise LaunchError(
                f"the binary is for {binary.job.arch}, the device is {context.device.arch}; "
                "compile it again for this device",
                {"binary_arch": binary.job.arch, "device_arch": context.device.arch},
            )
        with context.faults("loading the binary"):
            self._module = context.core.ObjectCode.from_cubin(binary.image, name=binary.key)
            self._kernels = {
                name: self._module.get_kernel(symbol) for name, symbol in binary.symbols.items()
            }
            self._sizes = {
                name: tuple(int(p.size) for p in kernel.arguments_info)
                for name, kernel in self._kernels.items()
            }
            self.state = ModuleState(context, binary.image, self._module.handle)

    def _kernel(self, name: str) -> Any:
        if name not in self._kernels:
            raise LaunchError(
                f"the launch plan names kernel {name!r}, which the binary does not have (it has: "
                f"{', '.join(sorted(self._kernels))})",
                {"kernel": name, "known": sorted(self._kernels)},
            )
        return self._kernels[name]

    def _attribute(self, name: str, kernel: Any) -> int:
        driver = self.context.driver
        kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        device = driver.CUdevice(self.context.handle.device_id)
        return int(self.context.check(driver.cuKernelGetAttribute(kind, kernel.handle, device))[1])

    def _allow(self, name: str, value: int, kernel: Any) -> None:
        driver = self.context.driver
        kind = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        device = driver.CUdevice(self.context.handle.device_id)
        self.context.check(driver.cuKernelSetAttribute(kind, value, kernel.handle, device))

    def prepare(self, plan: LaunchPlan) -> None:
        """Check every launch of a plan against the device's limits, before anything runs.

        Raises:
            ResourceLimitError: it asks for more than there is; the evidence holds the numbers.
            LaunchError: a launch cannot be right (grid no multiple of its cluster).
        """
        limit = int(WORKSPACE_SHARE * self.context.total_bytes)
        if plan.workspace_bytes > limit:
            raise ResourceLimitError(
                f"the workspace of {plan.workspace_bytes} bytes is over the limit of {limit} "
                f"({WORKSPACE_SHARE:.0%} of the device's memory)",
                {"workspace_bytes": plan.workspace_bytes, "limit_bytes": limit},
            )
        for step in plan.steps:
            if isinstance(step, KernelStep):
                with self.context.faults(f"preparing {step.kernel}"):
                    self._check_limits(step)

    def _check_limits(self, step: KernelStep) -> None:
        kernel = self._kernel(step.kernel)
        facts = self.context.device.facts
        threads = math.prod(step.block)
        most = self._attribute("MAX_THREADS_PER_BLOCK", kernel)
        _limit(step, "threads a block", threads, most)
        for axis, size, top in zip("xyz", step.block, _MAX_BLOCK, strict=True):
            _limit(step, f"block size along {axis}", size, top)
        for axis, size, top in zip("xyz", step.grid, _MAX_GRID, strict=True):
            _limit(step, f"grid size along {axis}", size, top)
        if min(step.block) < 1 or step.shared < 0:
            raise LaunchError(
                f"{step.kernel}: block sizes must be at least 1 and shared at least 0 "
                f"(got {step.block} and {step.shared})",
                {"kernel": step.kernel, "block": step.block, "shared": step.shared},
            )
        static = self._attribute("SHARED_SIZE_BYTES", kernel)
        _limit(
            step, "shared memory a block, bytes", static + step.shared,
            facts["max_shared_per_block"], static=static, dynamic=step.shared,
        )  # fmt: skip
        if step.shared:
            self._allow("MAX_DYNAMIC_SHARED_SIZE_BYTES", step.shared, kernel)
        if step.cluster is not None:
            self._check_cluster(step, kernel)
        if step.cooperative:
            occupancy = kernel.occupancy.max_active_blocks_per_multiprocessor(threads, step.shared)
            _limit(
                step, "blocks of a cooperative launch", math.prod(step.grid),
                int(occupancy) * facts["sm_count"],
            )  # fmt: skip

    def _check_cluster(self, step: KernelStep, kernel: Any) -> None:
        assert step.cluster is not None
        size = math.prod(step.cluster)
        _limit(step, "blocks a cluster", size, _MAX_CLUSTER)
        if size < 1 or any(g % c for g, c in zip(step.grid, step.cluster, strict=True)):
            raise LaunchError(
                f"{step.kernel}: the grid {step.grid} must be a multiple of the cluster "
                f"{step.cluster}; round it up",
                {"kernel": step.kernel, "grid": step.grid, "cluster": step.cluster},
            )
        if size > _PORTABLE_CLUSTER:
            self._allow("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, kernel)
        active = kernel.occupancy.max_active_clusters(
            self._config(step), stream=self.context.stream
        )
        if int(active) < 1:
            raise ResourceLimitError(
                f"{step.kernel}: no cluster of {size} blocks with {math.prod(step.block)} threads "
                f"and {step.shared} bytes of dynamic shared memory each fits the device",
                {"kernel": step.kernel, "cluster": step.cluster, "active_clusters": int(active)},
            )

    def _config(self, step: KernelStep) -> Any:
        if step.cluster is None:
            return self.context.core.LaunchConfig(
                grid=step.grid, block=step.block, shmem_size=step.shared,
                is_cooperative=step.cooperative,
            )  # fmt: skip
        # cuda.core counts the grid in clusters.
        grid = tuple(g // c for g, c in zip(step.grid, step.cluster, strict=True))
        return self.context.core.LaunchConfig(
            grid=grid, cluster=step.cluster, block=step.block, shmem_size=step.shared,
            is_cooperative=step.cooperative,
        )  # fmt: skip

    def bind(self, plan: LaunchPlan, buffers: Mapping[str, Placed]) -> BoundCall:
        """Return the launches of one call on these buffers.

        Raises:
            LaunchError: an argument does not have the size that the compiled kernel expects.
        """
        maps = {m.name: tensor_map(self.context, m, buffers) for m in plan.tensormaps}
        bound: list[BoundKernel | BoundFill] = []
        for number, step in enumerate(plan.steps, start=1):
            if isinstance(step, FillStep):
                target = buffers[step.buffer]
                label = f"step {number} (fill {step.buffer})"
                bound.append(BoundFill(label, target.pointer, target.nbytes, step.value))
                continue
            args = self._arguments(step, buffers, maps)
            label = f"step {number} ({step.kernel})"
            kernel = self._kernel(step.kernel)
            bound.append(BoundKernel(label, self._config(step), kernel, args))
        return tuple(bound)

    def _arguments(
        self, step: KernelStep, buffers: Mapping[str, Placed], maps: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        sizes = self._sizes[step.kernel]
        if len(sizes) != len(step.args):
            raise LaunchError(
                f"{step.kernel} takes {len(sizes)} arguments, the launch plan gives "
                f"{len(step.args)}; make args match the kernel's parameters",
                {"kernel": step.kernel, "expected": len(sizes), "given": len(step.args)},
            )
        args: list[Any] = []
        for index, (arg, expected) in enumerate(zip(step.args, sizes, strict=True)):
            value, given = _argument(step, index, arg, buffers, maps)
            if given != expected:
                name = arg if isinstance(arg, str) else f"{arg.value}:{arg.ctype}"
                raise LaunchError(
                    f"argument {index} of {step.kernel} ({name}) must have {expected} bytes as "
                    f"compiled (got {given}); change its type in args",
                    {"kernel": step.kernel, "argument": index, "name": name,
                     "expected_bytes": expected, "given_bytes": given},
                )  # fmt: skip
            args.append(value)
        return tuple(args)


def _limit(step: KernelStep, what: str, asked: int, most: int, **more: int) -> None:
    if asked > most:
        raise ResourceLimitError(
            f"{step.kernel}: {what} must be at most {most} (got {asked}); choose smaller tunables",
            {"kernel": step.kernel, "what": what, "asked": asked, "limit": most, **more},
        )


def _argument(
    step: KernelStep, index: int, arg: str | ScalarArg, buffers: Mapping[str, Placed],
    maps: Mapping[str, Any],
) -> tuple[Any, int]:  # fmt: skip
    if isinstance(arg, ScalarArg):
        kind = _CTYPES[arg.ctype]
        value = kind(arg.value)
        if arg.ctype[0] in "iu" and value.value != arg.value:
            raise LaunchError(
                f"argument {index} of {step.kernel} must fit {arg.ctype} (got {arg.value}); use a "
                "wider type, or limit [domain]",
                {"kernel": step.kernel, "argument": index, "value": arg.value, "type": arg.ctype},
            )
        return value, ctypes.sizeof(kind)
    if arg in maps:
        return maps[arg], TENSOR_MAP_BYTES
    if arg not in buffers:
        raise LaunchError(
            f"argument {index} of {step.kernel} names {arg!r}, which the request has no buffer "
            f"for (it has: {', '.join(sorted(buffers))})",
            {"kernel": step.kernel, "argument": index, "name": arg},
        )
    return buffers[arg].pointer, 8


def tensor_map(context: CudaContext, spec: TensorMapSpec, buffers: Mapping[str, Placed]) -> Any:
    """Return the TMA descriptor of a buffer.

    Raises:
        LaunchError: the buffer cannot have such a descriptor (alignment, sizes).
    """
    buffer = buffers[spec.tensor]
    size = dtype_bytes(buffer.dtype)
    strides = [size * math.prod(buffer.shape[i + 1 :]) for i in range(len(buffer.shape) - 1)]
    bad = [s for s in strides if s % 16]
    problem = ""
    if buffer.pointer % 16:
        problem = "the tensor's start must be a multiple of 16 bytes"
    elif bad:
        problem = f"a row's stride must be a multiple of 16 bytes (got {bad[0]})"
    elif len(spec.box) != len(buffer.shape):
        problem = f"box must have {len(buffer.shape)} sizes (got {len(spec.box)})"
    elif any(not 1 <= b <= 256 for b in spec.box):
        problem = f"box sizes must be 1 to 256 (got {spec.box})"
    elif not all(buffer.shape):
        problem = f"the tensor must not be empty (its shape is {buffer.shape})"
    evidence = {"tensormap": spec.name, "tensor": spec.tensor, "shape": buffer.shape,
                "box": spec.box, "swizzle": spec.swizzle}  # fmt: skip
    if problem:
        raise LaunchError(
            f"tensor map {spec.name} of {spec.tensor}: {problem}; state it in [domain]", evidence
        )
    core = context.core
    from cuda.core import _tensor_map as kinds
    from cuda.core.utils import StridedMemoryView

    swizzle = {"none": "NONE"}.get(spec.swizzle, f"SWIZZLE_{spec.swizzle}")
    promotion = {"none": "NONE"}.get(spec.l2_promotion, f"L2_{spec.l2_promotion}")
    try:
        memory = core.Buffer.from_handle(buffer.pointer, buffer.nbytes, owner=context)
        view = StridedMemoryView.from_buffer(memory, buffer.shape, dtype=numpy_dtype(buffer.dtype))
        return view.as_tensor_map(
            box_dim=spec.box,
            swizzle=getattr(kinds.TensorMapSwizzle, swizzle),
            l2_promotion=getattr(kinds.TensorMapL2Promotion, promotion),
        )
    except (context.error_type, ValueError) as error:
        raise LaunchError(
            f"tensor map {spec.name} of {spec.tensor} is refused: {error}", evidence
        ) from None


def launch(context: CudaContext, call: BoundCall, stream: Any = None) -> None:
    """Queue all steps of a call on a stream, or into a graph that is being built."""
    into = stream or context.stream
    raw = into.stream.handle if hasattr(into, "stream") else into.handle
    for step in call:
        if isinstance(step, BoundFill):
            context.fill_bytes(step.pointer, step.value, step.nbytes, raw)
        else:
            context.core.launch(into, step.config, step.kernel, *step.args)
