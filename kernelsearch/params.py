"""Bind the tunables of one variant: Optuna's TPE and a neighbourhood search, in turn.

The sampler works on an Optuna study in memory that is rebuilt from the ledger's evaluations at
every start; the persistent studies are mirrors (``store_optuna``). The two methods alternate
because neither is safe alone: replayed over recorded kernel spaces, TPE is no better than chance on
rugged ones, and a neighbourhood search starts slowly on smooth ones. What either suggests is moved
to the nearest combination that is valid and untried: nothing invalid or known is ever asked for.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import ExpressionError, SpecError, VariantError
from kernelsearch.expressions import Value
from kernelsearch.records import DTYPE_BYTES, Params, ParamValue
from kernelsearch.space import Point, Rows, Space
from kernelsearch.variant import Variant

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import Trial

EXHAUSTIVE = 12
STARTUP = 8
STARTUP_WITH_START = 4
ELITES = 3
# Ranks below every real objective: TPE looks at the order only.
FAILED = -1e9


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


class ParamSearch:
    """Ask for params of one variant, and tell what became of them.

    Deterministic for a seed and an order of asking and telling.

    Args:
        variant: whose tunables are bound.
        facts: device facts, for the constraints.
        dtype: element type.
        seed: of every random choice.
        starts: params to try first, for instance the parent's best: each is projected to the
            nearest valid combination.
        history: params and objective (None: failed) of what was evaluated already.
        startup: how many candidates are spread over the space before anything is learned; None
            for a few where a start is known, more where none is.
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
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = param_space(variant, facts, dtype)
        self._variant = variant
        self._rng = np.random.default_rng(seed)
        default = STARTUP_WITH_START if starts else STARTUP
        self.startup = default if startup is None else startup
        self._told: dict[Point, float | None] = {}
        self._pending: dict[Point, Trial | None] = {}
        self._picked: Point | None = None
        self._skipped: set[Point] = set()
        self._starts = self._places(starts)
        self._first = self._starts[0] if self._starts else None
        self._open = (
            None if self.space.rows is None else np.ones(len(self.space.rows), dtype=np.bool_)
        )
        self._turn = 0
        self._distributions = self._make_distributions()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some of these options count as experimental
            tpe = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True
            )
        self._study: Study = optuna.create_study(direction="maximize", sampler=_picker(self, tpe))
        for params, objective in history:
            self.tell(params, objective)

    def _make_distributions(self) -> dict[str, BaseDistribution]:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        result: dict[str, BaseDistribution] = {}
        for name, choices in zip(self.space.names, self.space.choices, strict=True):
            words = any(isinstance(c, str) for c in choices)
            if words:
                result[name] = CategoricalDistribution(tuple(range(len(choices))))
            else:
                result[name] = IntDistribution(0, len(choices) - 1)
        return result

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
        self._picked = None
        trial = self._study.ask(self._distributions)
        if not (self.space.sizes > 1).any():
            # Optuna samples nothing where there is nothing to choose.
            self.pick(dict)
        point = self._picked
        if point is None:
            self._forget(trial)
            return None
        self._pending[point] = trial
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
                self._pending[point] = None
                found.append(params)
        return found

    def tell(self, params: Params, objective: float | None) -> None:
        """Say what became of a candidate, whoever evaluated it.

        Args:
            params: its params.
            objective: the larger the better; None if it failed. What was told first stays.
        """
        from optuna.trial import TrialState, create_trial

        self._variant.check_params(params)
        if objective is not None and not math.isfinite(objective):
            raise ValueError(f"objective must be finite, or None if it failed (got {objective!r})")
        point = self.space.point(params)
        if point in self._told:
            return
        self._told[point] = objective
        value = FAILED if objective is None else objective
        trial = self._pending.pop(point, None)
        self._skipped.discard(point)
        self._close(point)
        if trial is not None:
            self._study.tell(trial, value)
            return
        indices = dict(zip(self.space.names, point, strict=True))
        self._study.add_trial(
            create_trial(
                state=TrialState.COMPLETE, value=value, params=indices,
                distributions=self._distributions,
            )
        )  # fmt: skip

    def skip(self, params: Params) -> None:
        """Say that another process has a candidate; it will be told, or tried again at the end."""
        point = self.space.point(params)
        self._forget(self._pending.pop(point, None))
        if point not in self._told:
            self._skipped.add(point)
            self._close(point)

    def give_back(self, params: Params) -> None:
        """Say that a candidate was not evaluated through no fault of its own: it may come again."""
        point = self.space.point(params)
        self._forget(self._pending.pop(point, None))
        if point not in self._told:
            self._skipped.discard(point)
            self._starts.insert(0, point)
            row = self.space.row_of(point) if self._open is not None else None
            if self._open is not None and row is not None:
                self._open[row] = True

    def _forget(self, trial: Trial | None) -> None:
        from optuna.trial import TrialState

        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)

    def _is_known(self, point: Point) -> bool:
        return point in self._told or point in self._pending or point in self._skipped

    def _close(self, point: Point) -> None:
        row = self.space.row_of(point) if self._open is not None else None
        if self._open is not None and row is not None:
            self._open[row] = False

    # --- choosing ---------------------------------------------------------------------------

    def pick(self, suggest: Callable[[], Mapping[str, Any]]) -> Point | None:
        """Choose the next point; ``suggest`` gives TPE's wish in choice indices."""
        self._picked = self._choose(suggest)
        return self._picked

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

    def _choose(self, suggest: Callable[[], Mapping[str, Any]]) -> Point | None:
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
        self._turn += 1
        if self._turn % 2:
            point = self._neighbour()
            if point is not None:
                return point
        suggested = suggest()
        if not suggested:
            return self._spread()
        return self._nearest([int(suggested[n]) for n in self.space.names])

    def _untried(self, around: Point | None) -> Rows:
        """Return the untried valid points: all of them, or a drawn pool of a huge space."""
        if self.space.rows is not None and self._open is not None:
            return self.space.rows[self._open]
        pool = [self.space.draw(256, self._rng)]
        if around is not None:
            centre = np.array([around], dtype=np.int32)
            pool += [centre[self.space.valid(centre)], self.space.neighbours(around)]
        rows = np.concatenate(pool)
        return self._fresh(rows)

    def _fresh(self, rows: Rows) -> Rows:
        return rows[[i for i, r in enumerate(rows.tolist()) if not self._is_known(tuple(r))]]

    def _nearest(self, wish: Sequence[int]) -> Point | None:
        rows = self._untried(tuple(wish))
        if not len(rows):
            return None
        distances = self.space.distances(rows, wish)
        nearest = np.flatnonzero(distances == distances.min())
        return self._as_point(rows[nearest[int(self._rng.integers(len(nearest)))]])

    def _spread(self) -> Point | None:
        """Return the one of a few random points that is farthest from all that were tried."""
        rows = self._untried(None)
        if not len(rows):
            return None
        rows = rows[self._rng.integers(0, len(rows), size=32)]
        tried = [*self._told, *self._pending]
        if not tried:
            return self._as_point(rows[0])
        gaps = np.min([self.space.distances(rows, t) for t in tried], axis=0)
        return self._as_point(rows[int(np.argmax(gaps))])

    def _neighbour(self) -> Point | None:
        """Return an untried neighbour (of the nearer half) of one of the best; None: none left."""
        good = sorted(
            ((v, p) for p, v in self._told.items() if v is not None), key=lambda g: -g[0]
        )  # fmt: skip
        elites = [p for _, p in good[:ELITES]]
        for which in self._rng.permutation(len(elites)).tolist():
            rows = self._fresh(self.space.neighbours(elites[which]))
            if not len(rows):
                continue
            distances = self.space.distances(rows, elites[which])
            nearer = rows[np.argsort(distances, kind="stable")[: -(-len(rows) // 2)]]
            return self._as_point(nearer[int(self._rng.integers(len(nearer)))])
        return None

    @staticmethod
    def _as_point(row: NDArray[np.int32]) -> Point:
        return tuple(int(i) for i in row)


def _picker(search: ParamSearch, tpe: BaseSampler) -> BaseSampler:
    """Return a sampler that lets ``search`` choose, with TPE's wish at hand."""
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

    class Picker(BaseSampler):
        def infer_relative_search_space(
            self, study: Study, trial: FrozenTrial
        ) -> dict[str, BaseDistribution]:
            del study, trial
            return search._distributions

        def sample_relative(
            self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
        ) -> dict[str, Any]:
            def suggest() -> Mapping[str, Any]:
                return tpe.sample_relative(study, trial, search_space)

            point = search.pick(suggest)
            if point is None:
                return dict.fromkeys(search.space.names, 0)
            return dict(zip(search.space.names, point, strict=True))

        def sample_independent(
            self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
        ) -> Any:
            return tpe.sample_independent(study, trial, name, distribution)

        def after_trial(
            self, study: Study, trial: FrozenTrial, state: TrialState,
            values: Sequence[float] | None,
        ) -> None:  # fmt: skip
            tpe.after_trial(study, trial, state, values)

    return Picker()
