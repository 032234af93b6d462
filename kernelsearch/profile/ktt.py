"""Read search spaces that KTT recorded: times, launches and hardware counters of configurations."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsearch.errors import SpecError


@dataclass(frozen=True, slots=True)
class Recorded:
    """One valid configuration.

    Args:
        params: its tunables; constants of the space are among them.
        time_us: duration of the kernel.
        grid / block: in blocks and threads.
        counters: by the names the profiler gave.
    """

    params: Mapping[str, int | float | str]
    time_us: float
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared_bytes: int
    local_bytes: int
    counters: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RecordedSpace:
    """The configurations of one file that ran, and on which device."""

    device: str
    configurations: tuple[Recorded, ...]
    failed: int


def read_ktt(path: Path) -> RecordedSpace:
    """Read a KTT result file (JSON, also gzipped).

    Raises:
        SpecError: it is none; the message says what is wrong.
    """
    try:
        raw = path.read_bytes()
        document = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        unit = {"Microseconds": 1.0, "Milliseconds": 1e3, "Nanoseconds": 1e-3, "Seconds": 1e6}[
            document["Metadata"]["TimeUnit"]
        ]
        rows = [_row(r, unit) for r in document["Results"] if r["Status"] == "Ok"]
        found = tuple(r for r in rows if r is not None)
        device = str(document["Metadata"]["Device"])
        return RecordedSpace(device, found, len(document["Results"]) - len(found))
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecError(
            f"{path}: is not a KTT result file ({type(error).__name__}: {error}); expected JSON "
            "with Metadata and Results"
        ) from error


def _row(result: Mapping[str, Any], unit: float) -> Recorded | None:
    launches = result["ComputationResults"]
    if not launches:
        return None
    # The launch that takes the longest is the one a diagnosis is about.
    main = max(launches, key=lambda c: float(c["Duration"]))
    time = float(main["Duration"]) * unit
    if not (math.isfinite(time) and time > 0):
        return None
    facts = main["CompilationData"]
    counters = main.get("ProfilingData", {}).get("Counters", [])
    block = _sizes(main["LocalSize"])
    return Recorded(
        {str(p["Name"]): p["Value"] for p in result["Configuration"]}, time,
        _sizes(main["GlobalSize"]), block, int(facts["RegistersCount"]),
        int(facts["LocalMemorySize"]), int(facts["PrivateMemorySize"]),
        {str(c["Name"]): c["Value"] for c in counters},
    )  # fmt: skip


def _sizes(value: Mapping[str, int]) -> tuple[int, int, int]:
    return int(value["X"]), int(value["Y"]), int(value["Z"])
