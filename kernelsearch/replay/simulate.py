"""Replay a search on a recorded space, and score what searches reached against random search.

The score is that of the auto-tuning methodology literature (Willemsen et al., "A methodology for
comparing optimization algorithms for auto-tuning", 2024): at each of a set of budgets, how far a
search has come from what random search expects to the optimum; 0 is random search, 1 the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernelsearch.params import SpaceSearch
from kernelsearch.replay.recording import Recording

# Random search is given until it has come this share of the way from the median to the optimum.
CUTOFF = 0.95
POINTS = 50
RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Replay:
    """One search on one space.

    Args:
        times: best time after 1, 2, ... distinct evaluations (failures count); infinite while
            nothing has run.
        seconds: recorded seconds of compiling and running spent by then.
    """

    times: NDArray[np.float64]
    seconds: NDArray[np.float64]


def replay(recording: Recording, method: str, seed: int, budget: int) -> Replay:
    """Search a recorded space with a method (``methods.METHODS``) for ``budget`` evaluations."""
    search = SpaceSearch(recording.space, seed=seed, method=method)
    times, costs = [], []
    for _ in range(min(budget, len(recording.time))):
        (params,) = search.ask()
        row = recording.space.row_of(recording.space.point(params))
        assert row is not None
        time = float(recording.time[row])
        search.tell(params, None if np.isnan(time) else 1.0 / time)
        times.append(np.inf if np.isnan(time) else time)
        costs.append(float(recording.cost[row]))
    return Replay(np.minimum.accumulate(np.array(times)), np.cumsum(costs))


def random_expectation(recording: Recording, budget: int) -> NDArray[np.float64]:
    """Return the expected best time of random search without repetition, after 1, 2, ... draws.

    Exact: the best of n draws is the k-th of N with the chance that it is among them and none
    better is. Failed configurations rank last and count as the slowest that ran, as long as
    nothing else was drawn.
    """
    ranked = np.sort(np.where(np.isnan(recording.time), np.nanmax(recording.time), recording.time))
    total = len(ranked)
    expected = np.empty(min(budget, total))
    # missed[k]: the chance that none of the k best is among the draws so far.
    missed = np.ones(total + 1)
    for drawn in range(1, len(expected) + 1):
        left = total - drawn + 1
        missed *= np.maximum(left - np.arange(total + 1), 0) / left
        expected[drawn - 1] = float((missed[:-1] - missed[1:]) @ ranked)
    return expected


def fair_budget(recording: Recording, expected: NDArray[np.float64]) -> int:
    """Return after how many evaluations random search has come ``CUTOFF`` of the way."""
    goal = recording.best + (1.0 - CUTOFF) * (float(np.nanmedian(recording.time)) - recording.best)
    reached = np.flatnonzero(expected <= goal)
    return int(reached[0]) + 1 if len(reached) else len(expected)


def score(recording: Recording, runs: Sequence[Replay], expected: NDArray[np.float64]) -> float:
    """Return how far runs came from random search (0) to the optimum (1), over the budget.

    Args:
        recording: the space.
        runs: of one method, at least one, all as long as the fair budget or cut there.
        expected: ``random_expectation`` of the space.
    """
    last = min(fair_budget(recording, expected), *(len(r.times) for r in runs))
    at = np.unique(np.linspace(1, last, min(POINTS, last)).astype(int)) - 1
    slowest = float(np.nanmax(recording.time))
    found = np.mean([np.minimum(r.times, slowest)[at] for r in runs], axis=0)
    head = expected[at] - recording.best
    open_ = head > 0
    if not open_.any():
        return 1.0
    return float(np.mean((expected[at][open_] - found[open_]) / head[open_]))


def reached(recording: Recording, runs: Sequence[Replay], count: int) -> NDArray[np.float64]:
    """Return for each run the share of the optimum reached after ``count`` evaluations (0..1)."""
    at = [min(count, len(r.times)) - 1 for r in runs]
    return np.array([recording.best / r.times[i] for r, i in zip(runs, at, strict=True)])


def needed(recording: Recording, runs: Sequence[Replay], share: float) -> NDArray[np.float64]:
    """Return for each run how many evaluations it took to a share of the optimum (inf: never)."""
    result = []
    for run in runs:
        good = np.flatnonzero(recording.best / run.times >= share)
        result.append(float(good[0]) + 1 if len(good) else np.inf)
    return np.array(result)


def interval(values: NDArray[np.float64], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean."""
    rng = np.random.default_rng(seed)
    means = rng.choice(values, (RESAMPLES, len(values))).mean(axis=1)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))
