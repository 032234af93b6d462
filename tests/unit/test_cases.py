"""Cases hold what was drawn, are remembered within their budget, and cover what they must."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsearch import draw
from kernelsearch.cases import (
    KEEP,
    SMALL_ELEMENTS,
    Case,
    CaseStore,
    elements,
    timing_cases,
    verification_cases,
)
from kernelsearch.errors import OperatorError, UnknownNameError
from kernelsearch.operator import Workload
from kernelsearch.operators_io import load_operator
from kernelsearch.resources import operator_paths
from kernelsearch.testing.fakes import _read


def workload(rows=6, cols=10, distribution="default"):
    return Workload({"rows": rows, "cols": cols}, distribution)


def test_inputs_lie_where_the_buffers_say():
    operator = load_operator("rms_norm")
    case = Case(operator, workload(), "bfloat16", 5)
    for spec in case.buffers():
        if spec.role == "in":
            assert spec.source.nbytes == spec.nbytes
            assert spec.source.offset % 4096 == 0
            assert _read(spec.source).tobytes() == case.inputs[spec.name].tobytes()
        else:
            assert spec.source is None
            assert spec.sink is None
    with pytest.raises(ValueError, match="read-only"):
        case.inputs["x"][0, 0] = 1
    assert {b.misalign for b in case.buffers(misaligned=True)} == {2}


def test_seed_workload_and_dtype_decide_the_numbers():
    operator = load_operator("softmax")
    one = Case(operator, workload(), "float32", 1).inputs["x"]
    assert np.array_equal(one, Case(operator, workload(), "float32", 1).inputs["x"])
    assert not np.array_equal(one, Case(operator, workload(), "float32", 2).inputs["x"])
    assert not np.array_equal(
        one, Case(operator, workload(cols=11), "float32", 1).inputs["x"][:, :10]
    )


def test_empty_case():
    operator = load_operator("rms_norm")
    case = Case(operator, workload(rows=0), "float32", 0)
    assert case.expected["y"].value.shape == (0, 10)
    assert all(b.nbytes == 0 for b in case.buffers() if b.name in "xy")


def test_store_remembers_and_forgets():
    operator = load_operator("softmax")
    store = CaseStore(budget_bytes=0)
    first = store.case(operator, workload(rows=1), "float32", 0)
    assert store.case(operator, workload(rows=1), "float32", 0) is first
    for rows in range(2, 2 + KEEP):
        store.case(operator, workload(rows=rows), "float32", 0)
    assert store.case(operator, workload(rows=1), "float32", 0) is not first
    sink = store.sink(first, 0)
    assert store.sink(first, 0) is sink
    assert store.sink(first, 1) is not sink
    sink.arrays["y"][...] = 1
    sink.poison()
    assert np.isnan(sink.arrays["y"]).all()
    store.close()


@pytest.mark.parametrize("name", sorted(operator_paths()))
@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_stages_cover_sets_and_distributions(name, target):
    operator = load_operator(name)
    tuned = operator.workload_set("large", target)
    smoke, heldout, last = verification_cases(operator, "float32", tuned, target, seed=7)
    assert [s.workload for s in smoke.specs] == list(operator.workload_set("smoke", target))
    assert {s.workload.key for s in heldout.specs} >= {
        w.key for w in operator.workload_set("heldout", target)
    }
    drawn = {s.workload.distribution for s in heldout.specs}
    assert drawn >= set(operator.distributions)
    assert sum(s.misaligned for s in heldout.specs) == 2
    assert [s.workload for s in last.specs[-len(tuned) :]] == list(tuned)
    assert any(s.bounds_checked for s in last.specs) == (target == "cpu")
    for spec in (*smoke.specs, *heldout.specs):
        assert elements(operator, spec.workload) <= SMALL_ELEMENTS
        for choice in spec.choices:
            operator.check_workload(choice)
    assert timing_cases(tuned[0], 7)[0].seed == last.specs[-1].seed


def test_wrong_generators_and_references_are_named():
    import dataclasses

    operator = load_operator("softmax")
    lacking = dataclasses.replace(operator, generate=lambda *args: {})
    with pytest.raises(OperatorError, match="generate must return 'x'"):
        Case(lacking, workload(), "float32", 0)
    flat = dataclasses.replace(operator, reference=lambda a, s, r: {"y": np.zeros(3)})
    with pytest.raises(OperatorError, match="reference of 'y' must have shape"):
        _ = Case(flat, workload(), "float32", 0).expected
    silent = dataclasses.replace(operator, reference=lambda a, s, r: {})
    with pytest.raises(OperatorError, match="every output"):
        _ = Case(silent, workload(), "float32", 0).expected


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("distribution", draw.COMMON)
def test_draw(distribution, dtype):
    a = draw.draw((7, 33), distribution, np.random.default_rng(1), dtype)
    assert a.shape == (7, 33)
    wide = a.astype(np.float64)
    assert np.isfinite(wide).all()
    if distribution == "one_hot":
        assert (wide.sum(axis=1) == 1).all()
    if distribution == "sorted":
        assert (np.diff(wide, axis=1) >= 0).all()
    if distribution == "constant":
        assert len(np.unique(wide)) == 1


def test_draw_in_chunks_is_the_same_for_any_number_of_threads(monkeypatch):
    shape = (5, draw._CHUNK)
    many = draw.uniform(shape, np.random.default_rng(1), "float32")
    monkeypatch.setattr(draw, "_MAX_THREADS", 1)
    assert np.array_equal(many, draw.uniform(shape, np.random.default_rng(1), "float32"))
    assert abs(float(many.mean())) < 0.01
    assert -1 <= many.min() < -0.99
    assert 0.99 < many.max() <= 1


def test_draw_unknown():
    with pytest.raises(UnknownNameError, match="did you mean 'normal'"):
        draw.draw((1,), "norml", np.random.default_rng(0), "float32")
