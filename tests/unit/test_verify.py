"""Honest kernels pass, and every way to cheat is named with its evidence."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from kernelsearch import cases as cases_module
from kernelsearch import draw
from kernelsearch.cases import Case, CaseStore, alignments, timing_cases, verification_cases
from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    CheatedError,
    NondeterministicError,
    OperatorError,
    WrongResultError,
)
from kernelsearch.operator import ErrorModel, Workload
from kernelsearch.operators_io import load_operator
from kernelsearch.records import Contender, TimeRequest, TimingSettings
from kernelsearch.resources import operator_paths
from kernelsearch.testing.fakes import FakeRunner, make_binary
from kernelsearch.variant import parse_variant
from kernelsearch.verify import (
    check_capture,
    check_outputs,
    error_ratio,
    plan_maker,
    probe_tolerance,
    verify,
)

ARGS = {
    "rms_norm": '["y", "x", "weight", "bias", "eps:f32"]',
    "softmax": '["y", "x"]',
    "matrix_mul": '["c", "a", "b"]',
    "spmv_csr": '["y", "row_ptr", "col_idx", "values", "x"]',
    "stencil_2d": '["dst", "src", "alpha:f32"]',
}


def variant(name, extra=""):
    text = (
        f'"""kernelsearch\nformat = 1\noperator = "{name}"\ndtypes = ["float32", "bfloat16", '
        f'"float64"]\n{extra}\n[[launch]]\nkernel = "k"\nargs = {ARGS[name]}\n"""\n'
    )
    return parse_variant(text, "cpu")


def vendor_kernel(operator):
    """Return the NumPy vendor call as a kernel, float32 inside for narrower types."""
    call = operator.vendor["cpu"][1]
    tensors = [t.name for t in operator.inputs]
    (output,) = [t.name for t in operator.outputs]

    def kernel(out, *args):
        arrays = dict(zip(tensors, args, strict=False))
        if out.size == 0:
            return
        wide = {n: a.astype(np.float32) if a.dtype.itemsize == 2 else a for n, a in arrays.items()}
        scalars = {s.name: a for s, a in zip(operator.scalars, args[len(tensors) :], strict=True)}
        out[...] = call(wide, scalars)[output]

    return kernel


def run(name, kernel, dtype="float32", workloads=None, target="cpu", extra="", operator=None):
    operator = operator or load_operator(name)
    workloads = workloads or operator.workload_set("smoke", target)
    v = variant(name, extra)
    binary = make_binary(v.compile_job({}, dtype, "fake"))
    runner = FakeRunner({"k": kernel})
    runner.load(binary)
    stages = verification_cases(operator, dtype, workloads, target)
    store = CaseStore()
    try:
        make = plan_maker(v, {}, operator, {"cores": 2}, dtype)
        report = verify(runner, binary.key, make, stages, operator, dtype, store)
    finally:
        store.close()
    return report, runner


def supported():
    for name in sorted(operator_paths()):
        dtypes = load_operator(name).dtypes
        for dtype in sorted({*dtypes["cuda"], *dtypes["cpu"]}):
            yield name, dtype


@pytest.mark.parametrize(("name", "dtype"), list(supported()))
def test_honest_kernels_pass(name, dtype):
    operator = load_operator(name)
    report, runner = run(name, vendor_kernel(operator), dtype)
    assert report.max_ratio <= 1.0
    assert not report.outside
    assert any("+misaligned" in key for key in report.verified)
    assert any(b.misalign for r in runner.requests for b in r.buffers)
    assert {r.poison for r in runner.requests} == {0xFF, 0x5A}


@pytest.mark.parametrize(("name", "dtype"), list(supported()))
def test_tolerance_rejects_plain_nonsense(name, dtype):
    operator = load_operator(name)
    for target in ("cuda", "cpu"):
        if dtype in operator.dtypes[target]:
            probe_tolerance(operator, dtype, target)


def test_probe_names_what_a_loose_bound_lets_through():
    operator = load_operator("softmax")
    loose = dataclasses.replace(operator, error=ErrorModel(terms="cols", factor=1e7))
    with pytest.raises(OperatorError, match=r"must reject .* on"):
        probe_tolerance(loose, "float32", "cpu")


def rms(y, x, weight, bias, eps):
    y[...] = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * weight + bias


def test_output_left_as_it_was():
    with pytest.raises(WrongResultError, match="never written") as caught:
        run("rms_norm", lambda *args: None)
    evidence = caught.value.evidence
    assert evidence["unwritten"] is True
    assert evidence["got"] == "nan"
    assert {"workload", "distribution", "output", "index", "expected", "bound", "wrong"} <= set(
        evidence
    )
    json.dumps(evidence, allow_nan=False)


def test_dropped_tail():
    def kernel(y, x, weight, bias, eps):
        full = np.empty_like(y)
        rms(full, x, weight, bias, eps)
        count = y.size // 4 * 4
        y.reshape(-1)[:count] = full.reshape(-1)[:count]

    with pytest.raises(WrongResultError) as caught:
        run("rms_norm", kernel)
    assert caught.value.evidence["index"] == [4, 32]


def test_stale_workspace_is_poison_dependent():
    def kernel(y, x, weight, bias, eps):
        # -1 or 2^23 in the low bits: too small for the bound, not for the comparison of bits.
        old = float(np.nan_to_num(y.flat[0], nan=0.0) > 0)
        rms(y, x, weight, bias, eps)
        y += np.float32(old * 6e-8) * np.abs(y)

    with pytest.raises(WrongResultError, match="depends on what was in memory") as caught:
        run("rms_norm", kernel)
    assert caught.value.evidence["poison_dependent"] is True


def noisy():
    rng = np.random.default_rng(0)

    def kernel(y, x, weight, bias, eps):
        rms(y, x, weight, bias, eps)
        y *= 1 + rng.integers(0, 2, size=y.shape).astype(np.float32) * np.float32(1.2e-7)

    return kernel


def test_nondeterministic():
    with pytest.raises(NondeterministicError) as caught:
        run("rms_norm", noisy())
    assert caught.value.evidence["differing"] > 0
    allowed = dataclasses.replace(load_operator("rms_norm"), deterministic=False)
    run("rms_norm", noisy(), operator=allowed)


def test_changed_input_and_guard():
    def changes(y, x, weight, bias, eps):
        rms(y, x, weight, bias, eps)
        x[...] = 0

    with pytest.raises(CheatedError, match="changed its input x") as caught:
        run("rms_norm", changes)
    assert caught.value.evidence["inputs"] == ["x"]

    def overruns(y, x, weight, bias, eps):
        rms(y, x, weight, bias, eps)
        beyond = np.lib.stride_tricks.as_strided(y.reshape(-1), shape=(y.size + 1,))
        beyond[y.size] = 1

    with pytest.raises(CheatedError, match="outside the bounds of y") as caught:
        run("rms_norm", overruns)
    assert caught.value.evidence["guards"] == ["y"]


def test_nan_everywhere_and_infinities():
    with pytest.raises(WrongResultError):
        run("rms_norm", lambda y, *rest: y.fill(np.nan))
    with pytest.raises(WrongResultError):
        run("rms_norm", lambda y, *rest: y.fill(np.inf))


def test_zero_and_copy():
    with pytest.raises(WrongResultError):
        run("softmax", lambda y, x: y.fill(0))
    with pytest.raises(WrongResultError):
        run("softmax", lambda y, x: y.fill(1 / x.shape[-1]))
    with pytest.raises(WrongResultError):
        run("stencil_2d", lambda dst, src, alpha: np.copyto(dst, src))


def test_softmax_without_the_maximum():
    def kernel(y, x):
        with np.errstate(all="ignore"):
            e = np.exp(x)
            y[...] = e / e.sum(axis=-1, keepdims=True)

    with pytest.raises(WrongResultError) as caught:
        run("softmax", kernel)
    assert caught.value.evidence["distribution"] == "huge_logits"


def truncated(array, bits):
    """Round to nearest with ``bits`` of explicit mantissa, as TF32 (10) or bfloat16 (7) do."""
    drop = 23 - bits
    raw = array.astype(np.float32).view(np.uint32).astype(np.uint64) + (1 << (drop - 1))
    return (raw & ~np.uint64((1 << drop) - 1)).astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("bits", [10, 7])
def test_reduced_precision_product(bits):
    def kernel(c, a, b):
        c[...] = truncated(a, bits) @ truncated(b, bits)

    with pytest.raises(WrongResultError):
        run("matrix_mul", kernel)
    # Also without the inputs made for it: the plain bound sees it on a long sum.
    operator = load_operator("matrix_mul")
    case = Case(operator, Workload({"m": 8, "n": 64, "k": 4096}), "float32", 1)
    c = np.empty((8, 64), np.float32)
    kernel(c, case.inputs["a"], case.inputs["b"])
    with pytest.raises(WrongResultError):
        check_outputs(case, {"c": c})


@pytest.mark.parametrize("distribution", ["exact_integers", "exact_onehot"])
def test_exact_inputs_catch_each_rounded_factor(distribution):
    operator = load_operator("matrix_mul")
    case = Case(operator, Workload({"m": 40, "n": 24, "k": 1031}, distribution), "float32", 1)
    a, b = case.inputs["a"], case.inputs["b"]
    assert check_outputs(case, {"c": a @ b}) == 0.0
    with pytest.raises(WrongResultError):
        check_outputs(case, {"c": truncated(a, 10) @ truncated(b, 10)})


def test_half_precision_exponential():
    def kernel(y, x):
        e = np.exp((x - x.max(axis=-1, keepdims=True)).astype(np.float16)).astype(np.float32)
        y[...] = e / e.sum(axis=-1, keepdims=True)

    with pytest.raises(WrongResultError):
        run("softmax", kernel)


def test_serial_float32_sums_are_not_blamed():
    """A textbook loop adds one after the other: honest, on ordered and on equal terms too."""
    operator = load_operator("rms_norm")
    for distribution in ("default", "constant", "sorted", "shifted", "large"):
        case = Case(operator, Workload({"rows": 2, "cols": 16384}, distribution), "float32", 3)
        x, weight, bias = (case.inputs[n] for n in ("x", "weight", "bias"))
        total = np.cumsum(x * x, axis=-1, dtype=np.float32)[:, -1:]
        y = x / np.sqrt(total / np.float32(16384) + np.float32(1e-5)) * weight + bias
        assert check_outputs(case, {"y": y}) < 1.0
    operator = load_operator("matrix_mul")
    for distribution in operator.distributions:
        case = Case(operator, Workload({"m": 9, "n": 33, "k": 4096}, distribution), "float32", 3)
        products = case.inputs["a"].T[:, :, None] * case.inputs["b"][:, None, :]
        c = np.cumsum(products, axis=0, dtype=np.float32)[-1]
        assert check_outputs(case, {"c": c}) < 1.0, distribution


def test_domain_leaves_workloads_out_but_no_distribution():
    operator = load_operator("rms_norm")
    extra = '[domain]\nwide = "cols % 4 == 0"\naligned = "align_x >= 16"'
    report, runner = run("rms_norm", vendor_kernel(operator), extra=extra)
    assert "rows=1,cols=1" in report.outside
    for distribution in operator.distributions:
        if distribution != "default":
            assert any(f"@{distribution}#" in key for key in report.verified)
    assert not any("misaligned" in key for key in report.verified)
    assert any("misaligned" in key for key in report.outside)
    assert all(b.misalign == 0 for r in runner.requests for b in r.buffers)


def test_narrow_domain_meets_every_distribution():
    operator = load_operator("rms_norm")
    report, _ = run(
        "rms_norm", vendor_kernel(operator), extra='[domain]\nonly = "cols == 4096"',
        workloads=[Workload({"rows": 300, "cols": 4096})],
    )  # fmt: skip
    for distribution in operator.distributions:
        if distribution != "default":
            assert any(f"cols=4096@{distribution}#" in key for key in report.verified)


def test_runner_errors_carry_the_workload():
    def kernel(y, x, *rest):
        raise CandidateCrashedError("index 9 is out of bounds", {"bounds": True})

    with pytest.raises(CandidateCrashedError) as caught:
        run("softmax", kernel)
    assert caught.value.evidence["workload"] == "rows=4,cols=64"
    assert caught.value.evidence["poison"] == "0xFF"


def test_bounds_checked_for_smoke_and_small_tuned_workloads_on_cpu_only():
    kernel = vendor_kernel(load_operator("softmax"))
    _, runner = run("softmax", kernel)
    # Two smoke workloads, and the two tuned ones, which here are the same.
    assert [r.bounds_checked for r in runner.requests].count(True) == 4
    large = [Workload({"rows": 2048, "cols": 8192})]
    _, runner = run("softmax", kernel, workloads=large)
    checked = [r.buffers[0].shape for r in runner.requests if r.bounds_checked]
    assert len(checked) == 2
    assert (2048, 8192) not in checked
    _, runner = run("softmax", kernel, target="cuda")
    assert not any(r.bounds_checked for r in runner.requests)


def sampled_case(monkeypatch, dtype="float32"):
    monkeypatch.setattr(cases_module, "FULL_REFERENCE_ELEMENTS", 1000)
    monkeypatch.setattr(cases_module, "SAMPLE_ELEMENTS", 1000)
    operator = load_operator("softmax")
    case = Case(operator, Workload({"rows": 500, "cols": 32}), dtype, 0)
    assert case.rows is not None
    assert len(case.rows) < 60
    assert {0, 1, 498, 499} <= set(case.rows.tolist())
    good = operator.reference(case.inputs, {}, None)["y"].astype(case.inputs["x"].dtype)
    return case, good


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sampled_reference(monkeypatch, dtype):
    case, good = sampled_case(monkeypatch, dtype)
    assert check_outputs(case, {"y": good}) <= 1.0
    assert error_ratio(case, {"y": good}) <= 1.0 < error_ratio(case, {"y": 2 * good})
    assert error_ratio(case, {"y": good * np.inf}) == np.inf
    hidden = next(r for r in range(500) if r not in set(case.rows.tolist()))
    for row in (int(case.rows[5]), hidden):
        bad = good.copy()
        bad[row, 3] = np.nan
        with pytest.raises(WrongResultError) as caught:
            check_outputs(case, {"y": bad})
        assert caught.value.evidence["index"] == [row, 3]


def test_captures_of_timed_calls():
    operator = load_operator("softmax")
    workload = Workload({"rows": 8, "cols": 32})
    store = CaseStore()
    v = variant("softmax")
    binary = make_binary(v.compile_job({}, "float32", "fake"))
    calls = []

    def honest_at_first(y, x):
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        y[...] = e / e.sum(axis=-1, keepdims=True)
        calls.append(1)
        if len(calls) > 3:
            y[0, 0] *= 2

    runner = FakeRunner({"k": honest_at_first})
    runner.load(binary)
    cases = [store.case(operator, s.workload, "float32", s.seed) for s in timing_cases(workload)]
    assert not np.array_equal(cases[0].inputs["x"], cases[1].inputs["x"])
    sinks = [store.sink(cases[0], 2 + i) for i in range(2)]
    plan = plan_maker(v, {}, operator, {}, "float32")(workload, {})
    request = TimeRequest(
        contenders=(Contender(binary.key, plan),), sets=tuple(c.buffers() for c in cases),
        captures=tuple(cases[0].buffers(s) for s in sinks), settings=TimingSettings(), seed=1,
    )  # fmt: skip
    report = runner.time(request)
    assert check_capture(cases, report, [s.arrays for s in sinks]) <= 1.0
    report = runner.time(request)
    with pytest.raises(WrongResultError) as caught:
        check_capture(cases, report, [s.arrays for s in sinks])
    assert caught.value.evidence["timed_call"] == 1
    store.close()


def test_alignments_respect_what_the_caller_promises():
    operator = load_operator("softmax")
    assert alignments(operator, "bfloat16") == {"y": 2, "x": 2}
    promised = dataclasses.replace(
        operator,
        arguments=tuple(dataclasses.replace(t, align=16) for t in operator.arguments),
    )
    assert alignments(promised, "float32") == {"y": 256, "x": 256}


def test_non_finite_reference():
    operator = dataclasses.replace(
        load_operator("softmax"),
        reference=lambda arrays, scalars, rows: {"y": np.array([[np.inf, np.nan, 1.0]])},
        error=ErrorModel(),
    )
    case = Case(operator, Workload({"rows": 1, "cols": 3}), "float32", 0)
    assert check_outputs(case, {"y": np.array([[np.inf, np.nan, 1.0]], np.float32)}) == 0.0
    for wrong in (
        [1.0, np.nan, 1.0],
        [-np.inf, np.nan, 1],
        [np.inf, 1, 1],
        [np.inf, np.nan, np.inf],
    ):
        with pytest.raises(WrongResultError):
            check_outputs(case, {"y": np.array([wrong], np.float32)})


def test_candidate_errors_are_typed():
    assert issubclass(WrongResultError, CandidateError)
    assert draw.exact_magnitude("float32", 100) > 2**11


def rounded_to(bits):
    """Return a matrix product whose operands keep so many bits behind the point."""

    def kernel(c, a, b):
        def cut(v):
            step = np.uint32(1 << (23 - bits))
            return ((v.view(np.uint32) + step // 2) & ~(step - np.uint32(1))).view(np.float32)

        c[...] = cut(np.ascontiguousarray(a)) @ cut(np.ascontiguousarray(b))

    return kernel


@pytest.mark.parametrize(
    ("precision", "bits", "right"),
    [("strict", 10, False), ("tf32", 10, True), ("fast", 10, True), ("tf32", 7, False)],
)
def test_operands_are_rounded_as_far_as_the_policy_says(precision, bits, right):
    operator = dataclasses.replace(load_operator("matrix_mul"), precision=precision)
    probe_tolerance(operator, "float32", "cuda")
    if right:
        run("matrix_mul", rounded_to(bits), operator=operator)
        return
    with pytest.raises(WrongResultError):
        run("matrix_mul", rounded_to(bits), operator=operator)
