"""An exported bundle computes on the device: from Python, and from the C++ example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import kernelsearch
from kernelsearch.resources import cmake_folder
from kernelsearch.targets.cuda_device import probe_device
from tests.support.bundle_build import need

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    params = [w for p in ("THREADS=256", "VEC=4", "ITEMS=4", "AHEAD=1") for w in ("--param", p)]
    subprocess.run(
        [sys.executable, "-m", "kernelsearch", "export", "--variant",
         str(ROOT / "templates/cuda/rms_norm/block_row.cu"), *params, "--archs",
         probe_device().arch, "-o", str(tmp_path / "bundle")], check=True,
    )  # fmt: skip
    return tmp_path / "bundle"


def test_python_calls_it(bundle: Path) -> None:
    torch = pytest.importorskip("torch")
    kernel = kernelsearch.load(bundle)
    x = torch.randn(100, 4096, device="cuda")
    weight, bias = torch.randn(4096, device="cuda"), torch.randn(4096, device="cuda")
    wanted = torch.nn.functional.rms_norm(x, (4096,), weight, 1e-5) + bias
    torch.testing.assert_close(kernel(x, weight, bias), wanted, rtol=1e-5, atol=1e-5)


def test_the_cpp_example_runs(bundle: Path, tmp_path: Path) -> None:
    need("cmake", "g++")
    build = tmp_path / "build"
    options = [f"-DBUNDLE={bundle}", f"-DCMAKE_PREFIX_PATH={cmake_folder()}"]
    example = str(ROOT / "examples/cpp")
    subprocess.run(["cmake", "-S", example, "-B", str(build), *options], check=True)
    subprocess.run(["cmake", "--build", str(build)], check=True)
    done = subprocess.run([str(build / "normalise")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "largest error" in done.stdout
