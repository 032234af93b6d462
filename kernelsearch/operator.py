"""The contract of an operator: arguments, reference, workloads, tolerance, cost. Never timed code.

An operator file is Python that assigns ``operator = Operator(...)``. The shipped ones lie in
``operators/``; a user's own is the same file anywhere on disk.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import OperatorError, UnknownNameError, WorkloadError
from kernelsearch.expressions import Expression, Value
from kernelsearch.records import DTYPE_BYTES, Role, digest

Arrays = Mapping[str, NDArray[Any]]
Rows = NDArray[np.int64] | None
ELEM = "elem"
USER_DATA = "user:"
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument: row-major, contiguous.

    Args:
        name: argument name.
        dtype: a dtype name, or ``elem`` for the operator's element type.
        shape: expressions over the size symbols.
        role: ``in``, ``out`` or ``inout``.
        align: smallest alignment of the start the caller promises, bytes (default: one element).
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    role: Role = "in"
    align: int = 0

    def concrete_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape for ``sizes``."""
        return tuple(Expression.parse(s).integer(sizes) for s in self.shape)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A by-value argument with its default value."""

    name: str
    dtype: str
    value: float = 0.0


@dataclass(frozen=True)
class Workload:
    """One binding of the size symbols, plus how its inputs are drawn.

    Args:
        sizes: symbol = value.
        distribution: one of the operator's distributions.
        weight: share in weighted means.
    """

    sizes: Mapping[str, int]
    distribution: str = "default"
    weight: float = 1.0

    @property
    def key(self) -> str:
        """Readable identity: ``rows=4,cols=5``, and ``@distribution`` unless it is the default."""
        text = ",".join(f"{k}={v}" for k, v in self.sizes.items())
        return text if self.distribution == "default" else f"{text}@{self.distribution}"


class Generator(Protocol):
    """Draws all inputs of a workload: ``(sizes, distribution, rng, dtype) -> arrays by name``."""

    def __call__(
        self, sizes: Mapping[str, int], distribution: str, rng: np.random.Generator, dtype: str
    ) -> dict[str, NDArray[Any]]: ...


class Reference(Protocol):
    """The float64 reference: ``(arrays, scalars, rows) -> outputs by name``.

    ``rows`` selects entries of the first axis of every output (None: all of them), so that large
    workloads can be checked on a secret sample. Inputs arrive in their own dtype. One that has a
    method ``for_sizes(sizes)`` is asked for the reference of those sizes first.
    """

    def __call__(
        self, arrays: Arrays, scalars: Mapping[str, float], rows: Rows
    ) -> dict[str, NDArray[Any]]: ...


@dataclass(frozen=True, slots=True)
class ErrorModel:
    """The allowed error: |out - ref| <= u(out)|ref| + c * u(acc) * growth * scale + tiny.

    Args:
        terms: expression over sizes: n, how many roundings accumulate in one output.
        scale: same signature as the reference; the magnitude the roundings act on, by output name
            (for example |A||B| for a product). None: the largest |ref| of the row.
        accumulator: dtype whose rounding unit u(acc) is granted, by element type.
        factor: c, covers the constant number of roundings of one term.
        exact: the output must equal the correctly rounded reference (sorts, copies).
        structured: distributions whose roundings need not average out (equal or ordered terms):
            there the worst case counts. A user's own data always does.
        reasoning: why these numbers, for people.
    """

    terms: str = "1"
    scale: Reference | None = None
    accumulator: Mapping[str, str] = field(default_factory=dict)
    factor: float = 4.0
    exact: bool = False
    structured: tuple[str, ...] = ("constant", "sorted")
    reasoning: str = ""


@dataclass(frozen=True)
class Interface:
    """How an operator is called: what a tuned kernel must know of it, without its reference.

    Args:
        name: lower-case identifier.
        doc: one line.
        arguments: tensors and scalars in call order (outputs included).
    """

    name: str
    doc: str
    arguments: tuple[Tensor | Scalar, ...]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(a for a in self.arguments if isinstance(a, Tensor))

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        return tuple(a for a in self.arguments if isinstance(a, Scalar))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role in ("out", "inout"))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role in ("in", "inout"))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Size symbols, in order of first appearance in the arguments' shapes."""
        seen: dict[str, None] = {}
        for tensor in self.tensors:
            for extent in tensor.shape:
                for name in sorted(Expression.parse(extent).names):
                    seen.setdefault(name)
        return tuple(seen)

    def scalar_values(self) -> dict[str, float]:
        """Return each scalar's value as its dtype holds it: kernel and reference see one number."""
        return {s.name: float(np.dtype(s.dtype).type(s.value)) for s in self.scalars}

    def tensor_dtype(self, tensor: Tensor | Scalar, dtype: str) -> str:
        """Return the concrete dtype of an argument for element type ``dtype``."""
        return dtype if tensor.dtype == ELEM else tensor.dtype


@dataclass(frozen=True)
class Operator(Interface):
    """What must be computed, on which workloads, how exactly. See docs/operators.md.

    Args:
        name: lower-case identifier.
        doc: one line.
        arguments: tensors and scalars in call order (outputs included).
        reference: float64 reference (see ``Reference``).
        generate: input generator (see ``Generator``).
        workloads: named sets; ``name@cpu`` or ``name@cuda`` overrides a set for one target.
        error: the error model.
        flops: expression over sizes, operations of the cheapest known algorithm.
        bytes: expression over sizes and ``elem_bytes``: compulsory traffic (each input once, each
            output once).
        dtypes: supported element types, by target.
        distributions: names ``generate`` understands; ``default`` is always one.
        exact_distributions: on these inputs the result must be exactly the rounded reference.
        vendor: by target, a callable ``(arrays, scalars) -> outputs`` on that target's own array
            type (torch tensors for ``cuda``, NumPy for ``cpu``) and its name.
        precision: ``strict``, ``tf32`` or ``fast``: what candidates may use.
        deterministic: bitwise run-to-run equality is required.
        checks: conditions on sizes (expressions) that every workload must meet.
        derived: symbols that the inputs determine (``nnz``): not chosen by a caller.
        specification: ``independent`` reference, or ``original`` where the naive code is the spec.
        sources: by target, texts of variant files that come with the operator itself.
        trusted: by distribution of a user's data, outputs that the application computed on it: the
            reference must agree with them.
        path: the file it was loaded from.
    """

    reference: Reference
    generate: Generator
    workloads: Mapping[str, Sequence[Workload]]
    error: ErrorModel
    flops: str
    bytes: str
    dtypes: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"cuda": ("float32",), "cpu": ("float32",)}
    )
    distributions: tuple[str, ...] = ("default",)
    exact_distributions: tuple[str, ...] = ()
    vendor: Mapping[str, tuple[str, Callable[..., Any]]] = field(default_factory=dict)
    precision: str = "strict"
    deterministic: bool = True
    checks: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    specification: str = "independent"
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    trusted: Mapping[str, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    path: Path | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise OperatorError(
                f"Operator.name must be a lower-case identifier like 'rms_norm' (got {self.name!r})"
            )
        self._check_arguments()
        self._check_workloads()

    @staticmethod
    def from_python(
        function: Callable[..., Any],
        arguments: Sequence[Tensor | Scalar],
        workloads: Mapping[str, Sequence[Workload | Mapping[str, int]]],
        **options: Any,
    ) -> Operator:
        """Make an operator from a Python function with loops (plain or Numba), its naive variant.

        Args:
            function: writes its outputs in place; its parameters are named after the tensors, size
                symbols and scalars.
            arguments: tensors and scalars, as for ``Operator``.
            workloads: named sets of workloads, or of mappings of sizes.
            **options: ``name``, ``reference`` (default: the function itself in float64; results
                then say that the original is the specification), ``generate``, ``error``,
                ``flops``, ``dtypes``.

        Raises:
            OperatorError: a parameter is unknown, or the source cannot be read.
        """
        from kernelsearch.from_python import operator_from_python

        return operator_from_python(function, arguments, workloads, **options)

    @staticmethod
    def from_cuda(path: str | Path, **options: Any) -> Operator:
        """Make an operator of a CUDA file, its own kernels as the naive variant and specification.

        Args:
            path: the ``.cu`` file.
            **options: what ``kernelsearch.importing.run.ImportOptions`` takes (``entry``,
                ``sizes``, ``given``, ``extents``, ``inout``, ``grid``, ``block``, ``name``), and
                ``folder``, where the operator and variant file are written (default: the home
                folder, so that a study finds them again).

        Raises:
            CannotImportError: it cannot be imported: file, line and reason.
            MissingExtraError: the parser is not installed.
        """
        from kernelsearch.importing.run import operator_from_cuda

        return operator_from_cuda(Path(path), **options)

    def with_sources(self, sources: Mapping[str, tuple[str, ...]]) -> Operator:
        """Return the operator with variant files (as text) of its own."""
        return replace(self, sources=sources)

    def _check_arguments(self) -> None:
        names = [a.name for a in self.arguments]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise OperatorError(f"{self.name}: argument names must differ (twice: {sorted(twice)})")
        if not self.outputs:
            raise OperatorError(f"{self.name}: at least one tensor must have role 'out' or 'inout'")
        for argument in self.arguments:
            if argument.dtype != ELEM and argument.dtype not in DTYPE_BYTES:
                raise OperatorError(
                    f"{self.name}: argument {argument.name!r} has dtype {argument.dtype!r}; "
                    f"use 'elem' or one of {', '.join(DTYPE_BYTES)}"
                )
        for symbol in self.symbols:
            if symbol in names:
                raise OperatorError(f"{self.name}: {symbol!r} is both a size and an argument")

    def _check_workloads(self) -> None:
        for set_name, workloads in self.workloads.items():
            for workload in workloads:
                self.check_workload(workload, f"workload set {set_name!r}")

    def check_workload(self, workload: Workload, where: str = "workload") -> None:
        """Raise ``WorkloadError`` unless ``workload`` binds every symbol to a legal size."""
        missing = [s for s in self.symbols if s not in workload.sizes]
        extra = [s for s in workload.sizes if s not in self.symbols]
        if missing or extra:
            raise WorkloadError(
                f"{self.name}: {where} must give sizes for {', '.join(self.symbols)} "
                f"(missing: {missing}, unknown: {extra})"
            )
        for symbol, value in workload.sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise WorkloadError(
                    f"{self.name}: {where}: {symbol} must be an integer >= 0 (got {value!r})"
                )
        if workload.distribution not in self.distributions:
            raise UnknownNameError(
                f"distribution of operator {self.name}", workload.distribution, self.distributions
            )
        for check in self.checks:
            if not Expression.parse(check).truth(dict(workload.sizes)):
                raise WorkloadError(
                    f"{self.name}: {where}: {check!r} must hold (got {workload.key})"
                )

    def reference_for(self, sizes: Mapping[str, int]) -> Reference:
        """Return the reference of one workload: some cannot tell the sizes from the arrays."""
        return _bound(self.reference, sizes)

    def scale_for(self, sizes: Mapping[str, int]) -> Reference | None:
        """Return the error model's scale of one workload."""
        scale = self.error.scale
        return _bound(scale, sizes) if scale is not None else None

    def check_dtype(self, target: str, dtype: str) -> None:
        """Raise ``OperatorError`` unless the operator supports ``dtype`` on ``target``."""
        supported = self.dtypes.get(target, ())
        if dtype not in supported:
            raise OperatorError(
                f"{self.name} supports {', '.join(supported) or 'no dtype'} on target {target} "
                f"(got {dtype!r}); choose one of them with --dtype"
            )

    def workload_set(self, name: str, target: str) -> tuple[Workload, ...]:
        """Return a named set, the target's own edition of it where there is one.

        Raises:
            UnknownNameError: no such set.
        """
        special = f"{name}@{target}"
        if special in self.workloads:
            return tuple(self.workloads[special])
        if name not in self.workloads:
            plain = {k.split("@")[0] for k in self.workloads}
            raise UnknownNameError(f"workload set of operator {self.name}", name, plain)
        return tuple(self.workloads[name])

    def cost(self, workload: Workload, dtype: str) -> tuple[float, float]:
        """Return (operations, compulsory bytes) of a workload."""
        names: dict[str, Value] = {**workload.sizes, "elem_bytes": DTYPE_BYTES[dtype]}
        flops = Expression.parse(self.flops).evaluate(names)
        traffic = Expression.parse(self.bytes).evaluate(names)
        return float(flops), float(traffic)

    def allowance(self, workload: Workload) -> float:
        """Return c * growth: how many units u(acc) * scale an output may be off.

        The square root holds where roundings average out; c plus one for each term is the worst
        case, which is the ceiling, and what structured or user data are granted.
        """
        terms = max(1, Expression.parse(self.error.terms).integer(dict(workload.sizes)))
        worst = self.error.factor + terms
        distribution = workload.distribution
        if distribution in self.error.structured or distribution.startswith(USER_DATA):
            return worst
        return min(worst, self.error.factor * math.sqrt(terms))

    @cached_property
    def contract(self) -> str:
        """Content hash of everything that changes what a result means."""
        return digest(
            self.name,
            [(type(a).__name__, a.name, a.dtype, getattr(a, "shape", ()), getattr(a, "role", ""),
              getattr(a, "value", 0)) for a in self.arguments],
            self.error.terms, self.error.factor, self.error.exact,
            sorted(self.error.accumulator.items()),
            self.flops, self.bytes, self.precision, self.deterministic,
        )  # fmt: skip


def _bound(function: Reference, sizes: Mapping[str, int]) -> Reference:
    bind: Callable[[Mapping[str, int]], Reference] | None = getattr(function, "for_sizes", None)
    return bind(sizes) if bind is not None else function
