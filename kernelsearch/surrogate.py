"""A Gaussian process over tunables: predicts what was not measured, and how far to trust that.

Written in NumPy for the sizes of parameter search: at most a few hundred measurements, asked for a
suggestion every few milliseconds. The kernel is Matérn 5/2 with one length for each feature; the
lengths and the noise maximise the marginal likelihood times weak log-normal priors (resilient
backpropagation: only the signs of the gradient are used). Method: Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, chapters 2 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernelsearch.records import ParamValue
from kernelsearch.space import Space, log_scale

Array: TypeAlias = NDArray[np.float64]

ROOT5 = math.sqrt(5.0)
# Priors of the logarithms (mean, width); features lie in 0..1.
LENGTH_PRIOR = (math.log(0.8), 1.0)
NOISE_PRIOR = (math.log(0.01), 2.0)
LENGTH_RANGE = (-3.5, 3.0)
NOISE_RANGE = (-12.0, 0.0)


class Features:
    """Turns points into numbers in 0..1 that distances between kernels may be measured in.

    A number counts by its logarithm and by how often two divides it (warps, vectors and banks care
    about that; left out where the choices are powers of two, which says the same twice). A word
    counts as itself: one feature for each, so that all words are equally far apart.
    """

    def __init__(self, space: Space) -> None:
        self._tables = [_table(c) for c in space.choices]
        self.count = sum(t.shape[1] for t in self._tables)

    def __call__(self, rows: NDArray[np.int32]) -> Array:
        """Return features (points, ``count``) of points (points, tunables)."""
        if not self.count:
            return np.zeros((len(rows), 0))
        return np.hstack([t[rows[:, i]] for i, t in enumerate(self._tables)])


def _table(choices: Sequence[ParamValue]) -> Array:
    """Return the features of each choice of one tunable; none for a tunable without a choice."""
    if len(choices) == 1:
        return np.zeros((1, 0))
    scale = log_scale(choices)
    if scale is None:
        words = np.eye(len(choices)) / math.sqrt(2.0)
        return words[:, 1:] * math.sqrt(2.0) if len(choices) == 2 else words
    columns = [scale]
    numbers = [int(c) for c in choices]
    if all(n != 0 for n in numbers):
        twos = np.array([float((n & -n).bit_length() - 1) for n in numbers])
        powers = all(abs(n) & (abs(n) - 1) == 0 for n in numbers)
        if not powers and twos.max() > twos.min():
            columns.append(twos)
    return np.column_stack([(c - c.min()) / (c.max() - c.min()) for c in columns])


class Surrogate:
    """The process: fit its lengths now and then, condition it on measurements, ask it.

    Args:
        features: how many there are.
    """

    def __init__(self, features: int) -> None:
        self._theta = np.full(features + 1, math.log(0.7))
        self._theta[-1] = math.log(0.01)

    @property
    def lengths(self) -> Array:
        """Correlation length of each feature."""
        return np.asarray(np.exp(self._theta[:-1]))

    @property
    def noise(self) -> float:
        """Variance of the noise, in units of the signal's."""
        return float(np.exp(self._theta[-1]))

    def fit(self, x: Array, y: Array, steps: int) -> None:
        """Move the lengths and the noise towards the most probable, from where they are."""
        theta, best, lowest = self._theta.copy(), self._theta, math.inf
        step = np.full(len(theta), 0.15)
        before = np.zeros(len(theta))
        low = np.full(len(theta), LENGTH_RANGE[0])
        high = np.full(len(theta), LENGTH_RANGE[1])
        low[-1], high[-1] = NOISE_RANGE
        squares = (x[:, None, :] - x[None, :, :]) ** 2
        for _ in range(steps):
            value, gradient = _loss(theta, squares, y)
            if value < lowest:
                lowest, best = value, theta.copy()
            agree = gradient * before
            step = np.where(agree > 0, step * 1.3, np.where(agree < 0, step * 0.5, step))
            step = np.clip(step, 1e-3, 0.5)
            before = np.where(agree < 0, 0.0, gradient)
            theta = np.clip(theta - np.sign(before) * step, low, high)
        self._theta = best

    def correlation(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """Return the kernel between two sets of features, in the precision of ``a``."""
        lengths = self.lengths.astype(a.dtype)
        a, b = a / lengths, b.astype(a.dtype) / lengths
        squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2 * (a @ b.T)
        np.maximum(squares, 0, out=squares)
        distance = np.sqrt(squares)
        distance *= ROOT5
        squares *= 5.0 / 3.0
        squares += distance
        squares += 1
        np.negative(distance, out=distance)
        np.exp(distance, out=distance)
        squares *= distance
        return np.asarray(squares)

    def covariance(self, x: Array) -> Array:
        """Return the kernel of measurements among themselves, with the noise."""
        matrix = self.correlation(x, x)
        matrix[np.diag_indices(len(x))] = 1.0 + self.noise
        return np.asarray(matrix, dtype=np.float64)


def _loss(theta: Array, squares: Array, y: Array) -> tuple[float, Array]:
    """Return the negative log posterior of the parameters, and its gradient.

    The variance of the signal is the most probable one for given lengths (profiled out).
    """
    count = len(y)
    weights = np.exp(-2.0 * theta[:-1])
    noise = math.exp(theta[-1])
    squared = squares @ weights
    distance = ROOT5 * np.sqrt(squared)
    decay = np.exp(-distance)
    matrix = (1.0 + distance + (5.0 / 3.0) * squared) * decay
    matrix[np.diag_indices(count)] += noise
    lower = np.linalg.cholesky(matrix)
    inverse = np.linalg.inv(matrix)
    alpha = inverse @ y
    variance = (float(y @ alpha) + 1.0) / (count + 1)
    off = np.empty(len(theta))
    off[:-1] = (theta[:-1] - LENGTH_PRIOR[0]) / LENGTH_PRIOR[1]
    off[-1] = (theta[-1] - NOISE_PRIOR[0]) / NOISE_PRIOR[1]
    value = 0.5 * count * math.log(variance) + float(np.log(np.diag(lower)).sum())
    value += 0.5 * float(off @ off)
    slope = inverse - np.outer(alpha, alpha) / variance
    gradient = np.empty(len(theta))
    inner = slope * ((5.0 / 3.0) * (1.0 + distance) * decay)
    gradient[:-1] = 0.5 * weights * np.tensordot(inner, squares, axes=([0, 1], [0, 1]))
    gradient[-1] = 0.5 * noise * float(np.trace(slope))
    gradient[:-1] += off[:-1] / LENGTH_PRIOR[1]
    gradient[-1] += off[-1] / NOISE_PRIOR[1]
    return value, gradient
