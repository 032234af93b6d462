"""A bundle made without a device is built by CMake and Make, with no GPU, driver or network."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelsearch.resources import cmake_folder
from tests.e2e.conftest import Command
from tests.support.bundle_build import need

ROOT = Path(__file__).resolve().parents[2]
VARIANT = ROOT / "templates/cuda/rms_norm/block_row.cu"
PARAMS = [w for p in ("THREADS=256", "VEC=4", "ITEMS=4", "AHEAD=1") for w in ("--param", p)]

pytestmark = pytest.mark.nvrtc


@pytest.fixture
def bundle(command: Command, tmp_path: Path) -> Path:
    pytest.importorskip("cuda.bindings.nvrtc")
    done = command("export", "--variant", VARIANT, *PARAMS, "--archs", "sm_80,sm_90a", "-o",
                   tmp_path / "bundle")  # fmt: skip
    assert done.code == 0, done.err
    assert "nobody has verified" in done.err
    return tmp_path / "bundle"


def run(*words: object, cwd: Path | None = None, code: int = 0) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False,
                          cwd=cwd)  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def configure(bundle: Path, build: Path, example: str, *more: str, code: int = 0) -> str:
    return run("cmake", "-S", ROOT / "examples" / example, "-B", build, f"-DBUNDLE={bundle}",
               f"-DCMAKE_PREFIX_PATH={cmake_folder()}", "-DKERNELSEARCH_PYTHON=/nowhere", *more,
               code=code)  # fmt: skip


def test_cmake_make_and_what_is_refused(bundle: Path, tmp_path: Path) -> None:
    need("cmake", "g++", "make", "nm")
    files = {p: p.read_bytes() for p in bundle.rglob("*") if p.is_file()}
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["kernels"][0]["verified"] == []
    for path, digest in manifest["files"].items():
        assert hashlib.sha256(files[bundle / path]).hexdigest() == digest
    build = tmp_path / "build"
    configure(bundle, build, "cpp", "-DCMAKE_CUDA_ARCHITECTURES=86;90a")
    run("cmake", "--build", build)
    assert "rms_norm_float32_workspace" in run("nm", build / "libkernelsearch_rms_norm.a")
    program = build / "normalise"
    first = program.stat().st_mtime_ns
    assert "Building" not in run("cmake", "--build", build)
    assert program.stat().st_mtime_ns == first
    (bundle / "rms_norm.hpp").touch()
    assert "Building" in run("cmake", "--build", build)
    linked = run("ldd", program)
    assert "libcuda" not in linked
    made = tmp_path / "made"
    made.mkdir()
    run("make", "-C", ROOT / "examples/make", f"BUNDLE={bundle}", "normalise",
        f"KERNELSEARCH_RMS_NORM_BUILD={made}")  # fmt: skip
    assert (made / "normalise").is_file()
    wrong = configure(bundle, tmp_path / "x", "cpp", "-DCMAKE_CUDA_ARCHITECTURES=75", code=1)
    assert "no kernel for sm_75" in " ".join(wrong.split())
    header = bundle / "rms_norm.hpp"
    header.write_text(header.read_text() + "\n")
    wrong = configure(bundle, tmp_path / "x", "cpp", code=1)
    assert "was changed after it was exported" in " ".join(wrong.split())
    header.unlink()
    assert "lacks rms_norm.hpp" in configure(bundle, tmp_path / "x", "cpp", code=1)


def test_a_study_is_exported_while_configuring(bundle: Path, tmp_path: Path) -> None:
    need("cmake", "g++")
    study = tmp_path / "mine"
    study.mkdir()
    (study / "study.db").write_text("1")
    # Stands in for Python with kernelsearch: notes what it is asked, hands out the bundle.
    program, notes = tmp_path / "python", tmp_path / "notes"
    program.write_text(f'#!/bin/sh\necho "$@" >> {notes}\n[ "$3" = export ] || exit 0\n'
                       f'mkdir -p "$6" && rm -rf "$6" && cp -r {bundle} "$6"\n')  # fmt: skip
    program.chmod(0o755)
    source, build = tmp_path / "source", tmp_path / "build"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.19)\nproject(x LANGUAGES CXX)\n"
        "find_package(kernelsearch REQUIRED)\nadd_executable(x x.cpp)\n"
        f"kernelsearch_add_kernels(x STUDY {study} ARCHS 90a)\n"
    )
    (source / "x.cpp").write_text('#include "rms_norm.h"\nint main() { return 0; }\n')
    run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={cmake_folder()}",
        f"-DKERNELSEARCH_PYTHON={program}")  # fmt: skip
    run("cmake", "--build", build)
    assert "Building" not in run("cmake", "--build", build)
    words = notes.read_text().splitlines()
    assert len(words) == 1
    assert words[0].endswith("--overwrite --archs sm_90a")
    (study / "study.db").write_text("2")
    # Exported again; the files are the same, so nothing is compiled.
    assert "Building" not in run("cmake", "--build", build)
    assert len(notes.read_text().splitlines()) == 2
    run("cmake", "-S", source, "-B", build, "-DKERNELSEARCH_TUNE=ON")
    assert f"-m kernelsearch resume {study} --budget 60s" in notes.read_text()


def test_fortran(bundle: Path, tmp_path: Path) -> None:
    need("cmake", "g++", "gfortran")
    configure(bundle, tmp_path / "build", "fortran")
    run("cmake", "--build", tmp_path / "build")
    # Without a driver the program says so by its code, and does not crash.
    if not Path("/dev/nvidiactl").exists():
        assert "rms_norm: code 1" in run(tmp_path / "build/normalise_fortran", code=1)


def test_nvcc_takes_the_source(bundle: Path, tmp_path: Path) -> None:
    need("nvcc")
    source = next((bundle / "kernels").glob("*.cu"))
    params = source.with_name(f"{source.stem}_params.h")
    run("nvcc", "-std=c++17", "-cubin", "-arch=sm_90a", "-include", params, source, "-o",
        tmp_path / "x.cubin")  # fmt: skip


def test_export_says_what_is_wrong(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("x")
    good = ("export", "--variant", VARIANT, *PARAMS, "--archs", "sm_90a")
    wgmma = ROOT / "templates/cuda/matrix_mul/wgmma.cu"
    for words, sentence in (
        (("export",), "--variant"),
        (("export", "--variant", VARIANT, "--archs", "sm_90a"), "missing: THREADS"),
        ((*good[:-2],), "--archs"),
        ((*good[:-1], "90a"), "sm_90a"),
        ((*good, "--dtype", "float64"), "float64"),
        ((*good, "--operator", "softmax"), "softmax"),
        ((*good, "-o", tmp_path / "precious", "--overwrite"), "no bundle"),
        (("export", "--variant", ROOT / "templates/cpu/rms_norm/naive.py"), "Numba"),
        (("export", "--variant", wgmma, "--archs", "sm_80", "--param", "MB=1", "--param", "BN=64",
          "--param", "STAGES=6", "--param", "CLUSTER=1", "--param", "GROUP=8"), "sm_90a alone"),
    ):  # fmt: skip
        done = command(*words, *(() if "-o" in words else ("-o", tmp_path / "out")))
        assert done.code == 2, (words, done.out)
        assert sentence in " ".join(done.err.split()), done.err
        assert not (tmp_path / "out").exists()
    assert (tmp_path / "precious/file").is_file()
    shutil.rmtree(tmp_path / "precious")
