"""Contract tests for third-party targets, selectors and proposers: subclass, override ``make``.

The classes need no test framework: every ``test_`` method raises ``AssertionError`` where a promise
of ``protocols`` is broken. With pytest, a subclass whose name begins with ``Test`` is enough::

    class TestMySelector(SelectorContract):
        def make(self):
            return MySelector()
"""

from __future__ import annotations

import contextlib
import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch import wire
from kernelsearch.errors import CandidateError
from kernelsearch.protocols import Node, ProposalRequest, Proposer, Selector, Target
from kernelsearch.records import (
    Binary,
    BufferSpec,
    CompileJob,
    Contender,
    LaunchPlan,
    Proposal,
    Role,
    RunRequest,
    ShmRef,
    TimeRequest,
    TimingSettings,
)
from kernelsearch.shm import ALIGN, SharedBlock
from kernelsearch.variant import Variant, parse_variant
from kernelsearch.worker import IsolatedRunner

DEADLINE_S = 120.0
POISONS = (0xFF, 0x5A)
FORESTS = 40

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class TargetExample:
    """One candidate that a target can run, with what must come out.

    Args:
        target: the target under test; picklable, its class importable in another process.
        job: compiles.
        plan: launches what was compiled on buffers named as below.
        inputs: contents by buffer name.
        outputs: what the outputs must hold afterwards, by buffer name.
        broken: does not compile (None: the target compiles anything).
        tolerance: relative error allowed in ``outputs``.
    """

    target: Target
    job: CompileJob
    plan: LaunchPlan
    inputs: Arrays
    outputs: Arrays
    broken: CompileJob | None = None
    tolerance: float = 1e-5


class TargetContract(ABC):
    """What every target promises. The candidate runs in an isolated worker, as in a study."""

    @abstractmethod
    def make(self) -> TargetExample:
        """Return the target and a candidate for it."""

    def test_the_target_travels_to_its_worker(self) -> None:
        target = self.make().target
        copy = pickle.loads(pickle.dumps(target))
        assert copy.name == target.name
        assert copy.device.key == target.device.key

    def test_the_device_says_what_it_is(self) -> None:
        target = self.make().target
        assert target.name
        assert target.device.target == target.name
        assert target.device.name
        assert all(isinstance(v, int) for v in target.device.facts.values())

    def test_compiling_again_gives_the_same(self) -> None:
        example = self.make()
        one, two = example.target.compile(example.job), example.target.compile(example.job)
        assert one.key == two.key
        assert one.code_hash == two.code_hash
        assert one.job == example.job
        assert set(one.symbols) >= set(example.job.kernels)

    def test_a_binary_crosses_the_wire(self) -> None:
        example = self.make()
        binary = example.target.compile(example.job)
        assert wire.binary(wire.decode(wire.encode_answer(binary)), example.job) == binary

    def test_what_does_not_compile_is_the_candidates_failure(self) -> None:
        example = self.make()
        if example.broken is None:
            return
        failure: CandidateError | None = None
        try:
            example.target.compile(example.broken)
        except CandidateError as error:
            failure = error
        assert failure is not None, "the broken job compiled"
        assert str(failure)
        wire.encode_failure(failure)

    def test_a_run_computes_whatever_the_poison_is(self) -> None:
        with _bench(self.make()) as bench:
            for poison in POISONS:
                report = bench.runner.run(bench.request(poison), DEADLINE_S)
                assert report.corrupted_guards == ()
                assert report.modified_inputs == ()
                bench.check(bench.sinks)

    def test_inputs_stay_as_they_were(self) -> None:
        with _bench(self.make()) as bench:
            bench.runner.run(bench.request(POISONS[0]), DEADLINE_S)
            for name, array in bench.example.inputs.items():
                assert bench.view(bench.sources[name], array).tobytes() == array.tobytes()

    def test_a_binary_can_be_unloaded_and_loaded_again(self) -> None:
        with _bench(self.make()) as bench:
            bench.runner.unload(bench.binary.key)
            bench.runner.load(bench.binary, DEADLINE_S)
            bench.runner.run(bench.request(POISONS[0]), DEADLINE_S)
            bench.check(bench.sinks)

    def test_a_fresh_worker_gives_the_same(self) -> None:
        with _bench(self.make()) as bench:
            bench.runner.restart()
            bench.runner.run(bench.request(POISONS[1]), DEADLINE_S)
            bench.check(bench.sinks)

    def test_timing_one_and_two_contenders(self) -> None:
        settings = TimingSettings(min_samples=4, max_samples=6, budget_s=2.0, verify_calls=1)
        with _bench(self.make()) as bench:
            contender = Contender(bench.binary.key, bench.example.plan)
            for count in (1, 2):
                bench.wipe()
                request = TimeRequest(
                    (contender,) * count, (bench.buffers,), (bench.buffers,), settings, seed=1
                )
                report = bench.runner.time(request, DEADLINE_S)
                assert len(report.samples_us) == count
                assert all(len(s) >= settings.min_samples for s in report.samples_us)
                assert all(t > 0 for s in report.samples_us for t in s)
                assert report.captured_sets == (0,)
                assert report.cache == settings.cache
                assert report.corrupted_guards == ()
                assert report.modified_inputs == ()
                bench.check(bench.sinks)


class SelectorContract(ABC):
    """What every selector promises, on made-up lineages."""

    @abstractmethod
    def make(self) -> Selector:
        """Return the selector under test."""

    def test_it_has_a_name(self) -> None:
        assert self.make().name

    def test_nothing_to_pick_from(self) -> None:
        selector = self.make()
        assert selector.select([], 3, 0) == []
        exhausted = [replace(n, exhausted=True) for n in _forest(1)]
        assert selector.select(exhausted, 3, 0) == []
        assert selector.select(_forest(1), 0, 0) == []

    def test_it_picks_known_variants_once_and_no_exhausted_ones(self) -> None:
        selector = self.make()
        for seed in range(FORESTS):
            nodes = _forest(seed)
            open_ = {n.hash for n in nodes if not n.exhausted}
            for count in (1, 2, 100):
                picked = selector.select(nodes, count, seed)
                assert len(picked) <= count
                assert len(set(picked)) == len(picked)
                assert set(picked) <= open_

    def test_it_finds_a_parent_where_one_has_worth(self) -> None:
        selector = self.make()
        for seed in range(FORESTS):
            nodes = _forest(seed)
            if any(n.speedup is not None and not n.exhausted for n in nodes):
                assert selector.select(nodes, 1, seed)

    def test_the_same_seed_picks_the_same(self) -> None:
        for seed in range(FORESTS):
            nodes = _forest(seed)
            first = self.make().select(nodes, 3, seed)
            assert self.make().select(nodes, 3, seed) == first

    def test_what_it_is_given_stays_as_it_was(self) -> None:
        nodes = _forest(2)
        before = list(nodes)
        self.make().select(nodes, 3, 0)
        assert nodes == before


@dataclass(frozen=True)
class ProposerExample:
    """A proposer and a request it is to answer.

    Args:
        proposer: the proposer under test.
        request: with ``count`` of at least 1.
        silent: having nothing to propose is no failure here.
    """

    proposer: Proposer
    request: ProposalRequest
    silent: bool = False


class ProposerContract(ABC):
    """What every proposer promises: whole, new variants that fit the operator."""

    @abstractmethod
    def make(self) -> ProposerExample:
        """Return a proposer and a request for it; a fresh proposer at each call."""

    def test_it_has_a_name(self) -> None:
        assert self.make().proposer.name

    def test_it_proposes_something_but_no_more_than_asked(self) -> None:
        example = self.make()
        proposals = example.proposer.propose(example.request)
        assert len(proposals) <= example.request.count
        assert proposals or example.silent

    def test_proposals_are_variants_of_the_operator(self) -> None:
        for example, _, variant in self._proposed():
            variant.check_against(example.request.operator)
            assert example.request.dtype in variant.dtypes

    def test_proposals_say_where_they_come_from(self) -> None:
        for example, proposal, _ in self._proposed():
            assert proposal.parent == example.request.parent_record.hash
            assert proposal.proposer
            assert proposal.mutation
            assert proposal.predicted_gain is None or proposal.predicted_gain > 0

    def test_proposals_are_new_and_differ(self) -> None:
        hashes = []
        for example, _, variant in self._proposed():
            assert variant.hash != example.request.parent.hash
            assert variant.hash not in example.request.known
            hashes.append(variant.hash)
        assert len(set(hashes)) == len(hashes)

    def test_suggested_params_are_ones_the_variant_has(self) -> None:
        for _, proposal, variant in self._proposed():
            for name, value in proposal.suggested_params:
                assert value in variant.tunables.get(name, ())

    def test_what_is_known_is_not_proposed_again(self) -> None:
        known = frozenset(variant.hash for _, _, variant in self._proposed())
        example = self.make()
        request = replace(example.request, known=example.request.known | known)
        for proposal in example.proposer.propose(request):
            assert parse_variant(proposal.source, request.parent.language).hash not in known

    def test_the_same_request_gets_the_same_answer(self) -> None:
        first, second = self.make(), self.make()
        one = [p.source for p in first.proposer.propose(first.request)]
        assert one == [p.source for p in second.proposer.propose(second.request)]

    def test_none_are_wanted(self) -> None:
        example = self.make()
        assert not example.proposer.propose(replace(example.request, count=0))

    def _proposed(self) -> Iterator[tuple[ProposerExample, Proposal, Variant]]:
        example = self.make()
        for proposal in example.proposer.propose(example.request):
            variant = parse_variant(proposal.source, example.request.parent.language)
            yield example, proposal, variant


# --- helpers ------------------------------------------------------------------------------------


@dataclass
class _Bench:
    """A worker with the example's binary loaded, its inputs and sinks in one shared block."""

    example: TargetExample
    runner: IsolatedRunner
    binary: Binary
    block: SharedBlock
    sources: dict[str, ShmRef] = field(default_factory=dict)
    sinks: dict[str, ShmRef] = field(default_factory=dict)
    buffers: tuple[BufferSpec, ...] = ()

    def view(self, ref: ShmRef, like: NDArray[Any]) -> NDArray[Any]:
        return self.block.array(like.dtype.name, like.shape, ref.offset)

    def wipe(self) -> None:
        for ref in self.sinks.values():
            self.block.array("uint8", (ref.nbytes,), ref.offset)[:] = 0xA5

    def request(self, poison: int) -> RunRequest:
        self.wipe()
        return RunRequest(self.binary.key, self.example.plan, self.buffers, poison)

    def check(self, sinks: Mapping[str, ShmRef]) -> None:
        for name, expected in self.example.outputs.items():
            got = self.view(sinks[name], expected)
            np.testing.assert_allclose(
                got.astype(np.float64), expected.astype(np.float64), rtol=self.example.tolerance,
                atol=self.example.tolerance, err_msg=name,
            )  # fmt: skip


@contextlib.contextmanager
def _bench(example: TargetExample) -> Iterator[_Bench]:
    offset = 0
    places: dict[tuple[str, str], tuple[int, int]] = {}
    for kind, arrays in (("source", example.inputs), ("sink", example.outputs)):
        for name, array in arrays.items():
            places[kind, name] = (offset, array.nbytes)
            offset += -(-max(1, array.nbytes) // ALIGN) * ALIGN
    runner = IsolatedRunner(example.target)
    with SharedBlock(offset) as block:
        bench = _Bench(example, runner, example.target.compile(example.job), block)
        for (kind, name), (start, nbytes) in places.items():
            refs = bench.sources if kind == "source" else bench.sinks
            refs[name] = block.ref(start, nbytes)
        for name, array in example.inputs.items():
            bench.view(bench.sources[name], array)[...] = array
        bench.buffers = tuple(
            _buffer(name, array, bench.sources.get(name), bench.sinks.get(name))
            for name, array in {**example.outputs, **example.inputs}.items()
        )
        try:
            runner.load(bench.binary, DEADLINE_S)
            yield bench
        finally:
            runner.close()


def _buffer(
    name: str, array: NDArray[Any], source: ShmRef | None, sink: ShmRef | None
) -> BufferSpec:
    role: Role = "in" if sink is None else "out" if source is None else "inout"
    return BufferSpec(name, array.dtype.name, array.shape, role, source, sink)


def _forest(seed: int) -> list[Node]:
    """Return a random lineage: some variants unmeasured, some exhausted."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    for index in range(rng.randint(1, 20)):
        parent = rng.choice(nodes) if nodes and rng.random() < 0.8 else None
        nodes.append(Node(
            hash=f"v{index}", parent=parent.hash if parent else "",
            speedup=rng.uniform(0.2, 5.0) if rng.random() < 0.8 else None,
            children=0, depth=parent.depth + 1 if parent else 0, exhausted=rng.random() < 0.2,
        ))  # fmt: skip
    return [replace(n, children=sum(c.parent == n.hash for c in nodes)) for n in nodes]
