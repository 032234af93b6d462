"""Find the files that ship with the package: operators, templates and studies.

In the wheel they lie under ``kernelsearch/``; in a source checkout (or an editable install) they
are the top-level folders beside the package.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def resource_folder(name: str) -> Path:
    """Return the folder ``operators``, ``templates`` or ``studies``."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def include_folder() -> Path:
    """Return the folder of headers that CUDA variants may include."""
    return resource_folder("templates") / "cuda" / "include"


def cmake_folder() -> Path:
    """Return the folder of the CMake package."""
    return _PACKAGE / "cmake"


def template_paths(operator: str, target: str) -> list[Path]:
    """Return the shipped variant files of an operator for a target, naive first, then by name."""
    suffix = ".cu" if target == "cuda" else ".py"
    folder = resource_folder("templates") / target / operator
    files = sorted(folder.glob(f"*{suffix}")) if folder.is_dir() else []
    return sorted(files, key=lambda p: (p.stem != "naive", p.name))


def operator_paths() -> dict[str, Path]:
    """Return the shipped operator files by operator name."""
    return {p.stem: p for p in sorted(resource_folder("operators").glob("[a-z]*.py"))}


def study_paths() -> dict[str, Path]:
    """Return the shipped study files by name."""
    return {p.stem: p for p in sorted(resource_folder("studies").glob("*.toml"))}
