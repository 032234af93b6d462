"""The command line. ``main`` turns every error of ours into a sentence and an exit code."""

from __future__ import annotations

from kernelsearch.cli.entry import main

__all__ = ["main"]
