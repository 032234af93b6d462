"""``audit`` and ``repair`` on a real study: claims that hold, false ones, and damaged ones."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from kernelsearch.audit import ClaimVerdict, judge_claim
from kernelsearch.measure import Comparison
from kernelsearch.records import Timing, Verdict
from kernelsearch.store import key_of, open_ledger
from kernelsearch.study import StoredStudy
from tests.e2e.conftest import Command
from tests.e2e.test_cli import TUNE


@pytest.mark.parametrize(
    ("low", "ratio", "high", "verdict", "expected"),
    [
        (1.9, 2.0, 2.1, Verdict.FASTER, ClaimVerdict.HOLDS),
        (1.5, 1.6, 1.7, Verdict.FASTER, ClaimVerdict.FAILS),
        (1.5, 1.7, 1.95, Verdict.FASTER, ClaimVerdict.HOLDS),
        (0.5, 1.7, 9.0, Verdict.UNSTABLE, ClaimVerdict.UNSTABLE),
        (3.0, 4.0, 9.0, Verdict.UNSTABLE, ClaimVerdict.HOLDS),
    ],
)
def test_a_claim_of_at_least_1_9(
    low: float, ratio: float, high: float, verdict: Verdict, expected: ClaimVerdict
) -> None:
    assert judge_claim(1.9, Comparison(ratio, low, high, verdict)) is expected


def test_audit_and_repair(command: Command) -> None:
    tuned = command(*TUNE, "--json")
    assert tuned.code == 0, tuned.err
    folder = Path(tuned.json["folder"])
    audited = command("audit", folder, "--top", 1, "--json")
    claims = audited.json["claims"]
    assert claims[0]["name"] == "naive"
    assert any(c["winner"] for c in claims)
    assert all(c["cases"] > 5 for c in claims)
    # On a noisy machine a comparison may be called unstable, but none is wrong.
    assert not {c["verdict"] for c in claims} & {"fails verification"}
    assert audited.code == (0 if audited.json["all_hold"] else 1)

    # Somebody writes a time into the study that no kernel ever had.
    with StoredStudy(folder) as stored:
        (base,) = [e for e in stored.archive.evaluations() if stored.archive.objective(e) == 1.0][
            :1
        ]
        other = next(e for e in stored.archive.elites(9) if e.candidate != base.candidate)
    fast = tuple(
        Timing(t.workload, tuple(s / 1e4 for s in base.timings[0].samples_us))
        for t in other.timings
    )
    with open_ledger(None, folder, create=True) as ledger:
        ledger.revise(key_of(other), replace(other, timings=fast))
    lied = command("audit", folder, "--top", 1)
    assert lied.code == 1
    assert "does not hold" in lied.err or "unstable" in lied.err
    assert "claimed" in lied.out

    whole = command("repair", folder, "--json")
    assert (whole.code, whole.json["changed"]) == (0, False)
    assert "nothing is damaged" in command("repair", folder).out
    path = folder / "study.db"
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    broken = command("show", folder)
    assert broken.code == 2
    assert "kernelsearch repair" in broken.err
    fixed = command("repair", folder)
    assert fixed.code == 0, fixed.out
    assert "lost   nothing" in fixed.out
    assert command("show", folder, "--json").json["result"]["variant"] == tuned.json["variant"]
    more = command("resume", folder, "--budget", "1", "--json")
    assert more.code == 0, more.err


def test_an_audit_of_nothing_is_told(command: Command) -> None:
    assert command("audit", "nosuchstudy").code == 2
    assert "--top" in command("audit", "nosuchstudy", "--top", 0).err
