"""Shipped files are found: in a checkout, and inside an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsearch import resources

OPERATORS = ["matrix_mul", "rms_norm", "softmax", "spmv_csr", "stencil_2d"]


def test_the_shipped_operators_are_found() -> None:
    assert set(OPERATORS) <= set(resources.operator_paths())
    assert all(p.is_file() for p in resources.operator_paths().values())


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("target", "suffix"), [("cuda", ".cu"), ("cpu", ".py")])
def test_templates_come_naive_first(operator: str, target: str, suffix: str) -> None:
    paths = resources.template_paths(operator, target)
    if not paths:
        pytest.skip(f"no {target} templates of {operator} yet")
    assert paths[0].stem == "naive"
    assert [p.name for p in paths[1:]] == sorted(p.name for p in paths[1:])
    assert {p.suffix for p in paths} == {suffix}


def test_what_is_not_there() -> None:
    assert resources.template_paths("nothing", "cuda") == []
    assert resources.include_folder().name == "include"
    assert all(p.suffix == ".toml" for p in resources.study_paths().values())


def test_an_installed_package_uses_its_own_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "kernelsearch"
    (package / "operators").mkdir(parents=True)
    (package / "operators" / "mine.py").write_text("")
    (package / "operators" / "_helper.py").write_text("")
    monkeypatch.setattr(resources, "_PACKAGE", package)
    assert list(resources.operator_paths()) == ["mine"]
    assert resources.resource_folder("templates") == tmp_path / "site" / "templates"
