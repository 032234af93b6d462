"""A CPU target with tools that say, once their worker has ended, what they were told to say."""

from __future__ import annotations

from kernelsearch.errors import TargetUnavailableError, WrongResultError
from kernelsearch.protocols import Executable
from kernelsearch.records import Binary, CompileJob, Device
from kernelsearch.targets.cpu import CpuTarget


class Tool:
    """``verdict``: "" (found nothing), "found ..." or why nothing can be said."""

    name = "cpu"
    closing_s = 10.0

    def __init__(self, tool: str, verdict: str, launcher: tuple[str, ...]) -> None:
        self.tool, self.verdict, self.launcher = tool, verdict, launcher

    @property
    def device(self) -> Device:
        return CpuTarget().device

    def compile(self, job: CompileJob) -> Binary:
        return CpuTarget().compile(job)

    def open(self) -> Executable:
        return CpuTarget().open()

    def judge(self) -> str:
        if self.verdict.startswith("found"):
            raise WrongResultError(self.verdict, {"tool": self.tool})
        return self.verdict


class WatchedCpu(CpuTarget):
    """A CPU target; its tools are given by ``verdicts`` (name: verdict), None: there are none."""

    verdicts: dict[str, str] | None = None
    # A program that runs its arguments, as a tool does.
    launcher_of_tools: tuple[str, ...] = ("env",)

    def sanitizers(self) -> tuple[Tool, ...]:
        if self.verdicts is None:
            raise TargetUnavailableError("no tool is installed")
        return tuple(Tool(n, v, self.launcher_of_tools) for n, v in self.verdicts.items())
