"""Answers to requests: both forms, and a clear refusal of everything else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.errors import AnswerError
from kernelsearch.propose.answer import Answer, Edit, applied, read_data, read_text

PARENT = "int a = 1;\nint b = 2;\n    int c = 3;\nint a = 1;\n"


def edits(*pairs: tuple[str, str]) -> Answer:
    return Answer("m", "r", None, tuple(Edit(*p) for p in pairs))


def test_text_with_edits_and_a_head() -> None:
    answer = read_text(
        "mutation: Wider Loads!\nrationale: fewer\ngain: about 1.3x\n\n"
        "<<<<<<< SEARCH\nint b = 2;\n=======\nint b = 4;\nint d;\n>>>>>>> REPLACE\n"
    )
    assert (answer.mutation, answer.gain) == ("wider_loads", 1.3)
    assert applied(answer, PARENT) == PARENT.replace("int b = 2;", "int b = 4;\nint d;")


def test_an_edit_may_delete() -> None:
    answer = read_text("<<<<<<< SEARCH\nint b = 2;\n=======\n>>>>>>> REPLACE\n")
    assert "int b" not in applied(answer, PARENT)


def test_a_whole_file_in_a_fence() -> None:
    file = "/* kernelsearch\nformat = 1\n*/\nint x;\n"
    assert read_text(f"mutation: m\n\n```cpp\n{file}```\n").source == file
    with pytest.raises(AnswerError, match="2 whole variant files"):
        read_text(f"```cpp\n{file}```\n```cpp\n{file}```\n")


def test_white_space_may_differ() -> None:
    assert "int c = 9;" in applied(edits(("int c = 3;  ", "int c = 9;")), PARENT)


@pytest.mark.parametrize(("answer", "why"), [
    (edits(("int a = 1;", "x")), r"stands in 2 places \(lines 1, 4\)"),
    (edits(("int q = 77777;", "x")), "no such lines|no line like"),
    (edits(("int b = 2;\nint z;", "x")), "line 2 of the parent"),
    (edits(("int b = 2;", "int  b = 2;")), "changes nothing"),
])  # fmt: skip
def test_edits_that_do_not_fit_are_refused(answer: Answer, why: str) -> None:
    with pytest.raises(AnswerError, match=why):
        applied(answer, PARENT)


@pytest.mark.parametrize(("data", "why"), [
    ({}, "holds no kernel"),
    ({"edits": "all"}, "must be a list"),
    ({"edits": [{"search": "x"}]}, "edit 1 must have"),
    ({"edits": [{"search": " \n", "replace": "x"}]}, "searches for nothing"),
    ({"edits": [{"search": "a", "replace": "x"}], "source": "y"}, "both"),
    ({"source": 3}, "source must be text"),
])  # fmt: skip
def test_data_that_is_no_answer_is_refused(data: dict[str, object], why: str) -> None:
    with pytest.raises(AnswerError, match=why):
        read_data(data)


@given(st.text(max_size=400), st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str, parent: str) -> None:
    for given_text in (text, f"<<<<<<< SEARCH\n{text}\n=======\n{text}\n>>>>>>> REPLACE"):
        with contextlib.suppress(AnswerError):
            assert applied(read_text(given_text), parent) != parent
