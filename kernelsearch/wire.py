"""JSON messages between the parent and its worker.

Answers come from a process that ran hostile code, so they are JSON that is checked field by field,
never pickle: a lying worker can fail its own candidate but cannot run code in the parent.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from kernelsearch import errors
from kernelsearch.errors import CandidateError, KernelSearchError, WorkerError
from kernelsearch.records import Binary, CompileJob, KernelFacts, RunReport, TimeReport

MAX_MESSAGE_BYTES = 256 << 20
MAX_TEXT = 20_000
MAX_ITEMS = 1000
MAX_DEPTH = 8

_ERRORS: dict[str, type[KernelSearchError]] = {
    c.__name__: c
    for c in vars(errors).values()
    if isinstance(c, type) and issubclass(c, CandidateError)
}
_ERRORS["WorkerError"] = WorkerError
_ERRORS["TargetUnavailableError"] = errors.TargetUnavailableError


def encode_failure(error: KernelSearchError) -> bytes:
    """Encode an exception of ours as an answer."""
    name = type(error).__name__
    if name not in _ERRORS:
        name = "WorkerError"
    evidence = jsonable(getattr(error, "evidence", {}))
    return _dump({"error": name, "message": str(error)[:MAX_TEXT], "evidence": evidence})


def encode_answer(value: Binary | RunReport | TimeReport | Mapping[str, Any] | None) -> bytes:
    """Encode what a call returned."""
    if isinstance(value, Binary):
        return _dump({"value": _binary_out(value)})
    if isinstance(value, RunReport):
        return _dump({"value": {
            "corrupted_guards": list(value.corrupted_guards),
            "modified_inputs": list(value.modified_inputs), "elapsed_s": value.elapsed_s,
        }})  # fmt: skip
    if isinstance(value, TimeReport):
        return _dump({"value": {
            "samples_us": [list(s) for s in value.samples_us],
            "end_to_end_us": list(value.end_to_end_us),
            "calls_per_sample": value.calls_per_sample, "captured_sets": list(value.captured_sets),
            "cache": value.cache, "corrupted_guards": list(value.corrupted_guards),
            "modified_inputs": list(value.modified_inputs),
            "conditions": jsonable(value.conditions),
        }})  # fmt: skip
    return _dump({"value": jsonable(value)})


def decode(message: bytes) -> dict[str, Any]:
    """Decode an answer; raise what the worker raised.

    Raises:
        WorkerError: the message is not one of ours.
        CandidateError: the candidate failed in the worker.
    """
    try:
        answer = json.loads(message, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WorkerError(f"the worker sent {len(message)} bytes that are not JSON") from error
    if not isinstance(answer, dict):
        raise WorkerError("the worker's answer is not an object")
    if "error" in answer:
        kind = _ERRORS.get(str(answer["error"]), WorkerError)
        text = clean_text(answer.get("message") or "")
        if not text.strip():
            text = "the worker gives no reason"
        evidence = answer.get("evidence")
        if issubclass(kind, CandidateError):
            raise kind(text, _harmless(evidence) if isinstance(evidence, dict) else {})
        raise kind(text)
    if "value" not in answer:
        raise WorkerError("the worker's answer has neither a value nor an error")
    return answer


def jsonable(value: Any) -> Any:
    """Return ``value`` with everything that JSON lacks turned into something it has."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(v) for v in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if hasattr(value, "tolist"):
        plain = value.tolist()
        # Types that NumPy does not know (bfloat16) give themselves.
        return jsonable(plain if isinstance(plain, list | int | float | str) else float(value))
    return str(value)


def clean_text(value: Any) -> str:
    """Return text that can be printed and stored: not too long, no halves of characters."""
    return str(value)[:MAX_TEXT].encode(errors="replace").decode()


def _harmless(value: Any, depth: int = 0) -> Any:
    """Return decoded JSON of bounded size, with nothing in it that a database would refuse."""
    if isinstance(value, dict | list) and depth >= MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        items = list(value.items())[:MAX_ITEMS]
        return {clean_text(k): _harmless(v, depth + 1) for k, v in items}
    if isinstance(value, list):
        return [_harmless(v, depth + 1) for v in value[:MAX_ITEMS]]
    if isinstance(value, str):
        return clean_text(value)
    # A number such as 1e999 is valid JSON and an infinity to Python.
    return value if value is None or isinstance(value, bool) or _number(value) else str(value)


def _no_constant(name: str) -> None:
    """Refuse NaN and infinities, which JSON does not have: Python's reader would let them in."""
    raise ValueError(f"{name} is not JSON")


def _dump(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False).encode()


def _checked(field: str, value: Any, test: Callable[[Any], bool]) -> Any:
    if not test(value):
        raise WorkerError(f"the worker's answer has a bad {field}: {str(value)[:200]!r}")
    return value


def _texts(field: str, value: Any) -> tuple[str, ...]:
    good = (
        isinstance(value, list) and len(value) < 10_000
        and all(isinstance(v, str) and v == clean_text(v) for v in value)
    )  # fmt: skip
    return tuple(_checked(field, value, lambda _: good))


def _number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    # An integer too large for a float would overflow later, in the parent.
    return (isinstance(value, float) and math.isfinite(value)) or (
        isinstance(value, int) and abs(value) < 1 << 63
    )


def _count(value: Any) -> bool:
    return _number(value) and isinstance(value, int) and value >= 0


def run_report(answer: Mapping[str, Any]) -> RunReport:
    """Build a ``RunReport`` from a decoded answer."""
    value = _checked("value", answer["value"], lambda v: isinstance(v, dict))
    return RunReport(
        _texts("corrupted_guards", value.get("corrupted_guards")),
        _texts("modified_inputs", value.get("modified_inputs")),
        float(_checked("elapsed_s", value.get("elapsed_s"), _number)),
    )


def time_report(answer: Mapping[str, Any]) -> TimeReport:
    """Build a ``TimeReport`` from a decoded answer."""
    value = _checked("value", answer["value"], lambda v: isinstance(v, dict))
    samples = _checked(
        "samples_us", value.get("samples_us"),
        lambda v: isinstance(v, list) and 1 <= len(v) <= 2
        and all(isinstance(s, list) and s and all(_number(x) and x > 0 for x in s) for s in v),
    )  # fmt: skip
    ends = _checked(
        "end_to_end_us",
        value.get("end_to_end_us"),
        lambda v: isinstance(v, list) and all(_number(x) for x in v),
    )
    captured = _checked(
        "captured_sets",
        value.get("captured_sets"),
        lambda v: isinstance(v, list) and all(_count(x) for x in v),
    )
    conditions = _checked("conditions", value.get("conditions"), lambda v: isinstance(v, dict))
    return TimeReport(
        samples_us=tuple(tuple(float(x) for x in s) for s in samples),
        end_to_end_us=tuple(float(x) for x in ends),
        calls_per_sample=int(_checked("calls_per_sample", value.get("calls_per_sample"), _count)),
        captured_sets=tuple(captured),
        cache=_checked("cache", value.get("cache"), lambda v: v in ("cold", "hot")),
        corrupted_guards=_texts("corrupted_guards", value.get("corrupted_guards")),
        modified_inputs=_texts("modified_inputs", value.get("modified_inputs")),
        conditions=_harmless(conditions),
    )


def confinement(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Build the names of a child's limits from its answer to being opened."""
    value = _checked("value", answer["value"], lambda v: isinstance(v, dict))
    return _texts("confined", value.get("confined"))


def rates(answer: Mapping[str, Any]) -> dict[str, float]:
    """Build the measured rates of a device from a decoded answer."""
    value = _checked(
        "value", answer["value"],
        lambda v: isinstance(v, dict) and all(_number(x) and x > 0 for x in v.values()),
    )  # fmt: skip
    return {clean_text(k): float(v) for k, v in value.items()}


def _binary_out(binary: Binary) -> dict[str, Any]:
    return {
        "key": binary.key,
        "image": base64.b64encode(binary.image).decode(),
        "code_hash": binary.code_hash,
        "symbols": dict(binary.symbols),
        "facts": [{
            "name": f.name, "registers": f.registers, "spill_store_bytes": f.spill_store_bytes,
            "spill_load_bytes": f.spill_load_bytes, "stack_bytes": f.stack_bytes,
            "static_shared_bytes": f.static_shared_bytes, "barriers": f.barriers,
            "param_bytes": None if f.param_bytes is None else list(f.param_bytes),
            "code": dict(f.code),
        } for f in binary.facts],
        "log": binary.log[:MAX_TEXT],
        "compile_s": binary.compile_s,
        "module_globals": list(binary.module_globals),
    }  # fmt: skip


def kernel_facts(value: Mapping[str, Any]) -> KernelFacts:
    """Build ``KernelFacts`` from a JSON object."""
    names = ("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes",
             "static_shared_bytes", "barriers")  # fmt: skip
    numbers = {n: value.get(n) for n in names}
    for name, number in numbers.items():
        _checked(name, number, lambda v: v is None or _count(v))
    sizes = _checked(
        "param_bytes", value.get("param_bytes"),
        lambda v: v is None or (isinstance(v, list) and all(_count(x) for x in v)),
    )  # fmt: skip
    code = _checked(
        "code", value.get("code", {}),
        lambda v: isinstance(v, dict) and len(v) <= MAX_ITEMS and all(map(_number, v.values())),
    )  # fmt: skip
    return KernelFacts(
        name=clean_text(value["name"]),
        **numbers,
        param_bytes=None if sizes is None else tuple(sizes),
        code={clean_text(k): float(v) for k, v in code.items()},
    )


def binary(answer: Mapping[str, Any], job: CompileJob) -> Binary:
    """Build a ``Binary`` from a decoded answer to compiling ``job``."""
    value = _checked("value", answer["value"], lambda v: isinstance(v, dict))
    try:
        image = base64.b64decode(value["image"], validate=True)
        facts = tuple(kernel_facts(f) for f in value["facts"])
        symbols = {clean_text(k): clean_text(v) for k, v in value["symbols"].items()}
        # Under another key it would take the place of another candidate.
        key = _checked("key", value["key"], lambda v: v == job.key)
        return Binary(
            key=key, job=job, image=image, code_hash=clean_text(value["code_hash"]),
            symbols=symbols, facts=facts, log=clean_text(value["log"]),
            compile_s=float(_checked("compile_s", value["compile_s"], _number)),
            module_globals=_texts("module_globals", value["module_globals"]),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise WorkerError(f"the worker's compile answer is malformed ({error})") from error
