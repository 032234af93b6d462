"""Faults that other tuners are known for: each ends, at most, the candidate that has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelsearch import api
from kernelsearch.errors import KernelSearchError, SickDeviceError
from kernelsearch.evaluate import Deadlines
from kernelsearch.events import Progress
from kernelsearch.records import Evaluation, Status
from kernelsearch.search.budget import parse_budget
from kernelsearch.session import Equipment
from kernelsearch.study import StoredStudy, Study
from kernelsearch.targets.cpu import CpuTarget

HEAD = '''"""kernelsearch
format = 1
operator = "rms_norm"
doc = "{name}"
[[launch]]
kernel = "rms_norm"
args = ["y", "x", "weight", "bias", "eps:f32"]
"""
import math


def rms_norm(y, x, weight, bias, eps):
'''
RIGHT = """    for i in range(x.shape[0]):
        t = 0.0
        for j in range(x.shape[1]):
            t += x[i, j] * x[i, j]
        s = 1 / math.sqrt(t / x.shape[1] + eps)
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * s * weight[j] + bias[j]
"""
BODIES = {
    # Far outside where nothing checks: only on sizes that the run with checked indices has not.
    "segfault": RIGHT + "    if x.shape[0] == 16:\n        y[0, 1 << 40] = 1\n",
    "endless": "    n = 0\n    while eps > 0:\n        n += 1\n        y[0, 0] = n\n" + RIGHT,
    "wrong": RIGHT.replace("+ bias[j]", "- bias[j]"),
    "compile_error": RIGHT + "    y[0, 0] = x\n",
    "naive": RIGHT,  # the baseline, by its name
}
SIZES = ({"rows": 16, "cols": 64},)


def write(folder: Path, name: str, body: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(HEAD.format(name=name) + body)
    return path


def begin(folder: Path, *variants: Path) -> api.Prepared:
    return api.prepare(api.TuneRequest(
        "rms_norm", "cpu", workloads=SIZES, folder=folder, variants=variants, templates=False,
        proposers=(),
    ))  # fmt: skip


def of(study: Study, name: str) -> Evaluation:
    (record,) = [v for v in study.archive.variants() if v.name == name]
    (found,) = study.archive.evaluations_of(record.hash)
    return found


@pytest.fixture
def equipment(ready: Path) -> Iterator[Equipment]:
    with Equipment(CpuTarget(), 1) as shared:
        yield shared


def test_faulty_kernels_end_neither_the_process_nor_the_run(
    equipment: Equipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelsearch.evaluate.Deadlines", lambda: Deadlines(run_s=2.0))
    files = [write(tmp_path, name, body) for name, body in BODIES.items()]
    study = begin(tmp_path / "study", *files).open_study()
    started = time.monotonic()
    result = api.run_study(study, equipment, parse_budget("6"))
    # Without its deadline the endless kernel would have run for ever.
    assert time.monotonic() - started < 120
    assert of(study, "segfault").status in (Status.CRASHED, Status.CHEATED)
    assert of(study, "endless").status is Status.TIMED_OUT
    assert of(study, "wrong").status is Status.WRONG
    assert of(study, "compile_error").status is Status.COMPILE_ERROR
    assert of(study, "naive").ok
    assert result.candidates == len(BODIES)
    study.close()


def test_an_edited_kernel_never_gets_its_old_times(equipment: Equipment, tmp_path: Path) -> None:
    naive = write(tmp_path, "naive", RIGHT)
    path = write(tmp_path, "mine", RIGHT + "    y[0, 0] += 0\n")
    study = begin(tmp_path / "one", naive, path).open_study()
    api.run_study(study, equipment, parse_budget("2"))
    old = of(study, "mine")
    study.close()
    path.write_text(path.read_text().replace("x[i, j] * x[i, j]", "2 * x[i, j] * x[i, j]"))
    study = begin(tmp_path / "one", naive, path).open_study()
    api.run_study(study, equipment, parse_budget("2"))
    new = [e for v in study.archive.variants() if v.name.startswith("mine")
           for e in study.archive.evaluations_of(v.hash)
           if e.candidate.variant != old.candidate.variant]  # fmt: skip
    assert [e.status for e in new] == [Status.WRONG]
    assert not new[0].timings
    study.close()


def test_a_sick_device_ends_the_run_and_not_the_study(equipment: Equipment, tmp_path: Path) -> None:
    study = begin(tmp_path / "study", write(tmp_path, "naive", RIGHT)).open_study()

    def fail(progress: Progress) -> None:
        equipment.runner._sick = "the device failed its health probe 3 times"

    with pytest.raises(SickDeviceError, match=r"health probe.*can be resumed"):
        api.run_study(study, equipment, parse_budget("2"), fail)
    events, _ = study.ledger.events()
    assert [e.data["device"] for e in events if e.kind == "sick_device"] == [study.device.name]
    assert not study.ledger.claims()
    study.close()
    with StoredStudy(tmp_path / "study") as stored:
        assert stored.ledger.read_settings()


def test_sigterm_gives_claims_back_and_says_how_to_go_on(ready: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelsearch", "tune", "rms_norm", "--target", "cpu",
         "--workloads", "rows=16,cols=64", "--budget", "400", "--folder", str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip

    def begun() -> bool:
        if not (folder / "study.db").exists():
            return False
        try:
            with StoredStudy(folder) as stored:
                return bool(stored.ledger.evaluations()[0])
        except KernelSearchError:  # it is only just being made
            return False

    while process.poll() is None and not begun():
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"kernelsearch resume {folder}" in out
    assert "Traceback" not in err
    with StoredStudy(folder) as stored:
        assert stored.ledger.evaluations()[0]
        assert not stored.ledger.claims()


def test_a_worker_that_the_system_kills_for_memory_blames_nobody(
    equipment: Equipment, tmp_path: Path
) -> None:
    study = begin(tmp_path / "study", write(tmp_path, "naive", RIGHT)).open_study()
    killed = []

    def kill(progress: Progress) -> None:
        # What the killer does when memory runs out: the worker is its first choice.
        pid = equipment.runner.pid
        if pid is not None and not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    result = api.run_study(study, equipment, parse_budget("2"), kill)
    assert killed
    assert set(result.statuses) == {"ok"}
    study.close()
