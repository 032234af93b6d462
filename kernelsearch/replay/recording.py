"""Recorded search spaces: what every configuration took, read from the formats of other tuners.

Read: Kernel Tuner's cache files, its T4 results, KTT's results (all JSON, also gzipped) and Kernel
Launcher's wisdom. Which format a file has is seen in the file, not in its name.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.errors import SpecError
from kernelsearch.records import ParamValue
from kernelsearch.space import Space

# How many runs a configuration in KTT's results is charged for: the file does not say.
RUNS = 7


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded space.

    Args:
        name: of the file, without its endings.
        device: on which it was recorded, as the file says.
        space: the recorded configurations; every other combination breaks a constraint.
        time: of each row of ``space.rows``, in ``unit``; NaN for one that failed.
        cost: seconds that compiling and running each row took; 0 where that was not recorded.
        unit: of ``time``; Kernel Tuner's cache files do not name theirs, which is ms by default.
    """

    name: str
    device: str
    space: Space
    time: NDArray[np.float64]
    cost: NDArray[np.float64]
    unit: str

    @property
    def best(self) -> float:
        """The shortest time of all, in ``unit``."""
        return float(np.nanmin(self.time))


@dataclass(frozen=True, slots=True)
class _Row:
    values: tuple[ParamValue, ...]
    time: float
    cost: float


def read_recording(path: Path) -> Recording:
    """Read a recorded space.

    Raises:
        SpecError: the file cannot be read, has none of the formats, or nothing in it ran.
    """
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read ({error})") from error
    try:
        return _parse(path, text)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise SpecError(
            f"{path}: is no recorded space ({type(error).__name__}: {error}); expected a Kernel "
            "Tuner cache, T4 or KTT results, or Kernel Launcher wisdom"
        ) from error


def _parse(path: Path, text: str) -> Recording:
    name = path.name.split(".")[0]
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        # A cache that is still being written, or whose writer was killed, lacks its end.
        closed = text.rstrip().rstrip(",") + "}}"
        if '"tune_params_keys"' not in text:
            return _wisdom(name, text)
        document = json.loads(closed)
    if "cache" in document:
        return _kernel_tuner(name, document)
    if "Metadata" in document:
        return _ktt(name, document)
    if isinstance(document.get("results"), list):
        return _t4(name, document)
    if "tunable_parameters" in document:
        return _wisdom(name, text)
    raise ValueError(f"its keys are {', '.join(sorted(document)[:6])}")


def _number(value: Any) -> float:
    """Return a time; NaN for whatever says that there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value) if math.isfinite(value) and value > 0 else math.nan


def _kernel_tuner(name: str, document: Mapping[str, Any]) -> Recording:
    keys = [str(k) for k in document["tune_params_keys"]]
    parts = ("compile_time", "verification_time", "benchmark_time", "framework_time")
    objective = str(document.get("objective", "time"))
    rows = [
        _Row(
            tuple(entry[k] for k in keys), _number(entry.get(objective)),
            sum(v for p in parts if not math.isnan(v := _number(entry.get(p)))) / 1e3,
        )
        for entry in document["cache"].values()
    ]  # fmt: skip
    choices = [list(document["tune_params"][k]) for k in keys]
    return _recording(name, str(document.get("device_name", "")), keys, rows, "ms", choices)


def _t4(name: str, document: Mapping[str, Any]) -> Recording:
    results = document["results"]
    keys = [str(k) for k in results[0]["configuration"]]
    rows, units = [], set()
    for result in results:
        wanted = (result.get("objectives") or ["time"])[0]
        found = {m["name"]: m for m in result.get("measurements", [])}
        time = math.nan
        if result.get("invalidity", "correct") == "correct" and wanted in found:
            time = _number(found[wanted]["value"])
            units.add(str(found[wanted].get("unit") or "ms"))
        times = result.get("times", {})
        spent = [v for p, t in times.items() for v in _durations(p, t)]
        rows.append(_Row(tuple(result["configuration"][k] for k in keys), time, sum(spent) / 1e3))
    if len(units) > 1:
        raise ValueError(f"its times are in several units: {', '.join(sorted(units))}")
    return _recording(name, str(document.get("device_name", "")), keys, rows,
                      next(iter(units), "ms"))  # fmt: skip


def _durations(part: str, value: Any) -> list[float]:
    """Return the milliseconds of one part of T4's ``times``; search time is not the device's."""
    if part in ("search_algorithm", "runtimes"):
        return []
    number = _number(value)
    return [] if math.isnan(number) else [number]


def _ktt(name: str, document: Mapping[str, Any]) -> Recording:
    unit = str(document["Metadata"]["TimeUnit"])
    short, seconds = {
        "Nanoseconds": ("ns", 1e-9), "Microseconds": ("us", 1e-6), "Milliseconds": ("ms", 1e-3),
        "Seconds": ("s", 1.0),
    }[unit]  # fmt: skip
    results = document["Results"]
    keys = [str(p["Name"]) for p in results[0]["Configuration"]]
    rows = []
    for result in results:
        launches = result.get("ComputationResults", [])
        time = math.nan
        if result["Status"] == "Ok" and launches:
            time = _number(sum(float(c["Duration"]) for c in launches))
        overhead = sum(float(c.get("Overhead", 0.0)) for c in launches) * seconds
        cost = overhead + (0.0 if math.isnan(time) else RUNS * time * seconds)
        values = {str(p["Name"]): p["Value"] for p in result["Configuration"]}
        rows.append(_Row(tuple(values[k] for k in keys), time, cost))
    return _recording(name, str(document["Metadata"].get("Device", "")), keys, rows, short)


def _wisdom(name: str, text: str) -> Recording:
    """Read Kernel Launcher's wisdom: a header, then one record a line; ``#`` begins a comment."""
    lines = [s for line in text.splitlines() if (s := line.strip()) and not s.startswith("#")]
    header = json.loads(lines[0])
    keys = [str(k) for k in header["tunable_parameters"]]
    objective = str(header.get("objective", "time"))
    rows, devices = [], set()
    for line in lines[1:]:
        record = json.loads(line)
        devices.add(str(record.get("environment", {}).get("device_name", "")))
        rows.append(_Row(tuple(record["config"]), _number(record.get(objective)), 0.0))
    if len(devices) > 1:
        raise ValueError(f"it is of several devices: {', '.join(sorted(devices))}")
    return _recording(name, next(iter(devices), ""), keys, rows, "ms")


def _recording(
    name: str, device: str, keys: Sequence[str], rows: Iterable[_Row], unit: str,
    choices: Sequence[Sequence[ParamValue]] | None = None,
) -> Recording:  # fmt: skip
    # The last record of a configuration counts, as it does for whoever resumes from the file.
    unique = {r.values: r for r in rows}
    if not unique or all(math.isnan(r.time) for r in unique.values()):
        raise ValueError("no configuration in it has a time")
    listed = choices or [_sorted({v[i] for v in unique}) for i in range(len(keys))]
    places = [{c: i for i, c in enumerate(axis)} for axis in listed]
    points = np.array(
        [[p[v] for p, v in zip(places, values, strict=True)] for values in unique], dtype=np.int32
    )  # fmt: skip
    space = Space.of_rows(tuple(keys), listed, points)
    at = space.places(points)
    time, cost = np.empty(len(at)), np.empty(len(at))
    time[at] = [r.time for r in unique.values()]
    cost[at] = [r.cost for r in unique.values()]
    return Recording(name, device, space, time, cost, unit)


def _sorted(values: set[ParamValue]) -> list[ParamValue]:
    if any(isinstance(v, str) for v in values):
        return sorted(values, key=str)
    return sorted(values)
