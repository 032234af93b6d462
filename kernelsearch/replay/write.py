"""Write measured configurations in the formats of other tuners: T4 results, and wisdom lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from kernelsearch.errors import StorageError
from kernelsearch.replay.recording import Recording

T4_VERSION = "1.0.0"
WISDOM_VERSION = "1.0"


def write_t4(recording: Recording, path: Path) -> None:
    """Write a recording as T4 results (JSON of the auto-tuning community's FAIR format).

    Raises:
        StorageError: the file cannot be written.
    """
    rows = recording.space.rows
    assert rows is not None
    results = []
    for row, time, cost in zip(rows, recording.time, recording.cost, strict=True):
        ran = not math.isnan(time)
        entry: dict[str, Any] = {
            "configuration": recording.space.params(row),
            "objectives": ["time"],
            # T4 has no place for a total: all of it is told as the time to compile.
            "times": {"compilation_time": 1e3 * float(cost)},
            "invalidity": "correct" if ran else "runtime",
            "correctness": 1 if ran else 0,
            "measurements": [
                {"name": "time", "value": float(time), "unit": recording.unit}
            ] if ran else [],
        }  # fmt: skip
        results.append(entry)
    document = {
        "schema_version": T4_VERSION, "device_name": recording.device, "results": results,
    }  # fmt: skip
    _write(path, json.dumps(document, indent=1) + "\n")


def write_wisdom(recording: Recording, path: Path, key: str, problem_size: list[int]) -> None:
    """Write the best configuration as Kernel Launcher wisdom.

    Args:
        recording: the space; its best configuration is written.
        path: of the ``.wisdom`` file.
        key: name of the kernel.
        problem_size: along each axis.

    Raises:
        StorageError: the file cannot be written.
    """
    rows = recording.space.rows
    assert rows is not None
    names = list(recording.space.names)
    best = min(
        (i for i in range(len(rows)) if not math.isnan(recording.time[i])),
        key=lambda i: float(recording.time[i]),
    )
    params = recording.space.params(rows[best])
    header = {
        "version": WISDOM_VERSION, "objective": "time", "tunable_parameters": names, "key": key,
    }  # fmt: skip
    record = {
        "config": [params[n] for n in names], "problem_size": problem_size,
        "time": float(recording.time[best]), "environment": {"device_name": recording.device},
    }  # fmt: skip
    _write(path, json.dumps(header) + "\n" + json.dumps(record) + "\n")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written ({error})") from error
