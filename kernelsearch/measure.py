"""Decide how long to time, and who is faster: calibration, interleaving, stopping and comparison.

Pure statistics over a timer that a target supplies. Two contenders are sampled in ABBA order, so
that a slow drift of clocks or temperature falls on both alike. Medians are compared; the interval
is a bootstrap of the ratio of medians.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kernelsearch.records import Timing, TimingSettings, Verdict

BOOTSTRAP = 400
CONFIDENCE = 0.95
# A difference below this is not worth a user's trust: repeated timings of one binary on an H200 and
# on shared CPUs differ by about this much.
LEAST_GAIN = 0.01
UNSTABLE_SPREAD = 0.5
# A call this long needs no second one to be warm.
SLOW_CALL_US = 3e5
# A sample this much shorter than it should be was calibrated on calls that were slow at first.
SHORT_SAMPLE = 1 / 3
RECALIBRATIONS = 3


class BatchTimer(Protocol):
    """Runs ``calls`` calls of one contender and returns their total device time, microseconds."""

    def __call__(self, contender: int, calls: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Samples:
    """Times a call of each contender, microseconds, in the order they were taken."""

    samples_us: tuple[tuple[float, ...], ...]
    calls_per_sample: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Speed-up of a over b: ratio of medians b/a (above 1: a is faster) with its interval."""

    ratio: float
    low: float
    high: float
    verdict: Verdict


def calibrate(timer: BatchTimer, settings: TimingSettings, max_calls: int) -> int:
    """Return calls per sample so that a sample takes at least ``settings.min_sample_us``.

    The count comes from a second, warm batch: a candidate that is slow on purpose at first would
    otherwise get few calls (exploit 20).
    """
    first = timer(0, 1)
    if first < SLOW_CALL_US and settings.warmup_calls > 1:
        timer(0, settings.warmup_calls - 1)
    calls = 1
    while calls < max_calls:
        elapsed = timer(0, calls)
        if elapsed >= settings.min_sample_us:
            break
        needed = math.ceil(1.2 * settings.min_sample_us * calls / max(elapsed, 1e-3))
        calls = min(max_calls, max(calls + 1, min(needed, 16 * calls)))
    return calls


def sample(
    timer: BatchTimer, contenders: int, settings: TimingSettings, seed: int, max_calls: int = 4096
) -> Samples:
    """Take samples until the decision is clear, or the budget or the sample limit is reached.

    Args:
        timer: times a batch of calls of one contender.
        contenders: 1, or 2 to interleave (contender 0 is the candidate, 1 the incumbent).
        settings: limits.
        seed: of the bootstrap.
        max_calls: largest number of calls in one sample the target can do.

    Raises:
        ValueError: the timer returns a non-positive or non-finite time (exploit 24).
    """
    calls = calibrate(timer, settings, max_calls)
    taken: list[list[float]] = [[] for _ in range(contenders)]
    started = time.perf_counter()
    block = (0, 1, 1, 0) if contenders == 2 else (0, 0)
    recalibrations = 0
    while True:
        shortest = math.inf
        for who in block:
            elapsed = timer(who, calls)
            if not (math.isfinite(elapsed) and elapsed > 0):
                raise ValueError(f"a timed batch must take a positive time (got {elapsed!r} us)")
            taken[who].append(elapsed / calls)
            if who == 0:
                shortest = min(shortest, elapsed)
        short = shortest < SHORT_SAMPLE * settings.min_sample_us and calls < max_calls
        if short and recalibrations < RECALIBRATIONS:
            recalibrations += 1
            calls = calibrate(timer, settings, max_calls)
            taken = [[] for _ in range(contenders)]
            continue
        count = len(taken[0])
        late = time.perf_counter() - started > settings.budget_s
        if count >= settings.max_samples or (late and count >= min(4, settings.min_samples)):
            break
        if count >= 4 and contenders == 2 and _hopeless(taken, settings.give_up_ratio):
            break
        if count >= settings.min_samples and _settled(taken, seed):
            break
    return Samples(tuple(tuple(t) for t in taken), calls)


def _hopeless(taken: list[list[float]], give_up_ratio: float) -> bool:
    return min(taken[0]) > give_up_ratio * max(taken[1])


def _settled(taken: list[list[float]], seed: int) -> bool:
    if len(taken) == 1:
        values = np.asarray(taken[0])
        median = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - median)))
        return spread / math.sqrt(len(values)) < 0.005 * median
    result = compare(taken[0], taken[1], seed)
    decided = result.low > 1 + LEAST_GAIN or result.high < 1 - LEAST_GAIN
    return decided or result.high - result.low < 0.01


def compare(a_us: Sequence[float], b_us: Sequence[float], seed: int = 0) -> Comparison:
    """Compare the times of a with those of b.

    ``faster`` needs both the median ratio and its lower bound above 1 by ``LEAST_GAIN``; samples
    that scatter by more than half of their median are ``unstable``.
    """
    a, b = np.asarray(a_us, dtype=np.float64), np.asarray(b_us, dtype=np.float64)
    ratio = float(np.median(b) / np.median(a))
    rng = np.random.default_rng(seed)
    ratios = _medians(b, rng) / _medians(a, rng)
    tail = 0.5 * (1 - CONFIDENCE)
    low, high = (float(q) for q in np.quantile(ratios, (tail, 1 - tail)))
    if max(_spread(a), _spread(b)) > UNSTABLE_SPREAD:
        verdict = Verdict.UNSTABLE
    elif ratio > 1 + LEAST_GAIN and low > 1 + LEAST_GAIN:
        verdict = Verdict.FASTER
    elif ratio < 1 - LEAST_GAIN and high < 1 - LEAST_GAIN:
        verdict = Verdict.SLOWER
    else:
        verdict = Verdict.TIE
    return Comparison(ratio, low, high, verdict)


def _medians(values: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    picks = rng.integers(0, len(values), size=(BOOTSTRAP, len(values)))
    return np.asarray(np.median(values[picks], axis=1))


def _spread(values: NDArray[np.float64]) -> float:
    low, mid, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float((high - low) / mid)


def compare_timings(a: Sequence[Timing], b: Sequence[Timing], seed: int = 0) -> Comparison:
    """Compare two candidates over the workloads they share, by the geometric mean of ratios.

    Where ``a`` carries interleaved samples of ``b``'s binary (``incumbent_us``), use
    ``compare_interleaved`` instead: it is free of drift.
    """
    others = {t.workload: t for t in b}
    pairs = [(t.samples_us, others[t.workload].samples_us) for t in a if t.workload in others]
    return _combined(pairs, seed)


def compare_interleaved(timings: Sequence[Timing], seed: int = 0) -> Comparison:
    """Compare a candidate with the incumbent it was interleaved with, over all workloads."""
    return _combined([(t.samples_us, t.incumbent_us) for t in timings if t.incumbent_us], seed)


def _combined(pairs: list[tuple[tuple[float, ...], tuple[float, ...]]], seed: int) -> Comparison:
    if not pairs:
        raise ValueError("there is no workload that both have been timed on")
    rng = np.random.default_rng(seed)
    logs = np.zeros(BOOTSTRAP)
    total = 0.0
    unstable = False
    for a_us, b_us in pairs:
        a, b = np.asarray(a_us), np.asarray(b_us)
        logs += np.log(_medians(b, rng) / _medians(a, rng))
        total += math.log(float(np.median(b) / np.median(a)))
        unstable = unstable or max(_spread(a), _spread(b)) > UNSTABLE_SPREAD
    ratio = math.exp(total / len(pairs))
    tail = 0.5 * (1 - CONFIDENCE)
    low, high = (float(math.exp(q)) for q in np.quantile(logs / len(pairs), (tail, 1 - tail)))
    if unstable:
        verdict = Verdict.UNSTABLE
    elif low > 1 + LEAST_GAIN:
        verdict = Verdict.FASTER
    elif high < 1 - LEAST_GAIN:
        verdict = Verdict.SLOWER
    else:
        verdict = Verdict.TIE
    return Comparison(ratio, low, high, verdict)
