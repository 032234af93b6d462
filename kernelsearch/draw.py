"""Draw input arrays: the named distributions that operators share, fast also for gigabytes.

Large arrays are filled in fixed chunks, each from its own stream, by a few threads: the result
depends on the seed only, never on the number of threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import UnknownNameError
from kernelsearch.shm import numpy_dtype

COMMON = ("default", "normal", "large", "tiny", "one_hot", "constant", "sorted")
_CHUNK = 1 << 20
_MAX_THREADS = 8

Floats = NDArray[Any]
ChunkDraw = Callable[[np.random.Generator, Floats], None]


def draw(
    shape: tuple[int, ...],
    distribution: str,
    rng: np.random.Generator,
    dtype: str,
    *,
    large: float = 1e15,
    tiny: float = 1e-15,
) -> Floats:
    """Return an array of one of the ``COMMON`` distributions.

    Args:
        shape: of the result; ``one_hot`` and ``sorted`` act along its last axis.
        distribution: ``default`` is uniform(-1, 1); ``large`` and ``tiny`` are that, scaled.
        rng: source of randomness; the result is a function of its state alone.
        dtype: element type of the result.
        large: scale of that distribution; an operator lowers it where its result would overflow.
        tiny: scale of that distribution.

    Raises:
        UnknownNameError: no such distribution.
    """
    if distribution == "default":
        return uniform(shape, rng, dtype)
    if distribution in ("large", "tiny"):
        return uniform(shape, rng, dtype, scale=large if distribution == "large" else tiny)
    if distribution == "normal":
        return _filled(shape, rng, dtype, lambda r, part: _normal(r, part))
    if distribution == "constant":
        value = rng.uniform(0.25, 1.0) * rng.choice((-1.0, 1.0))
        return np.full(shape, value, dtype=numpy_dtype(dtype))
    if distribution == "sorted":
        return np.sort(uniform(shape, rng, dtype), axis=-1)
    if distribution == "one_hot":
        return one_hot(shape, rng, dtype)
    raise UnknownNameError("distribution", distribution, COMMON)


def uniform(
    shape: tuple[int, ...],
    rng: np.random.Generator,
    dtype: str,
    *,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Floats:
    """Return numbers spread evenly over shift - scale to shift + scale."""

    def fill(r: np.random.Generator, part: Floats) -> None:
        r.random(out=part, dtype=part.dtype.type)
        part *= 2 * scale
        part -= scale - shift

    return _filled(shape, rng, dtype, fill)


def one_hot(shape: tuple[int, ...], rng: np.random.Generator, dtype: str) -> Floats:
    """Return zeros with a single 1 in every row (the last axis)."""
    result = np.zeros(shape, dtype=numpy_dtype(dtype))
    if result.size:
        rows = result.reshape(-1, shape[-1])
        rows[np.arange(len(rows)), rng.integers(0, shape[-1], size=len(rows))] = 1
    return result


def integers(
    shape: tuple[int, ...], magnitude: int, rng: np.random.Generator, dtype: str
) -> Floats:
    """Return whole numbers in [-magnitude, magnitude], as elements of ``dtype``."""
    drawn = rng.integers(-magnitude, magnitude, size=shape, endpoint=True, dtype=np.int32)
    return drawn.astype(np.float32).astype(numpy_dtype(dtype))


def exact_magnitude(dtype: str, terms: int) -> int:
    """Return the largest integer size for which ``terms`` of them add up exactly in float32.

    Every integer up to it is an element of ``dtype``; for float32 and float64 it goes past 2^11,
    where TF32, float16 and bfloat16 arithmetic are no longer exact, as long as ``terms`` allows.
    """
    digits = {"bfloat16": 8, "float16": 11}.get(dtype, 13)
    return max(1, min(1 << digits, (1 << 24) // max(1, terms) - 1))


def _normal(rng: np.random.Generator, part: Floats) -> None:
    rng.standard_normal(out=part, dtype=part.dtype.type)


def _filled(
    shape: tuple[int, ...], rng: np.random.Generator, dtype: str, fill: ChunkDraw
) -> Floats:
    result = np.empty(math.prod(shape), dtype=numpy_dtype(dtype))
    seed = int(rng.integers(0, 1 << 63))
    direct = result.dtype in (np.dtype(np.float32), np.dtype(np.float64))

    def chunk(index: int) -> None:
        part = result[index * _CHUNK : (index + 1) * _CHUNK]
        stream = np.random.Generator(np.random.SFC64([seed, index]))
        if direct:
            fill(stream, part)
        else:
            wide = np.empty(part.shape, dtype=np.float32)
            fill(stream, wide)
            part[...] = wide.astype(result.dtype)

    count = -(-result.size // _CHUNK)
    if count <= 2:
        for index in range(count):
            chunk(index)
    else:
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            for _ in pool.map(chunk, range(count)):
                pass
    return result.reshape(shape)
