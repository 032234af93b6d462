"""Crossover between siblings: a parent's source with the choices that worked for another variant.

Only tunables cross over. Params alone make no new variant, so a child exists only where the sibling
brings choices that the parent's own lists lack.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kernelsearch.errors import VariantError
from kernelsearch.propose.draft import Draft
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import Evaluation, Params, ParamValue, Proposal, frozen_params
from kernelsearch.variant import Variant, parse_variant

MAX_COMBINATIONS = 4096


class CrossoverProposer:
    """Extends the parent's tunables with those of siblings that share their names.

    For every sibling there are two children at most: one that adds just the sibling's best choices
    (and tries them first, with the parent's best for the rest), and one that adds its whole lists.
    """

    name = "crossover"

    def propose(self, request: ProposalRequest) -> Sequence[Proposal]:
        """Return up to ``request.count`` children that are new and leave candidates to try."""
        seen = {*request.known, request.parent.hash}
        found: list[Proposal] = []
        for sibling, evaluation in request.siblings:
            for lists, mutation in (
                (_single(evaluation.candidate.values), "crossover_best"),
                (sibling.tunables, "crossover_lists"),
            ):
                if len(found) >= request.count:
                    return found
                child = _child(request, sibling, lists)
                if child is None or child.hash in seen:
                    continue
                seen.add(child.hash)
                found.append(_proposal(request, child, sibling, evaluation, mutation))
        return found


def _single(params: Params) -> dict[str, tuple[ParamValue, ...]]:
    return {name: (value,) for name, value in params.items()}


def _child(
    request: ProposalRequest, sibling: Variant, lists: Mapping[str, Sequence[ParamValue]]
) -> Variant | None:
    """Return the parent with its shared tunables' lists extended, or None if nothing is added."""
    parent = request.parent
    if sibling.operator != parent.operator or sibling.language != parent.language:
        return None
    draft = Draft.of(parent)
    gained: list[str] = []
    for name, choices in draft.tunables.items():
        kinds = {type(c) for c in choices}
        more = [c for c in lists.get(name, ()) if c not in choices and {type(c)} == kinds]
        if more:
            numbers = kinds == {int}
            merged = [*choices, *more]
            draft.tunables[name] = sorted(merged, key=int) if numbers else merged
            gained.append(name)
    if not gained or math.prod(len(c) for c in draft.tunables.values()) > MAX_COMBINATIONS:
        return None
    draft.note(f"choices of {', '.join(gained)} from {sibling.name or sibling.hash}")
    try:
        child = parse_variant(draft.render(), parent.language)
        child.check_against(request.operator)
    except VariantError:
        return None
    return child


def _proposal(
    request: ProposalRequest, child: Variant, sibling: Variant, evaluation: Evaluation,
    mutation: str,
) -> Proposal:  # fmt: skip
    shared = [n for n in child.tunables if n in sibling.tunables]
    return Proposal(
        source=child.source,
        parent=request.parent.hash,
        second_parent=sibling.hash,
        proposer="crossover",
        mutation=mutation,
        rationale=f"{sibling.name or sibling.hash} does well with {', '.join(shared)} at values "
        "that the parent does not offer.",
        suggested_params=_mixed(request, child, evaluation),
    )


def _mixed(
    request: ProposalRequest, child: Variant, evaluation: Evaluation
) -> tuple[tuple[str, ParamValue], ...]:
    """Return the parent's best params overlaid with the sibling's, if that is a valid candidate."""
    own = request.best.candidate.values if request.best is not None else {}
    params = {n: c[0] for n, c in child.tunables.items()}
    for source in (own, evaluation.candidate.values):
        params |= {n: v for n, v in source.items() if v in child.tunables.get(n, ())}
    facts = request.device.facts
    known = {*facts, *params, "elem_bytes"}
    if any(not e.names <= known for e in child.constraints.values()):
        return ()
    return () if child.violated(params, facts, request.dtype) else frozen_params(params)
