"""Settings survive being stored: what they mean does not depend on how a ledger orders names."""

from __future__ import annotations

import json

from kernelsearch.operator import Workload
from kernelsearch.settings import StudySettings


def test_a_workload_keeps_its_key_where_names_are_sorted() -> None:
    workloads = (Workload({"rows": 4, "cols": 64}), Workload({"rows": 5, "cols": 3}, "tiny", 2.0))
    settings = StudySettings("rms_norm", "cpu", "float32", workloads)
    text = json.dumps(settings.to_json(), sort_keys=True)
    found = StudySettings.from_json(json.loads(text))
    assert [w.key for w in found.workloads] == ["rows=4,cols=64", "rows=5,cols=3@tiny"]
    assert found == settings
    assert found.key("contract", "device") == settings.key("contract", "device")


def test_settings_of_before_are_still_read() -> None:
    settings = StudySettings("rms_norm", "cpu", "float32", (Workload({"rows": 4, "cols": 64}),))
    old = settings.to_json()
    for workload in old["workloads"]:
        del workload["symbols"]
    assert StudySettings.from_json(old) == settings
