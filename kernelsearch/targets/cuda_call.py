"""Call a verified CUDA kernel in the user's own process, on the user's own device arrays.

Arrays come through DLPack or the CUDA array interface (torch, CuPy, Numba, JAX); the kernel is
queued on the current stream of the library the arrays belong to, and nothing is synchronised.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from kernelsearch.errors import ArgumentError
from kernelsearch.records import Binary, Device, LaunchPlan
from kernelsearch.shm import numpy_dtype
from kernelsearch.targets.cuda_context import CudaContext
from kernelsearch.targets.cuda_load import LoadedBinary, Placed, launch

_contexts: dict[int, CudaContext] = {}


def _context(device: Device, ordinal: int) -> CudaContext:
    if ordinal not in _contexts:
        _contexts[ordinal] = CudaContext(device, ordinal)
    return _contexts[ordinal]


class CudaCaller:
    """One loaded binary; ``call`` queues a plan on the current stream."""

    def __init__(self, device: Device, binary: Binary, ordinal: int = 0) -> None:
        self._context = _context(device, ordinal)
        self._context.handle.set_current()
        self._loaded = LoadedBinary(self._context, binary)
        # A call's scratch must outlive its launches, which are only queued: kept for the next call
        # on the same stream, where it is ordered after them.
        self._scratch: dict[tuple[int, str], tuple[int, int]] = {}
        self._prepared: set[LaunchPlan] = set()

    def call(self, plan: LaunchPlan, arrays: Mapping[str, Any]) -> None:
        """Queue all steps; outputs are written in place.

        Args:
            plan: the bound launch plan.
            arrays: ``DeviceArray`` objects by argument name.
        """
        context = self._context
        context.handle.set_current()
        if plan not in self._prepared:
            self._loaded.prepare(plan)
            self._prepared.add(plan)
        stream_pointer = current_stream(arrays.values())
        placed = {name: Placed(a.pointer, a.nbytes, a.dtype, a.shape) for name, a in arrays.items()}
        for workspace in plan.workspaces:
            size = 1
            for extent in workspace.shape:
                size *= extent
            nbytes = size * numpy_dtype(workspace.dtype).itemsize
            pointer = self._workspace(stream_pointer, workspace.name, nbytes)
            placed[workspace.name] = Placed(pointer, nbytes, workspace.dtype, workspace.shape)
        stream = context.core.Stream.from_handle(stream_pointer)
        with context.faults("calling a tuned kernel"):
            launch(context, self._loaded.bind(plan, placed), stream)

    def _workspace(self, stream: int, name: str, nbytes: int) -> int:
        pointer, size = self._scratch.get((stream, name), (0, 0))
        if size < nbytes:
            if pointer:
                self._context.free(pointer)  # waits for what uses it
            pointer = self._context.allocate(nbytes)
            self._scratch[(stream, name)] = (pointer, nbytes)
        return pointer


class DeviceArray:
    """A user's array on the device: address, shape, dtype. Keeps the owner alive."""

    def __init__(self, name: str, value: Any) -> None:
        from cuda.core.utils import StridedMemoryView

        stream = current_stream([value])
        try:
            view = StridedMemoryView.from_any_interface(value, stream_ptr=stream)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"argument {name!r} must be a CUDA array (torch, CuPy, DLPack or the CUDA array "
                f"interface); got {type(value).__name__}: {error}"
            ) from error
        if not view.is_device_accessible:
            raise ArgumentError(
                f"argument {name!r} must lie on the GPU; it is on the host: move it there first"
            )
        self.owner = value
        self.pointer = int(view.ptr)
        self.shape = tuple(int(s) for s in view.shape)
        self.dtype = str(view.dtype)
        itemsize = numpy_dtype(self.dtype).itemsize if self.dtype != "None" else 0
        self.nbytes = itemsize
        for extent in self.shape:
            self.nbytes *= extent
        self.contiguous = _contiguous(self.shape, view.strides)


def _contiguous(shape: tuple[int, ...], strides: Any) -> bool:
    """Whether strides (in elements; None: C order) are those of a C-contiguous array."""
    if strides is None:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(tuple(strides)), strict=True):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def current_stream(values: Any) -> int:
    """Return the raw current stream of the library the first array belongs to (0: default)."""
    for value in values:
        owner = getattr(value, "owner", value)
        module = type(owner).__module__.partition(".")[0]
        if module == "torch":
            return int(sys.modules["torch"].cuda.current_stream(owner.device).cuda_stream)
        if module == "cupy":
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
        break
    # The legacy default stream: ordered with everything that is not marked non-blocking.
    return 1


def empty_like(value: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Return an uninitialised array of the same library and device.

    Raises:
        ArgumentError: the library is not known; the caller must pass ``out``.
    """
    module = type(value).__module__.partition(".")[0]
    if module == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=value.device)
    if module == "cupy":
        return sys.modules["cupy"].empty(shape, dtype=numpy_dtype(dtype))
    raise ArgumentError(
        f"outputs can be made for torch and CuPy arrays (got {type(value).__name__}); "
        "pass out= with an array to write to"
    )
