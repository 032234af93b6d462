"""Params asked for are valid, new and reproducible, and get better than chance."""

from __future__ import annotations

import importlib.util
import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsearch.errors import (
    ExpressionError,
    RejectedError,
    SpecError,
    UnknownNameError,
    VariantError,
)
from kernelsearch.methods import METHODS, OPTUNA
from kernelsearch.optuna_sampler import SpaceSampler
from kernelsearch.params import ParamSearch, param_space
from kernelsearch.variant import Variant, parse_variant

FACTS = {"max_threads_per_block": 1024, "max_shared_per_block": 49152}
MANY: dict[str, list[int | str]] = {
    "BX": [16, 32, 64, 128, 256, 512], "BY": [1, 2, 4, 8, 16], "VEC": [1, 2, 4, 8],
    "UNROLL": [1, 2, 4, 8], "STAGES": [1, 2, 3, 4], "MODE": ["ldg", "plain", "wide"],
}  # fmt: skip
RULES = {
    "threads": "32 <= BX * BY <= max_threads_per_block",
    "fits": "BX * VEC * STAGES * elem_bytes <= max_shared_per_block // 8",
}


def variant(
    tunables: Mapping[str, list[Any]], constraints: Mapping[str, str] | None = None
) -> Variant:
    lines = ["/* kernelsearch", "format = 1", 'operator = "o"', "[tunables]"]
    lines += [f"{k} = {str(v).replace(chr(39), chr(34))}" for k, v in tunables.items()]
    lines += ["[constraints]", *(f'{k} = "{v}"' for k, v in (constraints or {}).items())]
    lines += ["[[launch]]", 'kernel = "k"', 'grid = ["1"]', 'block = ["1"]', 'args = ["y"]', "*/"]
    return parse_variant("\n".join(lines), "cuda")


def frozen(params: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(params.items()))


def speedup(params: Mapping[str, Any]) -> float:
    """A smooth hill with a ridge: best at BX 128, BY 2, VEC 4, UNROLL 2, STAGES 3, wide."""
    x, y = math.log2(params["BX"]) - 7, math.log2(params["BY"]) - 1
    v, u = math.log2(params["VEC"]) - 2, math.log2(params["UNROLL"]) - 1
    words = 0.0 if params["MODE"] == "wide" else 0.4
    steps = 0.3 * abs(x + y) + 0.2 * abs(x) + 0.3 * abs(v) + 0.2 * abs(v + u)
    return math.exp(-steps - words - 0.1 * abs(params["STAGES"] - 3))


# --- the space ----------------------------------------------------------------------------------


def test_the_listed_space_is_what_the_variant_allows() -> None:
    v = variant(MANY, RULES)
    space = param_space(v, FACTS, "float32")
    assert space.rows is not None
    listed = [space.params(r) for r in space.rows]
    assert listed == v.valid_params(FACTS, "float32")
    assert space.size == len(listed)
    for number in (0, 7, len(listed) - 1):
        assert space.row_of(space.point(listed[number])) == number
    bad = next(p for p in v.combinations() if v.violated(p, FACTS, "float32"))
    assert space.row_of(space.point(bad)) is None


small = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True)


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(st.sampled_from("ABCD"), small, min_size=0, max_size=4),
    st.lists(st.sampled_from(["A * B <= 9", "B % C == 0", "D < 4 or A > 2", "1 == 1"]), max_size=3),
    st.integers(0, 9),
)
def test_asking_lists_every_valid_combination_once(
    tunables: dict[str, list[int]], rules: list[str], seed: int
) -> None:
    usable = [r for r in rules if all(n in tunables for n in r if n in "ABCD")]
    v = variant(tunables, {f"r{i}": r for i, r in enumerate(usable)})
    search = ParamSearch(v, {}, "float32", seed=seed, starts=[{"A": 3, "Z": 1}])
    seen = []
    for n in itertools.count():
        found = search.ask(2)
        if not found:
            break
        seen += found
        for p in found:
            assert v.violated(p, {}, "float32") is None
            search.tell(p, None if n % 3 == 0 else 1.0 + n)
    assert search.is_exhausted
    assert sorted(map(frozen, seen)) == sorted(map(frozen, v.valid_params({}, "float32")))


def test_a_constraint_without_a_value_is_not_met() -> None:
    v = variant({"A": [0, 1, 2]}, {"r": "4 % A == 0"})
    assert param_space(v, {}, "float32").size == 2
    v = variant({"A": [0, 1]}, {"r": "A < max_threads_per_block"})
    with pytest.raises(ExpressionError, match="max_threads_per_block"):
        param_space(v, {}, "float32")


def test_a_space_without_a_candidate_is_exhausted() -> None:
    search = ParamSearch(variant({"A": [1, 2]}, {"r": "A > 2"}), {}, "float32")
    assert search.size == 0
    assert search.ask() == []
    assert search.is_exhausted


def test_a_constraint_over_too_much_is_refused() -> None:
    tunables = {n: list(range(1, 26)) for n in "ABCD"}
    with pytest.raises(VariantError, match="390625 combinations"):
        param_space(variant(tunables, {"r": "(A * B * C * D) ** 9 > 4"}), {}, "float32")
    assert param_space(variant(tunables, {"r": "A + B + C + D > 4"}), {}, "float32").size


def test_projection_takes_the_nearest_number() -> None:
    space = param_space(variant(MANY, RULES), FACTS, "float32")
    point = space.project({"BX": 100, "BY": 64, "VEC": 2, "MODE": "wide", "OTHER": 5})
    assert space.params(point) == {
        "BX": 128, "BY": 16, "VEC": 2, "UNROLL": 1, "STAGES": 1, "MODE": "wide",
    }  # fmt: skip


# --- ask and tell -------------------------------------------------------------------------------


def test_starts_come_first_and_are_valid() -> None:
    v = variant(MANY, RULES)
    start = {"BX": 512, "BY": 16, "VEC": 2, "UNROLL": 2, "STAGES": 1, "MODE": "plain"}
    assert v.violated(start, FACTS, "float32")
    exact = {"BX": 32, "BY": 2, "VEC": 2, "UNROLL": 2, "STAGES": 1, "MODE": "plain"}
    search = ParamSearch(v, FACTS, "float32", starts=[start, exact, exact])
    first, second, third = search.ask(3)
    assert v.violated(first, FACTS, "float32") is None
    assert (first["MODE"], first["VEC"], first["UNROLL"]) == ("plain", 2, 2)
    assert second == exact
    assert third != exact


def test_the_same_seed_gives_the_same_search() -> None:
    def run(seed: int) -> list[Any]:
        search = ParamSearch(variant(MANY, RULES), FACTS, "float32", seed=seed)
        seen = []
        for _ in range(30):
            (params,) = search.ask()
            seen.append(params)
            search.tell(params, speedup(params))
        return seen

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_history_is_never_asked_again_and_guides() -> None:
    v = variant(MANY, RULES)
    first = ParamSearch(v, FACTS, "float32", seed=1)
    history: list[tuple[dict[str, Any], float | None]] = []
    for _ in range(40):
        (params,) = first.ask()
        history.append((params, speedup(params)))
        first.tell(*history[-1])
    again = ParamSearch(v, FACTS, "float32", seed=1, history=history)
    assert again.told == 40
    assert again.best == first.best
    known = {frozen(p) for p, _ in history}
    fresh = again.ask(20)
    assert len({frozen(p) for p in fresh} - known) == 20
    mean = statistics.mean(speedup(p) for p in fresh)
    space = again.space
    assert space.rows is not None
    assert mean > 1.3 * statistics.mean(speedup(space.params(r)) for r in space.rows)


def test_telling_twice_keeps_the_first() -> None:
    search = ParamSearch(variant({"A": [1, 2]}), {}, "float32")
    search.tell({"A": 1}, 2.0)
    search.tell({"A": 1}, 5.0)
    assert search.best == ({"A": 1}, 2.0)
    search.tell({"A": 2}, None)
    assert search.is_exhausted
    with pytest.raises(RejectedError, match="must be one of"):
        search.tell({"A": 3}, 1.0)
    with pytest.raises(ValueError, match="finite"):
        search.tell({"A": 1}, math.nan)


def test_what_others_hold_is_passed_over_and_tried_at_the_end() -> None:
    search = ParamSearch(variant({"A": [1, 2, 3, 4]}), {}, "float32")
    held = {2, 3}
    found = search.ask(4, lambda p: p["A"] not in held)
    assert sorted(p["A"] for p in found) == [1, 4]
    assert not search.is_exhausted
    assert search.ask(4, lambda p: p["A"] not in held) == []
    held.remove(2)  # its holder died
    assert search.ask(4, lambda p: p["A"] not in held) == [{"A": 2}]
    search.tell({"A": 3}, 1.5)  # its holder has told
    for value in (1, 2, 4):
        assert not search.is_exhausted
        search.tell({"A": value}, 1.0)
    assert search.is_exhausted
    assert search.best == ({"A": 3}, 1.5)


@pytest.mark.parametrize("tunables", [{"A": [1, 2, 3]}, {n: list(range(9)) for n in "ABCDEFGH"}])
def test_what_was_given_back_comes_again(tunables: dict[str, list[int]]) -> None:
    search = ParamSearch(variant(tunables), {}, "float32")
    (params,) = search.ask()
    search.give_back(params)
    assert search.ask() == [params]
    search.tell(params, 1.0)
    search.give_back(params)
    assert search.ask() != [params]


def test_no_tunables_is_one_candidate() -> None:
    search = ParamSearch(variant({}), {}, "float32")
    assert search.ask(3) == [{}]
    search.tell({}, 1.0)
    assert search.is_exhausted
    assert search.best == ({}, 1.0)


def test_a_space_too_large_to_list() -> None:
    tunables = {n: list(range(1, 9)) for n in "ABCDEFGHIJ"}
    v = variant(tunables, {"r": "A * B <= 16", "s": "C % D == 0"})
    start = dict.fromkeys("ABCDEFGHIJ", 8)
    search = ParamSearch(v, {}, "float32", starts=[start])
    assert search.size == 8**6 * 34 * 20  # 34 pairs of A and B, 20 of C and D
    seen = []
    for _ in range(40):
        (params,) = search.ask()
        assert v.violated(params, {}, "float32") is None
        seen.append(frozen(params))
        search.tell(params, 1.0 / sum(int(x) for x in params.values()))
    assert len(set(seen)) == 40
    assert not search.is_exhausted
    values = [1.0 / sum(int(x) for _, x in s) for s in seen]
    assert max(values[20:]) > max(values[:10])


def test_a_huge_space_with_almost_nothing_valid_ends() -> None:
    tunables = {n: list(range(30)) for n in "ABCDEF"}
    v = variant(tunables, {"r": "A == 31", "s": "B + C == 1"})
    assert param_space(v, {}, "float32").size == 0  # seen while listing
    rules = {f"r{i}": f"{a} == {b}" for i, (a, b) in enumerate(itertools.pairwise("FEDCBA"))}
    assert param_space(variant(tunables, rules), {}, "float32").size == 30


def test_the_search_beats_chance() -> None:
    v = variant(MANY, RULES)
    space = param_space(v, FACTS, "float32")
    assert space.rows is not None
    everything = [speedup(space.params(r)) for r in space.rows]
    found, chance = [], []
    for seed in range(3):
        search = ParamSearch(v, FACTS, "float32", seed=seed)
        for _ in range(60):
            (params,) = search.ask()
            search.tell(params, speedup(params))
        assert search.best is not None
        found.append(search.best[1])
        chance.append(max(np.random.default_rng(seed).choice(everything, 60)))
    assert statistics.mean(found) > 0.75 * max(everything)
    assert statistics.mean(found) > 1.15 * statistics.mean(chance)


def test_failures_are_avoided() -> None:
    v = variant(MANY, RULES)
    search = ParamSearch(v, FACTS, "float32", seed=5)
    failed = 0
    for n in range(80):
        (params,) = search.ask()
        bad = params["MODE"] != "wide"
        failed += bad and n >= 20
        search.tell(params, None if bad else speedup(params))
    assert failed < 30  # two thirds of the space fail


# --- methods ------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("listed", [True, False])
def test_every_method_asks_for_valid_points_once(method: str, listed: bool) -> None:
    if any(importlib.util.find_spec(p) is None for p in OPTUNA.get(method, ())):
        pytest.skip(f"{method} needs {OPTUNA[method]}")
    tunables: dict[str, list[Any]] = {n: [1, 2, 3, 4, 6, 8] for n in "ABC"} | {"W": ["x", "y", "z"]}
    if not listed:
        tunables |= {n: list(range(1, 9)) for n in "DEFGHI"}
    v = variant(tunables | {"ONE": [7]}, {"r": "A * B <= 16", "s": "C % A == 0 or W == 'x'"})
    search = ParamSearch(v, {}, "float32", seed=2, method=method)
    assert (search.space.rows is not None) is listed
    seen = set()
    for n in range(14):
        batch = search.ask(3)
        assert len(batch) == 3
        for params in batch:
            assert v.violated(params, {}, "float32") is None
            seen.add(frozen(params))
        search.give_back(batch[0])
        seen.discard(frozen(batch[0]))
        for params in batch[1:]:
            search.tell(params, None if n % 4 == 1 else 1.0 / (params["A"] + params["C"]))
    assert len(seen) == 28


def test_an_unknown_method_is_named_with_its_like() -> None:
    with pytest.raises(UnknownNameError, match="guide"):
        ParamSearch(variant({"A": [1]}), {}, "float32", method="guid")


def test_a_method_without_its_packages_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match="pip install torch scipy"):
        ParamSearch(variant({"A": [1]}), {}, "float32", method="gp")


def test_the_default_works_where_nothing_succeeds_or_all_is_the_same() -> None:
    for score in (None, 1.0, -3.0, 0.0, 1e300):
        search = ParamSearch(variant(MANY, RULES), FACTS, "float32", seed=1)
        for _ in range(40):
            (params,) = search.ask()
            search.tell(params, score)
        assert search.told == 40


def test_the_search_is_an_optuna_sampler() -> None:
    import optuna

    space = param_space(variant(MANY, RULES), FACTS, "float32")
    sampler = SpaceSampler(space, seed=1)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    held = study.ask(sampler.distributions)
    seen = {frozen(held.params)}
    for n in range(40):
        trial = study.ask(sampler.distributions)
        assert space.valid(np.array([space.point(trial.params)], dtype=np.int32)).all()
        seen.add(frozen(trial.params))
        if n % 7 == 3:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, 1.0 / speedup(trial.params))
    assert len(seen) == 41
    later = optuna.create_study(direction="minimize", sampler=SpaceSampler(space, seed=2))
    later.add_trials(study.trials)
    fresh = later.ask(sampler.distributions)
    assert frozen(fresh.params) not in seen
    with pytest.raises(SpecError, match="minimize"):
        optuna.create_study(direction="maximize", sampler=sampler).ask(sampler.distributions)
