"""The exception family: who is at fault, what the sentence says, and that it survives a pickle."""

from __future__ import annotations

import inspect
import pickle

import pytest

from kernelsearch import errors
from kernelsearch.errors import (
    CandidateError,
    ExpressionError,
    KernelSearchError,
    MissingExtraError,
    SpecError,
    UnknownNameError,
    VariantError,
    WrongResultError,
)
from kernelsearch.records import Status

ALL = [c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__]


def test_every_error_is_of_the_family_and_documented() -> None:
    for kind in ALL:
        assert issubclass(kind, KernelSearchError)
        assert kind.__doc__
        assert kind.__name__.endswith("Error")


def test_every_failure_of_a_candidate_has_its_own_status() -> None:
    kinds = [c for c in ALL if issubclass(c, CandidateError) and c is not CandidateError]
    direct = [c for c in kinds if CandidateError in c.__bases__]
    statuses = [c.status for c in direct]
    assert len(set(statuses)) == len(statuses)
    assert set(statuses) == set(Status) - {Status.OK, Status.INFRASTRUCTURE_ERROR}


def test_names_that_are_nearly_right() -> None:
    error = UnknownNameError("operator", "rms_nrom", ["rms_norm", "softmax"])
    assert str(error) == "unknown operator 'rms_nrom'; did you mean 'rms_norm'?"
    assert error.near == ["rms_norm"]
    assert "known: a, b" in str(UnknownNameError("set", "zzz", ["b", "a"]))
    assert "there are none" in str(UnknownNameError("set", "zzz", []))
    assert str(UnknownNameError("x", "y", ["q"], "try list")).endswith("known: q try list")


def test_places() -> None:
    assert str(VariantError("is bad", "v.cu", 3, 7)) == "v.cu:3:7: is bad"
    assert str(VariantError("is bad", "v.cu", 3)) == "v.cu:3: is bad"
    assert str(VariantError("is bad")) == "<variant>: is bad"
    assert str(ExpressionError("is bad", "a +", 4)) == "is bad at column 4 in expression 'a +'"


def test_a_missing_extra_says_how_to_get_it() -> None:
    error = MissingExtraError("reading .mtx files", "scipy", "scipy")
    assert "pip install 'kernelsearch[scipy]'" in str(error)


@pytest.mark.parametrize(
    "error",
    [KernelSearchError("k"), SpecError("s"), UnknownNameError("operator", "x", ["y"], "do"),
     ExpressionError("m", "a b", 2), VariantError("m", "p", 1, 2),
     MissingExtraError("f", "cuda", "cuda-core"), CandidateError("c"),
     WrongResultError("w", {"index": [1, 2], "got": 3.0})],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_errors_survive_a_pickle(error: KernelSearchError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_evidence_is_the_errors_own_copy() -> None:
    evidence: dict[str, object] = {"a": 1}
    error = CandidateError("x", evidence)
    evidence["a"] = 2
    assert error.evidence == {"a": 1}
    assert CandidateError("x").evidence == {}
