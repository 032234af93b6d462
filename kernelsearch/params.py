"""Bind the tunables of one variant: what was told, asked for and held, and what comes next.

How a point is chosen is a ``methods.Method``; the default is ``guide``. What any of them suggests
is valid and untried, which is seen to here: nothing invalid or known is ever asked for. The state
is rebuilt from the ledger's evaluations at every start; Optuna's persistent studies are mirrors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import ExpressionError, SpecError, VariantError
from kernelsearch.expressions import Value
from kernelsearch.guide import farthest
from kernelsearch.methods import make_method, sample
from kernelsearch.records import DTYPE_BYTES, Params, ParamValue
from kernelsearch.space import Point, Rows, Space
from kernelsearch.surrogate import Features
from kernelsearch.variant import Variant

EXHAUSTIVE = 12
STARTUP_WITH_START = 4
# Spreading picks the best of so many random points, away from so many known ones.
SPREAD, TRIED = 32, 256
DRAWN_ABOVE = 20_000


def param_space(variant: Variant, facts: Mapping[str, int], dtype: str) -> Space:
    """Return the valid combinations of a variant's tunables on a device.

    Raises:
        ExpressionError: a constraint has no value for any combination.
        VariantError: a constraint cannot be evaluated; the message names the file.
    """
    known: dict[str, Value] = {**facts, "elem_bytes": DTYPE_BYTES[dtype]}
    try:
        return Space(
            tuple(variant.tunables), tuple(variant.tunables.values()), variant.constraints, known
        )
    except ExpressionError:
        raise
    except SpecError as error:
        raise VariantError(str(error), variant.path) from error


class SpaceSearch:
    """Ask for params of a space, and tell what became of them.

    Deterministic for a seed and an order of asking and telling.

    Args:
        space: the valid combinations.
        seed: of every random choice.
        starts: params to try first, for instance the parent's best: each is projected to the
            nearest valid combination.
        history: params and objective (None: failed) of what was evaluated already.
        startup: how many candidates are spread over the space before anything is learned; None
            for a few where a start is known, more where none is.
        method: name of the way to choose (``methods.METHODS``).

    Raises:
        UnknownNameError: there is no such method.
        SpecError: the method needs a package that is not installed.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        starts: Sequence[Params] = (),
        history: Iterable[tuple[Params, float | None]] = (),
        startup: int | None = None,
        method: str = "guide",
    ) -> None:
        self.space = space
        self._features = Features(space)
        self._rng = np.random.default_rng(seed)
        self._method = make_method(method, space, seed)
        default = self._method.startup
        if starts:
            default = min(default, STARTUP_WITH_START)
        self.startup = default if startup is None else startup
        self._told: dict[Point, float | None] = {}
        self._pending: set[Point] = set()
        self._skipped: set[Point] = set()
        self._starts = self._places(starts)
        self._first = self._starts[0] if self._starts else None
        self._open = (
            None if self.space.rows is None else np.ones(len(self.space.rows), dtype=np.bool_)
        )
        for params, objective in history:
            self.tell(params, objective)

    # --- what is known ----------------------------------------------------------------------

    @property
    def size(self) -> int | None:
        """How many valid combinations there are (None: too many to list)."""
        return self.space.size

    @property
    def is_exhausted(self) -> bool:
        """Tell whether every valid combination has been told."""
        return self.is_dry and not self._pending and not self._skipped

    @property
    def is_dry(self) -> bool:
        """Tell whether there is nothing to ask for, but for what others have claimed."""
        return self._open is not None and not self._open.any()

    @property
    def told(self) -> int:
        """How many candidates have been told."""
        return len(self._told)

    @property
    def best(self) -> tuple[dict[str, ParamValue], float] | None:
        """The best params told and their objective."""
        good = [(v, p) for p, v in self._told.items() if v is not None]
        if not good:
            return None
        value, point = max(good, key=lambda g: g[0])
        return self.space.params(point), value

    # --- ask and tell -----------------------------------------------------------------------

    def ask(
        self, count: int = 1, admit: Callable[[dict[str, ParamValue]], bool] | None = None
    ) -> list[dict[str, ParamValue]]:
        """Return up to ``count`` params that are valid and neither told nor asked for yet.

        Args:
            count: how many are wanted.
            admit: claims a candidate and says whether it may be evaluated here; one that may not
                (another process has it) is passed over, and tried again when nothing else is
                left, until it is told.

        Returns:
            Fewer than ``count`` if there are no more at present: see ``is_exhausted``.
        """
        found: list[dict[str, ParamValue]] = []
        while len(found) < count:
            point = self._next()
            if point is None:
                break
            params = self.space.params(point)
            if admit is None or admit(params):
                found.append(params)
            else:
                self.skip(params)
        if len(found) < count and self._skipped and admit is not None:
            found += self._again(count - len(found), admit)
        return found

    def _next(self) -> Point | None:
        if self.is_dry:
            return None
        point = self._choose()
        if point is not None:
            self._pending.add(point)
            self._close(point)
        return point

    def _again(
        self, count: int, admit: Callable[[dict[str, ParamValue]], bool]
    ) -> list[dict[str, ParamValue]]:
        found: list[dict[str, ParamValue]] = []
        for point in sorted(self._skipped):
            if len(found) == count:
                break
            params = self.space.params(point)
            if admit(params):
                self._skipped.discard(point)
                self._pending.add(point)
                found.append(params)
        return found

    def tell(self, params: Params, objective: float | None) -> None:
        """Say what became of a candidate, whoever evaluated it.

        Args:
            params: its params.
            objective: the larger the better; None if it failed. What was told first stays.
        """
        if objective is not None and not math.isfinite(objective):
            raise ValueError(f"objective must be finite, or None if it failed (got {objective!r})")
        point = self.space.point(params)
        if point in self._told:
            return
        self._told[point] = objective
        self._pending.discard(point)
        self._skipped.discard(point)
        self._close(point)
        self._method.tell(point, objective)

    def skip(self, params: Params) -> None:
        """Say that another process has a candidate; it will be told, or tried again at the end."""
        point = self.space.point(params)
        self._forget(point)
        if point not in self._told:
            self._skipped.add(point)
            self._close(point)

    def skip_unless_asked(self, params: Params) -> None:
        """Say that a candidate is being measured, by whomever: here, or else by another process."""
        if self.space.point(params) not in self._pending:
            self.skip(params)

    def give_back(self, params: Params) -> None:
        """Say that a candidate was not evaluated through no fault of its own: it may come again."""
        point = self.space.point(params)
        self._forget(point)
        if point not in self._told:
            self._skipped.discard(point)
            self._starts.insert(0, point)
            row = self.space.row_of(point) if self._open is not None else None
            if self._open is not None and row is not None:
                self._open[row] = True

    def _forget(self, point: Point) -> None:
        if point in self._pending:
            self._pending.discard(point)
            self._method.forget(point)

    def _is_known(self, point: Point) -> bool:
        return point in self._told or point in self._pending or point in self._skipped

    def _close(self, point: Point) -> None:
        row = self.space.row_of(point) if self._open is not None else None
        if self._open is not None and row is not None:
            self._open[row] = False

    # --- choosing ---------------------------------------------------------------------------

    def _places(self, starts: Sequence[Params]) -> list[Point]:
        """Return the valid points nearest to the starts, each once."""
        places: dict[Point, None] = {}
        for params in starts:
            wish = self.space.project(params)
            rows = self.space.rows
            if rows is None:
                centre = np.array([wish], dtype=np.int32)
                rows = centre[self.space.valid(centre)]
                if not len(rows):
                    near = [self.space.neighbours(wish), self.space.draw(256, self._rng)]
                    rows = np.concatenate(near)
            if len(rows):
                best = int(np.argmin(self.space.distances(rows, wish)))
                places[self._as_point(rows[best])] = None
        return list(places)

    def _choose(self) -> Point | None:
        while self._starts:
            start = self._starts.pop(0)
            if not self._is_known(start):
                return start
        size = self.space.size
        if size is not None and size <= EXHAUSTIVE:
            origin = (0,) * len(self.space.names)
            return self._nearest(origin if self._first is None else self._first)
        if len(self._told) + len(self._pending) < self.startup:
            return self._spread()
        return self._method.choose(self._pending_now(), self._fresh, self._untried())

    def _pending_now(self) -> list[Point]:
        """Return what is being measured, here or elsewhere, in an order that a seed repeats."""
        return sorted(self._pending | self._skipped)

    def _untried(self) -> Rows | None:
        """Return the untried points of a listed space; None where it is not, or they are many.

        Many are drawn from instead: to copy them for each suggestion would take longest of all.
        """
        if self.space.rows is None or self._open is None:
            return None
        if int(np.count_nonzero(self._open)) > DRAWN_ABOVE:
            return None
        return self.space.rows[self._open]

    def _fresh(self, rows: Rows) -> Rows:
        if self._open is not None:
            return rows[self._open[self.space.places(rows)]]
        return rows[[i for i, r in enumerate(rows.tolist()) if not self._is_known(tuple(r))]]

    def _nearest(self, wish: Point) -> Point | None:
        """Return an untried point of a small space near ``wish``."""
        rows = self._untried()
        if rows is None or not len(rows):
            return None
        return self._as_point(rows[int(np.argmin(self.space.distances(rows, wish)))])

    def _spread(self) -> Point | None:
        """Return the one of a few random points that is farthest from all that were tried."""
        rows = sample(SPREAD, self.space, self._fresh, self._untried(), self._rng)
        if not len(rows):
            return None
        tried = [*self._told, *self._pending_now()][-TRIED:]
        if not tried:
            return self._as_point(rows[0])
        known = np.array(tried, dtype=np.int32)
        return self._as_point(rows[farthest(self._features, rows, known)])

    @staticmethod
    def _as_point(row: NDArray[np.int32]) -> Point:
        return tuple(int(i) for i in row)


class ParamSearch(SpaceSearch):
    """The search over the tunables of one variant.

    Args:
        variant: whose tunables are bound.
        facts: device facts, for the constraints.
        dtype: element type.
        seed / starts / history / startup / method: as for ``SpaceSearch``.
    """

    def __init__(
        self,
        variant: Variant,
        facts: Mapping[str, int],
        dtype: str,
        *,
        seed: int = 0,
        starts: Sequence[Params] = (),
        history: Iterable[tuple[Params, float | None]] = (),
        startup: int | None = None,
        method: str = "guide",
    ) -> None:
        self._variant = variant
        super().__init__(
            param_space(variant, facts, dtype), seed=seed, starts=starts, history=history,
            startup=startup, method=method,
        )  # fmt: skip

    def tell(self, params: Params, objective: float | None) -> None:
        """Say what became of a candidate, whoever evaluated it: see ``SpaceSearch.tell``.

        Raises:
            RejectedError: a value is not among its tunable's choices.
        """
        self._variant.check_params(params)
        super().tell(params, objective)
