"""``tune`` on the CPU, from the front door to the callable."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import kernelsearch
from kernelsearch import ErrorModel, Operator, Scalar, Tensor, api
from kernelsearch.errors import ArgumentError, StudyError, UnknownNameError, WorkloadError
from kernelsearch.events import Progress
from kernelsearch.study import StoredStudy

SIZES = ({"rows": 64, "cols": 256},)


def rms_norm(
    x: NDArray[np.float32], weight: NDArray[np.float32], bias: NDArray[np.float32], eps: float
) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    scale = np.sqrt((wide * wide).mean(axis=1, keepdims=True) + eps)
    return wide / scale * weight + bias


def inputs(rows: int, cols: int) -> tuple[NDArray[np.float32], ...]:
    rng = np.random.default_rng(rows * 1000 + cols)
    return (
        rng.uniform(-1, 1, (rows, cols)).astype(np.float32),
        rng.uniform(-1, 1, cols).astype(np.float32),
        rng.uniform(-1, 1, cols).astype(np.float32),
    )


def test_tune_gives_a_right_callable_with_a_result(ready: Path) -> None:
    seen: list[Progress] = []
    kernel = kernelsearch.tune(
        "rms_norm", target="cpu", budget="5", workloads=SIZES, proposers=(), observer=seen.append
    )
    result = kernel.result
    assert result.finished
    assert result.candidates >= 6
    assert result.low <= result.speedup <= result.high
    assert len(result.verified) > 10
    assert result.workloads[0].baseline_us > 0
    assert seen[0].phase == "baseline"
    assert seen[-1].phase == "done"
    for rows, cols in ((64, 256), (3, 7), (1, 1), (5, 1021), (0, 16)):
        x, weight, bias = inputs(rows, cols)
        y = kernel(x, weight, bias)
        assert y.shape == (rows, cols)
        np.testing.assert_allclose(y, rms_norm(x, weight, bias, 1e-5), rtol=2e-5, atol=2e-6)
    x, weight, bias = inputs(4, 32)
    out = np.full((4, 32), np.nan, np.float32)
    assert kernel(x=x, weight=weight, bias=bias, eps=1.0, out=out) is out
    np.testing.assert_allclose(out, rms_norm(x, weight, bias, 1.0), rtol=2e-5, atol=2e-6)
    _check_refusals(kernel)
    _check_second_call(kernel, ready)


def _check_refusals(kernel: kernelsearch.TunedKernel) -> None:
    x, weight, bias = inputs(4, 32)
    with pytest.raises(ArgumentError, match=r"'x' must have dtype float32 \(got float64\)"):
        kernel(x.astype(np.float64), weight, bias)
    with pytest.raises(ArgumentError, match=r"'weight' must have shape \(cols\) = \(32,\)"):
        kernel(x, weight[:16], bias)
    with pytest.raises(ArgumentError, match="C-contiguous"):
        kernel(np.asfortranarray(x), weight, bias)
    with pytest.raises(ArgumentError, match="missing input tensors: bias"):
        kernel(x, weight)
    with pytest.raises(ArgumentError, match="no argument 'epsilon'"):
        kernel(x, weight, bias, epsilon=1.0)
    with pytest.raises(ArgumentError, match="must be a NumPy array"):
        kernel([[1.0]], weight, bias)
    with pytest.raises(ArgumentError, match="given twice"):
        kernel(x, weight, bias, x=x)


def _check_second_call(kernel: kernelsearch.TunedKernel, home: Path) -> None:
    """The stored winner comes back at once: nothing runs, even if it could not."""
    seen: list[Progress] = []
    again = kernelsearch.tune(
        "rms_norm", target="cpu", budget="5", workloads=SIZES, proposers=(), observer=seen.append
    )
    assert again.result == kernel.result
    assert seen == []


def test_refresh_goes_on_where_the_study_was(ready: Path) -> None:
    options = {"target": "cpu", "workloads": SIZES, "proposers": ()}
    first = kernelsearch.tune("rms_norm", budget="2", **options)
    more = kernelsearch.tune("rms_norm", budget="2", refresh=True, **options)
    assert more.result.folder == first.result.folder
    assert more.result.candidates == first.result.candidates + 2
    with StoredStudy(Path(more.result.folder)) as stored:
        evaluations = stored.archive.evaluations()
        assert len({e.candidate for e in evaluations}) == len(evaluations)


def test_rules_propose_variants_that_are_right(ready: Path) -> None:
    seen: list[Progress] = []
    kernel = kernelsearch.tune(
        "stencil_2d", target="cpu", budget="8", workloads=({"nx": 64, "ny": 64},),
        templates=True, proposers=("rules",), observer=seen.append,
    )  # fmt: skip
    with StoredStudy(Path(kernel.result.folder)) as stored:
        assert stored.archive.statuses().get("ok", 0) >= 6


def scaled_sum(out, x, y, n, alpha):  # type: ignore[no-untyped-def]
    """Add two vectors, the first one scaled."""
    for i in range(n):
        out[i] = alpha * x[i] + y[i]


def test_a_python_function_becomes_an_operator(ready: Path) -> None:
    operator = Operator.from_python(
        scaled_sum,
        [
            Tensor("out", "elem", ("n",), role="out"), Tensor("x", "elem", ("n",)),
            Tensor("y", "elem", ("n",)), Scalar("alpha", "float32", 2.5),
        ],
        {"large": [{"n": 20000}], "heldout": [{"n": 1}, {"n": 1021}], "smoke": [{"n": 100}]},
        error=ErrorModel(terms="2"), flops="2 * n",
    )  # fmt: skip
    kernel = kernelsearch.tune(operator, target="cpu", budget="4")
    assert operator.specification == "original"
    x = np.linspace(-1, 1, 777, dtype=np.float32)
    y = np.cos(x)
    np.testing.assert_allclose(kernel(x, y, alpha=3.0), 3.0 * x + y, rtol=1e-6, atol=1e-6)


def test_inputs_may_come_from_a_file(ready: Path, tmp_path: Path) -> None:
    x, weight, bias = inputs(33, 65)
    np.savez(tmp_path / "mine.npz", x=x, weight=weight, bias=bias)
    kernel = kernelsearch.tune(
        "rms_norm", target="cpu", budget="1", data=tmp_path / "mine.npz", proposers=()
    )
    assert kernel.result.workloads[0].workload == "rows=33,cols=65@user:mine"
    with pytest.raises(WorkloadError, match="exclude each other"):
        kernelsearch.tune("rms_norm", target="cpu", data=tmp_path / "mine.npz", workloads="smoke")


def test_mistakes_are_told_before_anything_runs(ready: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="'rms_norm'"):
        kernelsearch.tune("rms_nrm")
    with pytest.raises(UnknownNameError, match="option of tune 'workload'"):
        kernelsearch.tune("rms_norm", workload="smoke")
    with pytest.raises(UnknownNameError, match="workload set"):
        kernelsearch.tune("rms_norm", target="cpu", workloads="huge")
    with pytest.raises(StudyError, match="budget"):
        kernelsearch.tune("rms_norm", target="cpu", budget="fast")
    with pytest.raises(WorkloadError, match="cols"):
        kernelsearch.tune("rms_norm", target="cpu", workloads=[{"rows": 4}])
    prepared = api.prepare(api.TuneRequest("rms_norm", "cpu", workloads="smoke",
                                           folder=tmp_path / "s"))  # fmt: skip
    prepared.open_study().close()
    with pytest.raises(StudyError, match="is of operator 'rms_norm', not 'softmax'"):
        kernelsearch.tune("softmax", target="cpu", workloads="smoke", folder=tmp_path / "s")
    with pytest.raises(StudyError, match="other settings"):
        kernelsearch.tune(
            "rms_norm", target="cpu", workloads="smoke", folder=tmp_path / "s", seed=7
        )
