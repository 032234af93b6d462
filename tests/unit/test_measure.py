"""Who is faster: with drift, noise, lies and slow starts, on timers whose truth is known."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.measure import (
    Comparison,
    calibrate,
    compare,
    compare_interleaved,
    compare_timings,
    sample,
)
from kernelsearch.records import Timing, TimingSettings, Verdict

SETTINGS = TimingSettings(budget_s=30.0)


class Machine:
    """A made-up device: true times a call, noise, drift over its own clock, a log of batches."""

    def __init__(
        self, *true_us: float, noise: float = 0.0, drift: float = 0.0, overhead_us: float = 0.0,
        seed: int = 0,
    ) -> None:  # fmt: skip
        self.true_us, self.noise, self.drift, self.overhead_us = true_us, noise, drift, overhead_us
        self.rng = np.random.default_rng(seed)
        self.now_us = 0.0
        self.log: list[tuple[int, int]] = []
        self.clock = 1.0

    def __call__(self, who: int, calls: int) -> float:
        self.log.append((who, calls))
        slower = 1 + self.drift * self.now_us
        jitter = 1 + self.noise * abs(float(self.rng.standard_normal()))
        elapsed = calls * self.true_us[who] * slower * jitter + self.overhead_us
        self.now_us += elapsed
        return elapsed


def verdict(machine: Machine, settings: TimingSettings = SETTINGS) -> Comparison:
    taken = sample(machine, 2, settings, seed=1)
    return compare_interleaved([Timing("w", *taken.samples_us)], seed=1)


# --- calibration --------------------------------------------------------------------------------


@given(st.floats(0.01, 1e5))
def test_a_sample_is_long_enough_and_not_much_longer(true_us: float) -> None:
    machine = Machine(true_us)
    calls = calibrate(machine, SETTINGS, 1 << 20)
    assert calls * true_us >= SETTINGS.min_sample_us
    assert calls == 1 or calls * true_us <= 2.5 * SETTINGS.min_sample_us + 2 * true_us
    assert len(machine.log) < 20


def test_calls_are_limited() -> None:
    assert calibrate(Machine(1e-6), SETTINGS, 100) == 100


def test_a_slow_first_call_does_not_decide_the_calls() -> None:
    first = itertools.count()
    calls = calibrate(lambda who, n: 1e6 if next(first) == 0 else 2.0 * n, SETTINGS, 4096)
    assert calls * 2.0 >= SETTINGS.min_sample_us


@pytest.mark.parametrize("slow_batches", [1, 3, 4, 6])
def test_a_candidate_that_is_slow_at_first_gets_no_short_samples(slow_batches: int) -> None:
    """A timer fooled into one call a sample would measure nothing but its own resolution."""
    batches = itertools.count()

    def timer(who: int, calls: int) -> float:
        return 500.0 * calls if next(batches) < slow_batches else 1.0 * calls

    taken = sample(timer, 1, SETTINGS, seed=0)
    assert taken.calls_per_sample >= SETTINGS.min_sample_us
    assert np.median(taken.samples_us[0]) == 1.0


# --- sampling -----------------------------------------------------------------------------------


def test_contenders_are_interleaved_abba() -> None:
    machine = Machine(100.0, 100.0, noise=0.3)
    sample(machine, 2, SETTINGS, seed=0)
    order = [who for who, _ in machine.log]
    start = next(i for i in range(len(order)) if order[i : i + 4] == [0, 1, 1, 0])
    for block in range(start, len(order), 4):
        assert order[block : block + 4] == [0, 1, 1, 0]
    assert len({calls for _, calls in machine.log[start:]}) == 1


def test_a_single_contender() -> None:
    taken = sample(Machine(50.0, noise=0.02), 1, SETTINGS, seed=0)
    assert len(taken.samples_us) == 1
    assert SETTINGS.min_samples <= len(taken.samples_us[0]) <= SETTINGS.max_samples + 1
    assert np.median(taken.samples_us[0]) == pytest.approx(50.0, rel=0.03)


def test_a_clear_loser_costs_few_samples() -> None:
    taken = sample(Machine(300.0, 100.0, noise=0.05), 2, SETTINGS, seed=0)
    assert len(taken.samples_us[0]) == 4
    result = compare(*taken.samples_us)
    assert result.verdict is Verdict.SLOWER


def test_a_winner_is_never_cut_before_the_least_number_of_samples() -> None:
    taken = sample(Machine(100.0, 300.0), 2, SETTINGS, seed=0)
    assert len(taken.samples_us[0]) >= SETTINGS.min_samples


def test_what_is_undecided_is_sampled_to_the_limit() -> None:
    taken = sample(Machine(100.0, 100.0, noise=0.3), 2, SETTINGS, seed=0)
    assert len(taken.samples_us[0]) >= SETTINGS.max_samples


def test_the_budget_ends_it() -> None:
    def timer(who: int, calls: int) -> float:
        time.sleep(0.02)
        return 200.0 * (1 + 0.3 * np.random.default_rng().random())

    started = time.perf_counter()
    taken = sample(timer, 2, TimingSettings(budget_s=0.2, max_samples=10_000), seed=0)
    assert time.perf_counter() - started < 2
    assert 4 <= len(taken.samples_us[0]) < 40


@pytest.mark.parametrize("bad", [0.0, -5.0, math.nan, math.inf])
def test_impossible_times_are_an_error(bad: float) -> None:
    batches = itertools.count()

    def timer(who: int, calls: int) -> float:
        return 200.0 * calls if next(batches) < 4 else bad

    with pytest.raises(ValueError, match="positive time"):
        sample(timer, 1, SETTINGS, seed=0)


# --- the clock ----------------------------------------------------------------------------------


def throttled(share: float) -> tuple[Machine, Callable[[], float]]:
    """Return a device whose clock is at 60 % in that share of its batches, and how to read it."""
    machine = Machine(100.0, 100.0, noise=0.002)
    state = {"clock": 0.0}
    rng = np.random.default_rng(5)

    def clock() -> float:
        return state["clock"]

    plain = machine.__class__.__call__

    class Throttled(Machine):
        def __call__(self, who: int, calls: int) -> float:
            state["clock"] = 0.6 if rng.random() < share else 1.0
            return plain(self, who, calls) / state["clock"]

    machine.__class__ = Throttled
    return machine, clock


def test_samples_at_a_slow_clock_are_dropped_counted_and_taken_again() -> None:
    machine, clock = throttled(0.05)
    taken = sample(machine, 2, SETTINGS, seed=0, clock=clock)
    assert all(us < 120 for samples in taken.samples_us for us in samples)
    assert len(taken.samples_us[0]) == len(taken.samples_us[1]) >= SETTINGS.min_samples
    batches = sum(len(s) for s in taken.samples_us) + taken.dropped
    order = [who for who, _ in machine.log]
    start = next(i for i in range(len(order)) if order[i : i + 4] == [0, 1, 1, 0])
    assert batches == len(order) - start
    assert taken.dropped % 4 == 0
    assert taken.dropped > 0
    assert taken.clock == 1.0
    assert not taken.disturbed


def test_a_clock_that_is_mostly_slow_is_said_so() -> None:
    machine, clock = throttled(0.35)
    taken = sample(machine, 2, SETTINGS, seed=0, clock=clock)
    assert taken.disturbed
    assert len(taken.samples_us[0]) >= 4
    assert len(machine.log) < 10 * SETTINGS.max_samples


def test_a_clock_that_cannot_be_read_drops_nothing() -> None:
    taken = sample(Machine(100.0, 100.0, noise=0.01), 2, SETTINGS, seed=0, clock=lambda: 0.0)
    assert taken.dropped == 0
    assert not taken.disturbed


# --- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "incumbent", "expected"),
    [(80.0, 100.0, Verdict.FASTER), (95.0, 100.0, Verdict.FASTER), (100.0, 100.0, Verdict.TIE),
     (99.7, 100.0, Verdict.TIE), (105.0, 100.0, Verdict.SLOWER), (500.0, 100.0, Verdict.SLOWER)],
)  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_verdicts_under_noise(
    candidate: float, incumbent: float, expected: Verdict, seed: int
) -> None:
    result = verdict(Machine(candidate, incumbent, noise=0.01, seed=seed))
    assert result.verdict is expected
    assert result.low <= result.ratio <= result.high
    assert result.ratio == pytest.approx(incumbent / candidate, rel=0.03)


@pytest.mark.parametrize("drift", [2e-5, -1e-5])
def test_a_drift_of_the_clock_makes_nobody_faster(drift: float) -> None:
    """Timed one after the other, these two would differ by much more than the least gain."""
    machine = Machine(100.0, 100.0, drift=drift, noise=0.002)
    taken = sample(machine, 2, SETTINGS, seed=1)
    halves = np.array_split(np.asarray(taken.samples_us[0]), 2)
    assert abs(np.median(halves[1]) / np.median(halves[0]) - 1) > 0.01
    assert compare(*taken.samples_us).verdict is Verdict.TIE


def test_a_drift_does_not_hide_a_winner() -> None:
    assert verdict(Machine(80.0, 100.0, drift=2e-5, noise=0.005)).verdict is Verdict.FASTER


def test_wild_samples_are_unstable() -> None:
    wild = [1.0, 10.0, 1.0, 10.0, 1.0, 10.0, 5.0]
    assert compare(wild, [100.0] * 7).verdict is Verdict.UNSTABLE
    assert compare([100.0] * 7, wild).verdict is Verdict.UNSTABLE


def test_one_lucky_sample_wins_nothing() -> None:
    result = compare([1.0, *[100.0] * 9], [100.0] * 10)
    assert result.verdict is Verdict.TIE
    assert result.ratio == 1.0


def test_false_alarms_are_rare() -> None:
    verdicts = [verdict(Machine(100.0, 100.0, noise=0.03, seed=s)).verdict for s in range(40)]
    assert sum(v is not Verdict.TIE for v in verdicts) <= 2


def test_a_difference_of_two_percent_is_seen() -> None:
    verdicts = [verdict(Machine(100.0, 102.0, noise=0.006, seed=s)).verdict for s in range(40)]
    assert sum(v is Verdict.FASTER for v in verdicts) >= 38


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_few_blocks_decide_little(blocks: int) -> None:
    """Without the stretch, four blocks of such noise would be called a gain one time in twenty."""
    rng = np.random.default_rng(7)
    false = 0
    for _ in range(400):
        a, b = (100 * np.exp(rng.normal(0, 0.03, 2 * blocks)) for _ in range(2))
        result = compare_interleaved([Timing("w", tuple(a), tuple(b))])
        false += result.verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert false <= 12


def test_one_block_decides_nothing() -> None:
    one = Timing("w", (50.0, 50.0), (100.0, 100.0))
    assert compare_interleaved([one]).verdict is Verdict.UNSTABLE


def test_a_drift_within_the_blocks_cancels() -> None:
    """Each block of four is slower than the last one by 3 %, from its first sample to its last."""
    now = iter(np.exp(0.0075 * np.arange(1000)))
    taken = sample(lambda who, calls: 100.0 * calls * next(now), 2, SETTINGS, seed=0)
    result = compare_interleaved([Timing("w", *taken.samples_us)])
    assert result.verdict is Verdict.TIE
    assert result.ratio == pytest.approx(1.0, abs=1e-3)


def disturbed(ratio: float, flag: bool = True) -> Verdict:
    a = np.exp(np.random.default_rng(3).normal(0, 0.002, 16)) * 100
    conditions = {"disturbed": flag}
    timing = Timing("w", tuple(a), tuple(a[::-1] * ratio), conditions=conditions)
    return compare_interleaved([timing]).verdict


def test_on_a_disturbed_machine_only_large_differences_count() -> None:
    assert disturbed(1.03, False) is Verdict.FASTER
    assert disturbed(1.03) is Verdict.UNSTABLE
    assert disturbed(1.0) is Verdict.UNSTABLE
    assert disturbed(0.97) is Verdict.UNSTABLE
    assert disturbed(1.3) is Verdict.FASTER
    assert disturbed(0.7) is Verdict.SLOWER


def test_scatter_raises_the_least_gain() -> None:
    """Alike neighbours make the interval too narrow; the scatter of the blocks is still seen."""
    wave = 0.1 * np.repeat(np.sign(np.sin(np.arange(30.0))), 2)
    a = 100 * np.exp(np.random.default_rng(0).normal(0, 0.001, 60))
    gains = [compare_interleaved([Timing("w", tuple(a), tuple(a * g * np.exp(wave)))])
             for g in (1.0, 1.03, 1.5)]  # fmt: skip
    assert [g.verdict for g in gains] == [Verdict.UNSTABLE, Verdict.UNSTABLE, Verdict.FASTER]


def test_an_undecided_wide_interval_is_no_tie() -> None:
    rng = np.random.default_rng(1)
    a, b = (tuple(100 * np.exp(rng.normal(0, 0.12, 8))) for _ in range(2))
    assert compare_interleaved([Timing("w", a, b)]).verdict is Verdict.UNSTABLE


samples = st.lists(st.floats(1.0, 1e4), min_size=4, max_size=12)


@given(samples, samples)
def test_comparing_backwards_gives_the_opposite(a: list[float], b: list[float]) -> None:
    forward, backward = compare(a, b), compare(b, a)
    assert forward.ratio == pytest.approx(1 / backward.ratio)
    assert forward.low <= forward.high
    opposite = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    if forward.verdict in opposite:
        assert backward.verdict is not forward.verdict


@given(samples, samples, st.floats(0.1, 10.0))
def test_units_do_not_matter(a: list[float], b: list[float], factor: float) -> None:
    scaled = compare([x * factor for x in a], [x * factor for x in b])
    assert scaled.ratio == pytest.approx(compare(a, b).ratio)


def test_the_same_seed_gives_the_same_interval() -> None:
    a, b = [1.0, 1.1, 1.2, 1.3], [1.2, 1.3, 1.1, 1.4]
    assert compare(a, b, 3) == compare(a, b, 3)


# --- several workloads --------------------------------------------------------------------------


def timing(workload: str, us: float, incumbent: float | None = None) -> Timing:
    spread = (0.99, 1.0, 1.0, 1.01, 1.0)
    return Timing(
        workload, tuple(us * s for s in spread),
        tuple(incumbent * s for s in spread) if incumbent else (),
    )  # fmt: skip


def test_workloads_are_combined_by_the_geometric_mean() -> None:
    a = [timing("small", 1.0), timing("large", 400.0), timing("only here", 1.0)]
    b = [timing("small", 4.0), timing("large", 400.0), timing("only there", 9.0)]
    result = compare_timings(a, b)
    assert result.ratio == pytest.approx(2.0)
    assert result.verdict is Verdict.FASTER
    assert compare_timings(b, a).verdict is Verdict.SLOWER
    assert compare_timings(a, a).verdict is Verdict.TIE


def test_interleaved_samples_are_preferred_where_there_are_any() -> None:
    result = compare_interleaved([timing("w", 1.0, 2.0), timing("v", 1.0)])
    assert result.ratio == pytest.approx(2.0)
    assert result.verdict is Verdict.FASTER
    wild = Timing("w", (1.0, 9.0, 1.0, 9.0), (1.0, 9.0, 1.0, 9.0))
    assert compare_interleaved([wild]).verdict is Verdict.UNSTABLE


def test_nothing_in_common_is_an_error() -> None:
    with pytest.raises(ValueError, match="no workload"):
        compare_timings([timing("a", 1.0)], [timing("b", 1.0)])
    with pytest.raises(ValueError, match="no workload"):
        compare_interleaved([timing("a", 1.0)])


def test_a_timer_is_only_a_function() -> None:
    timer: Callable[[int, int], float] = lambda who, calls: 10.0 * calls  # noqa: E731
    assert sample(timer, 1, SETTINGS, 0).samples_us[0][0] == 10.0
