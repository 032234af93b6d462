"""A user's own kernel as the specification: run on the device, in float64 where its types allow.

The operator files that ``kernelsearch import`` writes use this module: ``Original`` is their
reference, ``OriginalScale`` the size of the numbers that get rounded, ``draw_inputs`` their
generator.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernelsearch import draw
from kernelsearch.errors import CandidateError, OperatorError
from kernelsearch.expressions import Expression
from kernelsearch.home import cache_folder, lock_path
from kernelsearch.locks import DeviceLock
from kernelsearch.operator import ELEM, Arrays, Reference, Rows, Scalar, Tensor
from kernelsearch.protocols import Target
from kernelsearch.records import BufferSpec, RunRequest, ShmRef
from kernelsearch.shm import ALIGN, SharedBlock, numpy_dtype
from kernelsearch.variant import Variant, parse_variant
from kernelsearch.verify_bound import default_scale, is_float, unit

DEADLINE_S = 120.0
KEPT_RUNS = 4
DISTRIBUTIONS = ("default", "constant", "large", "tiny")
# Beyond these a kernel of unknown arithmetic would leave float32's range: squares, exponentials.
LARGE, TINY = 64.0, 1e-4


@dataclass(frozen=True, slots=True)
class Index:
    """Integers that lead to one of ``places`` (an expression over sizes) elements."""

    places: str


@dataclass(frozen=True, slots=True)
class Offsets:
    """Integers that rise from 0 to ``total`` (an expression over sizes), such as row pointers."""

    total: str


def draw_inputs(
    arguments: Sequence[Tensor | Scalar], values: Mapping[str, Index | Offsets],
    sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str,
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Draw every input of an imported operator.

    Args:
        arguments: of the operator.
        values: what the integers of a tensor mean; others are drawn from 0 to 15.
        sizes: of the workload.
        distribution: one of ``DISTRIBUTIONS``.
        rng: source of randomness.
        dtype: element type.

    Returns:
        Arrays by name, in the tensors' shapes and dtypes.
    """
    drawn: dict[str, NDArray[Any]] = {}
    for tensor in arguments:
        if not isinstance(tensor, Tensor) or tensor.role == "out":
            continue
        shape = tensor.concrete_shape(sizes)
        kind = dtype if tensor.dtype == ELEM else tensor.dtype
        meaning = values.get(tensor.name)
        if is_float(kind):
            drawn[tensor.name] = draw.draw(shape, distribution, rng, kind, large=LARGE, tiny=TINY)
        elif isinstance(meaning, Offsets):
            total = Expression.parse(meaning.total).integer(dict(sizes))
            inner = np.sort(rng.integers(0, total, size=max(0, shape[0] - 2), endpoint=True))
            whole = np.concatenate(([0], inner, [total]))[-shape[0] :] if shape[0] else inner
            drawn[tensor.name] = whole.astype(numpy_dtype(kind))
        else:
            places = 16
            if isinstance(meaning, Index):
                places = max(1, Expression.parse(meaning.places).integer(dict(sizes)))
            drawn[tensor.name] = rng.integers(0, places, size=shape).astype(numpy_dtype(kind))
    return drawn


class Machine(Protocol):
    """Runs a variant once on given arrays."""

    def run(
        self, variant: Variant, arguments: Sequence[Tensor | Scalar], sizes: Mapping[str, int],
        arrays: Arrays, scalars: Mapping[str, float], dtype: str,
    ) -> dict[str, NDArray[Any]]: ...  # fmt: skip


class DeviceMachine:
    """Runs a variant in an isolated worker on this machine's GPU."""

    def __init__(self, target: Target) -> None:
        from kernelsearch.worker import IsolatedRunner

        self.target = target
        self.runner = IsolatedRunner(target, DeviceLock(lock_path(target.device.key)))
        self._loaded: dict[str, Any] = {}
        self._lock = threading.Lock()

    def run(
        self, variant: Variant, arguments: Sequence[Tensor | Scalar], sizes: Mapping[str, int],
        arrays: Arrays, scalars: Mapping[str, float], dtype: str,
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        """Return the outputs.

        Raises:
            CandidateError: it does not compile or run.
        """
        facts = self.target.device.facts
        params = {name: choices[0] for name, choices in variant.tunables.items()}
        job = variant.compile_job(params, dtype, self.target.device.arch)
        plan = variant.plan(params, sizes, scalars, facts, dtype)
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        with self._lock, _Buffers(tensors, sizes, arrays, dtype) as buffers:
            binary = self._loaded.get(job.source)
            if binary is None:
                binary = self.target.compile(job)
                self._loaded[job.source] = binary
            self.runner.load(binary, DEADLINE_S)
            report = self.runner.run(
                RunRequest(binary.key, plan, buffers.specs, poison=0xFF), DEADLINE_S
            )
            if report.corrupted_guards or report.modified_inputs:
                broken = ", ".join((*report.corrupted_guards, *report.modified_inputs))
                raise OperatorError(
                    f"the original kernel of {variant.operator} writes where it must not "
                    f"({broken}) on {dict(sizes)}: what it computes there is undefined; correct "
                    "it, or give the array's true extent with --extent"
                )
            return buffers.outputs()


@lru_cache(maxsize=1)
def machine() -> Machine:
    """Return what originals run on: this machine's GPU.

    Raises:
        TargetUnavailableError: there is none.
    """
    from kernelsearch.targets.choose import choose_target

    return DeviceMachine(choose_target("cuda", cache_folder()))


class _Buffers:
    """Shared memory for one run."""

    def __init__(
        self, tensors: Sequence[Tensor], sizes: Mapping[str, int], arrays: Arrays, dtype: str
    ) -> None:
        layout = []
        end = 0
        for tensor in tensors:
            kind = dtype if tensor.dtype == ELEM else tensor.dtype
            shape = tensor.concrete_shape(sizes)
            size = int(np.prod(shape, dtype=np.int64)) * numpy_dtype(kind).itemsize
            places = []
            for _ in range(2 if tensor.role == "inout" else 1):
                places.append(end)
                end += max(ALIGN, -(-size // ALIGN) * ALIGN)
            layout.append((tensor, kind, shape, size, places))
        self.block = SharedBlock(end)
        self._views: dict[str, NDArray[Any]] = {}
        specs = []
        for tensor, kind, shape, size, places in layout:
            source: ShmRef | None = None
            sink: ShmRef | None = None
            if tensor.role != "out":
                source = self.block.ref(places[0], size)
                view = self.block.array(kind, shape, places[0])
                view[...] = arrays[tensor.name].reshape(shape)
                del view
            if tensor.role != "in":
                sink = self.block.ref(places[-1], size)
                self._views[tensor.name] = self.block.array(kind, shape, places[-1])
            specs.append(BufferSpec(tensor.name, kind, shape, tensor.role, source, sink))
        self.specs = tuple(specs)

    def outputs(self) -> dict[str, NDArray[Any]]:
        return {name: np.array(view) for name, view in self._views.items()}

    def __enter__(self) -> _Buffers:
        return self

    def __exit__(self, *_: object) -> None:
        self._views = {}
        self.block.close()


@dataclass(frozen=True)
class _Run:
    """What was computed from which arrays."""

    arrays: tuple[weakref.ref[NDArray[Any]], ...]
    scalars: tuple[tuple[str, float], ...]
    double: bool
    outputs: dict[str, NDArray[Any]]

    def is_of(self, arrays: Arrays, scalars: Mapping[str, float], double: bool) -> bool:
        held = [r() for r in self.arrays]
        given = list(arrays.values())
        return (
            double == self.double and self.scalars == tuple(sorted(scalars.items()))
            and len(held) == len(given)
            and all(a is b for a, b in zip(held, given, strict=True))
        )  # fmt: skip


@dataclass
class Original:
    """A kernel as it was given, as an operator's reference.

    Args:
        path: its variant file.
        arguments: of the operator.
        dtype: the element type it was written for.
    """

    path: Path
    arguments: tuple[Tensor | Scalar, ...]
    dtype: str
    _runs: list[_Run] = field(default_factory=list, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _fails_in_double: bool = False

    @cached_property
    def variant(self) -> Variant:
        return parse_variant(self.path.read_text(encoding="utf-8"), "cuda", str(self.path))

    @cached_property
    def in_double(self) -> Variant | None:
        """The same source in float64, or None where its types do not allow that."""
        text = doubled(self.path.read_text(encoding="utf-8"), self.dtype)
        return parse_variant(text, "cuda", str(self.path)) if text is not None else None

    def __call__(
        self, arrays: Arrays, scalars: Mapping[str, float], rows: Rows
    ) -> dict[str, NDArray[Any]]:
        raise OperatorError(
            "the reference of an imported kernel needs the sizes: use for_sizes(sizes)"
        )

    def for_sizes(self, sizes: Mapping[str, int]) -> Reference:
        """Return the reference of one workload."""

        def reference(
            arrays: Arrays, scalars: Mapping[str, float], rows: Rows
        ) -> dict[str, NDArray[Any]]:
            outputs = self.outputs(sizes, arrays, scalars, double=True)
            return {n: o if rows is None else o[rows] for n, o in outputs.items()}

        return reference

    def outputs(
        self, sizes: Mapping[str, int], arrays: Arrays, scalars: Mapping[str, float], *,
        double: bool,
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        """Return all outputs, in float64 where asked for and possible.

        Raises:
            OperatorError: the original does not run, or leaves an output unwritten.
        """
        with self._lock:
            for run in self._runs:
                if run.is_of(arrays, scalars, double):
                    return run.outputs
            outputs = self._compute(sizes, arrays, scalars, double)
            kept = tuple(weakref.ref(a) for a in arrays.values())
            self._runs.append(_Run(kept, tuple(sorted(scalars.items())), double, outputs))
            del self._runs[:-KEPT_RUNS]
            return outputs

    def _compute(
        self, sizes: Mapping[str, int], arrays: Arrays, scalars: Mapping[str, float], double: bool
    ) -> dict[str, NDArray[Any]]:
        device = machine()
        if double and self.in_double is not None and not self._fails_in_double:
            wide = {
                n: a.astype(np.float64) if is_float(str(a.dtype)) else a for n, a in arrays.items()
            }
            arguments = tuple(
                replace(a, dtype="float64")
                if isinstance(a, Tensor) and a.dtype in ("float32", ELEM) else a
                for a in self.arguments
            )  # fmt: skip
            with suppress(CandidateError):
                return self._finished(
                    device.run(self.in_double, arguments, sizes, wide, scalars, "float64"), arrays,
                    sizes,
                )  # fmt: skip
            # Twice the shared memory or registers may be more than there is.
            self._fails_in_double = True
        try:
            outputs = device.run(self.variant, self.arguments, sizes, arrays, scalars, self.dtype)
        except CandidateError as error:
            raise OperatorError(
                f"{self.path}: the original kernel does not run on {dict(sizes)}: {error}"
            ) from error
        return self._finished(outputs, arrays, sizes)

    def _finished(
        self, outputs: dict[str, NDArray[Any]], arrays: Arrays, sizes: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        for name, value in outputs.items():
            raw = np.ascontiguousarray(value).view(np.uint8).reshape(-1, value.dtype.itemsize)
            unwritten = int((raw == 0xFF).all(axis=1).sum()) if value.size else 0
            if unwritten and is_float(str(value.dtype)) and _finite(arrays):
                raise OperatorError(
                    f"{self.path}: the original leaves {unwritten} of {value.size} elements of "
                    f"{name} unwritten on {dict(sizes)}: what is there is undefined; give its true "
                    f"extent with --extent, or --inout {name} where its old contents count"
                )
        return outputs


def _finite(arrays: Arrays) -> bool:
    floats = (a for a in arrays.values() if is_float(str(a.dtype)))
    return all(np.isfinite(a.astype(np.float64)).all() for a in floats)


@dataclass
class OriginalScale:
    """The size of the numbers that get rounded.

    It is the largest result of a row, or what the original's own rounding shows it to be, whichever
    is more.

    Args:
        original: the kernel.
    """

    original: Original

    def __call__(
        self, arrays: Arrays, scalars: Mapping[str, float], rows: Rows
    ) -> dict[str, NDArray[Any]]:
        raise OperatorError("the scale of an imported kernel needs the sizes: use for_sizes(sizes)")

    def for_sizes(self, sizes: Mapping[str, int]) -> Reference:
        """Return the scale of one workload."""

        def scale(
            arrays: Arrays, scalars: Mapping[str, float], rows: Rows
        ) -> dict[str, NDArray[Any]]:
            exact = self.original.outputs(sizes, arrays, scalars, double=True)
            own = self.original.outputs(sizes, arrays, scalars, double=False)
            result = {}
            for name, value in exact.items():
                wide = value.astype(np.float64)
                size = default_scale(wide)
                if is_float(str(own[name].dtype)):
                    with np.errstate(invalid="ignore", over="ignore"):
                        off = default_scale(own[name].astype(np.float64) - wide)
                    size = np.maximum(size, off / unit(str(own[name].dtype)))
                result[name] = size if rows is None else size[rows]
            return result

        return scale


def doubled(text: str, dtype: str) -> str | None:
    """Return a variant file that computes in float64, or None where its types do not allow that."""
    if dtype != "float32":
        return None
    from kernelsearch.original_double import double_edition

    end = text.index("*/") + 2
    block, body = text[:end], text[end:]
    wide = double_edition(body)
    if wide is None:
        return None
    block = block.replace(":f32", ":f64").replace('"float32"', '"float64"')
    block = re.sub(r'shared = "([^"]+)"', r'shared = "2 * (\1)"', block)
    # Template arguments of a launch are types of the source.
    block = re.sub(
        r'(kernel = ")([^"]+)"', lambda m: m[1] + re.sub(r"\bfloat\b", "double", m[2]) + '"', block
    )
    return block + wide
