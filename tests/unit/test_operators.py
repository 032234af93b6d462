"""The shipped operators keep their contract; operator files and user data are read with care."""

from __future__ import annotations

import numpy as np
import pytest

from kernelsearch.cases import Case, verification_cases
from kernelsearch.errors import OperatorError, UnknownNameError, WorkloadError
from kernelsearch.operator import Workload
from kernelsearch.operators_io import find_operator, is_shipped, load_operator
from kernelsearch.resources import operator_paths
from kernelsearch.user_data import (
    with_data,
    workload_from_file,
    workloads_from_shapes,
)

NAMES = ("matrix_mul", "rms_norm", "softmax", "spmv_csr", "stencil_2d")


def test_the_five_are_there():
    assert set(NAMES) <= set(operator_paths())


@pytest.mark.parametrize("name", sorted(operator_paths()))
def test_operator(name):
    operator = load_operator(name)
    assert operator.path == operator_paths()[name].resolve()
    assert is_shipped(operator.path)
    assert operator.error.reasoning
    for target in ("cuda", "cpu"):
        assert operator.dtypes[target]
        for set_name in ("paper", "large", "heldout", "smoke"):
            assert operator.workload_set(set_name, target)
    for workload in operator.workload_set("large", "cuda"):
        flops, traffic = operator.cost(workload, "float32")
        assert flops > 1e6
        assert traffic > 1e8


@pytest.mark.parametrize("name", sorted(operator_paths()))
def test_generators_and_sampled_references(name):
    operator = load_operator(name)
    (output,) = operator.outputs
    for distribution in operator.distributions:
        for workload in operator.workload_set("smoke", "cpu"):
            rng = np.random.default_rng(0)
            arrays = operator.generate(workload.sizes, distribution, rng, "float32")
            for tensor in operator.inputs:
                assert arrays[tensor.name].shape == tensor.concrete_shape(workload.sizes)
                assert arrays[tensor.name].dtype == operator.tensor_dtype(tensor, "float32")
            scalars = operator.scalar_values()
            full = operator.reference(arrays, scalars, None)[output.name]
            scale = operator.error.scale(arrays, scalars, None)[output.name]
            assert full.dtype == np.float64
            assert np.isfinite(full).all()
            assert np.isfinite(scale).all()
            assert (scale >= 0).all()
            rows = np.array([0, len(full) // 2, len(full) - 1])
            some = operator.reference(arrays, scalars, rows)[output.name]
            np.testing.assert_allclose(some, full[rows], rtol=1e-12)
            part = operator.error.scale(arrays, scalars, rows)[output.name]
            np.testing.assert_allclose(part, scale[rows], rtol=1e-12)


def test_references_against_scipy_and_numpy():
    rng = np.random.default_rng(0)
    softmax = load_operator("softmax")
    from scipy.special import softmax as scipy_softmax

    x = rng.normal(size=(5, 9))
    np.testing.assert_allclose(
        softmax.reference({"x": x}, {}, None)["y"], scipy_softmax(x, axis=-1), rtol=1e-13
    )
    spmv = load_operator("spmv_csr")
    for distribution in ("default", "power_law", "banded", "empty_rows"):
        sizes = {"rows": 50, "nnz": 321, "cols": 40}
        arrays = spmv.generate(sizes, distribution, rng, "float64")
        dense = np.zeros((50, 40))
        row = np.repeat(np.arange(50), np.diff(arrays["row_ptr"]))
        np.add.at(dense, (row, arrays["col_idx"]), arrays["values"])
        np.testing.assert_allclose(
            spmv.reference(arrays, {}, None)["y"], dense @ arrays["x"], rtol=1e-12, atol=1e-14
        )
    stencil = load_operator("stencil_2d")
    src = rng.normal(size=(6, 7))
    padded = stencil.reference({"src": src}, {"alpha": 0.5}, None)["dst"]
    i, j = 2, 3
    around = src[1, 3] + src[3, 3] + src[2, 2] + src[2, 4]
    assert padded[i, j] == pytest.approx(src[i, j] + 0.5 * (around - 4 * src[i, j]))
    assert np.array_equal(padded[0], src[0])
    assert np.array_equal(padded[:, -1], src[:, -1])


@pytest.mark.parametrize("distribution", ["default", "power_law", "banded", "empty_rows"])
def test_sparse_structure(distribution):
    operator = load_operator("spmv_csr")
    sizes = {"rows": 4096, "nnz": 65536, "cols": 4096}
    arrays = operator.generate(sizes, distribution, np.random.default_rng(3), "float32")
    pointer, columns = arrays["row_ptr"], arrays["col_idx"]
    lengths = np.diff(pointer)
    assert pointer[0] == 0
    assert pointer[-1] == 65536 == len(columns)
    assert columns.dtype == np.int32
    assert columns.min() >= 0
    assert columns.max() < 4096
    row = np.repeat(np.arange(4096), lengths)
    same = row[1:] == row[:-1]
    assert (np.diff(columns)[same] >= 0).all()
    if distribution == "power_law":
        assert lengths.max() > 50 * lengths.mean()
    if distribution == "empty_rows":
        assert lengths[0] == lengths[-1] == 0
        assert 0.3 < (lengths == 0).mean() < 0.7
    if distribution == "banded":
        assert np.abs(columns - row).max() <= 64


def test_find_and_load_errors(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'rms_norm'"):
        find_operator("rms_nrom")
    with pytest.raises(OperatorError, match="must exist"):
        find_operator(str(tmp_path / "none.py"))

    def fails(text, match):
        path = tmp_path / "op.py"
        path.write_text(text)
        assert not is_shipped(path)
        with pytest.raises(OperatorError, match=match):
            load_operator(path)

    fails("x = 1\n", r"op\.py: must assign operator")
    fails("x = 1\ny = (\n", r"op\.py:2: operator file does not run: SyntaxError")
    fails("\n\nx = 1 / 0\n", r"op\.py:3: operator file does not run: ZeroDivisionError")
    fails("import missing_module_of_nobody\n", r"op\.py:1: .*ModuleNotFoundError")
    shipped = operator_paths()["softmax"].read_text()
    broken = shipped.replace('name="softmax"', 'name="Soft Max"')
    fails(broken, r"op\.py:\d+: Operator\.name must be a lower-case identifier")
    fails(shipped.replace("(131, 257)", "(131, 0)"), r"op\.py:\d+: .*'cols >= 1' must hold")
    assert not list(tmp_path.glob("**/__pycache__"))


def test_own_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(operator_paths()["softmax"].read_text().replace('"softmax"', '"mine"'))
    assert load_operator(str(path)).name == "mine"


# --- user data ----------------------------------------------------------------------------------


def test_npz(tmp_path):
    operator = load_operator("rms_norm")
    rng = np.random.default_rng(0)
    path = tmp_path / "layer7.npz"
    data = {"x": rng.normal(size=(3, 200)), "weight": np.ones(200), "bias": np.zeros(200)}
    np.savez(path, **data)
    workload = workload_from_file(operator, path)
    assert workload.key == "rows=3,cols=200@user:layer7"
    extended = with_data(operator, path)
    extended.check_workload(workload)
    case = Case(extended, workload, "float32", 0)
    assert np.array_equal(case.inputs["x"], data["x"].astype(np.float32))
    varied = Case(extended, workload, "float32", 1)
    assert not np.array_equal(varied.inputs["x"], case.inputs["x"])
    stages = verification_cases(extended, "float32", [workload], "cpu")
    keys = [s.workload.key for stage in stages for s in stage.specs]
    assert [k for k in keys if "user:" in k] == [workload.key]
    assert extended.allowance(workload) > operator.allowance(Workload(workload.sizes))
    with pytest.raises(WorkloadError, match="must have its sizes"):
        Case(extended, Workload({"rows": 4, "cols": 200}, "user:layer7"), "float32", 0)


def test_npz_errors(tmp_path):
    operator = load_operator("rms_norm")
    path = tmp_path / "a.npz"
    np.savez(path, x=np.ones((3, 20)), weight=np.ones(20))
    with pytest.raises(WorkloadError, match="missing: bias"):
        workload_from_file(operator, path)
    np.savez(path, x=np.ones((3, 20)), weight=np.ones(19), bias=np.ones(20))
    with pytest.raises(WorkloadError, match=r"weight must have shape \(cols\) = \(20,\) \(got"):
        workload_from_file(operator, path)
    np.savez(path, x=np.ones((3, 20)), weight=np.ones((20, 1)), bias=np.ones(20))
    with pytest.raises(WorkloadError, match="must have 1 dimensions"):
        workload_from_file(operator, path)
    np.savez(path, x=np.full((3, 20), "a"), weight=np.ones(20), bias=np.ones(20))
    with pytest.raises(WorkloadError, match="real numbers"):
        workload_from_file(operator, path)
    path.write_bytes(b"PK nonsense")
    with pytest.raises(WorkloadError, match="NumPy archive"):
        workload_from_file(operator, path)
    with pytest.raises(WorkloadError, match="NumPy archive"):
        workload_from_file(operator, tmp_path / "none.npz")
    with pytest.raises(WorkloadError, match=r"must end in \.npz"):
        workload_from_file(operator, tmp_path / "a.csv")


def test_matrix_market(tmp_path):
    operator = load_operator("spmv_csr")
    path = tmp_path / "tiny.mtx"
    path.write_text(
        "%%MatrixMarket matrix coordinate real symmetric\n3 3 4\n1 1 2.0\n2 1 -1\n3 2 -1.5\n3 3 4\n"
    )
    workload = workload_from_file(operator, path)
    assert workload.sizes == {"rows": 3, "nnz": 6, "cols": 3}
    case = Case(with_data(operator, path), workload, "float32", 0)
    assert case.inputs["row_ptr"].tolist() == [0, 2, 4, 6]
    assert case.inputs["col_idx"].tolist() == [0, 1, 0, 2, 1, 2]
    with pytest.raises(WorkloadError, match="Matrix Market data fits operators"):
        workload_from_file(load_operator("softmax"), path)
    path.write_text("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n4\n")
    with pytest.raises(WorkloadError, match="sparse"):
        workload_from_file(operator, path)
    path.write_text("hello\n")
    with pytest.raises(WorkloadError, match="Matrix Market file"):
        workload_from_file(operator, path)
    path = tmp_path / "bad.npz"
    np.savez(path, row_ptr=[0, 1, 2], col_idx=[0, 7], values=[1.0, 2.0], x=[1.0, 1.0])
    with pytest.raises(WorkloadError, match="col_idx must lie in 0 to 1"):
        workload_from_file(operator, path)
    np.savez(path, row_ptr=[0, 1, 1], col_idx=[0, 1], values=[1.0, 2.0], x=[1.0, 1.0])
    with pytest.raises(WorkloadError, match="row_ptr must rise"):
        workload_from_file(operator, path)


def test_shapes():
    operator = load_operator("matrix_mul")
    calls = [{"a": (8, 32), "b": (32, 16)}, {"a": (1, 32), "b": (32, 16)},
             {"c": (8, 16), "a": (8, 32)}]  # fmt: skip
    found = {w.key: w.weight for w in workloads_from_shapes(operator, calls)}
    assert found == {"m=8,n=16,k=32": 2.0, "m=1,n=16,k=32": 1.0}
    with pytest.raises(WorkloadError, match=r"b must have shape \(k, n\)"):
        workloads_from_shapes(operator, [{"a": (8, 32), "b": (31, 16)}])
    with pytest.raises(WorkloadError, match="open: n"):
        workloads_from_shapes(operator, [{"a": (8, 32)}])
    with pytest.raises(WorkloadError, match="must be a tensor of matrix_mul"):
        workloads_from_shapes(operator, [{"q": (8, 32)}])
    (sparse,) = workloads_from_shapes(
        load_operator("spmv_csr"), [{"row_ptr": (11,), "values": (40,), "x": (7,)}]
    )
    assert sparse.sizes == {"rows": 10, "nnz": 40, "cols": 7}
