"""The valid combinations of tunables: listed where they are few, else drawn from evenly.

Constraints are met while combinations are built, one tunable after another, on columns of NumPy
(``columns``). Tunables that no constraint ties together, directly or through others, form blocks:
every valid combination is one of each block, so the number of combinations and an even draw follow
from the blocks even where all combinations together are far too many to list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelsearch.columns import Column, NoColumnsError, truths
from kernelsearch.errors import ExpressionError, SpecError
from kernelsearch.expressions import Expression, Value
from kernelsearch.records import Params, ParamValue

Point: TypeAlias = tuple[int, ...]
Rows: TypeAlias = NDArray[np.int32]

LIST_LIMIT = 1_000_000
# A block under construction may be this much larger than what is listed at the end.
BLOCK_LIMIT = 4_000_000
# What must be evaluated row by row (about 5 µs each) may tie this many combinations.
TABLE_LIMIT = 200_000
PARTICLES = 4096
SEARCH_CHUNK = 1024
SEARCH_STEPS = 2_000


class Constraint:
    """One condition on some of the tunables, by their places."""

    def __init__(
        self, name: str, expression: Expression, names: Sequence[str],
        choices: Sequence[Sequence[ParamValue]], facts: Mapping[str, Value],
    ) -> None:  # fmt: skip
        self.name = name
        self.expression = expression
        self.axes = tuple(i for i, n in enumerate(names) if n in expression.names)
        self._values = {i: (names[i], choices[i]) for i in self.axes}
        self._facts = facts
        self._columns = {i: _column(choices[i]) for i in self.axes}
        self._constants = {
            n: np.asarray(v) for n, v in facts.items()
            if n in expression.names and n not in names
        }  # fmt: skip
        self._table: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None

    def holds(self, indices: Mapping[int, Column]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Tell where it holds and where it has no value, for choice indices that broadcast."""
        if self._table is None:
            values: dict[str, Column] = dict(self._constants)
            try:
                for axis in self.axes:
                    column = self._columns[axis]
                    if column is None:
                        raise NoColumnsError
                    values[self._values[axis][0]] = column[indices[axis]]
                return truths(self.expression, values)
            except NoColumnsError:
                self._table = self._evaluate()
        if not self.axes:
            return self._table
        at = tuple(indices[a] for a in self.axes)
        return self._table[0][at], self._table[1][at]

    def _evaluate(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Evaluate every combination of its tunables, row by row."""
        shape = tuple(len(self._values[a][1]) for a in self.axes)
        if math.prod(shape) > TABLE_LIMIT:
            raise SpecError(
                f"constraint {self.name} ({self.expression.text}) leaves the range of exact 64-bit "
                f"arithmetic and ties tunables with {math.prod(shape)} combinations; at most "
                f"{TABLE_LIMIT} can be looked at one by one: split it, or list fewer choices"
            )
        holds, lost = np.zeros(shape, dtype=np.bool_), np.zeros(shape, dtype=np.bool_)
        names = dict(self._facts)
        for index in np.ndindex(*shape):
            for axis, choice in zip(self.axes, index, strict=True):
                name, choices = self._values[axis]
                names[name] = choices[choice]
            try:
                holds[index] = self.expression.truth(names)
            except ExpressionError:
                lost[index] = True
        return holds, lost

    def complain(self, indices: Mapping[int, int]) -> None:
        """Raise what the evaluator says about one combination."""
        names = dict(self._facts)
        names |= {n: choices[indices[a]] for a, (n, choices) in self._values.items()}
        self.expression.truth(names)


def _column(choices: Sequence[ParamValue]) -> Column | None:
    """Return choices as a column; None where they are words and numbers mixed."""
    words = [isinstance(c, str) for c in choices]
    if any(words) and not all(words):
        return None
    column = np.asarray(choices)
    return column if column.dtype.kind in "Uifb" else None


@dataclass(slots=True)
class Block:
    """Tunables that constraints tie together.

    Args:
        axes: in the order in which they are bound.
        steps: for each of them the constraints that can be looked at once it is bound.
        rows: choice indices of the valid combinations of the first ``bound`` axes, in columns of
            ``axes``' order.
        bound: how many axes ``rows`` covers: all of them unless the block is too large to list.
    """

    axes: tuple[int, ...]
    steps: tuple[tuple[Constraint, ...], ...]
    rows: Rows
    bound: int

    @property
    def is_listed(self) -> bool:
        return self.bound == len(self.axes)


class Space:
    """Valid combinations as points of choice indices.

    Args:
        names: the tunables.
        choices: of each; numbers in any order, or words.
        constraints: conditions on them, by name.
        facts: further names that conditions may use.

    Raises:
        ExpressionError: a condition has no value for any combination.
        SpecError: a condition cannot be evaluated at this scale.
    """

    def __init__(
        self,
        names: Sequence[str],
        choices: Sequence[Sequence[ParamValue]],
        constraints: Mapping[str, Expression] | None = None,
        facts: Mapping[str, Value] | None = None,
    ) -> None:
        self._describe(names, choices)
        known = dict(facts or {})
        self._constraints = [
            Constraint(n, e, self.names, self.choices, known)
            for n, e in (constraints or {}).items()
        ]  # fmt: skip
        self._blocks = self._make_blocks()
        sizes = [len(b.rows) if b.is_listed else None for b in self._blocks]
        self.size: int | None = None
        if 0 in sizes:
            self.size = 0
        elif None not in sizes:
            self.size = math.prod(s for s in sizes if s is not None)
        self._index(self._product() if self.size is not None and self.size <= LIST_LIMIT else None)

    @classmethod
    def of_rows(
        cls, names: Sequence[str], choices: Sequence[Sequence[ParamValue]], rows: Rows
    ) -> Space:
        """Return the space whose valid points are ``rows`` (points, tunables), in any order."""
        space = cls.__new__(cls)
        space._describe(names, choices)
        space._constraints, space._blocks = [], []
        space.size = len(rows)
        space._index(np.asarray(rows, dtype=np.int32))
        return space

    def _describe(self, names: Sequence[str], choices: Sequence[Sequence[ParamValue]]) -> None:
        self.names = tuple(names)
        self.choices = tuple(tuple(c) for c in choices)
        self.sizes = np.array([len(c) for c in self.choices], dtype=np.int64)
        self._scores = [log_scale(c) for c in self.choices]

    def _index(self, rows: Rows | None) -> None:
        """Keep the listed points in the order of their numbers."""
        self.rows: Rows | None = None
        self._ids: NDArray[np.int64] | None = None
        if rows is not None:
            ids = self.numbers(rows)
            order = np.argsort(ids, kind="stable")
            self.rows, self._ids = np.ascontiguousarray(rows[order]), ids[order]

    # --- building ---------------------------------------------------------------------------

    def _make_blocks(self) -> list[Block]:
        for constraint in self._constraints:
            if not constraint.axes:
                holds, lost = constraint.holds({})
                if lost:
                    constraint.complain({})
                if not holds:
                    return [Block((), (), np.zeros((0, 0), dtype=np.int32), 0)]
        return [self._build(axes) for axes in self._groups()]

    def _groups(self) -> list[list[int]]:
        """Return the tunables in groups that constraints tie together."""
        group = list(range(len(self.names)))
        for constraint in self._constraints:
            for axis in constraint.axes[1:]:
                old, new = group[axis], group[constraint.axes[0]]
                group = [new if g == old else g for g in group]
        return [[i for i, g in enumerate(group) if g == which] for which in sorted(set(group))]

    def _order(self, axes: Sequence[int]) -> tuple[tuple[int, ...], list[tuple[Constraint, ...]]]:
        """Return an order of binding in which constraints can be looked at early."""
        waiting = [c for c in self._constraints if c.axes and set(c.axes) <= set(axes)]
        order: list[int] = []
        steps: list[tuple[Constraint, ...]] = []
        while len(order) < len(axes):
            costs = [
                math.prod(float(self.sizes[a]) for a in c.axes if a not in order) for c in waiting
            ]
            wanted = waiting[int(np.argmin(costs))].axes if waiting else tuple(axes)
            for axis in sorted((a for a in wanted if a not in order), key=lambda a: self.sizes[a]):
                order.append(axis)
                ready = tuple(c for c in waiting if set(c.axes) <= set(order))
                waiting = [c for c in waiting if c not in ready]
                steps.append(ready)
        return tuple(order), steps

    def _build(self, axes: Sequence[int]) -> Block:
        order, steps = self._order(axes)
        rows: Rows = np.zeros((1, 0), dtype=np.int32)
        for bound, (axis, ready) in enumerate(zip(order, steps, strict=True)):
            if len(rows) * int(self.sizes[axis]) > BLOCK_LIMIT:
                return Block(order, tuple(steps), rows, bound)
            rows = self._extend(rows, order[:bound], axis, ready)
        return Block(order, tuple(steps), rows, len(order))

    def _extend(
        self, rows: Rows, bound: Sequence[int], axis: int, ready: Sequence[Constraint]
    ) -> Rows:
        """Bind one more tunable: return each row with each choice that meets the constraints."""
        size = int(self.sizes[axis])
        indices: dict[int, Column] = {a: rows[:, [i]] for i, a in enumerate(bound)}
        indices[axis] = np.arange(size, dtype=np.int32)[None, :]
        good = np.ones((len(rows), size), dtype=np.bool_)
        for constraint in ready:
            holds, lost = constraint.holds(indices)
            if good.size and lost.any() and np.broadcast_to(lost, good.shape).all():
                first = {a: int(rows[0, i]) for i, a in enumerate(bound)} | {axis: 0}
                constraint.complain(first)
            good &= holds
        at, choice = np.nonzero(good)
        result = np.empty((len(at), len(bound) + 1), dtype=np.int32)
        result[:, :-1] = rows[at]
        result[:, -1] = choice
        return result

    def _product(self) -> Rows:
        """Return one row for each choice of a row in every block."""
        assert self.size is not None
        rows = np.empty((self.size, len(self.names)), dtype=np.int32)
        repeat, tile = self.size, 1
        for block in self._blocks:
            if not self.size:
                break
            repeat //= len(block.rows)
            which = np.tile(np.repeat(np.arange(len(block.rows)), repeat), tile)
            rows[:, list(block.axes)] = block.rows[which]
            tile *= len(block.rows)
        return rows

    # --- points -----------------------------------------------------------------------------

    def valid(self, rows: Rows) -> NDArray[np.bool_]:
        """Tell for each point whether it is of the space."""
        if self._ids is not None:
            ids = self.numbers(rows)
            at = np.minimum(np.searchsorted(self._ids, ids), max(len(self._ids) - 1, 0))
            return self._ids[at] == ids if len(self._ids) else np.zeros(len(rows), dtype=np.bool_)
        indices: dict[int, Column] = {i: rows[:, i] for i in range(len(self.names))}
        good = np.ones(len(rows), dtype=np.bool_)
        for constraint in self._constraints:
            good &= constraint.holds(indices)[0]
        return good

    def numbers(self, rows: Rows) -> NDArray[np.int64]:
        """Return one number for each point, in the order of a product (of a listed space)."""
        strides = np.concatenate([np.cumprod(self.sizes[:0:-1])[::-1], [1]])[: len(self.sizes)]
        return np.asarray(rows.astype(np.int64) @ strides.astype(np.int64))

    def places(self, rows: Rows) -> NDArray[np.intp]:
        """Return the places in ``rows`` of valid points of a listed space."""
        if self._ids is None:
            raise ValueError("the points of this space are not listed")
        return np.searchsorted(self._ids, self.numbers(rows))

    def row_of(self, point: Point) -> int | None:
        """Return the place of a point in ``rows``; None if it is not valid."""
        if self._ids is None:
            raise ValueError("the points of this space are not listed")
        number = int(self.numbers(np.array([point], dtype=np.int32))[0])
        at = int(np.searchsorted(self._ids, number))
        return at if at < len(self._ids) and int(self._ids[at]) == number else None

    def params(self, point: Iterable[int]) -> dict[str, ParamValue]:
        """Return the values at a point."""
        return {
            n: c[int(i)] for n, c, i in zip(self.names, self.choices, point, strict=True)
        }  # fmt: skip

    def point(self, params: Params) -> Point:
        """Return the point of exact params."""
        return tuple(
            c.index(params[n]) for n, c in zip(self.names, self.choices, strict=True)
        )  # fmt: skip

    def project(self, params: Params) -> Point:
        """Return the point nearest to params that may be another variant's (maybe not valid).

        A tunable keeps its value where that is a choice here, else takes the nearest number; one
        that ``params`` does not have takes its first choice.
        """
        result = []
        for name, choices, scores in zip(self.names, self.choices, self._scores, strict=True):
            value = params.get(name)
            if value in choices:
                result.append(choices.index(value))
            elif scores is not None and isinstance(value, int | float):
                wanted = math.copysign(math.log1p(abs(value)), value)
                result.append(int(np.argmin(np.abs(scores - wanted))))
            else:
                result.append(0)
        return tuple(result)

    def distances(self, rows: Rows, point: Sequence[float]) -> NDArray[np.float64]:
        """Return how many steps of choices each point is away; between words, every step is one."""
        steps = np.abs(rows - np.asarray(point, dtype=np.float64))
        for axis, scores in enumerate(self._scores):
            if scores is None:
                steps[:, axis] = np.minimum(steps[:, axis], 1.0)
        return np.asarray(steps.sum(axis=1))

    def neighbours(self, point: Point) -> Rows:
        """Return the valid points that differ in one tunable."""
        found = []
        for axis, size in enumerate(self.sizes):
            block = np.tile(np.array(point, dtype=np.int32), (int(size), 1))
            block[:, axis] = np.arange(size)
            found.append(np.delete(block, point[axis], axis=0))
        rows = np.concatenate(found) if found else np.zeros((0, 0), dtype=np.int32)
        return rows[self.valid(rows)]

    # --- drawing ----------------------------------------------------------------------------

    def draw(self, count: int, rng: np.random.Generator) -> Rows:
        """Return ``count`` random valid points, evenly (with repetitions); fewer if none is found.

        The draw is exactly even where every block is listed. A block that is not is bound tunable
        by tunable for a crowd of rows at once; the crowd is thinned by how many ways on each row
        had left, so that the draw is even up to the size of the crowd.
        """
        if self.rows is not None:
            if not len(self.rows):
                return self.rows
            return self.rows[rng.integers(0, len(self.rows), size=count)]
        rows = np.empty((count, len(self.names)), dtype=np.int32)
        for block in self._blocks:
            part = self._draw_block(block, count, rng)
            if not len(part):
                return rows[:0]
            rows[:, list(block.axes)] = part
        return rows

    def _draw_block(self, block: Block, count: int, rng: np.random.Generator) -> Rows:
        if not len(block.rows):
            return block.rows
        if block.is_listed:
            return block.rows[rng.integers(0, len(block.rows), size=count)]
        rows = block.rows[rng.integers(0, len(block.rows), size=max(PARTICLES, 2 * count))]
        wanted = len(rows)
        for bound in range(block.bound, len(block.axes)):
            at, ways = self._ways(rows, block, bound)
            if not len(at):
                found = self._search_block(block, count, rng)
                return found[rng.integers(0, len(found), size=count)] if len(found) else found
            chosen = rng.integers(0, len(at), size=wanted)
            rows = np.column_stack([rows[at[chosen]], ways[chosen]]).astype(np.int32)
        return rows[rng.permutation(len(rows))[:count]]

    def _ways(self, rows: Rows, block: Block, bound: int) -> tuple[Column, Column]:
        """Return which row goes on with which choice of the next tunable: all valid pairs."""
        axis = block.axes[bound]
        size = int(self.sizes[axis])
        indices: dict[int, Column] = {a: rows[:, [i]] for i, a in enumerate(block.axes[:bound])}
        indices[axis] = np.arange(size, dtype=np.int32)[None, :]
        good = np.ones((len(rows), size), dtype=np.bool_)
        for constraint in block.steps[bound]:
            good &= constraint.holds(indices)[0]
        at, choice = np.nonzero(good)
        return at, choice

    def _search_block(self, block: Block, count: int, rng: np.random.Generator) -> Rows:
        """Find valid rows where a crowd died out: depth first, in chunks, in random order."""
        rows = block.rows[rng.permutation(len(block.rows))]
        stack = [rows[i : i + SEARCH_CHUNK] for i in range(0, len(rows), SEARCH_CHUNK)]
        found: list[Rows] = []
        for _ in range(SEARCH_STEPS):
            if not stack or sum(map(len, found)) >= count:
                break
            part = stack.pop()
            bound = part.shape[1]
            if bound == len(block.axes):
                found.append(part)
                continue
            at, choice = self._ways(part, block, bound)
            if len(at):
                order = rng.permutation(len(at))
                longer = np.column_stack([part[at[order]], choice[order]]).astype(np.int32)
                stack += [
                    longer[i : i + SEARCH_CHUNK] for i in range(0, len(longer), SEARCH_CHUNK)
                ]  # fmt: skip
        return np.concatenate(found) if found else np.zeros((0, len(block.axes)), dtype=np.int32)


def log_scale(choices: Sequence[ParamValue]) -> NDArray[np.float64] | None:
    """Return numbers on a logarithmic scale that keeps 0 and signs; None if one is a word."""
    if any(isinstance(c, str) for c in choices):
        return None
    return np.array([math.copysign(math.log1p(abs(float(c))), float(c)) for c in choices])
