"""Compile a CUDA candidate with NVRTC, for a named architecture, with or without a device.

A pure function of its job and of the cache folder: it may be called in any process, and killed.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from kernelsearch.errors import CompileError, MissingExtraError, RejectedError, ResourceLimitError
from kernelsearch.records import Binary, CompileJob, KernelFacts
from kernelsearch.targets.cuda_elf import Cubin
from kernelsearch.targets.cuda_source import check_source, full_source, mutable_globals

CACHE_BYTES = 2 << 30
MAX_LOG = 8000
# What the driver supplies and nothing can be kept in.
_HARMLESS_FUNCTIONS = frozenset({"__assertfail", "vprintf"})
_FOREIGN = {
    "malloc": "the device's heap keeps its contents between calls (use a workspace)",
    "free": "the device's heap keeps its contents between calls (use a workspace)",
}
_SHARED = re.compile(r"uses too much shared data \((0x[0-9a-f]+) bytes, (0x[0-9a-f]+) max\)")


def compile_cuda(job: CompileJob, cache_folder: str | None = None) -> Binary:
    """Compile one job to a cubin.

    Args:
        job: ``options`` may hold ``dtype``, ``defines`` and ``precision``.
        cache_folder: where compiled programs are kept between processes; None keeps none.

    Raises:
        CompileError: evidence holds the compiler's ``log``, first errors first.
        ResourceLimitError: more static shared memory than the architecture has.
        RejectedError: a forbidden construct, a mutable global variable, or the device's heap.
    """
    check_source(job.source)
    started = time.perf_counter()
    source = full_source(job)
    store = _open_cache(cache_folder)
    key = _cache_key(job, source)
    entry = _cached(store, key)
    if entry is None:
        image, symbols, log = _nvrtc(job, source)
        if store is not None:
            store[key + b"-image"] = image
            store[key] = json.dumps({"symbols": symbols, "log": log}).encode()
    else:
        image, symbols, log = entry
    cubin = Cubin(image)
    mutable = mutable_globals(cubin.global_variables(), job.source)
    if mutable:
        raise RejectedError(
            f"mutable global variables are not allowed, since state must not survive a call (got "
            f"{', '.join(mutable)}); use a workspace, or declare them const",
            {"rule": "module globals", "module_globals": mutable},
        )
    _check_functions(cubin)
    return Binary(
        key=job.key, job=job, image=image, code_hash=cubin.code_hash(), symbols=symbols,
        facts=tuple(_facts(log, cubin, name, symbols[name]) for name in job.kernels),
        log=_trimmed(log), compile_s=time.perf_counter() - started,
    )  # fmt: skip


def _check_functions(cubin: Cubin) -> None:
    """Refuse what the driver would have to supply: a heap that outlives the call."""
    for name in cubin.foreign_functions():
        if name not in _HARMLESS_FUNCTIONS:
            why = _FOREIGN.get(name, "a kernel brings all the code it needs")
            raise RejectedError(
                f"device code may not call {name}: {why}; remove the call",
                {"rule": "device functions", "function": name},
            )


def nvrtc_version() -> str:
    """Return NVRTC's version, or an empty string where there is none."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        return ""
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except RuntimeError:
        return ""
    return f"{major}.{minor}" if int(status) == 0 else ""


@cache
def include_folders() -> tuple[str, ...]:
    """Return the folders of the CUDA headers and of CCCL, as far as they are installed."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        find_nvidia_header_directory = None
    found: list[str] = []
    if find_nvidia_header_directory is not None:
        wanted = [find_nvidia_header_directory(library) for library in ("cudart", "cccl")]
        found = [str(folder) for folder in wanted if folder]
    toolkits = sorted(Path("/usr/local").glob("cuda*/include"), reverse=True)
    if not found:
        found = [str(folder) for folder in toolkits[:1]]
    # A toolkit keeps CCCL in a folder of its own beside its headers.
    found += [f"{folder}/cccl" for folder in found if Path(folder, "cccl").is_dir()]
    if not any(Path(folder, "cuda/std").is_dir() for folder in found):
        found += [f"{f}/cccl" for f in toolkits if (f / "cccl/cuda/std").is_dir()][:1]
    return tuple(dict.fromkeys(found))


def _program_types() -> tuple[Any, Any, type[Exception]]:
    try:
        from cuda.bindings import nvrtc  # noqa: F401 - tells a missing package from a missing name
        from cuda.core import Program, ProgramOptions
        from cuda.core._utils.cuda_utils import CUDAError
    except ImportError as error:
        raise MissingExtraError("compiling CUDA source", "cuda", "cuda-core") from error
    return Program, ProgramOptions, CUDAError


def _settings(job: CompileJob) -> dict[str, Any]:
    options = dict(job.options)
    fast = options.get("precision", "strict") == "fast"
    return {
        "arch": job.arch, "std": "c++17", "use_fast_math": True if fast else None,
        "ptxas_options": ["-v"], "diag_suppress": 177,
    }  # fmt: skip


def _nvrtc(job: CompileJob, source: str) -> tuple[bytes, dict[str, str], str]:
    Program, ProgramOptions, CUDAError = _program_types()
    log = StringIO()
    settings = {k: v for k, v in _settings(job).items() if v is not None}
    options = ProgramOptions(name=job.name, include_path=list(include_folders()), **settings)
    try:
        code = Program(source, "c++", options).compile(
            "cubin", name_expressions=job.kernels, logs=log
        )
    except CUDAError as error:
        raise _compile_failure(f"{error}\n{log.getvalue()}") from None
    symbols = {
        name: raw.decode() if isinstance(raw, bytes) else str(raw)
        for name, raw in code.symbol_mapping.items()
    }
    missing = [k for k in job.kernels if k not in symbols]
    if missing:
        raise CompileError(f"the source has no kernel {missing[0]!r}", {"log": log.getvalue()})
    return bytes(code.code), symbols, log.getvalue()


def _compile_failure(log: str) -> CompileError | ResourceLimitError:
    text = log.split("compilation log:", 1)[-1].strip()
    shared = _SHARED.search(text)
    if shared:
        asked, most = int(shared[1], 16), int(shared[2], 16)
        return ResourceLimitError(
            f"a block needs {asked} bytes of static shared memory; the architecture has {most}",
            {"static_shared_bytes": asked, "max_shared_per_block": most},
        )
    first = re.search(r"^.*\berror\b.*$", text, re.MULTILINE)
    message = first[0].strip() if first else text.splitlines()[0] if text else "no compiler log"
    return CompileError(message[:400], {"log": _trimmed(text)})


def _trimmed(log: str) -> str:
    """Return at most ``MAX_LOG`` characters of a log, from its first error on if it has one."""
    if len(log) <= MAX_LOG:
        return log
    first = re.search(r"^.*\berror\b.*$", log, re.MULTILINE)
    start = min(first.start(), len(log) - MAX_LOG) if first else 0
    return log[start : start + MAX_LOG] + "\n[...]"


def _facts(log: str, cubin: Cubin, name: str, symbol: str) -> KernelFacts:
    block = re.search(
        rf"Function properties for {re.escape(symbol)}\n(.*?)(?=Compiling entry|\Z)", log, re.DOTALL
    )
    text = block[1] if block else ""

    def number(pattern: str, default: int | None = None) -> int | None:
        match = re.search(pattern, text)
        return int(match[1]) if match else default

    # ptxas leaves out what is zero, so zero is only concluded from a line that is there.
    used = re.search(r"Used \d+ registers.*", text)
    zero = 0 if used else None
    return KernelFacts(
        name=name,
        registers=number(r"Used (\d+) registers"),
        spill_store_bytes=number(r"(\d+) bytes spill stores"),
        spill_load_bytes=number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        static_shared_bytes=number(r"(\d+) bytes smem", zero),
        barriers=number(r"used (\d+) barriers", zero),
        param_bytes=cubin.parameter_sizes(symbol),
    )


def _open_cache(folder: str | None) -> Any:
    if folder is None:
        return None
    try:
        from cuda.core.utils import FileStreamProgramCache
    except ImportError:
        return None
    return FileStreamProgramCache(folder, max_size_bytes=CACHE_BYTES)


def _cache_key(job: CompileJob, source: str) -> bytes:
    parts = (source, job.kernels, job.arch, sorted(map(str, _settings(job).items())),
             nvrtc_version(), include_folders())  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest().encode()


def _cached(store: Any, key: bytes) -> tuple[bytes, dict[str, str], str] | None:
    if store is None:
        return None
    try:
        facts = json.loads(store[key])
        return bytes(store[key + b"-image"]), facts["symbols"], facts["log"]
    except (KeyError, ValueError):
        return None
