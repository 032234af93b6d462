"""Arrays recorded by an application: the C++ header writes them, a study is held to its outputs."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from kernelsearch.cases import Case
from kernelsearch.errors import OperatorError, WorkloadError
from kernelsearch.operators_io import load_operator
from kernelsearch.user_data import with_data, workload_from_file

INCLUDE = Path(__file__).resolve().parents[2] / "kernelsearch" / "export" / "include"
PROGRAM = r"""
#include <kernelsearch/capture.hpp>
#include <cmath>
int main(int, char** argv) {
    const int rows = 3, cols = 70;
    std::vector<float> x(rows * cols), y(rows * cols), weight(cols, 2.0f), bias(cols, 0.5f);
    for (int i = 0; i < rows * cols; ++i) x[i] = static_cast<float>(std::sin(i));
    const float eps = 0.25f;
    kernelsearch::Capture capture(argv[1]);
    capture.input("x", x.data(), {3, 70});
    capture.input("weight", weight.data(), {70});
    capture.input("bias", bias.data(), {70});
    capture.scalar("eps", eps);
    for (int r = 0; r < rows; ++r) {
        double sum = 0;
        for (int c = 0; c < cols; ++c) sum += double(x[r * cols + c]) * x[r * cols + c];
        const double scale = 1 / std::sqrt(sum / cols + eps);
        for (int c = 0; c < cols; ++c) {
            y[r * cols + c] = float(x[r * cols + c] * scale * weight[c] + bias[c]);
        }
    }
    y[5] += argv[2][0] == 'w' ? 0.25f : 0.0f;
    capture.output("y", y.data(), {3, 70});
    capture.save();
    try {
        capture.scalar("eps", eps);
    } catch (const std::runtime_error&) {
        return 0;
    }
    return 1;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("capture")
    (folder / "app.cpp").write_text(PROGRAM)
    subprocess.run(
        ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{INCLUDE}", "app.cpp", "-o",
         "app"], cwd=folder, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return folder / "app"


def record(program: Path, folder: Path, mode: str = "right") -> Path:
    path = folder / "norm.npz"
    subprocess.run([program, path, mode], check=True)
    return path


def test_numpy_reads_what_the_header_writes(program: Path, tmp_path: Path) -> None:
    with np.load(record(program, tmp_path)) as archive:
        assert archive["x"].shape == (3, 70)
        assert archive["x"].dtype == np.float32
        assert archive["x"][2, 3] == np.float32(np.sin(143))
        assert archive["eps"] == np.float32(0.25)
        assert archive["y@after"].shape == (3, 70)


def test_the_reference_is_held_to_what_the_application_computed(
    program: Path, tmp_path: Path
) -> None:
    shipped = load_operator("rms_norm")
    for mode in ("right", "wrong"):
        path = record(program, tmp_path, mode)
        operator = with_data(shipped, path)
        assert operator.scalar_values()["eps"] == 0.25
        workload = workload_from_file(operator, path)
        case = Case(operator, workload, "float32", 0)
        try:
            if mode == "right":
                assert case.expected["y"].finite
            else:
                with pytest.raises(OperatorError, match=r"1 of 210 elements of y differ"):
                    _ = case.expected
        finally:
            case.close()
        # Other inputs than the recorded ones are not compared.
        scaled = Case(operator, workload, "float32", 1)
        assert scaled.expected["y"].finite
        scaled.close()


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    operator = load_operator("rms_norm")
    arrays = {"x": np.ones((2, 5)), "weight": np.ones(5), "bias": np.ones(5)}
    path = tmp_path / "a.npz"
    np.savez(path, **arrays, eps=np.ones(3))
    with pytest.raises(WorkloadError, match="eps is passed by value"):
        with_data(operator, path)
    np.savez(path, **arrays, **{"y@after": np.ones((5, 2))})
    with pytest.raises(WorkloadError, match=r"y@after must hold numbers of shape \(2, 5\)"):
        with_data(operator, path)
    assert not with_data(dataclasses.replace(operator), _plain(tmp_path, arrays)).trusted


def _plain(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    path = folder / "plain.npz"
    np.savez(path, **arrays)
    return path
