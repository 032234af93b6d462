"""Put the files of a CUDA bundle together: sources, images, launcher, build files, manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernelsearch.errors import ArgumentError
from kernelsearch.export.build_files import cmake_lists, make_fragment, pkg_config
from kernelsearch.export.c_api import c_header, c_implementation, fortran_module, self_check
from kernelsearch.export.cpp import cpp_header
from kernelsearch.export.kernel import ExportedKernel
from kernelsearch.operator import Operator, Tensor
from kernelsearch.records import DTYPE_BYTES
from kernelsearch.variant import Variant

FORMAT = 2
_INCLUDE = Path(__file__).parent / "include" / "kernelsearch"
_TYPES = {
    "float32": ("float", ""), "float64": ("double", ""), "float16": ("__half", "cuda_fp16.h"),
    "bfloat16": ("__nv_bfloat16", "cuda_bf16.h"), "int32": ("int", ""),
    "int64": ("long long", ""),
}  # fmt: skip


def cuda_files(
    operator: Operator, kernels: Sequence[ExportedKernel], versions: Mapping[str, str]
) -> dict[str, bytes]:
    """Return the bytes of every file of a bundle by its path in it; equal for equal arguments.

    Args:
        operator: what all kernels compute.
        kernels: in order of preference where no measurement decides.
        versions: of what they were made with.

    Raises:
        ArgumentError: no kernel, two equal ones, or one that C++ cannot launch.
    """
    if not kernels:
        raise ArgumentError("a bundle needs at least one kernel")
    ids = [k.id for k in kernels]
    if len(set(ids)) != len(ids):
        raise ArgumentError(f"a kernel is named twice: {', '.join(sorted(set(ids)))}")
    name = operator.name
    dtypes = list(dict.fromkeys(k.dtype for k in kernels))
    archs = sorted({i.arch for k in kernels for i in k.images})
    texts = {
        f"{name}.hpp": cpp_header(operator, operator.checks, kernels),
        f"{name}.h": c_header(operator, dtypes),
        f"{name}.cpp": c_implementation(operator, dtypes),
        f"{name}.f90": fortran_module(operator, dtypes),
        "selfcheck.cpp": self_check(operator, dtypes),
        "CMakeLists.txt": cmake_lists(name, archs),
        "bundle.mk": make_fragment(name),
        f"kernelsearch_{name}.pc": pkg_config(
            name, operator.doc, versions.get("kernelsearch", "0")
        ),
        f"{name}.wisdom": _wisdom(operator, kernels),
    }
    for header in ("arithmetic.hpp", "driver.hpp", "launcher.hpp"):
        texts[f"kernelsearch/{header}"] = (_INCLUDE / header).read_text(encoding="utf-8")
    files = {path: text.encode() for path, text in texts.items()}
    for kernel in kernels:
        stem = f"kernels/{kernel.id}"
        files[f"{stem}.cu"] = kernel.variant.source.encode()
        files[f"{stem}_params.h"] = _params_header(kernel).encode()
        for image in kernel.images:
            files[f"{stem}.{image.arch}.{'ptx' if image.ptx else 'cubin'}"] = (
                image.data.rstrip(b"\0") if image.ptx else image.data
            )
    manifest = _manifest(operator, kernels, versions, files)
    files["manifest.json"] = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    return files


def _wisdom(operator: Operator, kernels: Sequence[ExportedKernel]) -> str:
    """Return the dispatch table as text: a header, then a measurement a line, sorted."""
    columns = ["device", "arch", "dtype", "sizes", "kernel", "time_us", "low_us", "high_us",
               "distribution", "source"]  # fmt: skip
    header = {"format": 1, "operator": operator.name, "contract": operator.contract,
              "sizes": list(operator.symbols), "objective": "time", "unit": "us",
              "columns": columns}  # fmt: skip
    rows = [
        json.dumps([m.device, m.arch, k.dtype, list(m.sizes), k.id, m.time_us, m.low_us, m.high_us,
                    m.distribution, k.variant.hash])
        for k in kernels for m in k.measured
    ]  # fmt: skip
    return "\n".join([json.dumps(header), *sorted(rows), ""])


def _params_header(kernel: ExportedKernel) -> str:
    """Return what ``nvcc -include`` needs before the source: element type and tunables."""
    ctype, header = _TYPES[kernel.dtype]
    lines = [
        f"/* {kernel.variant.operator}: the params of {kernel.id}.", "",
        f"   nvcc -std=c++17 -cubin -include {kernel.id}_params.h {kernel.id}.cu */",
        "#pragma once", "#include <cstdint>", "#include <cuda.h>",
    ]  # fmt: skip
    lines += [f"#include <{header}>"] if header else []
    lines += [
        f"typedef {ctype} elem_t;",
        f"#define ELEM_{kernel.dtype.upper()} 1",
        f"#define ELEM_BYTES {DTYPE_BYTES[kernel.dtype]}",
    ]
    lines += [f"#define {n} {v}" for n, v in sorted(kernel.params.items())]
    return "\n".join([*lines, ""])


def _manifest(
    operator: Operator, kernels: Sequence[ExportedKernel], versions: Mapping[str, str],
    files: Mapping[str, bytes],
) -> dict[str, Any]:  # fmt: skip
    return {
        "format": FORMAT,
        "operator": {
            "name": operator.name, "doc": operator.doc, "contract": operator.contract,
            "precision": operator.precision, "specification": operator.specification,
            "checks": list(operator.checks), "arguments": [
                {"kind": "tensor" if isinstance(a, Tensor) else "scalar", **asdict(a)}
                for a in operator.arguments
            ],
        },
        "kernels": [_kernel(operator, k) for k in kernels],
        "versions": dict(versions),
        "files": {path: hashlib.sha256(data).hexdigest() for path, data in sorted(files.items())},
    }  # fmt: skip


def _kernel(operator: Operator, kernel: ExportedKernel) -> dict[str, Any]:
    variant: Variant = kernel.variant
    return {
        "id": kernel.id,
        "variant": {
            "hash": variant.hash, "name": variant.name, "doc": variant.doc, "arch": variant.arch,
            "domain": {k: e.text for k, e in variant.domain.items()},
        },
        "params": dict(sorted(kernel.params.items())), "dtype": kernel.dtype,
        "images": [{"arch": i.arch, "kind": "ptx" if i.ptx else "cubin"} for i in kernel.images],
        "symbols": dict(kernel.symbols),
        "verified": list(kernel.verified),
        "error_bound": {
            "terms": operator.error.terms, "factor": operator.error.factor,
            "reasoning": operator.error.reasoning,
        },
        "measured": [asdict(m) for m in kernel.measured],
        "origin": dict(kernel.origin),
    }  # fmt: skip
