"""The contract and the plan of an imported file, before they are written."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernelsearch.records import Role


@dataclass
class TensorFact:
    """A tensor of the contract.

    Args:
        name, dtype, shape, role: as in ``operator.Tensor``; ``dtype`` is concrete.
        values: "" for real numbers, ``index`` or ``offsets`` for integers that lead elsewhere.
        limit: how many places an index may lead to, or what the offsets end at.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    role: Role
    values: str = ""
    limit: str = ""


@dataclass(frozen=True)
class Shim:
    """An entry of our own for a kernel whose arguments a plan cannot pass as they are.

    Args:
        name: of the entry.
        kernel: called by it, with its template arguments.
        parameters: (C type, name) of the entry.
        before: statements that build the arguments.
        arguments: of the call.
    """

    name: str
    kernel: str
    parameters: tuple[tuple[str, str], ...]
    before: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass
class Imported:
    """All that an operator file and a variant file are written from.

    Args:
        name: of the operator.
        entry: the host function, or the kernel where there is none.
        tensors, scalars: the contract's arguments; scalars as (name, dtype, value).
        element: the element type of the run.
        symbols: sizes, in order of appearance.
        defaults: sizes that the source names a value for.
        workspaces: name = (dtype, shape).
        steps: launch steps as tables of the variant file.
        shims: launches that need an entry of their own: kernel name = call.
        tunables: name = choices.
        domain: conditions under which the original is right.
        checks: the same, with the tunables at their defaults.
        terms: how many roundings may add up.
        deterministic: no atomics on floating point.
        derived: symbols that the values decide.
        notes: what was assumed.
    """

    name: str
    entry: str
    tensors: list[TensorFact] = field(default_factory=list)
    scalars: list[tuple[str, str, float]] = field(default_factory=list)
    element: str = "float32"
    symbols: list[str] = field(default_factory=list)
    defaults: dict[str, int] = field(default_factory=dict)
    workspaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    steps: list[dict[str, object]] = field(default_factory=list)
    shims: list[Shim] = field(default_factory=list)
    tunables: dict[str, list[int]] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    domain: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    terms: str = "1"
    deterministic: bool = True
    derived: list[str] = field(default_factory=list)
    constants: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
