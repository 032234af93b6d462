"""Run the application: errors become one sentence and exit code 2, Ctrl-C becomes 130."""

from __future__ import annotations

import os
import signal
import sys

from kernelsearch.cli import (
    auditing,
    bundles,
    checking,
    comparing,
    dashboard,
    differing,
    doctor,
    explaining,
    following,
    housekeeping,
    importing,
    listing,
    mcp,
    proposals,
    repairing,
    reporting,
    scaffold,
    showing,
    tuning,
)
from kernelsearch.cli.app import app
from kernelsearch.cli.console import emit_json, errors, wants_json
from kernelsearch.errors import KernelSearchError

__all__ = [
    "auditing", "bundles", "checking", "comparing", "dashboard", "differing", "doctor",
    "explaining", "following", "housekeeping", "importing", "listing", "main", "mcp", "proposals",
    "repairing", "reporting", "scaffold", "showing", "tuning",
]  # fmt: skip

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point of the ``kernelsearch`` command."""
    # A batch system's notice is taken like Ctrl-C: claims are given back, the study is closed.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(standalone_mode=True)
    except KernelSearchError as error:
        if wants_json(sys.argv):
            emit_json({"error": {"type": type(error).__name__, "message": str(error)}})
        else:
            errors.print("[bold red]error:[/] ", end="")
            errors.print(str(error), markup=False, highlight=False)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone; nothing is wrong with us.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
