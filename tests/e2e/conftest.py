"""Fixtures of the end-to-end tests: rates measured once, a command line to call."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kernelsearch.ceilings import with_ceilings
from kernelsearch.targets.cpu import CpuTarget
from kernelsearch.worker import IsolatedRunner


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measure this machine's rates once for all tests."""
    folder = tmp_path_factory.mktemp("rates")
    target = CpuTarget()
    runner = IsolatedRunner(target)
    with_ceilings(target.device, folder, runner.ceilings)
    runner.close()
    return folder


@pytest.fixture
def ready(home: Path, measured: Path) -> Path:
    """A home that knows the machine's rates."""
    shutil.copytree(measured, home / "cache")
    return home


@dataclass
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def command(
    ready: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Call the command line in this process: ``command("tune", "rms_norm")``."""
    from kernelsearch.cli import main

    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["kernelsearch", *map(str, arguments)])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        got = capfd.readouterr()
        return Answer(int(str(code)), got.out, got.err)

    return call
