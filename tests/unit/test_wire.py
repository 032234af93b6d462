"""Answers of a worker: exact round trips, and nothing a liar writes gets past the checks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch import errors, wire
from kernelsearch.errors import (
    CandidateError,
    KernelSearchError,
    OperatorError,
    TargetUnavailableError,
    WorkerError,
    WrongResultError,
)
from kernelsearch.records import Binary, CompileJob, KernelFacts, RunReport, TimeReport

JOB = CompileJob("cuda", "source", ("k",), "sm_90")
finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(1e-6, 1e12)
counts = st.integers(0, 1 << 40)
names = st.lists(st.text(max_size=8), max_size=3).map(tuple)
maybe = st.none() | counts


@given(st.builds(RunReport, names, names, finite))
def test_run_reports(report: RunReport) -> None:
    assert wire.run_report(wire.decode(wire.encode_answer(report))) == report


@given(st.builds(
    TimeReport,
    samples_us=st.lists(st.lists(positive, min_size=1, max_size=4).map(tuple), min_size=1,
                        max_size=2).map(tuple),
    end_to_end_us=st.lists(finite, max_size=2).map(tuple), calls_per_sample=counts,
    captured_sets=st.lists(counts, max_size=3).map(tuple), cache=st.sampled_from(["cold", "hot"]),
    corrupted_guards=names, modified_inputs=names,
    conditions=st.dictionaries(st.text(max_size=4), finite | st.text(max_size=4), max_size=3),
))  # fmt: skip
def test_time_reports(report: TimeReport) -> None:
    assert wire.time_report(wire.decode(wire.encode_answer(report))) == report


@given(st.builds(
    Binary, key=st.text(max_size=8), job=st.just(JOB), image=st.binary(max_size=64),
    code_hash=st.text(max_size=8),
    symbols=st.dictionaries(st.text(max_size=4), st.text(max_size=4)),
    facts=st.lists(st.builds(
        KernelFacts, st.text(max_size=4), maybe, maybe, maybe, maybe, maybe, maybe,
        st.none() | st.lists(counts, max_size=3).map(tuple),
    ), max_size=2).map(tuple),
    log=st.text(max_size=20), compile_s=finite, module_globals=names,
))  # fmt: skip
def test_binaries(binary: Binary) -> None:
    sent = replace(binary, key=JOB.key)
    assert wire.binary(wire.decode(wire.encode_answer(sent)), JOB) == sent


@pytest.mark.parametrize("kind", [c for c in vars(errors).values() if isinstance(c, type)
                                  and issubclass(c, CandidateError)])  # fmt: skip
def test_candidate_errors(kind: type[CandidateError]) -> None:
    error = kind("what happened", {"index": (1, 2), "got": float("nan"), "n": np.float32(2)})
    with pytest.raises(kind, match="what happened") as caught:
        wire.decode(wire.encode_failure(error))
    assert type(caught.value) is kind
    assert caught.value.evidence == {"index": [1, 2], "got": "nan", "n": 2.0}


@pytest.mark.parametrize(
    ("sent", "received"),
    [(TargetUnavailableError("no driver"), TargetUnavailableError),
     (WorkerError("broken"), WorkerError), (OperatorError("bad"), WorkerError)],
)  # fmt: skip
def test_other_errors(sent: KernelSearchError, received: type[KernelSearchError]) -> None:
    with pytest.raises(received, match=str(sent)):
        wire.decode(wire.encode_failure(sent))


def test_long_messages_are_cut() -> None:
    with pytest.raises(WrongResultError) as caught:
        wire.decode(wire.encode_failure(WrongResultError("x" * 1_000_000)))
    assert len(str(caught.value)) == wire.MAX_TEXT


def test_nothing_is_an_answer_too() -> None:
    assert wire.decode(wire.encode_answer(None)) == {"value": None}


@pytest.mark.parametrize(
    "message",
    [b"", b"{", b"null", b"3", b'"x"', b"[]", b"{}", b"\xff\xfe", b'{"value": NaN}',
     b'{"value": -Infinity}', b"[" * 100_000, b'{"value": ' + b"9" * 5000 + b"}",
     b'{"error": "KeyboardInterrupt"}', b'{"error": null}', b'{"error": {"a": 1}}'],
)  # fmt: skip
def test_messages_that_are_not_ours(message: bytes) -> None:
    with pytest.raises(WorkerError):
        wire.decode(message)


def test_evidence_that_is_no_object_is_dropped() -> None:
    with pytest.raises(WrongResultError) as caught:
        wire.decode(b'{"error": "WrongResultError", "message": 3, "evidence": [1]}')
    assert caught.value.evidence == {}


RUN = {"corrupted_guards": [], "modified_inputs": [], "elapsed_s": 0.5}
TIME: dict[str, Any] = {
    "samples_us": [[1.0]], "end_to_end_us": [2.0], "calls_per_sample": 1, "captured_sets": [0],
    "cache": "cold", "corrupted_guards": [], "modified_inputs": [], "conditions": {},
}  # fmt: skip
BINARY: dict[str, Any] = {
    "key": JOB.key, "image": "", "code_hash": "h", "symbols": {}, "facts": [{"name": "k"}],
    "log": "", "compile_s": 0.1, "module_globals": [],
}  # fmt: skip
BAD = [None, "x", -1.5, [["x"]], [None], {"a": 1}, 10**400, True, [True], [-1], [10**30], [[]]]


def lies(honest: dict[str, Any]) -> list[Any]:
    whole: list[Any] = [None, 3, [], "x", {}]
    single = [{**honest, key: bad} for key in honest for bad in BAD]
    missing = [{k: v for k, v in honest.items() if k != gone} for gone in honest]
    return whole + single + missing


def as_sent(value: Any) -> dict[str, Any]:
    return wire.decode(json.dumps({"value": value}).encode())


def test_a_liar_gives_a_report_that_checks_or_a_worker_error() -> None:
    for lie in lies(RUN):
        try:
            report = wire.run_report({"value": lie})
        except WorkerError:
            continue
        assert isinstance(report.elapsed_s, float)
        assert all(isinstance(n, str) for n in report.corrupted_guards + report.modified_inputs)


def test_a_liar_about_times() -> None:
    assert wire.time_report(as_sent(TIME)).samples_us == ((1.0,),)
    bad_samples = [{**TIME, "samples_us": s} for s in ([[0.0]], [[1], [1], [1]], [[1.0], []])]
    for lie in [*lies(TIME), *bad_samples, {**TIME, "cache": "warm"}]:
        try:
            report = wire.time_report({"value": lie})
        except WorkerError:
            continue
        assert all(s > 0 for samples in report.samples_us for s in samples)
        assert all(type(i) is int and i >= 0 for i in report.captured_sets)
        assert isinstance(report.conditions, dict)


def test_a_liar_about_binaries() -> None:
    assert wire.binary(as_sent(BINARY), JOB).job is JOB
    wrong: list[Any] = [
        3, {}, {"name": "k", "registers": "many"}, {"name": "k", "registers": -1},
        {"name": "k", "param_bytes": 3}, {"name": "k", "param_bytes": ["x"]},
    ]  # fmt: skip
    bad_facts = [{**BINARY, "facts": [f]} for f in wrong]
    bad_images = [{**BINARY, "image": i} for i in ("é", "a", "====", "ab cd")]
    for lie in [*lies(BINARY), *bad_facts, *bad_images]:
        try:
            binary = wire.binary({"value": lie}, JOB)
        except WorkerError:
            continue
        assert isinstance(binary.image, bytes)
        assert isinstance(binary.compile_s, float)
    for lie in bad_facts + bad_images:
        with pytest.raises(WorkerError):
            wire.binary({"value": lie}, JOB)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda x: st.lists(x) | st.dictionaries(st.integers(), x)
                    | st.frozensets(st.integers()), max_leaves=10))  # fmt: skip
def test_anything_becomes_json(value: Any) -> None:
    json.dumps(wire.jsonable(value), allow_nan=False)


def test_numpy_and_paths_become_json() -> None:
    from pathlib import Path

    value = {
        "a": np.int64(3), "b": Path("x"), "c": np.float64("inf"), "d": np.ones((2, 1)),
        "e": ml_dtypes.bfloat16(1.5), "f": np.array([2], ml_dtypes.bfloat16), "g": np.bool_(True),
    }  # fmt: skip
    assert wire.jsonable(value) == {
        "a": 3, "b": "x", "c": "inf", "d": [[1.0], [1.0]], "e": 1.5, "f": [2.0], "g": True,
    }  # fmt: skip


def test_what_a_liar_says_can_be_stored_and_printed() -> None:
    deep = "[" * 50 + "]" * 50
    message = (
        '{"error": "WrongResultError", "message": "\\ud800' + "x" * 30_000 + '", "evidence": '
        '{"\\udfff": 1e999, "deep": ' + deep + ', "long": [' + "0," * 5000 + "0]}}"
    )
    with pytest.raises(errors.WrongResultError) as caught:
        wire.decode(message.encode())
    assert len(str(caught.value).encode()) <= wire.MAX_TEXT
    text = json.dumps(caught.value.evidence, allow_nan=False, ensure_ascii=False)
    assert len(text.encode()) < 10_000
    assert caught.value.evidence["?"] == "inf"


def test_a_binary_keeps_its_place_and_rates_are_positive_numbers() -> None:
    with pytest.raises(WorkerError, match="bad key"):
        wire.binary({"value": {**BINARY, "key": "another"}}, JOB)
    assert wire.rates({"value": {"dram_gbps": 3}}) == {"dram_gbps": 3.0}
    for lie in (3, {"a": 0}, {"a": -1.0}, {"a": "x"}, {"a": float("inf")}, {"a": True}):
        with pytest.raises(WorkerError):
            wire.rates({"value": lie})
