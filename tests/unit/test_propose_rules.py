"""The proposers as the study sees them: order, novelty, suggestions, crossover and the inbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kernelsearch.propose.crossover import CrossoverProposer
from kernelsearch.propose.inbox import InboxProposer, write_request
from kernelsearch.propose.rules import RULES, RulesProposer, diagnosis_labels
from kernelsearch.variant import Variant, parse_variant
from tests.support import textbook


def softmax(**tunables: list[int]) -> Variant:
    text = textbook.CUDA["softmax"]
    if tunables:
        lines = "\n".join(f"{n} = {c}" for n, c in tunables.items())
        text = text.replace("[[launch]]", f"[tunables]\n{lines}\n[[launch]]")
    return parse_variant(text, "cuda", "softmax.cu")


def test_proposals_are_new_parse_and_fit() -> None:
    parent = softmax()
    proposals = RulesProposer().propose(textbook.request(parent))
    hashes = [parse_variant(p.source, "cuda").hash for p in proposals]
    assert len(hashes) == len(set(hashes)) >= 10
    assert parent.hash not in hashes
    assert all(p.parent == parent.hash and p.rationale for p in proposals)
    again = RulesProposer().propose(textbook.request(parent, known=frozenset(hashes)))
    assert again == []


def test_count_is_kept_and_each_rule_has_its_turn() -> None:
    proposals = RulesProposer().propose(textbook.request(softmax(), count=5))
    assert len({p.mutation for p in proposals}) == len(proposals) == 5


def test_diagnosis_decides_the_order() -> None:
    wanted = {r.name for r in RULES if "barrier" in r.suits}
    for seed in range(4):
        proposals = RulesProposer().propose(
            textbook.request(softmax(), count=1, seed=seed, diagnosis={"label": "barrier"})
        )
        assert proposals[0].mutation in wanted


def test_the_seed_shuffles_reproducibly() -> None:
    def order(seed: int) -> list[str]:
        return [p.mutation for p in RulesProposer().propose(textbook.request(softmax(), seed=seed))]

    assert order(1) == order(1)
    assert len({tuple(order(s)) for s in range(4)}) > 1


def test_headroom_caps_the_predicted_gain() -> None:
    request = textbook.request(softmax(), diagnosis={"label": "dram", "headroom": 1.02})
    assert all((p.predicted_gain or 0) <= 1.02 for p in RulesProposer().propose(request))


def test_labels_are_read_in_any_spelling() -> None:
    labels = diagnosis_labels({"label": "Memory_Bandwidth", "detail": ["dram"], "headroom": 2.0})
    assert labels == {"memory-bandwidth", "dram"}


def test_suggested_params_name_a_valid_candidate() -> None:
    for proposal in RulesProposer().propose(textbook.request(softmax())):
        variant = parse_variant(proposal.source, "cuda")
        if proposal.suggested_params:
            params = dict(proposal.suggested_params)
            variant.check_params(params)
            assert variant.violated(params, textbook.GPU.facts, "float32") is None


@pytest.mark.parametrize(("best", "expected"), [(8, (1, 2, 4, 8, 16, 32)), (4, None), (1, None)])
def test_range_is_extended_only_at_its_edge(best: int, expected: tuple[int, ...] | None) -> None:
    parent = softmax(STEP=[1, 2, 4, 8])
    request = textbook.request(parent, best=textbook.evaluation(parent, {"STEP": best}))
    found = [p for p in RulesProposer().propose(request) if p.mutation == "extend_range"]
    if expected is None:
        assert found == []
    else:
        assert parse_variant(found[0].source, "cuda").tunables["STEP"] == expected


def test_crossover_brings_the_siblings_choices() -> None:
    parent, sibling = softmax(STEP=[1, 2], WIDE=[4]), softmax(STEP=[2, 8])
    request = textbook.request(
        parent,
        best=textbook.evaluation(parent, {"STEP": 1, "WIDE": 4}),
        siblings=((sibling, textbook.evaluation(sibling, {"STEP": 8})),),
    )
    proposals = CrossoverProposer().propose(request)
    # Both ways of crossing give the same lists here, and one variant is enough.
    assert [p.mutation for p in proposals] == ["crossover_best"]
    child = parse_variant(proposals[0].source, "cuda")
    assert child.tunables == {"STEP": (1, 2, 8), "WIDE": (4,)}
    assert dict(proposals[0].suggested_params) == {"STEP": 8, "WIDE": 4}
    assert proposals[0].second_parent == sibling.hash


def test_crossover_of_params_alone_is_no_variant() -> None:
    parent, sibling = softmax(STEP=[1, 2]), softmax(STEP=[2], OTHER=[1])
    request = textbook.request(
        parent, siblings=((sibling, textbook.evaluation(sibling, {"STEP": 2, "OTHER": 1})),)
    )
    assert CrossoverProposer().propose(request) == []


def test_inbox_keeps_a_file_until_it_is_recorded(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "mine.cu").write_text(textbook.CUDA["softmax"].replace("64 / 2", "32"))
    proposer = InboxProposer(tmp_path, settle_s=0.0)
    request = textbook.request(softmax())
    first = proposer.propose(request)
    assert [p.mutation for p in first] == ["mine"]
    assert proposer.propose(request) == first
    digest = parse_variant(first[0].source, "cuda").hash
    assert proposer.propose(textbook.request(softmax(), known=frozenset({digest}))) == []
    assert [p.name for p in (inbox / "taken").iterdir()] == [f"mine-{digest}.cu"]
    assert not (inbox / "mine.cu").exists()


def test_inbox_refuses_with_a_reason(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "broken.cu").write_text("int main() {}")
    (inbox / "other.cu").write_text(textbook.CUDA["spmv_csr"])
    (inbox / "notes.txt").write_text("no variant")
    os.symlink("/etc/hostname", inbox / "link.cu")
    assert InboxProposer(tmp_path, settle_s=0.0).propose(textbook.request(softmax())) == []
    reasons = sorted(p.read_text() for p in (inbox / "refused").glob("*.txt"))
    assert len(reasons) == 2
    assert any("has no /* kernelsearch" in r for r in reasons)
    assert any("is for operator 'spmv_csr'" in r for r in reasons)
    assert (inbox / "notes.txt").exists()
    assert (inbox / "link.cu").is_symlink()


def test_inbox_leaves_files_that_are_being_written(tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "half.cu").write_text("/* kernelsearch\nformat")
    assert InboxProposer(tmp_path, settle_s=60.0).propose(textbook.request(softmax())) == []
    assert (tmp_path / "inbox" / "half.cu").exists()


def test_request_tells_the_whole_story(tmp_path: Path) -> None:
    parent = softmax(STEP=[1, 2])
    best = textbook.evaluation(parent, {"STEP": 2}, 12.5)
    request = textbook.request(
        parent, best=best, history=(best,), diagnosis={"label": "dram", "headroom": 1.4}
    )
    text = write_request(tmp_path, request).read_text()
    for part in ("# Wanted: a faster variant of softmax", "| x | in | float32 | (rows, cols) |",
                 "sm_count", "__global__ void softmax", "STEP = 2", "12.5", "label: dram",
                 "ending in `.cu`"):  # fmt: skip
        assert part in text
    held = {w.key for w in request.operator.workload_set("heldout", "cuda")}
    timed = {w.key for w in request.workloads}
    assert not any(f"- {key}\n" in text for key in held - timed)
