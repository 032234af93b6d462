"""``explain`` and the diagnoses that a study keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelsearch.diagnoser import EVENT, stored_diagnoses
from kernelsearch.study import StoredStudy
from tests.e2e.conftest import Command


def test_a_study_keeps_diagnoses_and_explains_its_winner(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    done = command("tune", "rms_norm", "--target", "cpu", "--budget", "4", "--workloads",
                   "rows=64,cols=256", "--folder", folder, "--json")  # fmt: skip
    assert done.code == 0, done.err
    with StoredStudy(folder) as stored:
        assert any(e.kind == EVENT for e in stored.ledger.events()[0])
        assert stored_diagnoses(stored.ledger)
    told = command("explain", folder, "--json")
    assert told.code == 0, told.err
    diagnosis = told.json["diagnosis"]
    assert diagnosis["source"] == "cpu"
    assert diagnosis["label"] != "unknown", diagnosis["reason"]
    assert diagnosis["evidence"]
    assert diagnosis["directions"]
    shown = command("explain", folder)
    assert f"bottleneck on {diagnosis['workload']}" in shown.out
    refused = command("explain", folder, "--variant", "no-such")
    assert refused.code == 2


@pytest.mark.nvrtc
def test_a_cuda_file_is_explained_without_a_device(command: Command) -> None:
    path = Path(__file__).resolve().parents[2] / "templates/cuda/rms_norm/naive.cu"
    told = command("explain", path, "--json")
    assert told.code == 0, told.err
    assert all(d["source"] in ("code", "code+time") for d in told.json["diagnoses"])
