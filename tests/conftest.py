"""Fixtures and rules for every test: a private home folder, and no GPU tests without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# Workers are fresh interpreters: they must find the tests' own targets too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p
)
# A deadline for each example fails at random on a loaded machine; pytest-timeout catches hangs.
settings.register_profile("kernelsearch", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("kernelsearch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip GPU tests with the reason, where there is no device to run them on."""
    wanted = [i for i in items if i.get_closest_marker("gpu")]
    if not wanted:
        return
    reason = _no_gpu()
    for item in wanted if reason else []:
        item.add_marker(pytest.mark.skip(reason=reason))


def _no_gpu() -> str:
    if not Path("/dev/nvidiactl").exists():
        return "no CUDA device: /dev/nvidiactl does not exist"
    return ""


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a KERNELSEARCH_HOME of its own, so that none sees another's studies."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("KERNELSEARCH_HOME", str(folder))
    return folder
