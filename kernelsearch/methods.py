"""Ways to choose the next point of a space, by name: the guide, plain rules, Optuna's samplers."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import SpecError, UnknownNameError
from kernelsearch.guide import Guide
from kernelsearch.space import Point, Rows, Space

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study
    from optuna.trial import FrozenTrial, Trial, TrialState

ELITES = 3
# Ranks below every real score: Optuna's samplers are told the order only.
FAILED = -1e9
# Optuna's samplers by our names, with the packages that they need besides Optuna.
OPTUNA: dict[str, tuple[str, ...]] = {
    "tpe": (), "ga": (), "cmaes": ("cmaes",), "gp": ("torch", "scipy"),
}  # fmt: skip
METHODS = ("guide", "local", "random", *OPTUNA)

Untried = Callable[[Rows], Rows]


class Method(Protocol):
    """Chooses points; whoever calls it sees to it that nothing is tried twice."""

    @property
    def startup(self) -> int:
        """How many points are to be spread over the space before it is asked."""
        ...

    def tell(self, point: Point, score: float | None) -> None:
        """Say what a point scored, the more the better (None: it failed)."""
        ...

    def forget(self, point: Point) -> None:
        """Say that a chosen point will not be told after all."""
        ...

    def choose(
        self, pending: Collection[Point], untried: Untried, open_rows: Rows | None
    ) -> Point | None:
        """Return an untried point; None where none was found.

        Args:
            pending: points that are being measured.
            untried: keeps those rows that were neither told nor asked for.
            open_rows: all untried points of a listed space; None where they are not listed.
        """
        ...


def make_method(name: str, space: Space, seed: int) -> Method:
    """Return a method by its name (one of ``METHODS``).

    Raises:
        UnknownNameError: there is none of that name.
        SpecError: it needs a package that is not installed.
    """
    rng = np.random.default_rng([seed, 1])
    if name == "guide":
        return Guide(space, rng)
    if name in ("random", "local"):
        return Random(space, rng) if name == "random" else Local(space, rng)
    if name not in OPTUNA:
        raise UnknownNameError("search method", name, METHODS)
    missing = [p for p in OPTUNA[name] if importlib.util.find_spec(p) is None]
    if missing:
        raise SpecError(
            f"search method {name!r} needs {' and '.join(missing)}, not installed here: "
            f"pip install {' '.join(missing)}, or leave the choice to the default"
        )
    return OptunaMethod(name, space, seed)


def sample(
    count: int, space: Space, untried: Untried, open_rows: Rows | None, rng: np.random.Generator
) -> Rows:
    """Return up to ``count`` random untried points."""
    if open_rows is None:
        return untried(space.draw(count, rng))
    return open_rows[rng.permutation(len(open_rows))[:count]]


class Random:
    """Untried points, evenly."""

    startup = 0

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        self._space, self._rng = space, rng

    def tell(self, point: Point, score: float | None) -> None:
        """Learn nothing."""

    def forget(self, point: Point) -> None:
        """Learn nothing."""

    def choose(
        self, pending: Collection[Point], untried: Untried, open_rows: Rows | None
    ) -> Point | None:
        rows = sample(16, self._space, untried, open_rows, self._rng)
        return tuple(rows[0].tolist()) if len(rows) else None


class Local(Random):
    """Nine times of ten an untried near neighbour of one of the best three, else chance."""

    startup = 20

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        super().__init__(space, rng)
        self._good: list[tuple[float, Point]] = []

    def tell(self, point: Point, score: float | None) -> None:
        if score is not None:
            self._good = sorted([*self._good, (-score, point)])[:ELITES]

    def choose(
        self, pending: Collection[Point], untried: Untried, open_rows: Rows | None
    ) -> Point | None:
        if self._rng.random() < 0.9:
            for which in self._rng.permutation(len(self._good)).tolist():
                elite = self._good[which][1]
                rows = untried(self._space.neighbours(elite))
                if len(rows):
                    order = np.argsort(self._space.distances(rows, elite), kind="stable")
                    nearer = rows[order[: -(-len(rows) // 2)]]
                    return tuple(nearer[int(self._rng.integers(len(nearer)))].tolist())
        return super().choose(pending, untried, open_rows)


class OptunaMethod:
    """An Optuna sampler; what it suggests is moved to the nearest untried valid point."""

    startup = 8

    def __init__(self, name: str, space: Space, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._rng = np.random.default_rng(seed)
        self._distributions = _distributions(space, words=name != "cmaes")
        self._trials: dict[Point, Trial] = {}
        self._near: Callable[[NDArray[np.float64]], Point | None] = lambda _: None
        self._picked: Point | None = None
        self._study: Study = optuna.create_study(
            direction="maximize", sampler=_snapping(self, _sampler(name, seed))
        )

    def tell(self, point: Point, score: float | None) -> None:
        from optuna.trial import create_trial

        value = FAILED if score is None else score
        trial = self._trials.pop(point, None)
        if trial is not None:
            self._study.tell(trial, value)
            return
        params = dict(zip(self._space.names, point, strict=True))
        self._study.add_trial(
            create_trial(value=value, params=params, distributions=self._distributions)
        )

    def forget(self, point: Point) -> None:
        from optuna.trial import TrialState

        trial = self._trials.pop(point, None)
        if trial is not None:
            self._study.tell(trial, state=TrialState.FAIL)

    def choose(
        self, pending: Collection[Point], untried: Untried, open_rows: Rows | None
    ) -> Point | None:
        from optuna.trial import TrialState

        def near(wish: NDArray[np.float64]) -> Point | None:
            rows = open_rows
            if rows is None:
                centre = np.rint(wish).astype(np.int32)[None, :]
                around = self._space.neighbours(tuple(centre[0].tolist()))
                known = centre[self._space.valid(centre)]
                rows = untried(np.concatenate([known, around, self._space.draw(256, self._rng)]))
            if not len(rows):
                return None
            distances = self._space.distances(rows, wish.tolist())
            nearest = np.flatnonzero(distances == distances.min())
            return tuple(rows[nearest[int(self._rng.integers(len(nearest)))]].tolist())

        self._near = near
        self._picked = None
        trial = self._study.ask(self._distributions)
        if self._picked is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        self._trials[self._picked] = trial
        return self._picked

    def pick(self, wish: NDArray[np.float64]) -> Point | None:
        """Return the point that stands for a wish in choice indices, and remember it."""
        self._picked = self._near(wish)
        return self._picked


def _distributions(space: Space, *, words: bool) -> dict[str, BaseDistribution]:
    """Return the choice indices of each tunable as what a sampler draws from."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    result: dict[str, BaseDistribution] = {}
    for name, choices in zip(space.names, space.choices, strict=True):
        if words and any(isinstance(c, str) for c in choices):
            result[name] = CategoricalDistribution(tuple(range(len(choices))))
        else:
            result[name] = IntDistribution(0, len(choices) - 1)
    return result


def _sampler(name: str, seed: int) -> BaseSampler:
    from optuna import samplers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these options count as experimental
        if name == "tpe":
            return samplers.TPESampler(
                seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True
            )
        if name == "ga":
            return samplers.NSGAIISampler(seed=seed, population_size=20)
        if name == "cmaes":
            return samplers.CmaEsSampler(seed=seed, n_startup_trials=1)
        return samplers.GPSampler(seed=seed, n_startup_trials=1)


def _snapping(method: OptunaMethod, inner: BaseSampler) -> BaseSampler:
    """Return a sampler whose trials have the points that ``inner``'s wishes are moved to."""
    from optuna.samplers import BaseSampler

    class Snapping(BaseSampler):
        def infer_relative_search_space(
            self, study: Study, trial: FrozenTrial
        ) -> dict[str, BaseDistribution]:
            del study, trial
            return method._distributions

        def sample_relative(
            self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
        ) -> dict[str, Any]:
            open_ = {n: d for n, d in search_space.items() if not d.single()}
            wish = dict(inner.sample_relative(study, trial, open_)) if open_ else {}
            for name, distribution in open_.items():
                if name not in wish:
                    wish[name] = inner.sample_independent(study, trial, name, distribution)
            point = method.pick(np.array([float(wish.get(n, 0)) for n in search_space]))
            return dict(zip(search_space, point or (0,) * len(search_space), strict=True))

        def sample_independent(
            self, study: Study, trial: FrozenTrial, name: str, distribution: BaseDistribution
        ) -> Any:
            return inner.sample_independent(study, trial, name, distribution)

        def before_trial(self, study: Study, trial: FrozenTrial) -> None:
            inner.before_trial(study, trial)

        def after_trial(
            self, study: Study, trial: FrozenTrial, state: TrialState, values: Any
        ) -> None:
            inner.after_trial(study, trial, state, values)

    return Snapping()
