"""The parts a request for a kernel is made of: contract, device, parent, measurements, failures.

Each function turns one part of a ``ProposalRequest`` into Markdown. Whatever others wrote is fenced
or put on one line.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernelsearch.diagnosis import MAX_EVIDENCE, UNKNOWN, Diagnosis
from kernelsearch.operator import Tensor
from kernelsearch.propose.fence import fenced, one_line
from kernelsearch.propose.fold import folded, headers_of
from kernelsearch.propose.symptoms import symptoms
from kernelsearch.propose.texts import direction_texts
from kernelsearch.protocols import Attempt, ProposalRequest
from kernelsearch.records import Evaluation
from kernelsearch.resources import include_folder
from kernelsearch.variant import Variant

FENCE = {"cuda": "cpp", "cpu": "python"}
MAX_HISTORY = 12
MAX_TRIED = 12
MAX_SYMPTOMS = 4
MAX_DIRECTIONS = 6
MAX_WORKLOADS = 24


def contract(request: ProposalRequest) -> str:
    """Return what must be computed, on which workloads, how exactly."""
    operator = request.operator
    lines = [
        f"## Operator: {operator.name}", "",
        one_line(operator.doc, 400), "",
        "| argument | role | type | shape |", "|---|---|---|---|",
    ]  # fmt: skip
    for argument in operator.arguments:
        if isinstance(argument, Tensor):
            shape = ", ".join(str(e) for e in argument.shape)
            kind = operator.tensor_dtype(argument, request.dtype)
            lines.append(f"| {argument.name} | {argument.role} | {kind} | ({shape}) |")
        else:
            lines.append(f"| {argument.name} | scalar | {argument.dtype} | {argument.value:g} |")
    deterministic = "must" if operator.deterministic else "need not"
    lines += [
        "",
        f"Element type: {request.dtype}. Precision policy: {operator.precision}. Two runs "
        f"{deterministic} agree bit for bit. Operations: {operator.flops}. Bytes that must move: "
        f"{operator.bytes}.",
    ]
    if operator.checks:
        lines.append(f"All sizes meet: {'; '.join(operator.checks)}.")
    lines += [
        "Results are compared with a float64 reference, at these sizes and at others that are not "
        "listed.",
        "", "Timed workloads:", "",
        *(f"- {w.key}" for w in request.workloads[:MAX_WORKLOADS]), "",
    ]  # fmt: skip
    return "\n".join(lines)


def device(request: ProposalRequest) -> str:
    """Return the device's facts and measured rates."""
    about = request.device
    facts = ", ".join(f"{k} = {v}" for k, v in sorted(about.facts.items()))
    rates = ", ".join(f"{k} = {v:.4g}" for k, v in sorted(about.ceilings.items()))
    lines = [f"## Device: {about.name} ({about.target}, {about.arch})", "", f"Facts: {facts}."]
    if rates:
        lines.append(f"Measured: {rates}.")
    return "\n".join([*lines, ""])


def headers(request: ProposalRequest) -> str:
    """Return what the headers are that may be included, and the text of those the parent uses."""
    if request.parent.language != "cuda":
        return ""
    names = headers_of(folded(request.parent.source, "cuda"))
    lines = ["## Headers that may be included", ""]
    for path in sorted(include_folder().glob("*.cuh")):
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        lines.append(f'- "{path.name}": {first.removeprefix("//").strip()}')
    lines.append("")
    for name in names:
        text = (include_folder() / name).read_text(encoding="utf-8")
        lines += [f"{name}:", "", fenced(text, "cpp"), ""]
    return "\n".join(lines)


def parent(request: ProposalRequest) -> str:
    """Return the parent's source as it is to be edited."""
    return "\n".join([
        f"## Parent: {one_line(request.parent.name or request.parent.hash)}", "",
        fenced(shown_source(request.parent), FENCE[request.parent.language]), "",
    ])  # fmt: skip


def shown_source(variant: Variant) -> str:
    """Return a variant's text as an answer's edits must quote it."""
    return folded(variant.source, variant.language)


def measurements(request: ProposalRequest) -> str:
    """Return the parent's times at its best params, and how its other params did."""
    best = request.best
    if best is None:
        return ""
    lines = ["## What was measured", "", f"Best params: {params_text(best)}."]
    speedup = request.speedups.get(request.parent.hash)
    if speedup is not None:
        lines[-1] += f" {speedup:.3g} times as fast as the baseline."
    lines.append("")
    for timing in best.timings:
        row = f"- {timing.workload}: {timing.median_us:.4g} us"
        if timing.sol_us:
            row += f", {100 * timing.sol_us / timing.median_us:.0f} % of the speed of light"
        lines.append(row)
    lines += [f"- {row}" for row in _compiled(best)]
    good = [e for e in request.history if e.ok and e is not best]
    if good:
        lines += ["", "| other params | sum of times, us |", "|---|---|"]
        ranked = sorted(good, key=lambda e: sum(e.times_us().values()))
        picked = ranked if len(ranked) <= MAX_HISTORY else [*ranked[:8], *ranked[-4:]]
        lines += [f"| {params_text(e)} | {sum(e.times_us().values()):.4g} |" for e in picked]
    return "\n".join([*lines, ""])


def _compiled(evaluation: Evaluation) -> Iterable[str]:
    for fact in evaluation.facts:
        known = {
            "registers": fact.registers, "spilled bytes": fact.spill_store_bytes,
            "static shared bytes": fact.static_shared_bytes, "stack bytes": fact.stack_bytes,
        }  # fmt: skip
        words = [f"{v} {k}" for k, v in known.items() if v is not None]
        if words:
            yield f"kernel {one_line(fact.name, 80)}: {', '.join(words)}"


def diagnosis(request: ProposalRequest) -> str:
    """Return the bottleneck, the few numbers that say so, and what usually helps."""
    if not request.diagnosis:
        return ""
    if "findings" not in request.diagnosis:
        # Of a classifier that is not ours.
        own = [f"- {k}: {one_line(str(v))}" for k, v in request.diagnosis.items()]
        return "\n".join(["## Diagnosis", "", *own, ""])
    found = Diagnosis.from_json(request.diagnosis)
    if found.label == UNKNOWN:
        return ""
    lines = ["## Diagnosis", ""]
    for finding in found.findings[:2]:
        row = f"- {finding.label} ({finding.group}): {one_line(finding.says)}"
        if finding.headroom is not None:
            row += f" Removing it alone could make this {finding.headroom:.3g} times as fast."
        numbers = list(finding.evidence.items())[:MAX_EVIDENCE]
        if numbers:
            row += f" ({', '.join(f'{k} = {v:.4g}' for k, v in numbers)})"
        lines.append(row)
    lines.append(f"- confidence {found.confidence:.2g}, from {found.source}")
    if found.headroom is not None:
        lines.append(f"- at the speed of light it would be {found.headroom:.3g} times as fast")
    known = direction_texts()
    words = found.directions[:MAX_DIRECTIONS]
    if words:
        lines += ["", "What usually helps:", ""]
        lines += [f"- {w}: {known[w]}" if w in known else f"- {w}" for w in words]
    return "\n".join([*lines, ""])


def failures(request: ProposalRequest) -> str:
    """Return the parent's failures as symptoms, each kind once."""
    found = symptoms(request.history, request.operator, request.workloads)
    if not found:
        return ""
    lines = ["## Failures of the parent", ""]
    for symptom in found[:MAX_SYMPTOMS]:
        times = "once" if symptom.count == 1 else f"{symptom.count} times"
        lines.append(f"- {symptom.status}, {times} (first with {symptom.params}): {symptom.says}")
        if symptom.log:
            lines += ["", fenced(symptom.log), ""]
    return "\n".join([*lines, ""])


def tried(request: ProposalRequest) -> str:
    """Return what was made of this parent before, and what came of it."""
    if not request.tried:
        return ""
    lines = ["## Made of this parent before", "",
             "| change | outcome | predicted | gain | idea |", "|---|---|---|---|---|"]  # fmt: skip
    lines += [_attempt(a) for a in request.tried[-MAX_TRIED:]]
    return "\n".join([*lines, ""])


def _attempt(attempt: Attempt) -> str:
    predicted = f"{attempt.predicted_gain:.3g}" if attempt.predicted_gain is not None else ""
    gain = f"{attempt.gain:.3g}" if attempt.gain is not None else ""
    return (
        f"| {one_line(attempt.mutation, 60)} | {attempt.outcome} | {predicted} | {gain} | "
        f"{one_line(attempt.rationale, 140)} |"
    )


def siblings(request: ProposalRequest) -> str:
    """Return the other good variants: how fast, and what is different in them."""
    lines = []
    for variant, evaluation in request.siblings:
        speed = request.speedups.get(variant.hash)
        word = f"{speed:.3g} times the baseline" if speed is not None else "not compared"
        lines.append(
            f"- {one_line(variant.name or variant.hash, 80)}: {word}, "
            f"{params_text(evaluation)}; {one_line(variant.doc, 160)}"
        )
    return "\n".join(["## Other good variants", "", *lines, ""]) if lines else ""


def best_sibling(request: ProposalRequest) -> str:
    """Return the source of the best other variant, where it is faster than the parent."""
    own = request.speedups.get(request.parent.hash, 0.0)
    faster = [v for v, _ in request.siblings if request.speedups.get(v.hash, 0.0) > own]
    if not faster:
        return ""
    variant = faster[0]
    return "\n".join([
        f"## A faster variant, to learn from: {one_line(variant.name or variant.hash)}", "",
        fenced(shown_source(variant), FENCE[variant.language]), "",
    ])  # fmt: skip


def params_text(evaluation: Evaluation) -> str:
    """Return a candidate's params on one line."""
    return ", ".join(f"{k} = {v}" for k, v in evaluation.candidate.params) or "no tunables"
