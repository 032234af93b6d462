"""Our own targets, selectors and proposers keep the contracts that third parties are held to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelsearch.operators_io import load_operator
from kernelsearch.protocols import Node, ProposalRequest, Proposer, Selector
from kernelsearch.records import (
    CompileJob,
    Evaluation,
    LaunchPlan,
    Status,
    Timing,
    VariantRecord,
)
from kernelsearch.resources import template_paths
from kernelsearch.search import SELECTORS
from kernelsearch.testing.contracts import (
    ProposerContract,
    ProposerExample,
    SelectorContract,
    TargetContract,
    TargetExample,
)
from kernelsearch.variant import load_variant, parse_variant
from tests.support.fake_target import FakeTarget, job


class TestFakeTarget(TargetContract):
    def make(self) -> TargetExample:
        x = np.arange(100, dtype=np.uint8)
        return TargetExample(
            FakeTarget(), job(), LaunchPlan(()), {"x": x}, {"y": x + 1},
            broken=CompileJob("fake", "{", ("kernel",), "fake_1"),
        )  # fmt: skip


class TestCpuTarget(TargetContract):
    def make(self) -> TargetExample:
        from kernelsearch.targets.cpu import CpuTarget

        operator = load_operator("rms_norm")
        target = CpuTarget()
        variant = load_variant(template_paths("rms_norm", "cpu")[0])
        sizes = {"rows": 5, "cols": 33}
        params = variant.default_params(target.device.facts, "float32")
        inputs = operator.generate(sizes, "default", np.random.default_rng(0), "float32")
        outputs = operator.reference(inputs, operator.scalar_values(), None)
        compile_job = variant.compile_job(params, "float32", target.device.arch, operator)
        broken = CompileJob(
            "cpu", variant.source.replace("def ", "def 1"), compile_job.kernels, compile_job.arch,
            options=compile_job.options,
        )  # fmt: skip
        return TargetExample(
            target, compile_job,
            variant.plan(params, sizes, operator.scalar_values(), target.device.facts, "float32"),
            inputs, {"y": outputs["y"].astype(np.float32)}, broken, 1e-4,
        )  # fmt: skip


@pytest.mark.parametrize("name", sorted(SELECTORS))
@pytest.mark.parametrize("test", [t for t in vars(SelectorContract) if t.startswith("test_")])
def test_shipped_selectors(name: str, test: str) -> None:
    class Shipped(SelectorContract):
        def make(self) -> Selector:
            return SELECTORS[name]()

    getattr(Shipped(), test)()


def request(operator_name: str, target: str, template: str, count: int = 4) -> ProposalRequest:
    """Return a request about a shipped template."""
    operator = load_operator(operator_name)
    path = next(p for p in template_paths(operator_name, target) if p.stem == template)
    parent = load_variant(path)
    if target == "cpu":
        from kernelsearch.targets.cpu import CpuTarget

        device = CpuTarget().device
    else:
        from kernelsearch.records import Device

        facts = {
            "max_threads_per_block": 1024, "sm_count": 132, "warp_size": 32,
            "max_shared_per_block": 232448, "max_shared_per_sm": 233472, "regs_per_sm": 65536,
            "max_threads_per_sm": 2048, "l2_bytes": 50 << 20,
        }  # fmt: skip
        device = Device("cuda", "H200", "sm_90a", facts)
    record = VariantRecord(parent.hash, operator.name, target, parent.source, parent.name)
    return ProposalRequest(
        operator, parent, record, None, (), device, "float32",
        operator.workload_set("smoke", target), count=count, known=frozenset({parent.hash}), seed=1,
    )  # fmt: skip


class RulesContract(ProposerContract):
    operator, target = "rms_norm", "cpu"

    def make(self) -> ProposerExample:
        from kernelsearch.propose.rules import RulesProposer

        proposer: Proposer = RulesProposer()
        return ProposerExample(proposer, request(self.operator, self.target, "naive"))


class TestRulesForNumba(RulesContract):
    pass


class TestRulesForCuda(RulesContract):
    target = "cuda"


class TestRulesForSparseCuda(RulesContract):
    operator, target = "spmv_csr", "cuda"


class TestCrossover(ProposerContract):
    def make(self) -> ProposerExample:
        from kernelsearch.propose.crossover import CrossoverProposer

        asked = request("rms_norm", "cuda", "warp_row")
        # A sibling that shares the parent's tunables and did best with a choice the parent lacks.
        name, choices = next((n, c) for n, c in asked.parent.tunables.items() if len(c) > 1)
        fewer = {**asked.parent.tunables, name: choices[:-1]}
        text = asked.parent.source.replace(
            f"{name} = [{', '.join(map(repr, choices))}]",
            f"{name} = [{', '.join(map(repr, choices[:-1]))}]",
        )
        parent = parse_variant(text, "cuda")
        assert parent.tunables == fewer
        facts = asked.device.facts
        best = next(
            p for p in asked.parent.valid_params(facts, "float32") if p[name] == choices[-1]
        )
        evaluation = Evaluation(
            asked.parent.candidate(best, "float32"), Status.OK, timings=(Timing("w", (1.0,)),)
        )
        record = VariantRecord(parent.hash, "rms_norm", "cuda", parent.source, "narrow")
        return ProposerExample(
            CrossoverProposer(),
            replace(asked, parent=parent, parent_record=record,
                    siblings=((asked.parent, evaluation),), known=frozenset({parent.hash})),
        )  # fmt: skip


class TestInbox(ProposerContract):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def make(self) -> ProposerExample:
        from kernelsearch.propose.inbox import InboxProposer

        asked = request("rms_norm", "cuda", "naive")
        inbox = self.folder / "inbox"
        inbox.mkdir(exist_ok=True)
        for stem in ("warp_row", "block_row"):
            variant = load_variant(template_paths("rms_norm", "cuda")[0].with_stem(stem))
            (inbox / f"{stem}.cu").write_text(variant.source)
        return ProposerExample(InboxProposer(self.folder, settle_s=0.0), asked)


def test_a_contract_catches_a_bad_selector() -> None:
    class Greedy(SelectorContract):
        def make(self) -> Selector:
            class Bad:
                name = "bad"

                def select(self, nodes: list[Node], count: int, seed: int) -> list[str]:
                    return [n.hash for n in nodes[:1]]

            return Bad()  # type: ignore[return-value]

    with pytest.raises(AssertionError):
        Greedy().test_nothing_to_pick_from()


def test_a_contract_catches_a_target_that_computes_nothing() -> None:
    class Lazy(TestFakeTarget):
        def make(self) -> TargetExample:
            example = super().make()
            return TargetExample(
                example.target, example.job, example.plan, example.inputs,
                {"y": example.outputs["y"] + 1},
            )  # fmt: skip

    with pytest.raises(AssertionError):
        Lazy().test_a_run_computes_whatever_the_poison_is()
