"""No secret of the environment reaches a study, a log, an exported bundle or the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Command
from tests.e2e.test_cli import TUNE

SECRET = "s3cr3t-hunter2-value"


def test_a_whole_run_keeps_no_secret(
    command: Command, ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me:{SECRET}@db.invalid/x")
    tuned = command(*TUNE, "--json")
    assert tuned.code == 0, tuned.err
    folder = Path(tuned.json["folder"])
    bundle = tmp_path / "bundle"
    said = [tuned, command("show", folder), command("export", folder, "-o", bundle),
            command("doctor", "--json"), command("repair", folder, "--json")]  # fmt: skip
    assert not [a for a in said if SECRET in a.out + a.err]
    files = [p for place in (ready, bundle) for p in place.rglob("*") if p.is_file()]
    assert {"study.db", "manifest.json"} <= {p.name for p in files}
    assert not [p for p in files if SECRET.encode() in p.read_bytes()]
