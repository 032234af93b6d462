"""Elites under the tools of their target, on the CPU with tools that say what they are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernelsearch.operator import Workload
from kernelsearch.operators_io import load_operator
from kernelsearch.records import Evaluation, Status
from kernelsearch.session import Equipment, judge
from kernelsearch.variant import parse_variant
from tests.support.watched_target import WatchedCpu

NORM = load_operator("rms_norm")
FILE = '''"""kernelsearch
format = 1
operator = "rms_norm"
numba = {parallel = true}
[[launch]]
kernel = "rms_norm"
args = ["y", "x", "weight", "bias", "eps:f32"]
"""
import math
from numba import prange


def rms_norm(y, x, weight, bias, eps):
    for i in prange(x.shape[0]):
        t = 0.0
        for j in range(x.shape[1]):
            t += x[i, j] * x[i, j]
        s = 1 / math.sqrt(t / x.shape[1] + eps)
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * s * weight[j] + bias[j]
'''


@pytest.fixture(scope="module")
def target() -> WatchedCpu:
    return WatchedCpu()


@pytest.fixture(scope="module")
def equipment(target: WatchedCpu) -> Iterator[Equipment]:
    with Equipment(target, 1) as shared:
        yield shared


def examined(equipment: Equipment) -> Evaluation:
    variant = parse_variant(FILE, "cpu", "elite.py")
    params = variant.default_params(equipment.device.facts, "float32")
    sizes = [Workload({"rows": 64, "cols": 512})]
    return judge(NORM, variant, params, "float32", sizes, equipment, examine=True)


def test_tools_that_find_nothing_or_can_say_nothing(
    equipment: Equipment, target: WatchedCpu
) -> None:
    target.verdicts = {"memcheck": "", "racecheck": "it is too old"}
    evaluation = examined(equipment)
    assert evaluation.ok, evaluation.message
    told = evaluation.evidence["examined"]
    assert told["passed"][-1] == "memcheck"
    assert told["skipped"] == {"racecheck": "it is too old"}


def test_a_finding_is_the_end(equipment: Equipment, target: WatchedCpu) -> None:
    target.verdicts = {"memcheck": "", "initcheck": "found a read of what nobody wrote"}
    evaluation = examined(equipment)
    assert evaluation.status is Status.WRONG
    assert evaluation.evidence["examination"] == "initcheck"
    assert "found a read" in evaluation.message


def test_no_tools(equipment: Equipment, target: WatchedCpu) -> None:
    target.verdicts = None
    evaluation = examined(equipment)
    assert evaluation.ok, evaluation.message
    assert evaluation.evidence["examined"]["skipped"] == {"sanitizers": "no tool is installed"}


def test_a_tool_that_does_not_start_says_nothing(
    equipment: Equipment, target: WatchedCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WatchedCpu, "launcher_of_tools", ("false",))
    target.verdicts = {"memcheck": ""}
    evaluation = examined(equipment)
    assert evaluation.ok, evaluation.message
    assert "does not run under it" in evaluation.evidence["examined"]["skipped"]["memcheck"]
