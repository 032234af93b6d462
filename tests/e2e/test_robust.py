"""Studies that are killed, shared and disturbed: nothing acknowledged is lost or done twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kernelsearch import api
from kernelsearch.errors import StudyError
from kernelsearch.search.budget import parse_budget
from kernelsearch.session import Equipment
from kernelsearch.store_rdb import RdbLedger
from kernelsearch.study import StoredStudy, Study

SIZES = ({"rows": 16, "cols": 64},)
SCRIPT = """
import json, sys
from kernelsearch import api
from kernelsearch.search.budget import parse_budget
prepared = api.prepare(api.TuneRequest(
    "rms_norm", "cpu", workloads=({"rows": 16, "cols": 64},), folder=sys.argv[1]))
study = prepared.open_study()
told = study.tell
def tell(evaluation):
    told(evaluation)
    print(evaluation.candidate.key, flush=True)
study.tell = tell
from kernelsearch.session import Equipment
with Equipment(prepared.target, 1) as equipment:
    api.run_study(study, equipment, parse_budget(sys.argv[2]))
study.close()
"""


def start(folder: Path, budget: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder), budget], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def keys(folder: Path) -> list[str]:
    with StoredStudy(folder) as stored:
        evaluations, _ = stored.ledger.evaluations()
        return [e.candidate.key for e in evaluations if not e.confirmed]


def prepared(folder: Path) -> api.Prepared:
    return api.prepare(api.TuneRequest("rms_norm", "cpu", workloads=SIZES, folder=folder))


def test_kill_9_loses_nothing_that_was_acknowledged(ready: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    chance = random.Random(5)
    acknowledged: list[str] = []
    for _ in range(3):
        process = start(folder, "40")
        threading.Timer(chance.uniform(6.0, 14.0), process.kill).start()
        out, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        acknowledged += out.split()
    stored = keys(folder) if folder.exists() else []
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))
    done = start(folder, str(2))
    out, err = done.communicate(timeout=300)
    assert done.returncode == 0, err
    assert not set(out.split()) & set(stored)


def test_two_processes_begin_a_study_at_once(
    ready: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    prepared(folder).open_study().close()
    read, reads = RdbLedger.read_settings, iter([True])

    def too_early(ledger: RdbLedger) -> dict[str, Any]:
        """The first time nothing is there yet: the other process writes right after."""
        return {} if next(reads, False) else read(ledger)

    monkeypatch.setattr(RdbLedger, "read_settings", too_early)
    study = prepared(folder).open_study()
    assert study.ledger.read_settings()["key"] == study.key
    study.close()
    reads = iter([True])
    other = api.TuneRequest("rms_norm", "cpu", workloads=({"rows": 8, "cols": 8},), folder=folder)
    with pytest.raises(StudyError, match="other settings than those asked for"):
        api.prepare(other).open_study()


def test_two_processes_share_a_study(ready: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    both = [start(folder, "5"), start(folder, "5")]
    outs = [p.communicate(timeout=400) for p in both]
    for process, (_, err) in zip(both, outs, strict=True):
        assert process.returncode == 0, err
    mine, theirs = (set(out.split()) for out, _ in outs)
    assert mine
    assert theirs
    assert not mine & theirs
    stored = keys(folder)
    assert len(stored) == len(set(stored))
    assert mine | theirs <= set(stored)


def test_a_worker_killed_again_and_again_costs_nothing(ready: Path, tmp_path: Path) -> None:
    prep = prepared(tmp_path / "study")
    study = prep.open_study()
    stop = threading.Event()
    with Equipment(prep.target, 1) as equipment:

        def assassin() -> None:
            for _ in range(4):
                if stop.wait(2.5):
                    return
                pid = equipment.runner.pid
                if pid is not None:
                    os.kill(pid, signal.SIGKILL)

        thread = threading.Thread(target=assassin)
        thread.start()
        result = api.run_study(study, equipment, parse_budget("6"))
        stop.set()
        thread.join()
        assert equipment.runner.starts > 1
    assert result.candidates >= 6
    study.close()


def test_ctrl_c_leaves_a_study_that_resumes(ready: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    arguments = [sys.executable, "-m", "kernelsearch", "tune", "rms_norm", "--target", "cpu",
                 "--workloads", "rows=16,cols=64", "--budget", "40",
                 "--folder", str(folder)]  # fmt: skip
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    while not (folder / "study.db").exists() and process.poll() is None:
        time.sleep(0.1)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert f"kernelsearch resume {folder}" in out
    assert "Traceback" not in err
    more = subprocess.run(
        [sys.executable, "-m", "kernelsearch", "resume", str(folder), "--budget", "1", "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert more.returncode == 0, more.stderr
    assert json.loads(more.stdout)["finished"]


def test_optuna_reads_the_study(ready: Path, tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    prep = prepared(tmp_path / "study")
    study: Study = prep.open_study()
    with Equipment(prep.target, 1) as equipment:
        result = api.run_study(study, equipment, parse_budget("3"))
    study.close()
    url = f"sqlite:///{tmp_path / 'study' / 'study.db'}"
    outer = optuna.load_study(study_name="study", storage=url)
    assert {t.user_attrs["hash"] for t in outer.trials} >= {result.variant}
    names = optuna.get_all_study_names(url)
    inner = optuna.load_study(study_name=f"study/{result.variant}", storage=url)
    assert f"study/{result.variant}" in names
    assert len(inner.trials) >= 1
