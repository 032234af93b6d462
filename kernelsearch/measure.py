"""Decide how long to time, and who is faster: calibration, interleaving, stopping and comparison.

Pure statistics over a timer that a target supplies. Two contenders are sampled in ABBA order, so
that a slow drift of clocks or temperature falls on both alike: each block of four gives one ratio
that is free of it, and what is compared is the median of these. The interval is their bootstrap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
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
# An interval whose half is wider than this says nothing: no tie can be claimed from it.
UNSTABLE_WIDTH = 0.05
# Stopping early looks at the data again and again; each look is held to more than the last one.
LOOK_CONFIDENCE = 0.99
# So are fewer values than this, of whose scatter little is known.
FEW = 4
# Where the machine is known to have been disturbed, less than this is no difference.
DISTURBED_GAIN = 0.05
# Where the blocks of one comparison scatter, neither is less than this part of their scatter.
NOISE_SHARE = 0.5
# However long it takes: fewer samples of each contender than this decide nothing (exploit 20).
LEAST_SAMPLES = 4
# Samples taken while the clock was below this part of its normal are dropped.
SLOW_CLOCK = 0.75
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
    """Times a call of each contender, microseconds, in the order they were taken.

    ``dropped`` counts the samples that a slow clock spoiled, which are not among them. ``clock`` is
    its median while sampling (0: not known), in the target's unit; ``disturbed``: so many samples
    were spoiled that the rest would not have been enough, so they were kept.
    """

    samples_us: tuple[tuple[float, ...], ...]
    calls_per_sample: int
    dropped: int = 0
    clock: float = 0.0
    disturbed: bool = False


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
    timer: BatchTimer, contenders: int, settings: TimingSettings, seed: int, max_calls: int = 4096,
    clock: Callable[[], float] | None = None,
) -> Samples:  # fmt: skip
    """Take samples until the decision is clear, or the budget or the sample limit is reached.

    Args:
        timer: times a batch of calls of one contender.
        contenders: 1, or 2 to interleave (contender 0 is the candidate, 1 the incumbent).
        settings: limits.
        seed: of the bootstrap.
        max_calls: largest number of calls in one sample the target can do.
        clock: returns the speed of the device during the last batch (0: not known).

    Raises:
        ValueError: the timer returns a non-positive or non-finite time (exploit 24).
    """
    calls = calibrate(timer, settings, max_calls)
    taken = _Taken(contenders)
    started = time.perf_counter()
    recalibrations = 0
    while True:
        shortest = math.inf
        block: list[tuple[int, float, float]] = []
        for who in (0, 1, 1, 0) if contenders == 2 else (0, 0):
            elapsed = timer(who, calls)
            if not (math.isfinite(elapsed) and elapsed > 0):
                raise ValueError(f"a timed batch must take a positive time (got {elapsed!r} us)")
            block.append((who, elapsed / calls, clock() if clock is not None else 0.0))
            if who == 0:
                shortest = min(shortest, elapsed)
        short = shortest < SHORT_SAMPLE * settings.min_sample_us and calls < max_calls
        if short and recalibrations < RECALIBRATIONS:
            recalibrations += 1
            calls = calibrate(timer, settings, max_calls)
            taken = _Taken(contenders)
            continue
        taken.blocks.append(block)
        kept = taken.kept()
        count = len(kept[0])
        late = time.perf_counter() - started > settings.budget_s
        if late and taken.count >= min(LEAST_SAMPLES, settings.min_samples):
            break
        # Dropped samples are taken again, up to as many as were wanted in the first place.
        if count >= settings.max_samples or taken.count >= 2 * settings.max_samples:
            break
        if count >= LEAST_SAMPLES and contenders == 2 and _hopeless(kept, settings.give_up_ratio):
            break
        if count >= settings.min_samples and _settled(kept, seed):
            break
    return taken.samples(calls, min(LEAST_SAMPLES, settings.min_samples))


class _Taken:
    """What has been sampled, block by block; a block with a slow clock in it is spoiled."""

    def __init__(self, contenders: int) -> None:
        self.contenders = contenders
        self.blocks: list[list[tuple[int, float, float]]] = []

    @property
    def count(self) -> int:
        return 2 * len(self.blocks)

    def normal(self) -> float:
        clocks = [c for block in self.blocks for _, _, c in block if c > 0]
        return float(np.median(clocks)) if clocks else 0.0

    def kept(self, *, everything: bool = False) -> list[list[float]]:
        least = 0.0 if everything else SLOW_CLOCK * self.normal()
        good = [b for b in self.blocks if all(c >= least or c <= 0 for _, _, c in b)]
        return [[us for b in good for w, us, _ in b if w == who] for who in range(self.contenders)]

    def samples(self, calls: int, least: int) -> Samples:
        kept = self.kept()
        dropped = self.contenders * (self.count - len(kept[0]))
        disturbed = len(kept[0]) < least
        if disturbed:
            kept = self.kept(everything=True)
        disturbed = disturbed or 2 * dropped > self.contenders * self.count
        return Samples(tuple(map(tuple, kept)), calls, dropped, self.normal(), disturbed)


def _hopeless(taken: list[list[float]], give_up_ratio: float) -> bool:
    return min(taken[0]) > give_up_ratio * max(taken[1])


def _settled(taken: list[list[float]], seed: int) -> bool:
    if len(taken) == 1:
        values = np.asarray(taken[0])
        median = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - median)))
        return spread / math.sqrt(len(values)) < 0.005 * median
    if len(taken[0]) & (len(taken[0]) - 1) and len(taken[0]) % 12:
        return False  # looks are few: each is a chance to be wrong
    logs = _block_logs(taken[0], taken[1])
    resampled = _medians(logs, np.random.default_rng(seed))
    low, high = _interval(resampled, float(np.median(logs)), len(logs), LOOK_CONFIDENCE)
    least = _noise_floor(logs)
    decided = low > 1 + least or high < 1 - least
    # Less than the least gain, either way: a tie for certain.
    return decided or (low > 1 - LEAST_GAIN and high < 1 + LEAST_GAIN)


def _block_logs(a_us: Sequence[float], b_us: Sequence[float]) -> NDArray[np.float64]:
    """Return log(b/a) of each ABBA block: the two samples of a contender are its mean."""
    count = 2 * (min(len(a_us), len(b_us)) // 2)
    a = np.asarray(a_us[:count], dtype=np.float64).reshape(-1, 2).mean(axis=1)
    b = np.asarray(b_us[:count], dtype=np.float64).reshape(-1, 2).mean(axis=1)
    return np.asarray(np.log(b / a))


def _noise_floor(logs: NDArray[np.float64]) -> float:
    """Return the least gain that counts among blocks that scatter like these.

    Noise that lasts longer than a block makes neighbours alike, and the interval too narrow: where
    there is much of it, the interval alone must not decide about a few percent.
    """
    scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return max(LEAST_GAIN, NOISE_SHARE * scatter)


def _interval(
    resampled: NDArray[np.float64], middle: float, count: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the interval of a ratio from resampled logarithms of it, ``middle`` the measured one.

    A bootstrap of few values is too narrow, as a normal distribution is where Student's should be
    used; it is stretched by as much.
    """
    tail = 0.5 * (1 - max(confidence, LOOK_CONFIDENCE if count < FEW else 0.0))
    low, high = np.quantile(resampled, (tail, 1 - tail))
    stretch = _stretch(count, tail)
    return (
        math.exp(middle - stretch * (middle - float(low))),
        math.exp(middle + stretch * (float(high) - middle)),
    )


def _stretch(count: int, tail: float) -> float:
    """Return Student's quantile over the normal one for ``count`` values."""
    freedom = max(1, count - 1)
    z = NormalDist().inv_cdf(1 - tail)
    if freedom == 1:
        t = math.tan(math.pi * (0.5 - tail))
    elif freedom == 2:
        t = (1 - 2 * tail) / math.sqrt(2 * tail * (1 - tail))
    else:  # Cornish and Fisher's expansion
        t = (
            z + (z**3 + z) / (4 * freedom)
            + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
            + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
        )  # fmt: skip
    return t / z * math.sqrt((freedom + 1) / freedom)


def _verdict(
    ratio: float, low: float, high: float, *, wild: bool, least: float = LEAST_GAIN
) -> Verdict:
    if wild:
        return Verdict.UNSTABLE
    if ratio > 1 + least and low > 1 + least:
        return Verdict.FASTER
    if ratio < 1 - least and high < 1 - least:
        return Verdict.SLOWER
    if least >= DISTURBED_GAIN or high - low > 2 * UNSTABLE_WIDTH * ratio:
        return Verdict.UNSTABLE
    return Verdict.TIE


def compare(a_us: Sequence[float], b_us: Sequence[float], seed: int = 0) -> Comparison:
    """Compare the times of a with those of b.

    For samples that were not taken in turn. ``faster`` needs both the median ratio and its lower
    bound above 1 by ``LEAST_GAIN``; samples that scatter by more than half of their median, and
    undecided ones whose interval is wide, are ``unstable``.
    """
    a, b = np.asarray(a_us, dtype=np.float64), np.asarray(b_us, dtype=np.float64)
    ratio = float(np.median(b) / np.median(a))
    rng = np.random.default_rng(seed)
    resampled = np.log(_medians(b, rng) / _medians(a, rng))
    low, high = _interval(resampled, math.log(ratio), min(len(a), len(b)))
    wild = max(_spread(a), _spread(b)) > UNSTABLE_SPREAD
    return Comparison(ratio, low, high, _verdict(ratio, low, high, wild=wild))


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
    return _combined(pairs, seed, paired=False, disturbed=False)


def compare_interleaved(timings: Sequence[Timing], seed: int = 0) -> Comparison:
    """Compare a candidate with the incumbent it was interleaved with, over all workloads.

    Where the target says that a timing was disturbed (stolen processor time, a clock that came and
    went), only a difference beyond ``DISTURBED_GAIN`` counts; the rest is ``unstable``.
    """
    both = [t for t in timings if t.incumbent_us]
    disturbed = any(bool(t.conditions.get("disturbed")) for t in both)
    pairs = [(t.samples_us, t.incumbent_us) for t in both]
    return _combined(pairs, seed, paired=True, disturbed=disturbed)


def _combined(
    pairs: list[tuple[tuple[float, ...], tuple[float, ...]]], seed: int, *, paired: bool,
    disturbed: bool,
) -> Comparison:  # fmt: skip
    if not pairs:
        raise ValueError("there is no workload that both have been timed on")
    rng = np.random.default_rng(seed)
    logs = np.zeros(BOOTSTRAP)
    total = 0.0
    count = min(min(len(a), len(b)) for a, b in pairs)
    if paired:
        count = max(1, count // 2)
    # A single block has no scatter, and so says nothing of its own error.
    wild, least = count < 2, DISTURBED_GAIN if disturbed else LEAST_GAIN
    for a_us, b_us in pairs:
        a, b = np.asarray(a_us), np.asarray(b_us)
        if paired and len(a) == len(b) and len(a) >= 2:
            blocks = _block_logs(a_us, b_us)
            logs += _medians(blocks, rng)
            total += float(np.median(blocks))
            least = max(least, _noise_floor(blocks))
        else:
            logs += np.log(_medians(b, rng) / _medians(a, rng))
            total += math.log(float(np.median(b) / np.median(a)))
        wild = wild or max(_spread(a), _spread(b)) > UNSTABLE_SPREAD
    middle = total / len(pairs)
    ratio = math.exp(middle)
    low, high = _interval(logs / len(pairs), middle, count)
    return Comparison(ratio, low, high, _verdict(ratio, low, high, wild=wild, least=least))
