"""A made-up source of samples whose truth is known, with the noise of a real device.

It has a clock of its own, so that thousands of comparisons cost seconds. Everything that the noise
does depends on that clock, as on a real machine: contenders that are sampled at the same time
suffer alike, and what lasts longer than a sample spoils its neighbours too. A sample takes

    calls * true time * exp(noise) * (1 + drift + wander) * burst * spike / clock

- noise: normal, each sample for itself;
- drift: linear in time, a rate drawn for each comparison, plus a slow sine;
- wander: an exponentially correlated (Ornstein-Uhlenbeck) factor;
- bursts: somebody else at work, at random times, for a random while, slowing all samples in it;
- spikes: a single sample that is much longer, as after an interrupt;
- clock: 1, or a lower one during episodes of throttling, which the device reports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Noise:
    """How bad it is. Times in milliseconds, sizes as parts of the true time."""

    sigma: float
    drift_per_s: float
    sine: float
    wander: float
    wander_ms: float
    burst_every_ms: float
    burst_ms: float
    burst_size: float
    spike_share: float
    spike_size: float
    throttle_every_ms: float = math.inf
    throttle_ms: float = 0.0
    throttled_clock: float = 1.0
    # What a sample costs besides: poison, sweep, launch, waiting.
    overhead_us: float = 150.0


# ``quiet`` is drawn after the vendor samples in studies/results/h200_large.json: middle halves of
# 0.05 to 0.5 %, and one sample in thirty that is 1 to 9 % longer. ``shared`` is a machine with
# other users, ``wild`` one that should not be used for timing, ``throttling`` a quiet one too hot.
MODELS = {
    "quiet": Noise(0.003, 0.01, 0.003, 0.002, 3.0, 300.0, 5.0, 0.06, 0.03, 0.05),
    "shared": Noise(0.015, 0.05, 0.02, 0.01, 5.0, 60.0, 10.0, 0.15, 0.06, 0.2, overhead_us=60.0),
    "wild": Noise(0.06, 0.2, 0.1, 0.1, 20.0, 20.0, 10.0, 0.6, 0.15, 1.0, overhead_us=60.0),
    "throttling": Noise(
        0.003, 0.01, 0.003, 0.002, 3.0, 300.0, 5.0, 0.06, 0.03, 0.05, 10.0, 2.0, 0.6
    ),
}


class SimulatedDevice:
    """A timer for ``measure.sample``: true times a call of each contender, and the noise."""

    def __init__(self, true_us: tuple[float, ...], noise: Noise, seed: int) -> None:
        self.true_us, self.noise = true_us, noise
        self.rng = np.random.default_rng(seed)
        self.now_ms = 0.0
        self.clock = 1.0
        self._rate = self.rng.uniform(-1, 1) * noise.drift_per_s / 1000.0
        self._phase, self._period_ms = self.rng.uniform(0, 2 * math.pi), self.rng.uniform(20, 500)
        self._wander = self.rng.normal(0, noise.wander)
        self._burst_end, self._burst = 0.0, 1.0
        self._next_burst = self.rng.exponential(noise.burst_every_ms)
        self._throttle_end = 0.0
        self._next_throttle = self._wait(noise.throttle_every_ms)

    def _wait(self, mean_ms: float) -> float:
        return self.now_ms + self.rng.exponential(mean_ms) if mean_ms < math.inf else math.inf

    def __call__(self, who: int, calls: int) -> float:
        noise, rng = self.noise, self.rng
        slow = 1 + self._rate * self.now_ms + noise.sine * math.sin(
            self._phase + 2 * math.pi * self.now_ms / self._period_ms
        )  # fmt: skip
        factor = math.exp(rng.normal(0, noise.sigma)) * max(0.2, slow + self._wander)
        if self.now_ms >= self._next_burst:
            self._burst_end = self.now_ms + rng.exponential(noise.burst_ms)
            self._burst = 1 + rng.exponential(noise.burst_size)
            self._next_burst = self._burst_end + rng.exponential(noise.burst_every_ms)
        if self.now_ms < self._burst_end:
            factor *= self._burst
        if rng.random() < noise.spike_share:
            factor *= 1 + rng.exponential(noise.spike_size)
        if self.now_ms >= self._next_throttle:
            self._throttle_end = self.now_ms + rng.exponential(noise.throttle_ms)
            self._next_throttle = self._wait(noise.throttle_every_ms)
        self.clock = noise.throttled_clock if self.now_ms < self._throttle_end else 1.0
        elapsed_us = calls * self.true_us[who] * factor / self.clock
        passed_ms = (elapsed_us + noise.overhead_us) / 1000.0
        kept = math.exp(-passed_ms / noise.wander_ms)
        self._wander = kept * self._wander + rng.normal(0, noise.wander * math.sqrt(1 - kept**2))
        self.now_ms += passed_ms
        return elapsed_us
