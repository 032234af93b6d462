"""Turn records into JSON and back, exactly: floats bit for bit, tuples as tuples, versioned.

Every document says ``format`` and ``type``. Inside free-form mappings (evidence, conditions) what
JSON has no word for is tagged: ``{"$tuple": [...]}``, ``{"$float": "nan"}``,
``{"$dict": [[k, v]]}``. What is stored is sealed: its text ends with a checksum of the rest, so
that a digit which the disk has changed is noticed.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

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
# No free-form key begins with "$": the seal cannot be taken for data, or data for the seal.
_SEAL_BEFORE, _SEAL_AFTER, _SUM_CHARS = '"$sum":"', '"}', 16
_SEAL_CHARS = len(_SEAL_BEFORE) + _SUM_CHARS + len(_SEAL_AFTER)
# What reading foreign JSON can raise.
BROKEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
Record: TypeAlias = (
    Evaluation | VariantRecord | Proposal | Timing | KernelFacts | Candidate | Device
)
_TYPES: dict[str, type[Any]] = {
    t.__name__: t
    for t in (Evaluation, VariantRecord, Proposal, Timing, KernelFacts, Candidate, Device)
}
_HINTS: dict[type[Any], dict[str, Any]] = {t: get_type_hints(t) for t in _TYPES.values()}


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
    """Return the record in a line of JSON, sealed or not; raises what ``from_json`` raises."""
    text = unseal(text, where)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(where, f"it is not JSON ({error})") from error
    return from_json(document, where)


def seal(text: str) -> str:
    """Return the text of a JSON object with a checksum of it as its last member."""
    comma = "" if text == "{}" else ","
    return f"{text[:-1]}{comma}{_SEAL_BEFORE}{_checksum(text)}{_SEAL_AFTER}"


def is_sealed(text: str) -> bool:
    """Tell whether ``seal`` has been applied (not whether the checksum is right)."""
    tail = text[-_SEAL_CHARS:]
    return tail.startswith(_SEAL_BEFORE) and tail.endswith(_SEAL_AFTER)


def unseal(text: str, where: str = "record") -> str:
    """Return what was sealed; text without a seal (of format 1) is returned as it is.

    Raises:
        StorageError: the text is not what was sealed.
    """
    if not isinstance(text, str):
        raise _damaged(where, f"it must be text (got {type(text).__name__})")
    if not is_sealed(text):
        return text
    inner = text[:-_SEAL_CHARS].removesuffix(",") + "}"
    found = text[-_SEAL_CHARS:].removeprefix(_SEAL_BEFORE).removesuffix(_SEAL_AFTER)
    if found != _checksum(inner):
        raise _damaged(where, "its content does not have the checksum that was stored with it")
    return inner


def _checksum(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:_SUM_CHARS]


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
        for name, value in values.items():
            if not _fits(value, _HINTS[kind][name]):
                raise TypeError(f"{name} must not be {str(value)[:60]!r}")
        return kind(**values)
    except BROKEN as error:
        raise _damaged(where, f"{kind.__name__}: {error}") from error


def _fits(value: Any, hint: Any) -> bool:
    """Tell whether a value that was read has its field's type; what comes later relies on it."""
    if hint is Any:
        return True
    if hint is float:
        # An integer too large for a float would overflow later.
        return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 1000)
    if hint is int:
        return type(value) is int
    if hint is str:
        # Half a surrogate pair is valid JSON, and cannot be printed.
        return isinstance(value, str) and value == value.encode(errors="replace").decode()
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is None:
        return isinstance(value, hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, a) for a in arguments)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if arguments[-1] is Ellipsis:
            return all(_fits(v, arguments[0]) for v in value)
        return len(value) == len(arguments) and all(map(_fits, value, arguments))
    key, item = arguments
    return isinstance(value, Mapping) and all(
        _fits(k, key) and _fits(v, item) for k, v in value.items()
    )


def _damaged(where: str, why: str) -> StorageError:
    return StorageError(
        f"{where} is damaged: {why}; restore it from a copy, or save what is intact with "
        "`kernelsearch repair`"
    )


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
