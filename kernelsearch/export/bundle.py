"""Write a bundle's folder: it appears whole or not at all, and no other folder is replaced by it.

Everything is written beside it and renamed into place. What a CPU study exports is put together
here too: its kernel is Numba source, which no C++ build can take.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelsearch import codec
from kernelsearch.errors import ArgumentError, StorageError
from kernelsearch.operator import Operator
from kernelsearch.records import Device, Evaluation, VariantRecord
from kernelsearch.variant import Variant

FORMAT = 1


@dataclass(frozen=True, slots=True)
class BundleContents:
    """What goes into the bundle of a CPU study."""

    operator: Operator
    variant: Variant
    evaluation: Evaluation
    device: Device
    lineage: Sequence[VariantRecord]
    result: Mapping[str, Any]
    versions: Mapping[str, str]


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise ``ArgumentError`` where ``folder`` is there and must not, or cannot, be replaced."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not overwrite:
        raise ArgumentError(f"{folder} exists already; choose another -o, or give --overwrite")
    if folder.is_symlink() or not folder.is_dir():
        raise ArgumentError(f"{folder} is no folder; choose another -o")
    if any(folder.iterdir()) and not (folder / "manifest.json").is_file():
        raise ArgumentError(
            f"{folder} holds files that are no bundle (it has no manifest.json); --overwrite only "
            "replaces bundles: choose another -o"
        )


def write_folder(
    folder: Path, files: Mapping[str, bytes], *, overwrite: bool = False
) -> list[Path]:
    """Write ``files`` (by path in the folder) and return where they lie.

    Raises:
        ArgumentError: the folder exists and ``overwrite`` is false, or it is no bundle.
        StorageError: the disk is full or the place is read-only.
    """
    check_folder(folder, overwrite=overwrite)
    staging: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        for name, data in files.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        if folder.exists():
            shutil.rmtree(folder)
        os.chmod(staging, 0o755)
        staging.rename(folder)
    except OSError as error:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        raise StorageError(
            f"cannot write the bundle {folder} ({error.strerror}); nothing was left behind"
        ) from error
    return [folder / name for name in files]


def cpu_files(contents: BundleContents) -> dict[str, bytes]:
    """Return the files of a CPU study's bundle: the Numba variant and the manifest.

    Raises:
        ArgumentError: the evaluation is not ok.
    """
    if not contents.evaluation.ok:
        raise ArgumentError(
            f"only a verified kernel can be exported (status is {contents.evaluation.status})"
        )
    stem = f"{contents.operator.name}_{contents.evaluation.candidate.dtype}"
    files = {f"{stem}.py": contents.variant.source.encode()}
    manifest = _manifest(contents, files)
    files["manifest.json"] = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    return files


def _manifest(contents: BundleContents, files: Mapping[str, bytes]) -> dict[str, Any]:
    operator, device, variant = contents.operator, contents.device, contents.variant
    return {
        "format": FORMAT,
        "operator": {
            "name": operator.name, "doc": operator.doc, "contract": operator.contract,
            "precision": operator.precision, "specification": operator.specification,
        },
        "variant": {
            "hash": variant.hash, "name": variant.name, "doc": variant.doc,
            "language": variant.language, "domain": {k: e.text for k, e in variant.domain.items()},
        },
        "params": contents.evaluation.candidate.values,
        "dtype": contents.evaluation.candidate.dtype,
        "device": device_facts(device),
        "evaluation": codec.to_json(contents.evaluation),
        "result": dict(contents.result),
        "lineage": lineage_facts(contents.lineage),
        "versions": dict(contents.versions),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }  # fmt: skip


def device_facts(device: Device) -> dict[str, Any]:
    """Return a device as a manifest tells it."""
    return {
        "target": device.target, "name": device.name, "arch": device.arch,
        "driver": device.driver, "facts": dict(device.facts),
    }  # fmt: skip


def lineage_facts(lineage: Sequence[VariantRecord]) -> list[dict[str, Any]]:
    """Return a variant's line of descent as a manifest tells it."""
    return [{
        "hash": v.hash, "name": v.name, "parent": v.parent, "proposer": v.proposer,
        "mutation": v.mutation, "rationale": v.rationale,
    } for v in lineage]  # fmt: skip
