"""Failures as symptoms: what a proposer may know of them, each kind once, held-out sizes unsaid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelsearch.operator import Operator, Workload
from kernelsearch.propose.fence import cleaned, one_line
from kernelsearch.records import Evaluation, Status

SECRET_SIZE = "a size that is not listed"
MAX_LOG = 3000
_PLACES = re.compile(r"<[^<>\n]*>|(?:/[\w.@+-]+)+/(?=[\w.@+-]+)")


@dataclass(frozen=True, slots=True)
class Symptom:
    """One kind of failure.

    Args:
        status: of the evaluations.
        says: one sentence.
        count: how many candidates failed like this.
        params: of the first of them.
        log: the compiler's or the process's own words, "" where there are none.
    """

    status: str
    says: str
    count: int
    params: str
    log: str = ""


def symptoms(
    evaluations: Iterable[Evaluation], operator: Operator, tuned: Sequence[Workload]
) -> list[Symptom]:
    """Return the kinds of failure among evaluations, the most frequent first.

    Args:
        evaluations: of one variant or several.
        operator: whose held-out sizes must not be told.
        tuned: workloads that the proposer knows.
    """
    hidden = hidden_sizes(operator, tuned)
    found: dict[tuple[str, str], Symptom] = {}
    for evaluation in evaluations:
        if evaluation.ok or evaluation.status is Status.INFRASTRUCTURE_ERROR:
            continue
        says = _says(evaluation, hidden)
        key = (str(evaluation.status), re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "#", says))
        known = found.get(key)
        if known is not None:
            found[key] = Symptom(known.status, known.says, known.count + 1, known.params, known.log)
            continue
        params = ", ".join(f"{k} = {v}" for k, v in evaluation.candidate.params)
        found[key] = Symptom(key[0], says, 1, params or "no tunables", _log(evaluation, hidden))
    return sorted(found.values(), key=lambda s: -s.count)


def hidden_sizes(operator: Operator, tuned: Sequence[Workload]) -> frozenset[str]:
    """Return the keys, without distributions, of the sizes that no proposer may learn."""
    held = _sizes(w for k, ws in operator.workloads.items() if _is(k, "heldout") for w in ws)
    shown = _sizes(w for k, ws in operator.workloads.items() if not _is(k, "heldout") for w in ws)
    return held - shown - _sizes(tuned)


def _sizes(workloads: Iterable[Workload]) -> frozenset[str]:
    return frozenset(w.key.split("@")[0] for w in workloads)


def _is(name: str, wanted: str) -> bool:
    return name.split("@")[0] == wanted


def _says(evaluation: Evaluation, hidden: frozenset[str]) -> str:
    evidence = evaluation.evidence
    secret = str(evidence.get("workload", "")).split("@")[0] in hidden
    if evaluation.status is Status.WRONG and secret:
        return _wrong_secretly(evaluation)
    text = _without(evaluation.message, hidden)
    if evaluation.status is Status.WRONG and evidence.get("misaligned"):
        text += "; the tensors were views that do not start on a round address"
    return one_line(text, 400)


def _wrong_secretly(evaluation: Evaluation) -> str:
    evidence = evaluation.evidence
    wrong, checked = evidence.get("wrong"), evidence.get("checked")
    parts = [f"wrong at {SECRET_SIZE}, in {evidence.get('output', 'an output')}"]
    if isinstance(wrong, int) and isinstance(checked, int) and checked:
        parts.append(f"{100 * wrong / checked:.2g} % of the checked elements")
    if evidence.get("unwritten"):
        parts.append("they look never written")
    distribution = evidence.get("distribution", "default")
    if distribution != "default":
        parts.append(f"inputs drawn as {distribution!r}")
    if evidence.get("misaligned"):
        parts.append("the tensors were views that do not start on a round address")
    return one_line("; ".join(parts), 400)


def _log(evaluation: Evaluation, hidden: frozenset[str]) -> str:
    for name in ("log", "stderr"):
        text = evaluation.evidence.get(name)
        if isinstance(text, str) and text.strip():
            # Folders of this machine say nothing of the kernel.
            return _without(_PLACES.sub(_file_only, cleaned(text)), hidden)[:MAX_LOG]
    return ""


def _file_only(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith("<") else ""


def _without(text: str, hidden: frozenset[str]) -> str:
    for key in sorted(hidden, key=len, reverse=True):
        text = re.sub(rf"{re.escape(key)}(?:@\w+)?(?![\w=,])", SECRET_SIZE, text)
    return text
