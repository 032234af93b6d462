"""The rules proposer: picks source mutations by bottleneck and returns those that hold together."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernelsearch.errors import VariantError
from kernelsearch.propose import rules_cpu, rules_cuda, rules_cuda_loops
from kernelsearch.propose.draft import Change, Rule, Site, extend_range
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import Params, ParamValue, Proposal, frozen_params
from kernelsearch.variant import Variant, parse_variant

RULES: tuple[Rule, ...] = (
    *rules_cuda.RULES,
    *rules_cuda_loops.RULES,
    *rules_cpu.RULES,
    Rule("extend_range", "any", extend_range, frozenset(), 1.03),
)


class RulesProposer:
    """Yields variants by mutating the parent's source.

    Rules that suit the diagnosed bottleneck come first; among equals the request's seed decides.
    Each rule gives one change before any gives a second.

    Args:
        rules: the mutations to choose from.
    """

    name = "rules"

    def __init__(self, rules: Sequence[Rule] = RULES) -> None:
        self.rules = tuple(rules)

    def propose(self, request: ProposalRequest) -> Sequence[Proposal]:
        """Return up to ``request.count`` variants that are new, parse and fit the operator."""
        site = Site(request)
        labels = diagnosis_labels(request.diagnosis)
        seen = {*request.known, request.parent.hash}
        found: list[Proposal] = []
        for rule, change in _in_turn(self._ordered(site, labels), site):
            if len(found) >= request.count:
                break
            variant = admitted(change, request)
            if variant is None or variant.hash in seen:
                continue
            seen.add(variant.hash)
            found.append(_proposal(rule, change, variant, request, labels))
        return found

    def _ordered(self, site: Site, labels: frozenset[str]) -> list[Rule]:
        rules = [r for r in self.rules if r.language in (site.draft.language, "any")]
        random.Random(f"{site.request.seed}:{site.request.parent.hash}").shuffle(rules)
        return sorted(rules, key=lambda r: not r.suits & labels)


def _in_turn(rules: Sequence[Rule], site: Site) -> Iterator[tuple[Rule, Change]]:
    """Yield the first change of every rule, then the second ones, and so on."""
    held: list[tuple[Rule, list[Change]]] = []
    for rule in rules:
        changes = rule.apply(site)
        if changes:
            yield rule, changes[0]
            held.append((rule, changes))
    for turn in range(1, max((len(c) for _, c in held), default=0)):
        for rule, changes in held:
            if turn < len(changes):
                yield rule, changes[turn]


def admitted(change: Change, request: ProposalRequest) -> Variant | None:
    """Return the changed variant, or None if it does not parse, fit or leave any candidate.

    Tunables of unlike rules can add up to a variant none of whose combinations meets the
    constraints; such a one is no use to the tuner.
    """
    try:
        variant = parse_variant(change.draft.render(), request.parent.language)
        variant.check_against(request.operator)
    except VariantError:
        return None
    facts = request.device.facts
    names = {n for e in variant.constraints.values() for n in e.names}
    missing = names - set(variant.tunables) - set(facts) - {"elem_bytes"}
    # On a device that does not know a fact there is nothing to check a constraint against.
    if not missing and not variant.valid_params(facts, request.dtype, limit=20_000):
        return None
    return variant


def diagnosis_labels(diagnosis: Mapping[str, Any]) -> frozenset[str]:
    """Return every label that a diagnosis gives, in the spelling that rules use."""
    found: set[str] = set()
    for value in diagnosis.values():
        words = value if isinstance(value, list | tuple | set | frozenset) else [value]
        found.update(w.lower().replace("_", "-").strip() for w in words if isinstance(w, str))
    return frozenset(found)


def _proposal(
    rule: Rule, change: Change, variant: Variant, request: ProposalRequest, labels: frozenset[str]
) -> Proposal:
    return Proposal(
        source=variant.source,
        parent=request.parent.hash,
        proposer="rules",
        mutation=rule.name,
        rationale=change.rationale,
        predicted_gain=_predicted(rule, change, request, labels),
        suggested_params=_suggested(change.suggested, variant, request),
    )


def _predicted(
    rule: Rule, change: Change, request: ProposalRequest, labels: frozenset[str]
) -> float:
    """Return a rough gain: the rule's own where it suits, a third of that where it does not.

    It never promises more than the headroom that the diagnosis leaves.
    """
    gain = change.gain if change.gain is not None else rule.gain
    if labels and not rule.suits & labels:
        gain = 1.0 + (gain - 1.0) / 3
    headroom = request.diagnosis.get("headroom")
    if isinstance(headroom, int | float) and headroom >= 1.0:
        gain = min(gain, float(headroom))
    return round(gain, 3)


def _suggested(
    new: Params, variant: Variant, request: ProposalRequest
) -> tuple[tuple[str, ParamValue], ...]:
    """Return the parent's best params with the rule's own, where they name a valid candidate."""
    best = request.best.candidate.values if request.best is not None else {}
    params = {n: c[0] for n, c in variant.tunables.items()}
    params |= {n: v for n, v in best.items() if v in variant.tunables.get(n, ())}
    params |= {n: v for n, v in new.items() if v in variant.tunables.get(n, ())}
    known = set(request.device.facts) | set(params) | {"elem_bytes"}
    for expression in variant.constraints.values():
        if not expression.names <= known:
            return ()
    if variant.violated(params, request.device.facts, request.dtype) is not None:
        return ()
    return frozen_params(params)
