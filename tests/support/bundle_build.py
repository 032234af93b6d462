"""Builds bundles and a fake driver for tests on machines without a GPU, and calls them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kernelsearch.export.cuda_bundle import cuda_files
from kernelsearch.export.kernel import SCALAR_BYTES, ExportedKernel, Image, Measured
from kernelsearch.operator import Operator, Tensor
from kernelsearch.targets.cuda_compile import include_folders
from kernelsearch.variant import Variant

SUPPORT = Path(__file__).parent


def need(*programs: str) -> None:
    """Skip where a program is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def fake_driver(folder: Path) -> Path:
    """Compile the fake libcuda.so.1 into a folder."""
    need("cc")
    headers = [f for f in include_folders() if Path(f, "cuda.h").is_file()]
    if not headers:
        pytest.skip("cuda.h is not installed (the cuda extra)")
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{headers[0]}", str(SUPPORT / "fake_libcuda.c"), "-o",
         str(folder / "libcuda.so.1")], check=True,
    )  # fmt: skip
    return folder


def stand_in(
    variant: Variant, params: Mapping[str, int | str], dtype: str,
    archs: Sequence[str] = ("sm_90a",), measured: Sequence[Measured] = (),
) -> ExportedKernel:  # fmt: skip
    """Return a kernel with images that only the fake driver loads: nothing is compiled."""
    names = [variant.kernel_name(s.kernel, params) for s in variant.steps if s.kernel]
    symbols = {n: f"_Z{i}_{variant.name}_{dtype}" for i, n in enumerate(dict.fromkeys(names))}
    images = tuple(Image(a, False, b"\x7fELF" + a.encode()) for a in archs)
    return ExportedKernel(variant, dict(params), dtype, images, symbols, tuple(measured))


def write(folder: Path, operator: Operator, kernels: Sequence[ExportedKernel]) -> Path:
    """Write a bundle and what the fake driver must know of its kernels."""
    for name, data in cuda_files(operator, kernels, {"kernelsearch": "0"}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    lines = []
    for kernel in kernels:
        for step in kernel.variant.steps:
            if step.kernel:
                sizes = [
                    SCALAR_BYTES[a[1]] if isinstance(a, tuple)
                    else 128 if a in kernel.variant.tensormaps else 8
                    for a in step.args
                ]  # fmt: skip
                symbol = kernel.symbols[kernel.variant.kernel_name(step.kernel, kernel.params)]
                lines.append(" ".join(map(str, (symbol, len(sizes), *sizes))))
    (folder.parent / f"{folder.name}.sizes").write_text("\n".join(lines) + "\n")
    return folder


def library(bundle: Path, operator: str) -> Path:
    """Compile a bundle's C functions to a shared library, with every warning an error."""
    need("g++")
    target = bundle.parent / f"lib{bundle.name}.so"
    subprocess.run(
        ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared",
         "-fPIC", str(bundle / f"{operator}.cpp"), "-o", str(target), "-ldl", "-pthread"],
        check=True,
    )  # fmt: skip
    return target


def arguments(
    operator: Operator, dtype: str, sizes: Mapping[str, int], pointers: Mapping[str, int],
    scalars: Mapping[str, float],
) -> list[tuple[str, Any]]:  # fmt: skip
    """Return the typed arguments of a C call."""
    found: list[tuple[str, Any]] = []
    for argument in operator.arguments:
        if isinstance(argument, Tensor):
            found.append(("pointer", pointers[argument.name]))
        else:
            kind = {"float32": "float", "float64": "double"}[argument.dtype]
            found.append((kind, scalars[argument.name]))
    return found + [("int64_t", sizes[s]) for s in operator.symbols]


def call(
    bundle: Path, operator: str, driver: Path, calls: Sequence[Mapping[str, Any]],
    environment: Mapping[str, str] | None = None,
) -> tuple[list[tuple[int, str]], list[list[str]], str]:  # fmt: skip
    """Make the calls; return (code, message) and the driver's log of each, and standard error."""
    log = bundle.parent / f"{bundle.name}.log"
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "bundle_caller.py")],
        input=json.dumps({"library": str(bundle.parent / f"lib{bundle.name}.so"),
                          "operator": operator, "calls": calls}),
        env={**os.environ, "LD_LIBRARY_PATH": str(driver), "FAKE_CUDA_LOG": str(log),
             "FAKE_CUDA_SIZES": str(bundle.parent / f"{bundle.name}.sizes"), **(environment or {})},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    logs: list[list[str]] = []
    for line in log.read_text().splitlines():
        if line.startswith("note "):
            logs.append([])
        else:
            logs[-1].append(line)
    return answers, logs, done.stderr


def packed(kind: str, value: float) -> str:
    """Return an argument's bytes as the driver's log shows them."""
    code = {"i32": "<i", "u32": "<I", "i64": "<q", "u64": "<Q", "f32": "<f", "f64": "<d"}[kind]
    return struct.pack(code, value if kind[0] == "f" else int(value)).hex()
