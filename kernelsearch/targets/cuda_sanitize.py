"""compute-sanitizer's tools around a CUDA worker, and what their reports mean.

Source: NVIDIA, Compute Sanitizer user manual: memcheck (accesses outside allocations), racecheck
(hazards in shared memory), initcheck (reads of global memory that nobody wrote), synccheck
(barriers that not all threads reach).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    NondeterministicError,
    TargetUnavailableError,
    WrongResultError,
)
from kernelsearch.protocols import Executable, Target
from kernelsearch.records import Binary, CompileJob, Device

PROGRAM = "compute-sanitizer"
# Tool = what a finding of it is, and the error it becomes.
TOOLS: dict[str, tuple[str, type[CandidateError]]] = {
    "memcheck": ("an access outside the buffers", CandidateCrashedError),
    "racecheck": ("a race in shared memory", NondeterministicError),
    "initcheck": ("a read of memory that was never written", WrongResultError),
    "synccheck": ("a barrier that not all threads reach", NondeterministicError),
}
# Errors that the driver's interface answers with are looked at by the worker itself.
_OPTIONS = {"memcheck": ("--report-api-errors", "no")}
_PREFIX = re.compile(r"^=========[ ]?", re.MULTILINE)
_SUMMARY = re.compile(
    r"(?:ERROR SUMMARY: (\d+) errors?|"
    r"RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, \d+ warnings?\))"
)
_REPORT_LINES = 12
_REPORT_CHARS = 4000


class SanitizedCuda:
    """The device of a CUDA target, in a worker that runs under one tool of compute-sanitizer.

    Args:
        target: whose device it is.
        tool: one of ``TOOLS``.
        program: path of compute-sanitizer.
    """

    name = "cuda"
    closing_s = 60.0

    def __init__(self, target: Target, tool: str, program: str) -> None:
        self._target = target
        self.tool = tool
        self._folder = tempfile.mkdtemp(prefix="kernelsearch-sanitizer-")
        self._log = Path(self._folder) / f"{tool}.log"
        self.launcher = (
            program, "--tool", tool, "--log-file", str(self._log), "--target-processes", "all",
            *_OPTIONS.get(tool, ()),
        )  # fmt: skip

    @property
    def device(self) -> Device:
        return self._target.device

    def compile(self, job: CompileJob) -> Binary:
        return self._target.compile(job)

    def open(self) -> Executable:
        """Open the device."""
        return self._target.open()

    def judge(self) -> str:
        """Return "" if the tool found nothing, else why nothing can be said.

        Raises:
            CandidateError: it found something.
        """
        try:
            text = self._log.read_text(errors="replace")
        except OSError:
            text = ""
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        return judge_log(self.tool, text)


def sanitizers(target: Target) -> tuple[SanitizedCuda, ...]:
    """Return a target for each tool.

    Raises:
        TargetUnavailableError: compute-sanitizer is not installed.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise TargetUnavailableError(f"{PROGRAM} is not on PATH (it comes with the CUDA toolkit)")
    return tuple(SanitizedCuda(target, tool, program) for tool in TOOLS)


def judge_log(tool: str, text: str) -> str:
    """Return "" for a log without findings, else why it says nothing.

    Args:
        tool: one of ``TOOLS``.
        text: the log.

    Raises:
        CandidateError: the log has findings; ``evidence["report"]`` is the first of them.
    """
    what, kind = TOOLS[tool]
    plain = _PREFIX.sub("", text)
    found = [int(a or b) for a, b in _SUMMARY.findall(plain)]
    if not found:
        first = next((line for line in plain.splitlines()[1:] if line.strip()), "it is empty")
        return f"{PROGRAM} ended without a summary ({first.strip()[:200]})"
    count = sum(found)
    if not count:
        return ""
    report = _first_report(plain)
    raise kind(
        f"{tool} found {what} ({count} of them): {report.splitlines()[0] if report else ''}",
        {"tool": tool, "count": count, "report": report},
    )


def _first_report(plain: str) -> str:
    """Return the first finding: a line at the margin and the indented ones after it."""
    lines: list[str] = []
    for line in plain.splitlines():
        if not lines:
            if not line.strip() or line.startswith((" ", "COMPUTE-SANITIZER")):
                continue
            if _SUMMARY.search(line):
                break
            lines.append(line)
        elif line.startswith(" ") and line.strip() and len(lines) < _REPORT_LINES:
            lines.append(line.strip())
        else:
            break
    return "\n".join(lines)[:_REPORT_CHARS]
