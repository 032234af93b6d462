"""``tune`` on a device: search, verified winner, callable on torch and CuPy arrays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernelsearch
from kernelsearch.errors import ArgumentError

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("name", "dtype", "sizes"),
    [
        ("rms_norm", "float32", {"rows": 256, "cols": 1024}),
        ("softmax", "bfloat16", {"rows": 64, "cols": 512}),
        ("matrix_mul", "float32", {"m": 256, "n": 256, "k": 256}),
        ("matrix_mul", "bfloat16", {"m": 256, "n": 256, "k": 256}),
        ("spmv_csr", "float32", {"rows": 4096, "cols": 2048, "nnz": 65536}),
        ("stencil_2d", "float32", {"nx": 512, "ny": 512}),
    ],
)
def test_tune_finds_a_right_kernel(
    tmp_path: Path, name: str, dtype: str, sizes: dict[str, int]
) -> None:
    kernel = kernelsearch.tune(
        name, target="cuda", dtype=dtype, workloads=[sizes], budget="12", folder=tmp_path / "s"
    )
    result = kernel.result
    assert result.candidates >= 10
    assert result.statuses["ok"] >= 4, result.statuses
    assert result.speedup >= 0.95
    assert result.verified


def test_the_winner_is_callable_on_device_arrays() -> None:
    torch = pytest.importorskip("torch")
    kernel = kernelsearch.tune(
        "rms_norm", target="cuda", workloads=[{"rows": 512, "cols": 1024}], budget="6"
    )
    for rows, cols in ((512, 1024), (3, 77), (1, 1), (0, 8)):
        x = torch.rand(rows, cols, device="cuda") - 0.5
        weight, bias = torch.rand(cols, device="cuda"), torch.rand(cols, device="cuda")
        y = kernel(x, weight, bias)
        wide = x.double()
        expected = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + 1e-5) * weight + bias
        torch.testing.assert_close(y.double(), expected, rtol=2e-5, atol=2e-6)
    shifted = torch.rand(4 * 33 + 1, device="cuda")[1:].view(4, 33)
    y = kernel(shifted, torch.ones(33, device="cuda"), torch.zeros(33, device="cuda"))
    wide = shifted.double()
    expected = wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(y.double(), expected, rtol=2e-5, atol=2e-6)
    with pytest.raises(ArgumentError, match="dtype float32"):
        kernel(x.double(), weight, bias)
    with pytest.raises(ArgumentError, match=r"on the host|CUDA array"):
        kernel(np.zeros((2, 4), np.float32), weight, bias)
    cupy = pytest.importorskip("cupy")
    xc = cupy.random.rand(8, 64, dtype=cupy.float32)
    yc = kernel(xc, cupy.ones(64, cupy.float32), cupy.zeros(64, cupy.float32))
    wide = xc.astype(cupy.float64)
    expected = wide / cupy.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    assert float(cupy.abs(yc - expected).max()) < 1e-5


def test_a_bfloat16_winner_is_callable_on_torch_arrays() -> None:
    torch = pytest.importorskip("torch")
    kernel = kernelsearch.tune(
        "softmax", target="cuda", dtype="bfloat16", workloads=[{"rows": 64, "cols": 512}],
        budget="6",
    )  # fmt: skip
    for rows, cols in ((64, 512), (3, 77), (1, 1), (0, 8)):
        x = torch.randn(rows, cols, device="cuda").to(torch.bfloat16)
        y = kernel(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y.double(), torch.softmax(x.double(), -1), rtol=2**-8, atol=1e-6)
    with pytest.raises(ArgumentError, match="dtype bfloat16"):
        kernel(torch.randn(4, 8, device="cuda"))


def test_the_command_line_tunes_and_exports(tmp_path: Path) -> None:
    environment = {**os.environ, "KERNELSEARCH_HOME": str(tmp_path / "home")}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kernelsearch", *arguments], env=environment, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    tuned = json.loads(run("tune", "stencil_2d", "--workloads", "nx=300,ny=256", "--budget", "5",
                           "--json"))  # fmt: skip
    assert tuned["target"] == "cuda"
    run("export", tuned["folder"], "-o", "bundle")
    names = {p.suffix for p in (tmp_path / "bundle").iterdir()}
    assert {".hpp", ".h", ".cpp", ".f90", ".wisdom", ".json"} <= names
