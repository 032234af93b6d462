"""The archive knows what is best, what descends from what, and what is the same code."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.archive import Archive
from kernelsearch.errors import UnknownNameError
from kernelsearch.records import Candidate, Evaluation, Status, Timing, VariantRecord

BASELINE = {"small": 8.0, "large": 80.0}


def record(name: str, parent: str = "", second: str = "") -> VariantRecord:
    return VariantRecord(
        name, "rms_norm", "cuda", f"line\n{name}\n", name=name, parent=parent, second_parent=second
    )


def evaluation(variant: str, n: int, *times: float, code: str = "", **more: Any) -> Evaluation:
    timings = tuple(Timing(w, (t,)) for w, t in zip(BASELINE, times, strict=False))
    status = Status.OK if times else Status.WRONG
    candidate = Candidate(variant, (("N", n),), "float32")
    return Evaluation(candidate, status, timings=timings, code_hash=code, **more)


def archive(objective: str = "geometric_mean", *, baseline: bool = True) -> Archive:
    made = Archive(objective, {"small": 1.0, "large": 3.0})
    for name, parent, second in [("a", "", ""), ("b", "a", ""), ("c", "b", "a"), ("z", "", "")]:
        assert made.add_variant(record(name, parent, second))
    if baseline:
        made.set_baseline(BASELINE)
    return made


@pytest.mark.parametrize(
    ("objective", "expected"),
    [("geometric_mean", 4.0), ("minimum", 2.0), ("weighted_mean", 2 ** (1 / 4) * 8 ** (3 / 4) / 1)],
)
def test_objectives(objective: str, expected: float) -> None:
    # 8 / 4 = 2 on small, 80 / 10 = 8 on large, which has three quarters of the weight.
    assert archive(objective).objective(evaluation("a", 1, 4.0, 10.0)) == pytest.approx(expected)


def test_an_evaluation_without_a_workload_or_baseline_has_no_objective() -> None:
    assert archive().objective(evaluation("a", 1, 4.0)) is None
    assert archive().objective(evaluation("a", 1)) is None
    assert archive(baseline=False).objective(evaluation("a", 1, 4.0, 10.0)) is None
    with pytest.raises(UnknownNameError, match="geometric_mean"):
        Archive("geometric", {})


def test_best_elites_and_niches() -> None:
    made = archive()
    assert made.best() is None
    assert made.best_of("a") is None
    first, better = evaluation("a", 1, 8.0, 80.0), evaluation("b", 1, 4.0, 40.0)
    for e in (first, better, evaluation("b", 2, 6.0, 60.0), evaluation("b", 3)):
        made.add(e)
    other = evaluation("z", 1, 5.0, 50.0)
    made.add(other)
    assert made.best() == better
    assert made.best_of("b") == better
    assert made.elites(2) == [better, other]
    assert made.elites(0) == []
    assert made.elites(9) == [better, other, first]
    assert made.niches() == {"a": better, "z": other}
    assert made.incumbents() == [first, better]
    assert made.statuses() == {"wrong": 1, "ok": 4}
    assert made.count() == 5
    assert made.since_best() == 3
    assert made.find(other.candidate) == other
    assert made.find(Candidate("z", (), "float32")) is None
    assert len(made.evaluations()) == 5


def test_without_a_baseline_the_fastest_is_best() -> None:
    made = archive(baseline=False)
    slow, fast = evaluation("a", 1, 8.0, 80.0), evaluation("b", 1, 4.0, 40.0)
    made.add(slow)
    made.add(fast)
    assert made.best() == fast
    assert made.nodes()[0].speedup is None
    assert made.since_best() == 2
    made.set_baseline(slow.times_us())
    assert made.since_best() == 0
    assert made.objective(fast) == pytest.approx(2.0)


def test_a_revision_replaces() -> None:
    made = archive()
    made.add(evaluation("a", 1, 8.0, 80.0))
    made.add(evaluation("b", 1, 2.0, 20.0, code="x"))
    assert made.best_of("b") is not None
    struck = evaluation("b", 1, code="x", message="unstable")
    made.add(struck)
    assert made.count() == 2
    assert made.best_of("b") is None
    assert made.best() == made.best_of("a")
    assert made.by_code_hash("x") == struck
    assert made.since_best() == 1


def test_equal_machine_code_is_found_and_counted_once() -> None:
    made = archive()
    first = evaluation("a", 1, 4.0, 40.0, code="x")
    made.add(first)
    made.add(evaluation("b", 1, 4.0, 40.0, code="x"))
    made.add(evaluation("z", 1, 9.0, 90.0))
    made.add(evaluation("c", 1, 10.0, 100.0))
    assert made.by_code_hash("x") == first
    assert made.by_code_hash("y") is None
    assert made.by_code_hash("") is None
    assert [e.candidate.variant for e in made.elites(3)] == ["a", "z", "c"]


def test_lineage() -> None:
    made = archive()
    assert not made.add_variant(record("a"))
    assert [v.name for v in made.path_to_root("c")] == ["c", "b", "a"]
    assert [v.name for v in made.children("a")] == ["b", "c"]
    assert made.children("nobody") == []
    assert made.diff_to_parent("a") == ""
    assert "-a" in made.diff_to_parent("b").splitlines()
    assert "+b" in made.diff_to_parent("b").splitlines()
    made.mark_exhausted("b")
    made.add(evaluation("b", 1, 4.0, 40.0))
    seen = {n.hash: (n.parent, n.depth, n.children, n.exhausted) for n in made.nodes()}
    assert seen == {
        "a": ("", 0, 2, False), "b": ("a", 1, 1, True), "c": ("b", 2, 0, False),
        "z": ("", 0, 0, False),
    }  # fmt: skip
    assert made.nodes()[1].speedup == pytest.approx(2.0)
    assert made.has_variant("a")
    with pytest.raises(UnknownNameError, match="unknown variant 'q'"):
        made.variant("q")


def test_a_child_may_come_before_its_parent_and_a_circle_is_cut() -> None:
    made = Archive("minimum", {})
    made.add_variant(record("child", "parent"))
    assert [v.name for v in made.path_to_root("child")] == ["child"]
    made.add_variant(record("parent", "child"))
    made.add_variant(record("self", "self"))
    assert [v.name for v in made.path_to_root("child")] == ["child", "parent"]
    assert len(made.nodes()) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30))
def test_the_short_cuts_agree_with_the_definition(steps: list[tuple[int, int]]) -> None:
    made = Archive("geometric_mean", {"small": 1.0})
    made.set_baseline(BASELINE)
    best, since, seen = -math.inf, 0, set()
    fresh = True
    for n, quality in steps:
        e = evaluation("a", n, *([8.0 / quality] if quality else []))
        fresh = fresh and n not in seen
        seen.add(n)
        made.add(e)
        made.since_best()
        if quality > best and quality:
            best, since = quality, 0
        else:
            since += 1
    if fresh:
        assert made.since_best() == since
    scores = [s for e in made.evaluations() if (s := made.objective(e)) is not None]
    found = made.best()
    assert (found is None) == (not scores)
    if found is not None:
        assert made.objective(found) == max(scores)
