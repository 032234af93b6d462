"""Write a winner as files a build can take: source, machine code, bound parameters and a manifest.

The folder appears whole or not at all: everything is written beside it and renamed into place.
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
from kernelsearch.records import Binary, Device, Evaluation, VariantRecord
from kernelsearch.variant import Variant

FORMAT = 1


@dataclass(frozen=True, slots=True)
class BundleContents:
    """What goes into a bundle."""

    operator: Operator
    variant: Variant
    evaluation: Evaluation
    device: Device
    lineage: Sequence[VariantRecord]
    result: Mapping[str, Any]
    versions: Mapping[str, str]
    binary: Binary | None = None


def write_bundle(folder: Path, contents: BundleContents, *, overwrite: bool = False) -> list[Path]:
    """Write the bundle into ``folder`` and return its files.

    Raises:
        ArgumentError: the evaluation is not ok, or the folder exists and ``overwrite`` is false.
        StorageError: the disk is full or the place is read-only.
    """
    if not contents.evaluation.ok:
        raise ArgumentError(
            f"only a verified kernel can be exported (status is {contents.evaluation.status})"
        )
    if folder.exists() and not overwrite:
        raise ArgumentError(f"{folder} exists already; choose another -o, or give --overwrite")
    staging: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        names = _write_files(staging, contents)
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
    return [folder / name for name in names]


def _write_files(folder: Path, contents: BundleContents) -> list[str]:
    variant, candidate = contents.variant, contents.evaluation.candidate
    stem = f"{contents.operator.name}_{candidate.dtype}"
    files: dict[str, bytes] = {}
    suffix = ".cu" if variant.language == "cuda" else ".py"
    files[stem + suffix] = variant.source.encode()
    if variant.language == "cuda":
        files[stem + "_params.h"] = _header(contents).encode()
        if contents.binary is not None:
            files[stem + ".cubin"] = contents.binary.image
    manifest = _manifest(contents, files)
    files["manifest.json"] = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    for name, data in files.items():
        with open(folder / name, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    return list(files)


def _header(contents: BundleContents) -> str:
    candidate = contents.evaluation.candidate
    lines = [f"/* {contents.operator.name}: the tuned parameters of variant {candidate.variant} */"]
    lines.append("#pragma once")
    lines += [f"#define {name} {value}" for name, value in candidate.params]
    return "\n".join(lines) + "\n"


def _manifest(contents: BundleContents, files: Mapping[str, bytes]) -> dict[str, Any]:
    operator, device, variant = contents.operator, contents.device, contents.variant
    symbols = dict(contents.binary.symbols) if contents.binary is not None else {}
    return {
        "format": FORMAT,
        "operator": {
            "name": operator.name, "doc": operator.doc, "contract": operator.contract,
            "precision": operator.precision, "specification": operator.specification,
        },
        "variant": {
            "hash": variant.hash, "name": variant.name, "doc": variant.doc,
            "language": variant.language, "domain": {k: e.text for k, e in variant.domain.items()},
            "arch": variant.arch, "symbols": symbols,
        },
        "params": contents.evaluation.candidate.values,
        "dtype": contents.evaluation.candidate.dtype,
        "device": {
            "target": device.target, "name": device.name, "arch": device.arch,
            "driver": device.driver, "facts": dict(device.facts),
        },
        "evaluation": codec.to_json(contents.evaluation),
        "result": dict(contents.result),
        "lineage": [{
            "hash": v.hash, "name": v.name, "parent": v.parent, "proposer": v.proposer,
            "mutation": v.mutation, "rationale": v.rationale,
        } for v in contents.lineage],
        "versions": dict(contents.versions),
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }  # fmt: skip
