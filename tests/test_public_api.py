"""What ``import kernelsearch`` gives: few names, all documented, none hidden by a module."""

from __future__ import annotations

import importlib.metadata
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kernelsearch

ROOT = Path(__file__).resolve().parents[1]
NAMES = list(getattr(kernelsearch, "__all__", ()))


def test_the_front_door_is_there() -> None:
    assert "tune" in NAMES
    assert callable(kernelsearch.tune)


def test_there_are_at_most_fifteen_names() -> None:
    assert 1 <= len(NAMES) <= 15
    assert len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_documented(name: str) -> None:
    value = getattr(kernelsearch, name)
    if not name.startswith("__"):
        assert inspect.getdoc(value), f"{name} has no docstring"


def test_no_name_is_that_of_a_module() -> None:
    # Importing the module of that name anywhere would replace the exported object.
    modules = {m.name for m in pkgutil.iter_modules(kernelsearch.__path__)}
    assert not set(NAMES) & modules


def test_unknown_names_are_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        _ = kernelsearch.no_such_name  # type: ignore[attr-defined]


def test_every_name_is_shown_by_dir() -> None:
    assert set(NAMES) <= set(dir(kernelsearch))


def test_types_are_shipped() -> None:
    assert (ROOT / "kernelsearch" / "py.typed").is_file()


def test_the_version_is_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        assert importlib.metadata.version("kernelsearch") == version
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("kernelsearch is not installed, only on the path")


def test_importing_is_quick() -> None:
    """The bar is 0.4 s; a loaded machine gets three tries."""
    code = (
        "import time, numpy; t = time.perf_counter(); import kernelsearch; "
        "print(time.perf_counter() - t)"
    )
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True).stdout)
        for _ in range(3)
    ]  # fmt: skip
    assert min(took) < 0.4
