"""Every shipped CPU template passes the verification that a candidate of a search must pass."""

from __future__ import annotations

import pytest

from kernelsearch.cases import CaseStore, verification_cases
from kernelsearch.operators_io import load_operator
from kernelsearch.records import Binary, RunReport, RunRequest, TimeReport, TimeRequest
from kernelsearch.resources import template_paths
from kernelsearch.targets.cpu import CpuTarget
from kernelsearch.variant import load_variant
from kernelsearch.verify import plan_maker, verify

OPERATORS = ("rms_norm", "softmax", "matrix_mul", "spmv_csr", "stencil_2d")
TARGET = CpuTarget()


class InProcess:
    """A runner without a process: faster, and templates are trusted."""

    def __init__(self) -> None:
        self.executable = TARGET.open()

    def load(self, binary: Binary, deadline_s: float) -> None:
        self.executable.load(binary)

    def unload(self, key: str) -> None:
        self.executable.unload(key)

    def run(self, request: RunRequest, deadline_s: float) -> RunReport:
        return self.executable.run(request)

    def time(self, request: TimeRequest, deadline_s: float) -> TimeReport:
        return self.executable.time(request)

    def restart(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_templates_verify(name: str) -> None:
    operator = load_operator(name)
    store, runner = CaseStore(), InProcess()
    stages = verification_cases(operator, "float32", operator.workload_set("smoke", "cpu"), "cpu")
    facts = TARGET.device.facts
    for path in template_paths(name, "cpu"):
        variant = load_variant(path)
        variant.check_against(operator)
        params = variant.valid_params(facts, "float32")[-1]
        job = variant.compile_job(params, "float32", TARGET.device.arch, operator)
        binary = TARGET.compile(job)
        runner.load(binary, 60)
        make = plan_maker(variant, params, operator, facts, "float32")
        report = verify(runner, binary.key, make, stages, operator, "float32", store)
        assert report.verified
        assert report.outside == ()
        assert report.max_ratio < 1
        runner.unload(binary.key)
    store.close()
