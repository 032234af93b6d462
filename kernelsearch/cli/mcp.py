"""``mcp``: a coding agent drives studies over the Model Context Protocol (stdin, stdout)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernelsearch.cli.agent_tools import TOOLS
from kernelsearch.cli.app import app
from kernelsearch.errors import KernelSearchError, MissingExtraError
from kernelsearch.versions import PACKAGE, installed

INSTRUCTIONS = (
    "kernelsearch makes a compute kernel faster and proves that it still computes the same thing. "
    "get_request says what is wanted; answer with submit_variant; evaluate compiles, verifies and "
    "times it on this machine; best and explain show where the study stands. Nothing that a "
    "variant says about itself is believed."
)


@app.command()
def mcp() -> None:
    """Serve studies to a coding agent over the Model Context Protocol (stdin and stdout).

    Example for a client's settings: {"command": "kernelsearch", "args": ["mcp"]}
    """
    server().run("stdio")


def server() -> Any:
    """Return the server with its tools.

    Raises:
        MissingExtraError: the protocol's SDK is not installed.
    """
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise MissingExtraError("serving studies to an agent", "mcp", "mcp") from error
    made = MCPServer(
        "kernelsearch",
        instructions=INSTRUCTIONS,
        version=installed(PACKAGE) or "",
        log_level="ERROR",
    )
    for tool in TOOLS:
        made.tool(description=tool.__doc__)(_in_a_thread(tool))
    return made


def _in_a_thread(tool: Callable[..., Any]) -> Callable[..., Any]:
    """A run takes a minute: the connection must go on answering meanwhile."""

    @functools.wraps(tool)
    async def call(**arguments: Any) -> Any:
        from anyio.to_thread import run_sync
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            return await run_sync(functools.partial(tool, **arguments))
        except KernelSearchError as error:
            raise ToolError(str(error)) from error

    return call
