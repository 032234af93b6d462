"""Compile checked Numba source to an image of machine code that another process can load.

The image holds object code and bitcode as LLVM writes them, and names as JSON: nothing in it is
unpickled. Loading takes milliseconds, compiling about a second.
"""

from __future__ import annotations

import ast
import hashlib
import json
import linecache
import re
import struct
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelsearch.errors import CompileError, RejectedError
from kernelsearch.records import Binary, CompileJob, KernelFacts
from kernelsearch.targets.cpu_asm import assembly_facts
from kernelsearch.targets.cpu_check import CheckedSource, check_source
from kernelsearch.targets.cpu_elf import code_digest

MAGIC = b"KSCPU2\n\0"
MAX_LOG = 6000
_SCALARS = {
    "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64", "f32": "float32",
    "f64": "float64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelImage:
    """One compiled kernel: symbols to find it by, and what LLVM made of it."""

    name: str
    library: str
    symbol: str
    environments: tuple[str, ...]
    parallel: bool
    code: bytes
    bitcode: bytes
    assembly: Mapping[str, float] = field(default_factory=dict)


def toolchain() -> str:
    """Return what object code depends on: compiler versions and the host's instruction set."""
    import llvmlite
    import llvmlite.binding as llvm
    import numba

    features = hashlib.sha256(llvm.get_host_cpu_features().flatten().encode()).hexdigest()[:12]
    versions = f"numba {numba.__version__} llvmlite {llvmlite.__version__}"
    return f"{versions} {llvm.get_host_cpu_name()} {features}"


def compile_binary(job: CompileJob) -> Binary:
    """Check and compile a job.

    Raises:
        RejectedError: the source uses what it must not.
        CompileError: Numba refuses it; evidence holds ``log`` and, where known, ``line``.
    """
    started = time.perf_counter()
    images = compile_images(job, bounds=False)
    image = pack_images(images)
    return Binary(
        key=job.key,
        job=job,
        image=image,
        code_hash=hashlib.sha256(
            "\0".join([*(code_digest(i.code) for i in images), *job.kernels]).encode()
        ).hexdigest()[:16],
        symbols={i.name: i.symbol for i in images},
        facts=tuple(KernelFacts(i.name, code=i.assembly) for i in images),
        log=", ".join(f"{i.name}: {len(i.code)} bytes of object code" for i in images),
        compile_s=time.perf_counter() - started,
    )


def compile_images(job: CompileJob, *, bounds: bool) -> list[KernelImage]:
    """Compile every kernel of a job; with ``bounds``, serially and with checked indices."""
    options = dict(job.options)
    checked = check_source(job.source, job.name, dict(options.get("defines", ())))
    arguments = dict(options.get("args", ()))
    settings = dict(options.get("numba", ()))
    flags = settings.get("fastmath", False)
    fastmath = set(flags) if isinstance(flags, tuple | list) else bool(flags)
    parallel = bool(settings.get("parallel", False)) and not bounds
    namespace = _execute(checked, str(options["dtype"]), job)
    return _build(job, checked, namespace, arguments, fastmath, parallel, bounds)


def _build(
    job: CompileJob,
    checked: CheckedSource,
    namespace: dict[str, Any],
    arguments: Mapping[str, tuple[str, ...]],
    fastmath: bool | set[str],
    parallel: bool,
    bounds: bool,
) -> list[KernelImage]:
    import numba
    from numba.core import errors

    common: dict[str, Any] = {
        "fastmath": fastmath, "error_model": "numpy", "boundscheck": bounds
    }  # fmt: skip
    plain = {name: namespace[name] for name in checked.names}
    for name in job.kernels:
        if name not in plain:
            known = ", ".join(checked.names)
            raise CompileError(f"{job.name} has no kernel {name!r}; it has: {known}", {"log": ""})
        if name not in arguments:
            raise CompileError(
                f"the argument types of kernel {name} are unknown; make the job with "
                "Variant.compile_job(..., operator=...)"
            )
    # A helper may be a kernel too: callers bind to the serial helper, the launch to its own.
    for name, function in plain.items():
        namespace[name] = numba.njit(**common)(function)
    images = []
    for name in job.kernels:
        function = plain[name]
        dispatcher = numba.njit(**common, parallel=parallel)(function)
        signature = numba.void(*(_numba_type(t) for t in arguments[name]))
        _check_count(job, name, function, len(arguments[name]))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                dispatcher.compile(signature)
        except errors.NumbaError as error:
            raise _failure(job, name, str(error)) from None
        except (
            AssertionError, AttributeError, IndexError, KeyError, NotImplementedError,
            RecursionError, RuntimeError, TypeError, ValueError,
        ) as error:  # fmt: skip
            # Numba lets its own slips through as ordinary exceptions: still this source's fate.
            raise _failure(job, name, f"{type(error).__name__}: {error}") from None
        images.append(_image(name, dispatcher, signature.args))
    return images


def _check_count(job: CompileJob, name: str, function: Callable[..., Any], count: int) -> None:
    wanted = function.__code__.co_argcount
    if wanted != count:
        raise CompileError(
            f"{job.name}:{function.__code__.co_firstlineno}: kernel {name} takes {wanted} "
            f"arguments, but its launch step passes {count}; make them agree",
            {"log": "", "line": function.__code__.co_firstlineno},
        )


def _image(name: str, dispatcher: Any, arguments: Any) -> KernelImage:
    result = dispatcher.overloads[tuple(arguments)]
    library, _, (code, bitcode) = result.library.serialize_using_object_code()
    environments = [result.environment, *result._find_referenced_environments()]
    names = tuple(dict.fromkeys(e.env_name for e in environments))
    if any(e.consts for e in environments):
        raise CompileError(f"kernel {name} needs Python objects at run time", {"log": ""})
    return KernelImage(
        name=name,
        library=library,
        symbol=result.fndesc.llvm_cpython_wrapper_name,
        environments=names,
        parallel=bool(result.reload_init),
        code=code,
        bitcode=bitcode,
        assembly=assembly_facts(result.library.get_asm_str()),
    )


def _numba_type(text: str) -> Any:
    import numba

    if text in _SCALARS:
        return getattr(numba, _SCALARS[text])
    role, dtype, ndim = text.split(":")
    element = getattr(numba, dtype, None)
    if element is None or dtype in ("bfloat16", "float16"):
        raise CompileError(
            f"element type {dtype} is not supported on the cpu target; use float32 or float64",
            {"log": ""},
        )
    return numba.types.Array(element, int(ndim), "C", readonly=role == "in")


def _execute(checked: CheckedSource, dtype: str, job: CompileJob) -> dict[str, Any]:
    """Run the module's constants and definitions in a namespace that holds nothing else."""
    import math

    import numba
    import numpy as np

    builtins = {
        "range": range, "min": min, "max": max, "abs": abs, "int": int, "float": float,
        "bool": bool, "len": len, "round": round,
    }  # fmt: skip
    element = getattr(np, dtype, None)
    if element is None:
        raise CompileError(f"element type {dtype} is not supported on the cpu target", {"log": ""})
    namespace: dict[str, Any] = {
        "__builtins__": builtins,
        # Numba makes symbols of it: two candidates in one process must not share any.
        "__name__": f"ks_{job.key}",
        "np": np,
        "math": math,
        "prange": numba.prange,
        "ELEM": element,
    }
    lines = job.source.splitlines(keepends=True)
    linecache.cache[job.name] = (len(job.source), None, lines, job.name)
    for node in checked.constants:
        _run(ast.Module([node], []), namespace, job, node.lineno)
        target = node.targets[0]
        assert isinstance(target, ast.Name)
        number = namespace[target.id]
        if isinstance(number, int) and not -(1 << 63) <= number < 1 << 64:
            raise RejectedError(
                f"{job.name}:{node.lineno}:1: constant {target.id} does not fit 64 bits",
                {"file": job.name, "line": node.lineno, "column": 1, "construct": "number"},
            )
    _run(ast.Module(list(checked.functions), []), namespace, job, 1)
    return namespace


def _run(tree: ast.Module, namespace: dict[str, Any], job: CompileJob, line: int) -> None:
    try:
        exec(compile(ast.fix_missing_locations(tree), job.name, "exec"), namespace)
    except (ArithmeticError, ValueError, TypeError, SyntaxError, RecursionError) as error:
        place = getattr(error, "lineno", None) or line
        raise CompileError(
            f"{job.name}:{place}: {error}", {"log": f"{type(error).__name__}: {error}",
                                             "line": place}
        ) from None  # fmt: skip


def _failure(job: CompileJob, kernel: str, text: str) -> CompileError:
    """Keep what helps: the reason, and the line of the user's file it is about."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = re.findall(rf'File "{re.escape(job.name)}", line (\d+)', text)
    line = int(found[0]) if found else None
    kept = []
    for row in text.splitlines():
        if row.startswith(("This error may have been caused", "For more information", "To see")):
            break
        if row.strip() and not re.search(
            r"site-packages|^During: |<source elided>|^Failed in nopython mode", row
        ):
            kept.append(row.rstrip())
    log = "\n".join(kept)[:MAX_LOG]
    reason = next((r.strip() for r in kept if "pipeline (step" not in r), "does not compile")
    place = f"{job.name}:{line}" if line is not None else job.name
    return CompileError(f"{place}: kernel {kernel}: {reason}"[:500], {"log": log, "line": line})


# --- the image's form ---------------------------------------------------------------------------


def pack_images(images: list[KernelImage]) -> bytes:
    """Return the kernels as one byte string."""
    header = json.dumps({
        "toolchain": toolchain(),
        "kernels": [
            {"name": i.name, "library": i.library, "symbol": i.symbol, "parallel": i.parallel,
             "environments": i.environments, "sizes": [len(i.code), len(i.bitcode)]}
            for i in images
        ],
    }).encode()  # fmt: skip
    body = b"".join(part for i in images for part in (i.code, i.bitcode))
    return MAGIC + struct.pack("<I", len(header)) + header + body


def unpack_images(image: bytes) -> list[KernelImage] | None:
    """Return the kernels of an image, or None if another toolchain or CPU made it."""
    start = len(MAGIC) + 4
    if image[: len(MAGIC)] != MAGIC:
        return None
    (length,) = struct.unpack("<I", image[len(MAGIC) : start])
    header = json.loads(image[start : start + length])
    if header["toolchain"] != toolchain():
        return None
    at = start + length
    images = []
    for kernel in header["kernels"]:
        code, bitcode = kernel.pop("sizes")
        kernel["environments"] = tuple(kernel["environments"])
        images.append(
            KernelImage(
                **kernel, code=image[at : at + code], bitcode=image[at + code : at + code + bitcode]
            )
        )
        at += code + bitcode
    return images
