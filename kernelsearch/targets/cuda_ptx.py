"""Compile a CUDA candidate to PTX, which drivers compile for devices newer than it.

Through NVRTC's own bindings: cuda.core asks the driver before it makes PTX, and a build has none.
"""

from __future__ import annotations

from typing import Any

from kernelsearch.errors import CompileError, MissingExtraError
from kernelsearch.records import CompileJob
from kernelsearch.targets.cuda_compile import include_folders
from kernelsearch.targets.cuda_source import check_source, full_source


def compile_ptx(job: CompileJob) -> tuple[bytes, dict[str, str]]:
    """Return a job's PTX (with its final NUL) and the name in it of each kernel.

    Raises:
        CompileError: evidence holds the compiler's ``log``.
        RejectedError: a forbidden construct.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MissingExtraError("compiling CUDA source", "cuda", "cuda-core") from error
    check_source(job.source)
    source = full_source(job).encode()
    program = _check(nvrtc.nvrtcCreateProgram(source, job.name.encode(), 0, [], []))
    try:
        for name in job.kernels:
            _check(nvrtc.nvrtcAddNameExpression(program, name.encode()))
        options = _options(job)
        status = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status[0]) != 0:
            raise CompileError(f"no PTX for {job.arch}: {_last_line(log := _log(program))}",
                               {"log": log})  # fmt: skip
        symbols = {
            name: _check(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode()
            for name in job.kernels
        }
        text = b" " * _check(nvrtc.nvrtcGetPTXSize(program))
        _check(nvrtc.nvrtcGetPTX(program, text))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0") + b"\0", symbols


def _options(job: CompileJob) -> list[bytes]:
    given = [f"--gpu-architecture={job.arch.replace('sm_', 'compute_')}", "--std=c++17",
             "--diag-suppress=177"]  # fmt: skip
    if dict(job.options).get("precision") == "fast":
        given.append("--use_fast_math")
    given += [f"--include-path={folder}" for folder in include_folders()]
    return [option.encode() for option in given]


def _log(program: Any) -> str:
    from cuda.bindings import nvrtc

    text = b" " * int(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.rstrip(b"\0").decode(errors="replace")


def _last_line(log: str) -> str:
    errors = [line for line in log.splitlines() if "error" in line]
    return errors[0] if errors else "no compiler log"


def _check(answer: tuple[Any, ...]) -> Any:
    if int(answer[0]) != 0:
        raise CompileError(f"NVRTC refuses: {answer[0].name}")
    return answer[1] if len(answer) > 1 else None
