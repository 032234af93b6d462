"""Turn records into JSON and back, exactly: floats bit for bit, tuples as tuples, versioned.

Every document says ``format`` and ``type``. Inside free-form mappings (evidence, conditions) what
JSON has no word for is tagged: ``{"$tuple": [...]}``, ``{"$float": "nan"}``,
``{"$dict": [[k, v]]}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeAlias

import numpy as np

from kernelsearch.errors import StorageError
from kernelsearch.records import (
    Candidate,
    Device,
    Evaluation,
    KernelFacts,
    Proposal,
    Status,
    Timing,
    VariantRecord,
)

FORMAT = 1
Record: TypeAlias = (
    Evaluation | VariantRecord | Proposal | Timing | KernelFacts | Candidate | Device
)
_TYPES: dict[str, type[Any]] = {
    t.__name__: t
    for t in (Evaluation, VariantRecord, Proposal, Timing, KernelFacts, Candidate, Device)
}


def to_json(record: Record) -> dict[str, Any]:
    """Return ``record`` as a JSON document with ``format`` and ``type``."""
    return {"format": FORMAT, "type": type(record).__name__, **_fields(record)}


def from_json(document: Mapping[str, Any], where: str = "record") -> Any:
    """Return the record a document holds.

    Args:
        document: what ``to_json`` made.
        where: what the document was read from, for error messages.

    Raises:
        StorageError: another format, an unknown type or field, or a value that the record refuses.
    """
    if not isinstance(document, Mapping):
        raise _damaged(where, f"it must be a JSON object (got {type(document).__name__})")
    version = document.get("format")
    if version != FORMAT or isinstance(version, bool):
        raise StorageError(
            f"{where} has format {version!r}, this version reads format {FORMAT}; "
            "open it with the version of kernelsearch that wrote it, or a newer one"
        )
    kind = _TYPES.get(str(document.get("type")))
    if kind is None:
        raise _damaged(where, f"its type {document.get('type')!r} is unknown")
    body = {k: v for k, v in document.items() if k not in ("format", "type")}
    return _record(kind, body, where)


def encode(record: Record) -> str:
    """Return ``record`` as one line of JSON."""
    return json.dumps(to_json(record), separators=(",", ":"), allow_nan=False)


def decode(text: str, where: str = "record") -> Any:
    """Return the record in a line of JSON; raises ``StorageError`` like ``from_json``."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"it is not JSON ({error})") from error
    return from_json(document, where)


def plain(value: Any) -> Any:
    """Return free-form data as strict JSON, with tags for what JSON cannot say.

    Raises:
        TypeError: a value that is no data (a programming error of the caller).
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    # Not isinstance: enums of str and int must become plain str and int.
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, tuple):
        return {"$tuple": [plain(v) for v in value]}
    if isinstance(value, Mapping):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {str(k): plain(v) for k, v in value.items()}
        return {"$dict": [[plain(k), plain(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    raise TypeError(f"evidence must be JSON-able data (got {type(value).__name__}: {value!r})")


def unplain(value: Any) -> Any:
    """Undo ``plain``."""
    if isinstance(value, list):
        return [unplain(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        tag, inner = next(iter(value.items()))
        if tag == "$float":
            return float(inner)
        if tag == "$tuple":
            return tuple(unplain(v) for v in inner)
        if tag == "$dict":
            return {unplain(k): unplain(v) for k, v in inner}
    return {k: unplain(v) for k, v in value.items()}


def _fields(record: Record) -> dict[str, Any]:
    """Return the fields that differ from their defaults (records of a study are many)."""
    result: dict[str, Any] = {}
    for spec in fields(record):
        value = getattr(record, spec.name)
        # By repr as well: -0.0 equals 0.0 and must come back as -0.0.
        if value == spec.default and repr(value) == repr(spec.default):
            continue
        if spec.default_factory is not MISSING and value == spec.default_factory():
            continue
        result[spec.name] = _WRITERS.get((type(record), spec.name), plain)(value)
    return result


def _record(kind: type[Any], body: Mapping[str, Any], where: str) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(body) - known)
    if unknown:
        raise _damaged(where, f"{kind.__name__} has no field {unknown[0]!r}")
    try:
        values = {k: _READERS.get((kind, k), _free)(v, where) for k, v in body.items()}
        return kind(**values)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(where, f"{kind.__name__}: {error}") from error


def _damaged(where: str, why: str) -> StorageError:
    return StorageError(f"{where} is damaged: {why}; restore it from a copy, or remove it")


def _free(value: Any, where: str) -> Any:
    del where
    return unplain(value)


def _write_floats(value: Any) -> Any:
    return [plain(float(v)) for v in value]


def _write_strings(value: Any) -> Any:
    return [str(v) for v in value]


def _write_pairs(value: Any) -> Any:
    return [[str(k), plain(v)] for k, v in value]


def _write_nested(value: Any) -> Any:
    return _fields(value)


def _write_many(value: Any) -> Any:
    return [_fields(v) for v in value]


def _write_sizes(value: Any) -> Any:
    return None if value is None else [int(v) for v in value]


def _read_tuple(value: Any, where: str) -> Any:
    del where
    return None if value is None else tuple(unplain(v) for v in value)


def _read_pairs(value: Any, where: str) -> Any:
    del where
    return tuple((str(k), v) for k, v in value)


def _read_status(value: Any, where: str) -> Status:
    del where
    return Status(value)


def _reader_of(kind: type[Any]) -> Callable[[Any, str], Any]:
    return lambda value, where: _record(kind, value, where)


def _reader_of_many(kind: type[Any]) -> Callable[[Any, str], Any]:
    return lambda value, where: tuple(_record(kind, v, where) for v in value)


_WRITERS: dict[tuple[type[Any], str], Callable[[Any], Any]] = {
    (Candidate, "params"): _write_pairs,
    (Timing, "samples_us"): _write_floats,
    (Timing, "incumbent_us"): _write_floats,
    (KernelFacts, "param_bytes"): _write_sizes,
    (Evaluation, "candidate"): _write_nested,
    (Evaluation, "timings"): _write_many,
    (Evaluation, "facts"): _write_many,
    (Evaluation, "verified"): _write_strings,
    (Proposal, "suggested_params"): _write_pairs,
    (VariantRecord, "suggested_params"): _write_pairs,
}
_READERS: dict[tuple[type[Any], str], Callable[[Any, str], Any]] = {
    (Candidate, "params"): _read_pairs,
    (Timing, "samples_us"): _read_tuple,
    (Timing, "incumbent_us"): _read_tuple,
    (KernelFacts, "param_bytes"): _read_tuple,
    (Evaluation, "candidate"): _reader_of(Candidate),
    (Evaluation, "status"): _read_status,
    (Evaluation, "timings"): _reader_of_many(Timing),
    (Evaluation, "facts"): _reader_of_many(KernelFacts),
    (Evaluation, "verified"): _read_tuple,
    (Proposal, "suggested_params"): _read_pairs,
    (VariantRecord, "suggested_params"): _read_pairs,
}
