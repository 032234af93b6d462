"""Cases: inputs in shared memory, their float64 reference, and which ones a candidate must pass.

A case is a workload, a distribution and a seed. Its inputs lie in a block that workers read; the
reference, the bound and the choice of checked rows stay in this process.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import OperatorError, SpecError
from kernelsearch.operator import USER_DATA, Operator, Tensor, Workload
from kernelsearch.records import BufferSpec, ShmRef, digest, dtype_bytes
from kernelsearch.shm import ALIGN, SharedBlock
from kernelsearch.verify_bound import bound, default_scale, is_exact, is_float, rounded

# Above these, the reference is computed on a secret sample of rows only.
FULL_REFERENCE_ELEMENTS = 1 << 24
FULL_REFERENCE_FLOPS = 2e10
SAMPLE_ELEMENTS = 1 << 22
SAMPLE_FLOPS = 1e10
LEAST_ROWS = 32
# References are computed in pieces of about so many output elements, which stay in the caches, by
# several threads; not those of many operations an element, where NumPy has threads of its own.
PIECE_ELEMENTS = 1 << 18
PIECE_FLOPS_PER_ELEMENT = 1000
# Up to here a tuned workload is also run with checked indices.
CHECKED_FLOPS = 2e8
CHECKED_BYTES = 1 << 26
# Cases of this many elements or fewer are small enough to try every distribution on.
SMALL_ELEMENTS = 1 << 18
# A timing request holds two input sets and looks at captures of both: these are never evicted.
KEEP = 4
# Sinks in use at one time: both runs of a verification, captures of timed calls, and a spare one.
KEEP_SINKS = 16
_SECRET = int.from_bytes(os.urandom(16), "little")


Layout = tuple[tuple[str, tuple[str, tuple[int, ...]]], ...]


@dataclass(frozen=True, slots=True)
class CaseSpec:
    """What to draw, and how to run it.

    Args:
        workload: sizes and distribution.
        seed: of the inputs.
        repeat: run twice on different poison and compare the results bit by bit.
        misaligned: start every buffer one element off an aligned address.
        bounds_checked: also run with index checks, where the target has them.
        schedule: run under this one of the target's schedules.
        vary_scalars: by-value arguments other than the default ones (a kernel must not fold them).
        alternatives: workloads to take instead, in this order, outside a variant's domain.
    """

    workload: Workload
    seed: int
    repeat: bool = True
    misaligned: bool = False
    bounds_checked: bool = False
    schedule: str = ""
    vary_scalars: bool = False
    alternatives: tuple[Workload, ...] = ()

    @property
    def choices(self) -> tuple[Workload, ...]:
        return (self.workload, *self.alternatives)


@dataclass(frozen=True, slots=True)
class Stage:
    """Cases that are run together; a candidate that fails one is not run on later stages."""

    name: str
    specs: tuple[CaseSpec, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """What one output must be, on the checked rows.

    Args:
        tensor: the output.
        dtype: its concrete dtype.
        rows: indices along the first axis, None for all.
        value: reference, float64; rounded to ``dtype`` where the result must be exact.
        bound: allowed distance of every element (zero where exact).
        finite: every value is finite.
    """

    tensor: Tensor
    dtype: str
    rows: NDArray[np.int64] | None
    value: NDArray[np.float64]
    bound: NDArray[np.float64]
    finite: bool


class Sink:
    """Where one run's outputs arrive. Poisoned before each run, so that none is taken for new."""

    def __init__(self, case: Case) -> None:
        layout = _output_layout(case)
        self.block, self.refs = _shared(layout)
        self.arrays: dict[str, NDArray[Any]] = {
            name: self.block.array(dtype, shape, self.refs[name].offset)
            for name, (dtype, shape) in layout.items()
        }

    def poison(self, rows: NDArray[np.int64] | None = None) -> None:
        """Overwrite what is there, or only the rows that will be looked at."""
        for array in self.arrays.values():
            raw = array.reshape(-1).view(np.uint8)
            if rows is None or array.ndim == 0:
                raw[...] = 0xFF
            elif array.size:
                raw.reshape(array.shape[0], -1)[rows] = 0xFF

    def close(self) -> None:
        self.arrays = {}
        self.block.close()


class Case:
    """The inputs of one case, in shared memory, and what must come out.

    Args:
        operator: the contract.
        workload: sizes and distribution.
        dtype: element type.
        seed: of the inputs. A user's own data knows no seed: it is taken as it is for an even one,
            and with its real numbers scaled for an odd one, so that timed inputs differ.
        vary_scalars: see ``CaseSpec``.
    """

    def __init__(
        self, operator: Operator, workload: Workload, dtype: str, seed: int, *,
        vary_scalars: bool = False,
    ) -> None:  # fmt: skip
        self.operator, self.workload, self.dtype, self.seed = operator, workload, dtype, seed
        self.scalars = varied_scalars(operator, seed) if vary_scalars else operator.scalar_values()
        drawn = self._draw()
        layout = _layout(operator, operator.inputs, workload, dtype)
        self.block, self.refs = _shared(layout)
        self.inputs: dict[str, NDArray[Any]] = {}
        for name, (element, shape) in layout.items():
            view = self.block.array(element, shape, self.refs[name].offset)
            view[...] = drawn.pop(name)
            view.flags.writeable = False
            self.inputs[name] = view
        self.rows = self._choose_rows()
        self._expected: dict[str, Expected] | None = None

    @property
    def key(self) -> str:
        """Readable identity of the case, as evaluations record it."""
        return f"{self.workload.key}#{self.seed}"

    @property
    def nbytes(self) -> int:
        """Memory the case takes: inputs, and reference with bound once they are computed."""
        known = (self._expected or {}).values()
        inputs = sum(a.nbytes for a in self.inputs.values())
        return inputs + sum(e.value.nbytes + e.bound.nbytes for e in known)

    @property
    def expected(self) -> Mapping[str, Expected]:
        """What must come out, by output name. Computed when first asked for."""
        if self._expected is None:
            self._expected = self.expect(self.rows)
        return self._expected

    def expect(self, rows: NDArray[np.int64] | None) -> dict[str, Expected]:
        """Compute reference and bound on the given rows of every output."""
        pieces = self._pieces(rows)
        if len(pieces) == 1:
            return self._expect(pieces[0])
        with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
            parts = list(threads.map(self._expect, pieces))
        return {
            name: replace(
                first, rows=rows, value=np.concatenate([p[name].value for p in parts]),
                bound=np.concatenate([p[name].bound for p in parts]),
                finite=all(p[name].finite for p in parts),
            )
            for name, first in parts[0].items()
        }  # fmt: skip

    def _pieces(self, rows: NDArray[np.int64] | None) -> list[NDArray[np.int64] | None]:
        """Cut the rows into pieces whose references can be computed apart."""
        shapes = [t.concrete_shape(self.workload.sizes) for t in self.operator.outputs]
        count = shapes[0][0] if shapes[0] else 1
        if any(not s or s[0] != count for s in shapes):
            return [rows]
        row = sum(math.prod(s[1:]) for s in shapes)
        wanted = count if rows is None else len(rows)
        flops, _ = self.operator.cost(self.workload, self.dtype)
        number = min(wanted, row * wanted // PIECE_ELEMENTS)
        if number < 2 or flops > PIECE_FLOPS_PER_ELEMENT * row * count:
            return [rows]
        every = np.arange(count) if rows is None else rows
        return list(np.array_split(every, number))

    def _expect(self, rows: NDArray[np.int64] | None) -> dict[str, Expected]:
        operator = self.operator
        sizes = self.workload.sizes
        values = operator.reference_for(sizes)(self.inputs, self.scalars, rows)
        scale_of = operator.scale_for(sizes)
        scales = scale_of(self.inputs, self.scalars, rows) if scale_of is not None else {}
        result = {}
        for tensor in operator.outputs:
            if tensor.name not in values:
                raise OperatorError(
                    f"{operator.name}: reference must return every output (missing: "
                    f"{tensor.name!r}, got {sorted(values)})"
                )
            value = np.asarray(values[tensor.name], dtype=np.float64)
            shape = tensor.concrete_shape(self.workload.sizes)
            wanted = shape if rows is None else (len(rows), *shape[1:])
            if value.shape != wanted:
                raise OperatorError(
                    f"{operator.name}: reference of {tensor.name!r} must have shape {wanted} "
                    f"for {self.workload.key} (got {value.shape})"
                )
            dtype = operator.tensor_dtype(tensor, self.dtype)
            if is_exact(operator, self.workload, tensor, self.dtype):
                value = rounded(value, dtype)
                allowed = np.zeros_like(value)
            else:
                scale = scales.get(tensor.name)
                scale = default_scale(value) if scale is None else scale
                allowed = bound(operator, self.workload, tensor, self.dtype, value, scale)
            self._agree(tensor, dtype, value, allowed, rows)
            finite = bool(np.isfinite(value).all())
            result[tensor.name] = Expected(tensor, dtype, rows, value, allowed, finite)
        return result

    def _agree(
        self, tensor: Tensor, dtype: str, value: NDArray[np.float64],
        allowed: NDArray[np.float64], rows: NDArray[np.int64] | None,
    ) -> None:  # fmt: skip
        """Raise ``OperatorError`` where the reference is not what the application computed."""
        outputs = self.operator.trusted.get(self.workload.distribution, {})
        # Odd seeds scale the data; by-value arguments may be varied: nothing was recorded for that.
        if (
            tensor.name not in outputs
            or self.seed % 2
            or self.scalars != (self.operator.scalar_values())
        ):
            return
        whole = np.asarray(outputs[tensor.name], dtype=np.float64)
        recorded = rounded(whole if rows is None else whole[rows], dtype)
        with np.errstate(invalid="ignore"):
            off = np.abs(recorded - value)
        wrong = ~((off <= allowed) | (recorded == value) | (np.isnan(recorded) & np.isnan(value)))
        if wrong.any():
            at = int(np.argmax(np.where(wrong, np.nan_to_num(off, nan=np.inf), 0)))
            raise OperatorError(
                f"{self.operator.name}: on the recorded data {int(wrong.sum())} of {wrong.size} "
                f"elements of {tensor.name} differ from what the application computed (worst: "
                f"{recorded.flat[at]:g}, reference {value.flat[at]:g}, allowed "
                f"{allowed.flat[at]:g}); the operator does not say what the application "
                "does: compare roles, scalars and sizes"
            )

    def buffers(
        self, sink: Sink | None = None, *, misaligned: bool = False
    ) -> tuple[BufferSpec, ...]:
        """Return the buffers of a run whose outputs go to ``sink`` (None: nowhere)."""
        sinks = sink.refs if sink is not None else {}
        return tuple(
            BufferSpec(
                name=t.name,
                dtype=self.operator.tensor_dtype(t, self.dtype),
                shape=t.concrete_shape(self.workload.sizes),
                role=t.role,
                source=self.refs.get(t.name),
                sink=sinks.get(t.name),
                misalign=misalignment(self.operator, t, self.dtype) if misaligned else 0,
            )
            for t in self.operator.tensors
        )

    def close(self) -> None:
        self.inputs = {}
        self.block.close()

    def _draw(self) -> dict[str, NDArray[Any]]:
        operator, workload = self.operator, self.workload
        # The key of the generator includes the sizes: workloads must not share their numbers.
        entropy = int(digest(operator.name, workload.key, self.dtype), 16)
        rng = np.random.default_rng([self.seed, entropy])
        drawn = operator.generate(workload.sizes, workload.distribution, rng, self.dtype)
        for tensor in operator.inputs:
            shape = tensor.concrete_shape(workload.sizes)
            got = drawn.get(tensor.name)
            if got is None or got.shape != shape:
                raise OperatorError(
                    f"{operator.name}: generate must return {tensor.name!r} with shape {shape} for "
                    f"{workload.key} (got {'nothing' if got is None else got.shape})"
                )
        if workload.distribution.startswith(USER_DATA) and self.seed % 2:
            for name, array in drawn.items():
                if is_float(operator.tensor_dtype(_input(operator, name), self.dtype)):
                    drawn[name] = (array * rng.uniform(0.5, 1.0)).astype(array.dtype)
        return drawn

    def _choose_rows(self) -> NDArray[np.int64] | None:
        """Return the rows to check, or None for all: the first, the last, and secret ones."""
        outputs = self.operator.outputs
        shapes = [t.concrete_shape(self.workload.sizes) for t in outputs]
        count = shapes[0][0] if shapes[0] else 1
        if any(not s or s[0] != count for s in shapes) or count <= 2 * LEAST_ROWS:
            return None
        row = max(math.prod(s[1:]) for s in shapes)
        flops, _ = self.operator.cost(self.workload, self.dtype)
        if row * count <= FULL_REFERENCE_ELEMENTS and flops <= FULL_REFERENCE_FLOPS:
            return None
        affordable = min(SAMPLE_ELEMENTS // max(1, row), int(SAMPLE_FLOPS * count / max(1, flops)))
        wanted = min(count, max(LEAST_ROWS, affordable))
        # Cases of one workload share their rows: a sink is poisoned for any of them.
        entropy = int(digest(self.operator.name, self.workload.key), 16)
        secret = np.random.default_rng([_SECRET, entropy])
        # Offsets past 2^31 bytes and elements are where 32-bit indices would wrap around.
        elem = dtype_bytes(self.operator.tensor_dtype(outputs[0], self.dtype))
        wraps = [(1 << e) // max(1, row * size) for e in (31, 32) for size in (1, elem)]
        always = [0, 1, count - 2, count - 1, *(r + d for r in wraps for d in (-1, 0, 1))]
        chosen = np.concatenate(
            (np.array([r for r in always if 0 <= r < count]),
             secret.choice(count, size=wanted, replace=False))
        )  # fmt: skip
        return np.unique(chosen.astype(np.int64))


def varied_scalars(operator: Operator, seed: int) -> dict[str, float]:
    """Return every real scalar as a half to nine tenths of its default; others as they are."""
    rng = np.random.default_rng([seed, int(digest(operator.name), 16)])
    values = operator.scalar_values()
    for scalar in operator.scalars:
        if is_float(scalar.dtype):
            value = rng.uniform(0.5, 0.9) * scalar.value
            values[scalar.name] = float(np.dtype(scalar.dtype).type(value))
    return values


def _input(operator: Operator, name: str) -> Tensor:
    return next(t for t in operator.inputs if t.name == name)


def _layout(
    operator: Operator, tensors: Sequence[Tensor], workload: Workload, dtype: str
) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {
        t.name: (operator.tensor_dtype(t, dtype), t.concrete_shape(workload.sizes)) for t in tensors
    }


def _output_layout(case: Case) -> dict[str, tuple[str, tuple[int, ...]]]:
    return _layout(case.operator, case.operator.outputs, case.workload, case.dtype)


def misalignment(operator: Operator, tensor: Tensor, dtype: str) -> int:
    """Return one element's bytes, or 0 where the operator's caller promises more alignment."""
    size = dtype_bytes(operator.tensor_dtype(tensor, dtype))
    return size if tensor.align <= size else 0


def alignments(operator: Operator, dtype: str) -> dict[str, int]:
    """Return each tensor's alignment in a misaligned run (domains see it as ``align_<name>``)."""
    shifts = {t.name: misalignment(operator, t, dtype) for t in operator.tensors}
    return {name: shift or 256 for name, shift in shifts.items()}


class CaseStore:
    """Cases by content within a byte budget, and sinks to reuse. For one thread at a time.

    Args:
        budget_bytes: least recently used cases beyond it are dropped; the newest few never are.
    """

    def __init__(self, budget_bytes: int = 4 << 30) -> None:
        self.budget_bytes = budget_bytes
        self._cases: OrderedDict[tuple[str, ...], Case] = OrderedDict()
        self._sinks: OrderedDict[tuple[int, Layout], Sink] = OrderedDict()

    def case(
        self, operator: Operator, workload: Workload, dtype: str, seed: int, *,
        vary_scalars: bool = False,
    ) -> Case:  # fmt: skip
        """Return a case, drawn now or remembered."""
        key = (operator.name, operator.contract, workload.key, dtype, f"{seed} {vary_scalars}")
        case = self._cases.get(key)
        if case is None:
            case = Case(operator, workload, dtype, seed, vary_scalars=vary_scalars)
            self._cases[key] = case
        self._cases.move_to_end(key)
        self._evict()
        return case

    def sink(self, case: Case, slot: int = 0) -> Sink:
        """Return the slot's sink in the shape of the case's outputs; later runs use it again."""
        key = (slot, tuple(_output_layout(case).items()))
        sink = self._sinks.get(key)
        if sink is None:
            sink = self._sinks[key] = Sink(case)
        self._sinks.move_to_end(key)
        held = sum(s.block.nbytes for s in self._sinks.values())
        while held > self.budget_bytes // 4 and len(self._sinks) > KEEP_SINKS:
            _, oldest = self._sinks.popitem(last=False)
            held -= oldest.block.nbytes
            oldest.close()
        return sink

    def close(self) -> None:
        """Give all memory back."""
        for case in self._cases.values():
            case.close()
        for sink in self._sinks.values():
            sink.close()
        self._cases.clear()
        self._sinks.clear()

    def _evict(self) -> None:
        held = sum(c.nbytes for c in self._cases.values())
        while held > self.budget_bytes and len(self._cases) > KEEP:
            _, oldest = self._cases.popitem(last=False)
            held -= oldest.nbytes
            oldest.close()


def _shared(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
) -> tuple[SharedBlock, dict[str, ShmRef]]:
    """Return a block with every tensor on pages of its own, an empty one on a page too."""
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * dtype_bytes(dtype)
        places[name] = (end, size)
        end += max(ALIGN, -(-size // ALIGN) * ALIGN)
    block = SharedBlock(end)
    return block, {name: block.ref(offset, size) for name, (offset, size) in places.items()}


# --- which cases --------------------------------------------------------------------------------


def verification_cases(
    operator: Operator, dtype: str, workloads: Sequence[Workload], target: str, seed: int = 0
) -> tuple[Stage, ...]:
    """Return the stages a candidate must pass: smoke, held out with distributions, tuned.

    Args:
        operator: the contract.
        dtype: element type.
        workloads: the tuned workloads.
        target: ``cuda`` or ``cpu``.
        seed: of all inputs; a study chooses its own.
    """
    small = _small(operator, workloads)
    smoke = _set(operator, "smoke", target) or tuple(small[:1])
    heldout = _set(operator, "heldout", target)
    first = [CaseSpec(w, seed, alternatives=tuple(small)) for w in smoke]
    second = [CaseSpec(w, seed, repeat=False) for w in heldout]
    odd = [w for w in (*heldout, *smoke) if 64 <= elements(operator, w) <= SMALL_ELEMENTS]
    odd = [w for w in odd if w.distribution == "default"] or small
    stress = [n for n in operator.distributions if n != "default" and not n.startswith(USER_DATA)]
    for index, name in enumerate(stress):
        turn = index % max(1, len(odd))
        # Last of all the tuned sizes themselves, large as they may be: a domain that leaves out all
        # others must not keep a distribution away.
        shapes = (*odd[turn:], *odd[:turn], *small, *workloads)
        choices = tuple(replace(w, distribution=name) for w in shapes)
        if choices:
            second.append(CaseSpec(choices[0], seed + 1, index % 4 == 0, alternatives=choices[1:]))
    if any(misalignment(operator, t, dtype) for t in operator.tensors):
        # A round size tempts to whole vectors, an odd one to a tail that starts off their grid.
        for sizes in ((w for w in (*smoke, *small) if w.distribution == "default"), odd):
            choices = tuple(sizes)
            if choices:
                second.append(CaseSpec(choices[0], seed + 2, misaligned=True,
                                       alternatives=(*choices[1:], *small)))  # fmt: skip
    if any(is_float(s.dtype) for s in operator.scalars):
        second.append(CaseSpec(smoke[0], seed + 1, repeat=False, vary_scalars=True,
                               alternatives=(*smoke[1:], *small, *workloads)))  # fmt: skip
    # The same seed as the first timed set: what is timed has been verified on those very inputs.
    third = [CaseSpec(w, seed) for w in workloads]
    if target == "cpu":
        # Index checks need a second compilation: worth it for those that have come this far.
        third = [
            *(replace(s, repeat=False, bounds_checked=True) for s in first),
            *(replace(s, bounds_checked=_checkable(operator, s.workload, dtype)) for s in third),
        ]
    return (
        Stage("smoke", tuple(first)), Stage("heldout", tuple(second)), Stage("tuned", tuple(third))
    )  # fmt: skip


def _checkable(operator: Operator, workload: Workload, dtype: str) -> bool:
    """Return whether a serial run with index checks, slow as it is, takes about a second."""
    flops, nbytes = operator.cost(workload, dtype)
    return flops <= CHECKED_FLOPS and nbytes <= CHECKED_BYTES


def _small(operator: Operator, workloads: Sequence[Workload]) -> list[Workload]:
    """Return small relatives of the tuned workloads, for variants whose domain is narrow.

    All sizes but one are cut down (then all of them), so that a variant made for, say, rows of
    4096 meets every distribution on a few such rows.
    """
    found: dict[str, Workload] = {}
    for workload in workloads:
        cuts = [dict(workload.sizes)]
        for kept in (*workload.sizes, ""):
            for limit in (64, 5):
                cuts.append({s: v if s == kept else min(v, limit) for s, v in cuts[0].items()})
        for sizes in cuts:
            relative = Workload(sizes)
            if elements(operator, relative) <= SMALL_ELEMENTS and legal(operator, relative):
                found.setdefault(relative.key, relative)
    return sorted(found.values(), key=lambda w: -elements(operator, w))


def timing_cases(workload: Workload, seed: int = 0) -> tuple[CaseSpec, CaseSpec]:
    """Return the two input sets a workload is timed on; the first is the one verified before."""
    return CaseSpec(workload, seed), CaseSpec(workload, seed + 1)


def elements(operator: Operator, workload: Workload) -> int:
    """Return the number of elements of all tensors of a workload."""
    return sum(math.prod(t.concrete_shape(workload.sizes)) for t in operator.tensors)


def legal(operator: Operator, workload: Workload) -> bool:
    """Return whether a workload meets the operator's conditions on sizes."""
    try:
        operator.check_workload(workload)
    except SpecError:
        return False
    return True


def _set(operator: Operator, name: str, target: str) -> tuple[Workload, ...]:
    known: Iterable[str] = operator.workloads
    return operator.workload_set(name, target) if name in {k.split("@")[0] for k in known} else ()
