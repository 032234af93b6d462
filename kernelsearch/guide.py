"""Choose the next point of a space from what was measured: the default parameter search.

A few points spread over the space come first. Then a Gaussian process (``surrogate``) is asked
about untried points: neighbours of the best, and a random sample of the rest. The one with the
highest expected improvement wins, weighted with how likely it is not to fail, which is learned from
the failures. Points that are being measured count as known but for their result. Nothing of it is
to be set; ``benchmarks/spaces.py`` measures it on recorded spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.space import Point, Rows, Space
from kernelsearch.surrogate import Array, Features, Surrogate

FIRST_STEPS = 30
NEXT_STEPS = 15
# The lengths are fitted again when there are so many times as many measurements.
GROWTH = 1.15
# The process sees so many of the best measurements and of the newest; a few milliseconds' worth.
BEST, NEWEST = 128, 64
# Correlations looked at for one choice, and of how many points the trust is worked out.
WORK = 160_000
CANDIDATES = (512, 8192)
TRUSTED = 384
ELITES = 5
# Results worse than the median by so many times the best's lead over it are all just bad.
TAIL = 1.5
SPREAD = 32
# Steepness from the share of neighbours that ran (0..1) to the chance that a point does.
SHARP = 16.0


class Guide:
    """What was told of one space, and the choice of what to try next.

    ``startup`` points are to be spread over the space before it is asked: eight measured better on
    recorded spaces than ten or more.

    Args:
        space: the valid points.
        rng: of every random choice.
    """

    startup = 8

    def __init__(self, space: Space, rng: np.random.Generator) -> None:
        self._space = space
        self._rng = rng
        self._features = Features(space)
        self._surrogate = Surrogate(self._features.count)
        # Where it fails may depend on other tunables than how fast it is: a process of its own.
        self._failing = Surrogate(self._features.count)
        self._fitted = 0
        self._fitted_failing = 0
        self._count = 0
        self._rows = np.zeros((64, len(space.names)), dtype=np.int32)
        self._scores = np.zeros(64)

    def tell(self, point: Point, score: float | None) -> None:
        """Say what a point scored, the more the better (None: it failed)."""
        if self._count == len(self._scores):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._scores = np.concatenate([self._scores, np.zeros_like(self._scores)])
        self._rows[self._count] = point
        self._scores[self._count] = np.nan if score is None else score
        self._count += 1

    def forget(self, point: Point) -> None:
        """Say that a chosen point will not be told: nothing is kept of it here."""

    def choose(
        self, pending: Collection[Point], untried: Callable[[Rows], Rows], open_rows: Rows | None
    ) -> Point | None:
        """Return the most promising untried point; None where no untried one was found.

        Args:
            pending: points that are being measured.
            untried: keeps those rows that were neither told nor asked for.
            open_rows: all untried points of a listed space.
        """
        scores = self._scores[: self._count]
        good = np.flatnonzero(~np.isnan(scores))
        if len(good) < 3:
            return self._spread(pending, untried, open_rows)
        good = self._kept(good, scores)
        y = _levelled(scores[good])
        x = self._features(self._rows[good])
        if self._count >= GROWTH * self._fitted:
            steps = NEXT_STEPS if self._fitted else FIRST_STEPS
            self._surrogate.fit(x, y, steps)
            self._fitted = self._count
        best = self._rows[good[np.argsort(-y, kind="stable")[:ELITES]]]
        rows = self._candidates(best, len(good), untried, open_rows)
        if not len(rows):
            return None
        gain = self._gain(rows, x, y, pending)
        return _as_point(rows[int(np.argmax(gain))])

    def _spread(
        self, pending: Collection[Point], untried: Callable[[Rows], Rows], open_rows: Rows | None
    ) -> Point | None:
        """Return the one of a few random untried points that is farthest from all known ones."""
        rows = self._sample(SPREAD, untried, open_rows)
        if not len(rows):
            return None
        tried = self._rows[: self._count][-NEWEST:]
        if pending:
            tried = np.concatenate([tried, np.array(list(pending), dtype=np.int32)])
        if not len(tried):
            return _as_point(rows[0])
        return _as_point(rows[farthest(self._features, rows, tried)])

    # --- parts ------------------------------------------------------------------------------

    @staticmethod
    def _kept(good: NDArray[np.intp], scores: Array) -> NDArray[np.intp]:
        """Return which measurements the process sees, in their order."""
        if len(good) <= BEST + NEWEST:
            return good
        best = good[np.argsort(-scores[good], kind="stable")[:BEST]]
        rest = np.setdiff1d(good, best)
        return np.sort(np.concatenate([best, rest[-NEWEST:]]))

    def _sample(self, count: int, untried: Callable[[Rows], Rows], open_rows: Rows | None) -> Rows:
        if open_rows is None:
            return untried(self._space.draw(count, self._rng))
        if len(open_rows) <= count:
            return open_rows
        return open_rows[self._rng.choice(len(open_rows), count, replace=False)]

    def _candidates(
        self, best: Rows, known: int, untried: Callable[[Rows], Rows], open_rows: Rows | None
    ) -> Rows:
        count = int(np.clip(WORK // known, *CANDIDATES))
        sample = self._sample(count, untried, open_rows)
        if open_rows is not None and len(open_rows) <= count:
            return sample
        near = [self._space.neighbours(_as_point(p)) for p in best]
        rows = untried(np.concatenate(near))
        # Of the whole neighbourhood of five points in a space of long lists only a part is needed.
        if len(rows) > count:
            rows = rows[self._rng.choice(len(rows), count, replace=False)]
        return np.concatenate([rows, sample])

    def _gain(self, rows: Rows, x: Array, y: Array, pending: Collection[Point]) -> Array:
        """Return the logarithm of the expected improvement, weighted with the chance to run."""
        candidates = self._features(rows).astype(np.float32)
        inverse = _inverse_root(self._surrogate.covariance(x))
        alpha = inverse.T @ (inverse @ y)
        variance = (float(y @ alpha) + 1.0) / (len(y) + 1)
        between = self._surrogate.correlation(candidates, x)
        mean = (between @ alpha.astype(np.float32)).astype(np.float64)
        chance = self._chance(candidates)
        # The trust costs most: it is worked out where the mean is high, and at some others.
        value = np.full(len(rows), -np.inf)
        looked = np.arange(len(rows))
        if len(rows) > TRUSTED + TRUSTED // 2:
            top = np.argpartition(-(mean + np.log(chance)), TRUSTED)[:TRUSTED]
            looked = np.union1d(top, self._rng.choice(len(rows), TRUSTED // 2, replace=False))
        if pending:
            held = self._features(np.array(list(pending), dtype=np.int32))
            everything = np.concatenate([x, held])
            inverse = _inverse_root(self._surrogate.covariance(everything))
            between = self._surrogate.correlation(candidates[looked], everything)
        else:
            between = between[looked]
        explained = between @ inverse.T.astype(np.float32)
        left = 1.0 - np.einsum("ij,ij->i", explained, explained).astype(np.float64)
        deviation = np.sqrt(variance * np.maximum(left, 1e-6))
        value[looked] = _log_improvement(mean[looked], deviation, float(y.max()))
        return value + np.log(chance)

    def _chance(self, candidates: NDArray[Any]) -> Array:
        """Return how likely candidates run at all: 1 far from every failure."""
        failed = np.isnan(self._scores[: self._count])
        if not failed.any():
            return np.ones(len(candidates))
        at = np.arange(self._count)[-(BEST + NEWEST) :]
        x = self._features(self._rows[at])
        runs = np.where(failed[at], 0.0, 1.0)
        usual, width = float(runs.mean()), float(runs.std())
        if width == 0.0:
            return np.ones(len(candidates))
        y = (runs - usual) / width
        if self._count >= GROWTH * self._fitted_failing:
            steps = NEXT_STEPS if self._fitted_failing else FIRST_STEPS
            self._failing.fit(x, y, steps)
            self._fitted_failing = self._count
        weights = np.linalg.solve(self._failing.covariance(x), y).astype(np.float32)
        lean = (self._failing.correlation(candidates, x) @ weights).astype(np.float64)
        return np.asarray(1.0 / (1.0 + np.exp(-SHARP * (usual + width * lean - 0.5))))


def farthest(features: Features, rows: Rows, tried: Rows) -> int:
    """Return which of some points is farthest from the nearest of those that were tried."""
    here, there = features(rows), features(tried)
    gaps = np.abs(here[:, None, :] - there[None, :, :]).sum(axis=2).min(axis=1)
    return int(np.argmax(gaps))


def _levelled(scores: Array) -> Array:
    """Return scores with mean 0 and deviation 1, on a logarithmic scale, without the bad tail."""
    values = np.log(scores) if scores.min() > 0 else scores.copy()
    median = float(np.median(values))
    values = np.maximum(values, median - TAIL * (float(values.max()) - median + 1e-9))
    return np.asarray((values - values.mean()) / (values.std() + 1e-12))


def _inverse_root(matrix: Array) -> Array:
    """Return the inverse of the Cholesky factor."""
    return np.asarray(np.linalg.inv(np.linalg.cholesky(matrix)))


def _log_improvement(mean: Array, deviation: Array, best: float) -> Array:
    """Return the logarithm of the expected improvement over the best."""
    z = (mean - best) / deviation
    below = np.array([0.5 * math.erfc(-v / math.sqrt(2.0)) for v in z.tolist()])
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    # Far below the best the two terms cancel; there the tail's leading term is exact enough.
    far = z < -5.0
    # (1/z^2 - 3/z^4) is the tail of 1 + z * Mills' ratio.
    w = np.where(far, z, -5.0) ** -2
    tail = -0.5 * z * z - 0.5 * math.log(2.0 * math.pi) + np.log(w - 3.0 * w * w)
    near = np.log(np.maximum(z * below + density, 1e-300))
    return np.asarray(np.log(deviation) + np.where(far, tail, near))


def _as_point(row: NDArray[np.int32]) -> Point:
    return tuple(row.tolist())
