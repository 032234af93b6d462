"""Make an operator and its naive variant from a Python function with loops (Numba or plain).

The function writes its outputs in place, and its parameters are named after the operator's
arguments and size symbols. It becomes the naive variant; run again in float64 it is the reference,
unless an independent one is given, and the result says so.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import OperatorError
from kernelsearch.operator import (
    ELEM,
    Arrays,
    ErrorModel,
    Generator,
    Operator,
    Reference,
    Rows,
    Scalar,
    Tensor,
    Workload,
)
from kernelsearch.shm import numpy_dtype

_SCALAR_TYPES = {"float32": "f32", "float64": "f64", "int32": "i32", "int64": "i64"}


@dataclass(frozen=True)
class PythonKernel:
    """A user's function as an operator's specification.

    Args:
        function: ``f(out, x, n, alpha)``: tensors, size symbols and scalars by their names.
        arguments: the operator's arguments.
    """

    function: Callable[..., Any]
    arguments: tuple[Tensor | Scalar, ...]

    @property
    def plain(self) -> Callable[..., Any]:
        """The function without Numba's wrapper."""
        plain: Callable[..., Any] = getattr(self.function, "py_func", self.function)
        return plain

    def parameters(self) -> list[str]:
        """Return the function's parameter names.

        Raises:
            OperatorError: it takes anything but plain positional parameters without defaults.
        """
        names = []
        for parameter in inspect.signature(self.plain).parameters.values():
            kinds = (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if parameter.kind not in kinds or parameter.default is not parameter.empty:
                raise OperatorError(
                    f"from_python: parameter {parameter.name!r} of {self.plain.__name__} must be "
                    "plain: no default, no *args, no keyword-only parameters"
                )
            names.append(parameter.name)
        return names

    def launch_arguments(self, symbols: Sequence[str]) -> list[str]:
        """Return the launch plan's ``args``."""
        known = {a.name: a for a in self.arguments}
        result = []
        for name in self.parameters():
            argument = known.get(name)
            if isinstance(argument, Tensor):
                result.append(name)
            elif isinstance(argument, Scalar):
                result.append(f"{name}:{_SCALAR_TYPES[argument.dtype]}")
            elif name in symbols:
                result.append(f"{name}:i64")
            else:
                raise OperatorError(
                    f"from_python: parameter {name!r} of {self.plain.__name__} is neither an "
                    f"argument ({', '.join(known)}) nor a size ({', '.join(symbols)})"
                )
        return result

    def variant_source(self, operator: str, symbols: Sequence[str], dtypes: Sequence[str]) -> str:
        """Return the naive variant's file."""
        try:
            source = textwrap.dedent(inspect.getsource(self.plain))
        except (OSError, TypeError) as error:
            raise OperatorError(
                f"from_python: the source of {self.plain.__name__} cannot be read ({error}); "
                "define it in a file"
            ) from error
        tree = ast.parse(source)
        function = tree.body[0]
        if not isinstance(function, ast.FunctionDef):
            raise OperatorError("from_python: a function defined with def is needed")
        function.decorator_list.clear()
        function.returns = None
        for parameter in (*function.args.posonlyargs, *function.args.args):
            parameter.annotation = None
        arguments = ", ".join(f'"{a}"' for a in self.launch_arguments(symbols))
        listed = ", ".join(f'"{d}"' for d in dtypes)
        return (
            f'"""kernelsearch\nformat = 1\noperator = "{operator}"\ndoc = "as given"\n'
            f'dtypes = [{listed}]\n[[launch]]\nkernel = "{function.name}"\nargs = [{arguments}]\n'
            f'"""\n\nimport math\n\nimport numpy as np\n\n\n{ast.unparse(function)}\n'
        )

    def reference(
        self, arrays: Arrays, scalars: Mapping[str, float], rows: Rows
    ) -> dict[str, NDArray[Any]]:
        """Run the function in float64."""
        from kernelsearch.targets.cpu_reference import compiled

        sizes = self._sizes(arrays)
        values: dict[str, Any] = {**sizes}
        outputs: dict[str, NDArray[Any]] = {}
        for argument in self.arguments:
            if isinstance(argument, Scalar):
                values[argument.name] = scalars[argument.name]
                continue
            if argument.role == "out":
                values[argument.name] = np.full(argument.concrete_shape(sizes), np.nan)
            else:
                given = arrays[argument.name]
                kind = given.dtype.kind
                exact = kind in "iub"
                values[argument.name] = given.copy() if exact else given.astype(np.float64)
            if argument.role != "in":
                outputs[argument.name] = values[argument.name]
        compiled(self.function)(*(values[name] for name in self.parameters()))
        return {n: o if rows is None else o[rows] for n, o in outputs.items()}

    def _sizes(self, arrays: Arrays) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for tensor in self.arguments:
            if isinstance(tensor, Tensor) and tensor.name in arrays:
                for extent, value in zip(tensor.shape, arrays[tensor.name].shape, strict=True):
                    if isinstance(extent, str) and extent.isidentifier():
                        sizes[extent] = int(value)
        return sizes


def operator_from_python(
    function: Callable[..., Any], arguments: Sequence[Tensor | Scalar],
    workloads: Mapping[str, Sequence[Workload | Mapping[str, int]]], *, name: str | None = None,
    reference: Reference | None = None, generate: Generator | None = None,
    error: ErrorModel | None = None, flops: str = "0", dtypes: Sequence[str] = ("float32",),
) -> Operator:  # fmt: skip
    """Return an operator whose naive variant is ``function``; see ``Operator.from_python``."""
    kernel = PythonKernel(function, tuple(arguments))
    label = name or kernel.plain.__name__
    sets = {
        key: tuple(w if isinstance(w, Workload) else Workload(dict(w)) for w in given)
        for key, given in workloads.items()
    }
    tensors = [a for a in kernel.arguments if isinstance(a, Tensor)]
    if generate is None:
        integers = [t.name for t in tensors if t.dtype != ELEM and "int" in t.dtype]
        if integers:
            raise OperatorError(
                f"{label}: integer tensors ({', '.join(integers)}) need a generate function: what "
                "values are legal cannot be guessed"
            )
    documentation = inspect.getdoc(kernel.plain) or ""
    operator = Operator(
        name=label, doc=documentation.partition("\n")[0] or f"the function {label}",
        arguments=kernel.arguments, reference=reference or kernel.reference,
        generate=generate or uniform_generator(tensors), workloads=sets,
        error=error or ErrorModel(
            terms=_terms(tensors), reasoning="default: every input element may be summed",
        ),
        flops=flops, bytes=_traffic(tensors),
        dtypes={"cpu": tuple(dtypes)},
        distributions=("default", "constant", "large", "tiny"),
        specification="independent" if reference is not None else "original",
    )  # fmt: skip
    source = kernel.variant_source(label, operator.symbols, dtypes)
    return operator.with_sources({"cpu": (source,)})


def uniform_generator(tensors: Sequence[Tensor]) -> Generator:
    """Return a generator that draws every input uniformly from (-1, 1), by distribution scaled."""
    scales = {"default": 1.0, "large": 1e3, "tiny": 1e-6}

    def generate(
        sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
    ) -> dict[str, NDArray[Any]]:
        drawn: dict[str, NDArray[Any]] = {}
        for tensor in tensors:
            if tensor.role == "out":
                continue
            shape = tensor.concrete_shape(sizes)
            kind = numpy_dtype(dtype if tensor.dtype == ELEM else tensor.dtype)
            if distribution == "constant":
                drawn[tensor.name] = np.full(shape, 0.7, kind)
            else:
                drawn[tensor.name] = (rng.uniform(-1, 1, shape) * scales[distribution]).astype(kind)
        return drawn

    return generate


def _terms(tensors: Sequence[Tensor]) -> str:
    """Return the largest extent of any input: the longest sum an output can be."""
    extents = sorted({str(e) for t in tensors if t.role != "out" for e in t.shape})
    return f"max({', '.join(extents)})" if extents else "1"


def _traffic(tensors: Sequence[Tensor]) -> str:
    parts = []
    for tensor in tensors:
        count = " * ".join(f"({e})" for e in tensor.shape) or "1"
        size = "elem_bytes" if tensor.dtype == ELEM else str(numpy_dtype(tensor.dtype).itemsize)
        times = "2 * " if tensor.role == "inout" else ""
        parts.append(f"{times}{count} * {size}")
    return " + ".join(parts)
