"""Whatever is read from outside is read, or refused with a sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernelsearch import wire
from kernelsearch.cli.parsing import parse_params
from kernelsearch.errors import StudyError, WorkerError
from kernelsearch.settings import load_study_file
from kernelsearch.variant import parse_variant
from tests.fuzz.subjects import SUBJECTS, Subject, outcome, templates

CALM = settings(
    max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda s: s.kind)
@pytest.mark.timeout(120)
def test_mutated_inputs_get_clear_errors_only(subject: Subject) -> None:
    seen: dict[str, int] = {}

    @CALM
    @given(value=subject.drawn())
    def run(value: Any) -> None:
        name = outcome(subject, value)
        seen[name] = seen.get(name, 0) + 1

    run()
    # Neither all were refused at the door, nor did nothing reach what was changed.
    assert any(seen)


def test_a_bare_exception_is_a_fault() -> None:
    def broken(value: object) -> None:
        raise KeyError(value)

    with pytest.raises(KeyError):
        outcome(Subject("x", st.text, broken), "x")


# --- what was found, with its kind --------------------------------------------------------------


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000, "\x00", "{a.b = 1, a.b.c = 2}"])
def test_a_study_file_with_numbers_or_lists_without_end(value: str, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'operator = "rms_norm"\nseed = {value}\n')
    with pytest.raises(StudyError, match="is not TOML"):
        load_study_file(tmp_path / "s.toml")


@pytest.mark.parametrize("message", ["", "null", "0", '"  "'])
def test_a_failure_without_a_reason_says_so(message: str) -> None:
    said = f', "message": {message}' if message else ""
    with pytest.raises(WorkerError, match="gives no reason"):
        wire.decode(f'{{"error": "WorkerError"{said}}}'.encode())


@pytest.mark.parametrize("value", ["9" * 5000, "²", "--1", "wide"])
def test_a_param_that_is_no_integer_is_a_word(value: str) -> None:
    variant = parse_variant(templates()[0][1], "cpu")
    named = replace(variant, tunables={"A": (1, 2)})
    assert parse_params(named, [f"A={value}"]) == {"A": value}
