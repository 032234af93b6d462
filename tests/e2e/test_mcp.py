"""A coding agent drives a study over the Model Context Protocol, with the SDK's own client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("mcp")
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from kernelsearch.resources import template_paths

TOOLS = {"list_studies", "get_request", "submit_variant", "evaluate", "explain", "best"}
FASTER = """\"\"\"kernelsearch
format = 1
operator = "softmax"
doc = "rows in parallel, one pass for the largest and one for the sum"
dtypes = ["float32"]
[numba]
parallel = true
[[launch]]
kernel = "softmax"
args = ["y", "x"]
\"\"\"

import math

from numba import prange


def softmax(y, x):
    for i in prange(x.shape[0]):
        top = ELEM(-math.inf)
        for j in range(x.shape[1]):
            top = max(top, x[i, j])
        total = ELEM(0)
        for j in range(x.shape[1]):
            y[i, j] = math.exp(x[i, j] - top)
            total += y[i, j]
        for j in range(x.shape[1]):
            y[i, j] /= total
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KERNELSEARCH_HOME", str(tmp_path / "home"))
    done = subprocess.run(
        [sys.executable, "-m", "kernelsearch", "tune", "softmax", "--target", "cpu", "--workloads",
         "smoke", "--budget", "2", "--proposer", "inbox", "--no-templates", "--variant",
         str(template_paths("softmax", "cpu")[0]), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return Path(json.loads(done.stdout)["folder"])


def talk(*calls: tuple[str, dict[str, Any]]) -> tuple[set[str], list[tuple[bool, Any]]]:
    """Start the server, make the calls, return its tools and (failed, content) of each."""

    async def run() -> tuple[set[str], list[tuple[bool, Any]]]:
        import os

        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "kernelsearch", "mcp"], env=dict(os.environ)
        )
        async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
            await session.initialize()
            names = {tool.name for tool in (await session.list_tools()).tools}
            answers = []
            for name, arguments in calls:
                result = await session.call_tool(name, arguments)
                text = "".join(getattr(c, "text", "") for c in result.content)
                failed = bool(getattr(result, "is_error", getattr(result, "isError", False)))
                structured = getattr(result, "structured_content", None)
                value = structured if structured is not None else text
                answers.append((failed, text if failed else value))
            return names, answers

    return anyio.run(run)


def test_an_agent_improves_a_study(study: Path) -> None:
    name = study.name
    names, answers = talk(
        ("list_studies", {}),
        ("get_request", {"study": name}),
        ("submit_variant", {"study": name, "text": FASTER, "mutation": "parallel rows"}),
        ("submit_variant", {"study": name, "text": FASTER}),
        ("evaluate", {"study": name, "budget": "2"}),
        ("best", {"study": name}),
        ("explain", {"study": name}),
        ("submit_variant", {"study": name, "text": "no variant at all"}),
        ("best", {"study": "nothing"}),
        ("evaluate", {"study": name, "budget": "soon"}),
    )
    assert names == TOOLS
    failed = [f for f, _ in answers]
    assert failed == [False] * 7 + [True] * 3, answers
    listed, request, told, again, ran, best, explained = (json.dumps(v) for _, v in answers[:7])
    assert name in listed
    assert "softmax" in request
    assert '"new": true' in told
    assert "already" in again
    assert "parallel rows" in ran
    assert '"status": "ok"' in ran
    assert "def softmax" in best
    assert "times_us" in explained
    assert "nothing" in answers[8][1]
    assert "budget" in answers[9][1]
