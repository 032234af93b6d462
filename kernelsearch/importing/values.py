"""What host code works with while it is followed: numbers, pointers, dimensions, and the steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kernelsearch.importing.problem import CannotImportError
from kernelsearch.importing.symbols import Expr, number
from kernelsearch.importing.syntax import Function, Module, Node

ZERO, ONE = number(0), number(1)


@dataclass(frozen=True)
class Number:
    """A number: an expression, of real numbers where ``real``."""

    expr: Expr
    real: bool = False


@dataclass(eq=False)
class Buffer:
    """Memory, on the device or the host.

    Args:
        name: of the variable or parameter that first held it.
        dtype: of its elements, None until known.
        extent: elements; None where nothing tells.
        device: device memory; pointers that come from outside may be either.
        outside: it came as a parameter of the entry.
        const: its parameter promises not to write it.
        line: where it appears.
        uploaded: host memory it was copied from.
        downloaded: host memory it was copied to.
        size_bytes: of the allocation, until the dtype is known.
    """

    name: str
    dtype: str | None
    extent: Expr | None = None
    device: bool = False
    outside: bool = False
    const: bool = False
    line: int = 0
    uploaded: Buffer | None = None
    downloaded: Buffer | None = None
    size_bytes: Expr | None = None


@dataclass(frozen=True)
class Pointer:
    """An address: a buffer and an offset, elements of the buffer's dtype."""

    buffer: Buffer
    offset: Expr = ZERO


@dataclass(frozen=True)
class Dim3:
    x: Expr
    y: Expr = ONE
    z: Expr = ONE

    def trimmed(self) -> tuple[Expr, ...]:
        """Return the dimensions without trailing ones."""
        if self.z != 1:
            return (self.x, self.y, self.z)
        return (self.x, self.y) if self.y != 1 else (self.x,)


@dataclass
class Record:
    """A structure: its fields by name."""

    type: str
    fields: dict[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelName:
    """A kernel used as a value, with its template arguments."""

    function: Function
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Address:
    """&variable, or &record.field, of the function whose variables ``frame`` holds."""

    name: str
    frame: Frame | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Opaque:
    """A value that no plan depends on (a stream, an event, an error code), or is not known."""

    what: str = ""


Value = Number | Pointer | Dim3 | Record | KernelName | Address | Opaque


def is_null(value: object) -> bool:
    """Return whether a pointer's value is nullptr, NULL or 0."""
    if isinstance(value, Number):
        return bool(value.expr == 0)
    return isinstance(value, Opaque) and value.what in ("null", "nullptr")


@dataclass(frozen=True)
class LaunchStep:
    """A launch, with its arguments in order.

    Args:
        kernel: the function.
        template_arguments: as written, or deduced.
        grid, block: dimensions.
        shared: bytes of dynamic shared memory.
        arguments: values.
        cooperative: launched by cudaLaunchCooperativeKernel.
        when: condition, None for always.
        line: where.
    """

    kernel: Function
    template_arguments: tuple[str, ...]
    grid: Dim3
    block: Dim3
    shared: Expr
    arguments: tuple[Value, ...]
    cooperative: bool
    when: Expr | None
    line: int


@dataclass(frozen=True)
class FillBuffer:
    """cudaMemset of a whole buffer."""

    buffer: Buffer
    value: int
    when: Expr | None
    line: int


@dataclass(frozen=True)
class SymbolCopy:
    """cudaMemcpyToSymbol: a ``__constant__`` variable set from memory."""

    symbol: str
    source: Buffer
    line: int


@dataclass
class HostPlan:
    """What the host code of a file does with the device.

    Args:
        entry: the function it was read from; None where there is only a kernel.
        steps: in order.
        buffers: every buffer that was met.
        defaults: integer variables with a value in the source, by symbol name.
        scalars: real parameters and variables with a value: name = (dtype, value or None).
        integers: integer parameters of the entry: name = C type.
        passes: those of them that decide how often a loop runs: name = line.
        fixed: integer parameters that were given a value so that the plan is one.
        notes: what was assumed, for people.
    """

    entry: Function | None
    steps: list[LaunchStep | FillBuffer | SymbolCopy] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    defaults: dict[str, int] = field(default_factory=dict)
    scalars: dict[str, tuple[str, float | None]] = field(default_factory=dict)
    integers: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def launches(self) -> list[LaunchStep]:
        return [s for s in self.steps if isinstance(s, LaunchStep)]


@dataclass
class Frame:
    """The variables of one function.

    Args:
        values: by name.
        result: what it returned.
        conditional: how many open branches lie on unknown conditions.
    """

    values: dict[str, Value] = field(default_factory=dict)
    result: Value = field(default_factory=Opaque)
    conditional: int = 0


class Reader(Protocol):
    """What calls of the CUDA runtime need of whoever follows the host code."""

    module: Module
    plan: HostPlan
    when: Expr | None

    def fail(self, at: Node | int | None, reason: str, remedy: str = "") -> CannotImportError: ...
    def evaluate(self, node: Node, frame: Frame) -> Value: ...
    def name(self, name: str, frame: Frame) -> Value: ...
    def store(self, name: str, value: Value, frame: Frame) -> None: ...
    def dtype_of(self, kind: str) -> str | None: ...
    def truncated(self, e: Expr) -> Expr: ...
