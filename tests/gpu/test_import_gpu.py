"""Imported CUDA files on a device: the original is its own reference and passes its own bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import kernelsearch
from kernelsearch.errors import KernelSearchError, TargetUnavailableError
from kernelsearch.home import cache_folder
from kernelsearch.operator import Operator
from kernelsearch.targets.choose import choose_target

pytestmark = pytest.mark.gpu
CORPUS = Path(__file__).parent.parent / "data" / "cuda_import"
FILES = (
    "tiled_matmul", "csr_spmv", "stencil_3d", "conv2d_halo", "softmax_rows", "layernorm_block",
    "two_pass_reduce", "constant_filter", "dot_atomic", "histogram_atomics", "scan_hillis",
    "attention_naive", "jacobi_swap", "bf16_gelu", "struct_by_value", "cooperative_launch",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _device() -> None:
    try:
        choose_target("cuda", cache_folder())
    except (TargetUnavailableError, KernelSearchError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", FILES)
def test_an_original_runs_as_its_own_reference(name: str, tmp_path: Path) -> None:
    operator = Operator.from_cuda(CORPUS / f"{name}.cu", folder=tmp_path)
    dtype = operator.dtypes["cuda"][0]
    for workload in (*operator.workloads["smoke"], *operator.workloads["heldout"]):
        rng = np.random.default_rng(0)
        arrays = operator.generate(workload.sizes, "default", rng, dtype)
        scalars = operator.scalar_values()
        exact = operator.reference_for(workload.sizes)(arrays, scalars, None)
        assert set(exact) == {t.name for t in operator.outputs}
        for value in exact.values():
            assert np.isfinite(value.astype(np.float64)).all()


@pytest.mark.parametrize("name", ["tiled_matmul", "csr_spmv", "two_pass_reduce", "softmax_rows"])
def test_tune_makes_an_imported_kernel_no_slower(name: str, tmp_path: Path) -> None:
    operator = Operator.from_cuda(CORPUS / f"{name}.cu", folder=tmp_path)
    kernel = kernelsearch.tune(
        operator.path, target="cuda", workloads="smoke", budget="10", folder=tmp_path / "s"
    )
    assert kernel.result.verified
    assert kernel.result.statuses["ok"] >= 3, kernel.result.statuses
    assert kernel.result.speedup >= 0.95
