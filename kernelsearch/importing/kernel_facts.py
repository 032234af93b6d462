"""What following a kernel tells: which memory it touches, how, and how far."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelsearch.importing.symbols import Expr
from kernelsearch.importing.values import Number, Opaque, Pointer, Record

Value = Number | Pointer | Record | Opaque


@dataclass
class Use:
    """What one kernel does to one buffer.

    Args:
        read, written: at all.
        read_first: something is read before anything is written.
        atomic: through atomics.
        conditional: every write depends on data, so that some elements may stay as they are.
        extent: elements up to the largest index; None where that is not known.
        blind: the line of the access that hides it.
        touched: an access was met.
        partial: every write leaves out the first elements.
        strides: what indices are multiplied with.
    """

    read: bool = False
    written: bool = False
    read_first: bool = False
    atomic: bool = False
    conditional: bool = True
    extent: Expr | None = None
    blind: int = 0
    touched: bool = False
    partial: bool = True
    strides: set[Expr] = field(default_factory=set)


@dataclass
class Found:
    """What following a kernel gives.

    Args:
        uses: by buffer.
        limits: integer buffers whose values are used as indices: name = symbol of how many.
        offsets: those of them that are running offsets (row pointers).
        terms: how many terms one output may sum up.
        global_guards: by axis, the bound of a global index where a guard or a loop gives one.
        axes: axes of threadIdx or blockIdx that are used, by builtin.
        shared_arrays: dimensions of ``__shared__`` arrays, as expressions.
        atomics: on floating point.
        spread: a loop goes through an array by all threads together.
        gathers: threads exchange what they have (shared memory, shuffles).
    """

    uses: dict[str, Use] = field(default_factory=dict)
    limits: dict[str, Expr] = field(default_factory=dict)
    offsets: set[str] = field(default_factory=set)
    terms: list[Expr] = field(default_factory=list)
    global_guards: dict[str, Expr] = field(default_factory=dict)
    axes: dict[str, set[str]] = field(default_factory=dict)
    shared_arrays: list[tuple[Expr, ...]] = field(default_factory=list)
    atomics: bool = False
    spread: bool = False
    gathers: bool = False


@dataclass(frozen=True)
class Wide(Pointer):
    """A pointer to vectors of ``width`` elements."""

    width: int = 1


def like(pointer: Pointer, offset: Expr) -> Pointer:
    """Return a pointer of the same kind elsewhere."""
    if isinstance(pointer, Wide):
        return Wide(pointer.buffer, offset, pointer.width)
    return Pointer(pointer.buffer, offset)
