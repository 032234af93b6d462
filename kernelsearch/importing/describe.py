"""Say what was understood of a CUDA file, and what was assumed: for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelsearch.importing.contract import Imported


def lines(imported: Imported, file: str) -> Iterator[str]:
    """Yield what people read."""
    yield f"{imported.name}: {imported.entry} of {file}"
    for tensor in imported.tensors:
        values = f", {tensor.values} below {tensor.limit}" if tensor.values else ""
        yield f"  {tensor.role:5} {tensor.name}[{', '.join(tensor.shape)}] {tensor.dtype}{values}"
    for label, dtype, value in imported.scalars:
        yield f"  value {label} = {value:g} {dtype}"
    for label, (dtype, extent) in imported.workspaces.items():
        yield f"  scratch {label}[{extent}] {dtype}"
    for label, choices in imported.tunables.items():
        yield f"  tunable {label} = {choices[0]} of {sorted(choices)}"
    for note in imported.notes:
        yield f"  assumed: {note}"


def summary(imported: Imported, operator: Path, variant: Path) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {
        "operator": str(operator), "variant": str(variant), "name": imported.name,
        "entry": imported.entry,
        "tensors": [
            {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "role": t.role,
             "values": t.values}
            for t in imported.tensors
        ],
        "scalars": [{"name": n, "dtype": d, "value": v} for n, d, v in imported.scalars],
        "workspaces": {n: {"dtype": d, "extent": e} for n, (d, e) in imported.workspaces.items()},
        "sizes": imported.symbols, "tunables": imported.tunables, "launches": imported.steps,
        "assumed": imported.notes,
    }  # fmt: skip
