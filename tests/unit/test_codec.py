"""Records come back from JSON exactly as they went in."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.codec import FORMAT, decode, encode, from_json, plain, to_json, unplain
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

words = st.text(max_size=12)
numbers = st.integers() | st.floats(allow_nan=False)
data = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(words | st.just("$tuple") | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)
mappings = st.dictionaries(words, data, max_size=3)
times = st.lists(st.floats(min_value=1e-300, max_value=1e300), min_size=1, max_size=5).map(tuple)
params = st.dictionaries(words, st.integers() | words, max_size=4).map(
    lambda d: tuple(sorted(d.items()))
)
candidates = st.builds(Candidate, variant=words, params=params, dtype=words)
optional = st.none() | st.integers()
timings = st.builds(
    Timing, workload=words, samples_us=times, incumbent_us=st.just(()) | times,
    end_to_end_us=st.none() | st.floats(allow_nan=False), cache=st.sampled_from(["cold", "hot"]),
    conditions=mappings,
)  # fmt: skip
facts = st.builds(
    KernelFacts, name=words, registers=optional, spill_load_bytes=optional,
    param_bytes=st.none() | st.lists(st.integers(0, 9)).map(tuple),
)  # fmt: skip
good = st.builds(
    Evaluation, candidate=candidates, status=st.just(Status.OK), message=words, evidence=mappings,
    timings=st.lists(timings, min_size=1, max_size=3).map(tuple),
    facts=st.lists(facts, max_size=2).map(tuple), confirmed=st.booleans(),
    verified=st.lists(words, max_size=3).map(tuple), created=st.floats(allow_nan=False),
    stages_s=st.dictionaries(words, st.floats(allow_nan=False), max_size=2),
)  # fmt: skip
bad = st.builds(
    Evaluation, candidate=candidates, evidence=mappings,
    status=st.sampled_from([s for s in Status if s is not Status.OK]),
)  # fmt: skip
proposals = st.builds(
    Proposal, source=words, parent=words, proposer=words, mutation=words, suggested_params=params,
    predicted_gain=st.none() | st.floats(allow_nan=False),
)  # fmt: skip
variants = st.builds(
    VariantRecord, hash=words, operator=words, language=words, source=words, name=words,
    suggested_params=params, created=st.floats(allow_nan=False),
)  # fmt: skip
devices = st.builds(Device, target=words, name=words, arch=words, facts=st.just({"cores": 2}))


def same(a: Any, b: Any) -> bool:
    """Equal, of the same types, and floats bit for bit (equality alone takes True for 1)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return np.float64(a).tobytes() == np.float64(b).tobytes()
    if isinstance(a, dict):
        return list(map(repr, a)) == list(map(repr, b)) and all(
            same(x, y) for x, y in zip(a.values(), b.values(), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


@given(good | bad | proposals | variants | timings | facts | candidates | devices)
def test_round_trip_is_exact(record: Any) -> None:
    text = encode(record)
    assert "\n" not in text
    assert text.isascii()
    back = decode(text)
    assert same(back, record)


@given(data)
def test_free_form_data_round_trips(value: Any) -> None:
    assert same(unplain(json.loads(json.dumps(plain(value), allow_nan=False))), value)


def test_numbers_that_json_lacks() -> None:
    back = unplain(plain({"got": math.nan, "up": math.inf, "n": np.float32(1.5), "i": np.int64(3)}))
    assert math.isnan(back["got"])
    assert back["up"] == math.inf
    assert (back["n"], back["i"]) == (1.5, 3)
    assert unplain(plain(np.arange(3))) == [0, 1, 2]


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(TypeError, match="JSON-able data"):
        plain({"x": object()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, f"format 2, this version reads format {FORMAT}"),
        ({"format": True}, "format True"),
        ({"type": "Elephant"}, "type 'Elephant' is unknown"),
        ({"colour": "red"}, "no field 'colour'"),
        ({"status": "splendid"}, "splendid"),
        ({"status": "ok"}, "exactly when status is ok"),
        ({"candidate": {"variant": "v"}}, "missing"),
    ],
)
def test_foreign_documents_are_refused(change: dict[str, Any], message: str) -> None:
    document = to_json(Evaluation(Candidate("v", (), "float32"), Status.CRASHED)) | change
    with pytest.raises(StorageError, match=message):
        from_json(document, "line 3")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', "null"])
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(StorageError, match=r"line 3 (is damaged|has format)"):
        decode(text, "line 3")
