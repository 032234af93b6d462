"""A tuned kernel as a Python callable: check the arguments, pick the variant, launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kernelsearch.errors import ArgumentError
from kernelsearch.expressions import Expression
from kernelsearch.operator import Interface, Tensor
from kernelsearch.records import Binary, CompileJob, Device, Evaluation, LaunchPlan, Params
from kernelsearch.result import Result
from kernelsearch.shm import numpy_dtype
from kernelsearch.variant import Variant


class Caller(Protocol):
    """One loaded binary in this process."""

    def call(self, plan: LaunchPlan, arrays: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Choice:
    """A verified variant with its params, in order of preference."""

    variant: Variant
    params: Params


class _Argument(Protocol):
    shape: tuple[int, ...]
    dtype: Any


class DeviceTarget(Protocol):
    """What calling needs of a target."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> Device: ...
    def compile(self, job: CompileJob) -> Binary: ...


class Kernel:
    """Verified variants of one operator, callable on arrays of their target.

    Call it with the operator's input tensors in order (or by name), scalars by name, and optionally
    ``out=``; it returns the output, or a tuple of outputs. Where the first choice's domain does not
    cover the sizes or the alignment of the arrays, the next verified variant that does is used.
    """

    def __init__(
        self, operator: Interface, target: DeviceTarget, dtype: str, choices: Sequence[Choice]
    ) -> None:
        self.operator, self.target, self.dtype = operator, target, dtype
        self.choices = tuple(choices)
        self._callers: dict[int, Caller] = {}

    def order(self, sizes: Mapping[str, int]) -> Sequence[int]:
        """Return the choices to try for a call, best first."""
        del sizes
        return range(len(self.choices))

    def __call__(self, *inputs: Any, out: Any = None, **named: Any) -> Any:
        """Compute the operator.

        Args:
            *inputs: input tensors in the operator's order.
            out: array to write to (or a mapping by name, for several outputs).
            **named: input tensors and scalars by name.

        Raises:
            ArgumentError: a missing or unknown argument, a wrong shape, dtype or layout, or sizes
                that no verified variant covers.
        """
        values = self._collect(inputs, named)
        arrays = {t.name: self._wrap(t, values[t.name]) for t in self.operator.inputs}
        sizes = self._sizes(arrays)
        outputs = self._outputs(out, arrays, values, sizes)
        for tensor in self.operator.outputs:
            if tensor.role == "out":
                arrays[tensor.name] = self._wrap(tensor, outputs[tensor.name])
        self._check_shapes(arrays, sizes)
        scalars = {s.name: float(values.get(s.name, s.value)) for s in self.operator.scalars}
        index, plan = self._plan(arrays, sizes, scalars)
        self._caller(index).call(plan, arrays)
        results = tuple(outputs[t.name] for t in self.operator.outputs)
        return results[0] if len(results) == 1 else results

    # --- arguments ---------------------------------------------------------------------------

    def _collect(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        tensors = [t.name for t in self.operator.inputs]
        scalars = [s.name for s in self.operator.scalars]
        name = self.operator.name
        if len(inputs) > len(tensors):
            raise ArgumentError(
                f"{name} takes {len(tensors)} input tensors ({', '.join(tensors)}); got "
                f"{len(inputs)}. Scalars are given by name: {', '.join(scalars) or 'none'}"
            )
        values = dict(zip(tensors, inputs, strict=False))
        for key, value in named.items():
            if key not in tensors and key not in scalars:
                raise ArgumentError(
                    f"{name} has no argument {key!r}; it has {', '.join([*tensors, *scalars])}"
                )
            if key in values:
                raise ArgumentError(f"{name}: argument {key!r} was given twice")
            values[key] = value
        missing = [t for t in tensors if t not in values]
        if missing:
            raise ArgumentError(f"{name}: missing input tensors: {', '.join(missing)}")
        for key in scalars:
            if key in values and not isinstance(values[key], int | float | np.number):
                raise ArgumentError(
                    f"{name}: scalar {key!r} must be a number (got {type(values[key]).__name__})"
                )
        return values

    def _wrap(self, tensor: Tensor, value: Any) -> Any:
        wanted = self.operator.tensor_dtype(tensor, self.dtype)
        if self.target.name == "cuda":
            from kernelsearch.targets.cuda_call import DeviceArray

            array: Any = DeviceArray(tensor.name, value)
            got, contiguous = array.dtype, array.contiguous
        else:
            if not isinstance(value, np.ndarray):
                raise ArgumentError(
                    f"argument {tensor.name!r} must be a NumPy array (got {type(value).__name__})"
                )
            array, got = value, str(value.dtype)
            contiguous = bool(value.flags.c_contiguous)
            if tensor.role != "in" and not value.flags.writeable:
                raise ArgumentError(f"argument {tensor.name!r} is written to, but is read-only")
        if got != wanted:
            raise ArgumentError(
                f"argument {tensor.name!r} must have dtype {wanted} (got {got}); this kernel was "
                f"tuned for {self.dtype}: convert it, or tune with dtype={got!r}"
            )
        if not contiguous:
            raise ArgumentError(
                f"argument {tensor.name!r} must be C-contiguous; pass a contiguous copy"
            )
        return array

    def _sizes(self, arrays: Mapping[str, _Argument]) -> dict[str, int]:
        """Solve the size symbols from the inputs' shapes."""
        sizes: dict[str, int] = {}
        for tensor in self.operator.inputs:
            shape = tuple(arrays[tensor.name].shape)
            if len(shape) != len(tensor.shape):
                raise ArgumentError(
                    f"argument {tensor.name!r} must have {len(tensor.shape)} dimensions "
                    f"({', '.join(map(str, tensor.shape))}); got shape {shape}"
                )
            for extent, value in zip(tensor.shape, shape, strict=True):
                if isinstance(extent, str) and extent.isidentifier():
                    sizes.setdefault(extent, int(value))
        for tensor in self.operator.inputs:
            for extent, value in zip(tensor.shape, arrays[tensor.name].shape, strict=True):
                self._solve(str(extent), int(value), sizes)
        missing = [s for s in self.operator.symbols if s not in sizes]
        if missing:
            raise ArgumentError(
                f"{self.operator.name}: the inputs' shapes do not determine {', '.join(missing)}; "
                "pass out= with arrays of the wanted shape"
            )
        return sizes

    @staticmethod
    def _solve(extent: str, value: int, sizes: dict[str, int]) -> None:
        """Solve an extent like ``rows + 1`` for its one unknown symbol."""
        expression = Expression.parse(extent)
        unknown = [n for n in expression.names if n not in sizes]
        if len(unknown) != 1:
            return
        zero = expression.integer({**sizes, unknown[0]: 0})
        slope = expression.integer({**sizes, unknown[0]: 1}) - zero
        if slope and (value - zero) % slope == 0:
            sizes[unknown[0]] = (value - zero) // slope

    def _check_shapes(self, arrays: Mapping[str, _Argument], sizes: Mapping[str, int]) -> None:
        for tensor in self.operator.tensors:
            wanted = tensor.concrete_shape(sizes)
            got = tuple(arrays[tensor.name].shape)
            if got != wanted:
                symbols = ", ".join(f"{k}={v}" for k, v in sizes.items())
                raise ArgumentError(
                    f"argument {tensor.name!r} must have shape "
                    f"({', '.join(map(str, tensor.shape))}) = {wanted} with {symbols}; got {got}"
                )

    def _outputs(
        self, out: Any, arrays: Mapping[str, Any], values: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> dict[str, Any]:  # fmt: skip
        fresh = [t for t in self.operator.outputs if t.role == "out"]
        given: dict[str, Any] = {}
        if isinstance(out, Mapping):
            given = dict(out)
        elif out is not None:
            if len(fresh) != 1:
                names = ", ".join(t.name for t in fresh)
                raise ArgumentError(f"out must be a mapping with {names}, for several outputs")
            given = {fresh[0].name: out}
        result: dict[str, Any] = {}
        for tensor in self.operator.outputs:
            if tensor.role == "inout":
                result[tensor.name] = values[tensor.name]
            elif tensor.name in given:
                result[tensor.name] = given.pop(tensor.name)
            else:
                result[tensor.name] = self._new_output(tensor, values, sizes)
        if given:
            raise ArgumentError(f"out names no output: {', '.join(given)}")
        del arrays
        return result

    def _new_output(
        self, tensor: Tensor, values: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> Any:
        shape = tensor.concrete_shape(sizes)
        dtype = self.operator.tensor_dtype(tensor, self.dtype)
        if self.target.name != "cuda":
            return np.empty(shape, numpy_dtype(dtype))
        from kernelsearch.targets.cuda_call import empty_like

        return empty_like(values[self.operator.inputs[0].name], shape, dtype)

    # --- choice ------------------------------------------------------------------------------

    def _plan(
        self, arrays: Mapping[str, Any], sizes: Mapping[str, int], scalars: Mapping[str, float]
    ) -> tuple[int, LaunchPlan]:
        facts = self.target.device.facts
        alignment = {name: _alignment(array) for name, array in arrays.items()}
        reasons = []
        for index in self.order(sizes):
            choice = self.choices[index]
            missed = choice.variant.applies(choice.params, sizes, facts, self.dtype, alignment)
            if missed is None:
                plan = choice.variant.plan(choice.params, sizes, scalars, facts, self.dtype)
                return index, plan
            reasons.append(f"{choice.variant.name}: {choice.variant.domain[missed].text}")
        raise ArgumentError(
            f"{self.operator.name}: no verified variant covers {dict(sizes)} ({'; '.join(reasons)})"
        )

    def _caller(self, index: int) -> Caller:
        if index not in self._callers:
            choice = self.choices[index]
            job = choice.variant.compile_job(
                choice.params, self.dtype, self.target.device.arch, self.operator
            )
            binary = self.target.compile(job)
            if self.target.name == "cuda":
                from kernelsearch.targets.cuda_call import CudaCaller

                self._callers[index] = CudaCaller(self.target.device, binary)
            else:
                from kernelsearch.targets.cpu_call import CpuCaller

                self._callers[index] = CpuCaller(binary)
        return self._callers[index]


class TunedKernel(Kernel):
    """The winner of a study, callable on arrays of its target (see ``Kernel``).

    Attributes:
        result: what the study found, with how it was measured.
    """

    def __init__(
        self, operator: Interface, target: DeviceTarget, dtype: str, choices: Sequence[Choice],
        result: Result,
    ) -> None:  # fmt: skip
        super().__init__(operator, target, dtype, choices)
        self.result = result

    def __repr__(self) -> str:
        r = self.result
        return (
            f"<TunedKernel {self.operator.name} ({self.dtype}, {r.target}): {r.variant_name} "
            f"{dict(r.params)}, {r.speedup:.2f}x over {r.baseline}>"
        )

    def _repr_html_(self) -> str:
        """Return what Jupyter shows: the result."""
        return self.result._repr_html_()


def _alignment(array: Any) -> int:
    """Return the largest power of two, at most 256, that divides the array's address."""
    pointer = array.ctypes.data if isinstance(array, np.ndarray) else array.pointer
    return int(min(256, pointer & -pointer)) if pointer else 256


def choices_of(pairs: Sequence[tuple[Variant, Evaluation]]) -> list[Choice]:
    """Return verified variants as choices, first come first, without repeats."""
    seen: set[tuple[str, tuple[Any, ...]]] = set()
    choices = []
    for variant, evaluation in pairs:
        key = (variant.hash, evaluation.candidate.params)
        if evaluation.ok and key not in seen:
            seen.add(key)
            choices.append(Choice(variant, evaluation.candidate.values))
    return choices
