"""The command ``report``: files in every format, and a sentence for what is wrong."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.support.synthetic_study import make_study


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path / "study").folder


def test_the_page_is_written_and_named(command: Command, study: Path, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    told = command("report", study)
    assert told.code == 0, told.err
    assert "file:///" in told.out
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")
    again = command("report", study, "-o", tmp_path / "report.html", "--json")
    assert again.json["format"] == "html"
    assert (tmp_path / "report.html").stat().st_mode & 0o444
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "study"]


def test_every_format_by_name_and_printed(command: Command, study: Path, tmp_path: Path) -> None:
    for name in ("r.md", "r.json", "r.csv", "r.htm"):
        assert command("report", study, "-o", tmp_path / name).code == 0
    assert len(json.loads((tmp_path / "r.json").read_text())["evaluations"]) == 60
    printed = command("report", study, "--format", "csv").out
    assert len(list(csv.reader(io.StringIO(printed)))) == 61
    assert command("report", study, "-o", "-").out.startswith("# ")
    assert command("report", study, "--format", "json").json["format"] == 1


def test_figures(command: Command, study: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    told = command("report", study, "--figures", tmp_path / "figures", "--json")
    assert told.code == 0, told.err
    assert sorted(told.json["figures"]) == sorted(map(str, (tmp_path / "figures").iterdir()))


@pytest.mark.parametrize(("arguments", "says"), [
    (("-o", "winner.cu"), "--format"),
    (("--format", "pdf"), "html, json, md"),
    (("-o", "no/such/folder/r.html"), "-o FILE"),
    (("-o", "."), "must end in"),
    (("-o", "-", "--json"), "-o FILE"),
    (("--figures", "figures", "-o", "r.html"), "twice"),
    (("--figures", "/dev/null/figures"), "another folder"),
])  # fmt: skip
def test_what_is_wrong_gets_a_remedy(command: Command, study: Path, arguments: tuple[str, ...],
                                     says: str) -> None:  # fmt: skip
    told = command("report", study, *arguments)
    assert told.code == 2
    assert says in told.err + told.out


def test_the_study_is_not_changed(command: Command, study: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in study.rglob("*") if p.is_file() and "db-" not in p.name}
    assert command("report", study, "-o", tmp_path / "r.html").code == 0
    after = {p: p.read_bytes() for p in study.rglob("*") if p.is_file() and "db-" not in p.name}
    assert before == after


def test_a_folder_without_a_study(command: Command, tmp_path: Path) -> None:
    told = command("report", tmp_path)
    assert told.code == 2
    assert "list --studies" in told.err
