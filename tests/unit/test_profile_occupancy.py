"""Theoretical occupancy against CUDA's published examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.profile.occupancy import occupancy
from kernelsearch.targets.cuda_device import architecture_device

H200 = architecture_device("sm_90a")


def of(blocks: int, threads: int, registers: int, shared: int = 0):
    return occupancy(blocks, threads, registers, shared, H200.facts, H200.arch)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "warps", "limiter"),
    [
        (256, 32, 0, 64, "threads"),
        (256, 255, 0, 8, "registers"),  # 255 rounds to 256: 65536 / (8 * 32 * 256) = one block
        (128, 64, 0, 32, "registers"),  # 65536 / (4 * 2048) = 8 blocks of 4 warps
        (32, 16, 0, 32, "blocks"),
        (256, 32, 100 * 1024, 16, "shared"),  # two blocks of 100 + 1 KiB in 228 KiB
    ],
)
def test_the_limiter_and_the_warps_that_fit(
    threads: int, registers: int, shared: int, warps: int, limiter: str
) -> None:
    found = of(100_000, threads, registers, shared)
    assert found is not None
    assert (found.warps_per_sm, found.limiter) == (warps, limiter)


def test_a_grid_smaller_than_the_device_is_what_limits() -> None:
    found = of(66, 256, 32)
    assert found is not None
    assert found.limiter == "grid"
    assert found.waves < 1
    assert found.idle_fraction == pytest.approx(0.5)


def test_the_tail_is_the_share_of_idle_multiprocessors() -> None:
    found = of(H200.facts["sm_count"] + 1, 1024, 64)
    assert found is not None
    assert found.waves > 1
    assert found.idle_fraction == pytest.approx(1 - 133 / 264)


def test_what_never_fits_has_no_occupancy() -> None:
    found = of(10, 1024, 255)
    assert found is not None
    assert (found.fraction, found.blocks_per_sm) == (0.0, 0)


def test_a_device_without_sizes_gives_nothing() -> None:
    assert occupancy(1, 32, 32, 0, {}, "sm_90a") is None


@given(st.integers(1, 1 << 31), st.integers(1, 1024), st.integers(0, 255), st.integers(0, 232448))
def test_occupancy_is_a_share(blocks: int, threads: int, registers: int, shared: int) -> None:
    found = of(blocks, threads, registers, shared)
    assert found is not None
    assert 0 <= found.fraction <= 1
    assert 0 <= found.idle_fraction <= 1
    assert found.warps_per_sm <= 64
