"""What reports of compute-sanitizer mean (layout of version 2025.3)."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from kernelsearch.errors import (
    CandidateCrashedError,
    NondeterministicError,
    TargetUnavailableError,
    WrongResultError,
)
from kernelsearch.targets.cuda import CudaTarget
from kernelsearch.targets.cuda_sanitize import TOOLS, judge_log, sanitizers

HEAD = "========= COMPUTE-SANITIZER\n"
CLEAN = HEAD + "========= ERROR SUMMARY: 0 errors\n"
MEMCHECK = (
    HEAD
    + """\
========= Invalid __global__ write of size 4 bytes
=========     at scale(float *)+0x70
=========     by thread (31,0,0) in block (3,0,0)
=========     Access to 0x7f0000000190 is out of bounds
=========
========= Invalid __global__ read of size 4 bytes
=========     at scale(float *)+0x30
=========
========= ERROR SUMMARY: 2 errors
"""
)
RACECHECK = (
    HEAD
    + """\
========= Error: Race reported between Write access at k(float *)+0x30 in test.cu:4
=========     and Read access at k(float *)+0x90 in test.cu:6 [124 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
)
WARNED = HEAD + "========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)\n"
INITCHECK = (
    HEAD
    + """\
========= Uninitialized __global__ memory read of size 4 bytes
=========     at k(float *)+0x40
=========
========= ERROR SUMMARY: 1 error
"""
)
SYNCCHECK = (
    HEAD
    + """\
========= Barrier error detected. Divergent thread(s) in block
=========     at k(float *)+0x50
=========
========= ERROR SUMMARY: 1 error
"""
)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_clean_log(tool: str) -> None:
    assert judge_log(tool, CLEAN) == ""


def test_a_hazard_that_is_only_warned_of() -> None:
    assert judge_log("racecheck", WARNED) == ""


@pytest.mark.parametrize(("tool", "text", "kind", "count", "line"), [
    ("memcheck", MEMCHECK, CandidateCrashedError, 2, "Invalid __global__ write of size 4 bytes"),
    ("racecheck", RACECHECK, NondeterministicError, 1, "Error: Race reported between Write"),
    ("initcheck", INITCHECK, WrongResultError, 1, "Uninitialized __global__ memory read"),
    ("synccheck", SYNCCHECK, NondeterministicError, 1, "Barrier error detected"),
])  # fmt: skip
def test_findings(tool: str, text: str, kind: type[Exception], count: int, line: str) -> None:
    with pytest.raises(kind, match="found") as caught:
        judge_log(tool, text)
    evidence = caught.value.evidence  # type: ignore[attr-defined]
    assert evidence["count"] == count
    assert evidence["report"].startswith(line)
    assert "at " in evidence["report"].splitlines()[1]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "it is empty"),
    (HEAD, "it is empty"),
    (HEAD + "========= Error: Target application terminated before first CUDA API call\n",
     "Target application terminated"),
])  # fmt: skip
def test_a_log_that_says_nothing(text: str, reason: str) -> None:
    assert reason in judge_log("memcheck", text)


def test_tools_are_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = CudaTarget.__new__(CudaTarget)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetUnavailableError, match="compute-sanitizer is not on PATH"):
        sanitizers(target)
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    made = sanitizers(target)
    assert [m.tool for m in made] == list(TOOLS)
    for tool in made:
        assert tool.launcher[0] == str(program)
        log = Path(tool.launcher[tool.launcher.index("--log-file") + 1])
        log.write_text(CLEAN)
        assert tool.judge() == ""
        assert not os.path.exists(log.parent)
