"""Measured rates of a device, taken once and kept: what speed of light is computed from."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from kernelsearch.errors import StorageError
from kernelsearch.records import Device

FORMAT = 1


def with_ceilings(
    device: Device, folder: Path, measure: Callable[[], Mapping[str, float]]
) -> Device:
    """Return ``device`` with its measured ceilings, from ``folder`` or by measuring now.

    Datasheet values the device came with are kept under their own names where nothing was measured.

    Raises:
        StorageError: the folder cannot be written to.
    """
    path = folder / f"ceilings-{device.key}.json"
    measured = _read(path)
    if measured is None:
        measured = {k: float(v) for k, v in measure().items() if math.isfinite(float(v)) and v > 0}
        _write(path, device, measured)
    return replace(device, ceilings={**device.ceilings, **measured})


def _read(path: Path) -> dict[str, float] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # not measured yet, or damaged: measured again
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return None
    ceilings = value.get("ceilings")
    return dict(ceilings) if isinstance(ceilings, dict) else None


def _write(path: Path, device: Device, measured: Mapping[str, float]) -> None:
    document = {"format": FORMAT, "device": device.name, "ceilings": dict(measured)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=".ceilings-", delete=False
        ) as file:
            json.dump(document, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        raise StorageError(
            f"cannot keep measured rates in {path} ({error.strerror}); set KERNELSEARCH_HOME to "
            "a folder you can write to"
        ) from error
