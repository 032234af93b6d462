"""What a study does next, from how its variants stand."""

from __future__ import annotations

from kernelsearch.search.schedule import (
    DEEPEN,
    FIRST_LOOK,
    Action,
    Schedule,
    Standing,
)


def standing(name: str, tried: int, speedup: float | None, **more: int | bool) -> Standing:
    settled = int(more.get("settled", tried))
    ok = int(more.get("ok", 0 if speedup is None else settled))
    return Standing(name, tried, ok, speedup, bool(more.get("exhausted", False)), settled)


def test_every_structure_is_seen_once_before_any_is_tuned() -> None:
    schedule = Schedule(can_propose=True)
    seen = [standing("a", 1, 1.0), standing("b", 0, None), standing("c", 0, None)]
    first = schedule.decide(seen)
    assert (first.action, first.variant, first.count) == (Action.TUNE, "b", 1)


def test_while_most_first_looks_are_under_way_nothing_is_decided() -> None:
    schedule = Schedule(can_propose=True)
    flying = [standing("a", 4, 1.0), *(standing(n, 1, None, settled=0) for n in ("b", "c"))]
    assert schedule.decide(flying).action is Action.WAIT


def test_only_structures_near_the_best_get_the_whole_first_look() -> None:
    schedule = Schedule(can_propose=False)
    near = [standing("fast", 1, 3.0), standing("slow", 1, 1.0)]
    assert schedule.decide(near).variant == "fast"
    full = [standing("fast", FIRST_LOOK, 3.0), standing("slow", 1, 1.0)]
    decision = schedule.decide(full)
    assert (decision.variant, decision.count) == ("fast", DEEPEN)


def test_the_best_gets_every_other_turn_and_proposals_every_third() -> None:
    schedule = Schedule(can_propose=True)
    ready = [standing("a", 9, 2.0), standing("b", 9, 1.9), standing("c", 9, 1.8)]
    turns = [schedule.decide(ready) for _ in range(9)]
    assert [t.action for t in turns].count(Action.PROPOSE) == 3
    tuned = [t.variant for t in turns if t.action is Action.TUNE]
    assert tuned.count("a") >= 3
    assert {"b", "c"} <= set(tuned)


def test_it_stops_when_nothing_is_left_and_the_proposers_are_dry() -> None:
    schedule = Schedule(can_propose=True)
    done = [standing("a", 9, 2.0, exhausted=True)]
    assert schedule.decide(done).action is Action.PROPOSE
    schedule.dry()
    assert schedule.decide(done).action is Action.STOP
    schedule.fresh()
    assert schedule.decide(done).action is Action.PROPOSE


def test_a_structure_whose_candidates_all_fail_is_given_up() -> None:
    schedule = Schedule(can_propose=False)
    bad = [standing("a", 9, 2.0, exhausted=True), standing("b", 3, None)]
    assert schedule.decide(bad).action is Action.STOP
