"""What a coding agent may do with studies: plain functions from names and texts to plain values.

``mcp`` offers them over the Model Context Protocol; they hold no connection and no state.
"""

from __future__ import annotations

from typing import Any

from kernelsearch import api
from kernelsearch.cli.proposals import parent_of, proposal_of, request_of
from kernelsearch.cli.studies import chosen_variant, find_study, open_study, study_folders
from kernelsearch.diagnoser import stored_diagnoses
from kernelsearch.errors import KernelSearchError, StudyError
from kernelsearch.home import cache_folder
from kernelsearch.propose.inbox import request_text
from kernelsearch.records import Evaluation
from kernelsearch.search.budget import parse_budget
from kernelsearch.session import Equipment
from kernelsearch.study import StoredStudy
from kernelsearch.targets.choose import choose_target

SHOWN_LOG = 2000


def list_studies() -> list[dict[str, Any]]:
    """List the stored studies, latest first: operator, target, device, best speed-up."""
    found = []
    for folder in study_folders():
        try:
            with StoredStudy(folder) as stored:
                best = stored.archive.best()
                found.append({
                    "study": folder.name, "operator": stored.settings.operator,
                    "target": stored.settings.target, "dtype": stored.settings.dtype,
                    "device": stored.device.name,
                    "speedup": stored.archive.objective(best) if best is not None else None,
                    "variants": len(stored.archive.variants()),
                })  # fmt: skip
        except KernelSearchError as error:
            found.append({"study": folder.name, "error": str(error)})
    return found


def get_request(study: str, parent: str | None = None) -> dict[str, Any]:
    """Return what the next variant is to be: contract, parent's source, diagnosis, answer format.

    Args:
        study: name or folder.
        parent: variant to change (name or hash); default: the best so far.
    """
    opened = open_study(find_study(study), trust=False)
    try:
        hash_ = parent_of(opened, parent)
        text = request_text(request_of(opened, hash_))
        return {"study": str(opened.folder), "parent": hash_, "request": text}
    finally:
        opened.close()


def submit_variant(
    study: str, text: str, parent: str | None = None, mutation: str = "by an agent",
    rationale: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Hand a variant to a study. It is parsed and checked at once, and run by ``evaluate``.

    Args:
        study: name or folder.
        text: a whole variant file, or an answer in the format of the request (Markdown).
        parent: variant it was made from (name or hash); default: the best so far.
        mutation: short name of the change, for a whole file.
        rationale: why it should help, for a whole file.
    """
    opened = open_study(find_study(study), trust=False)
    try:
        hash_ = parent_of(opened, parent)
        whole = text.lstrip().startswith(("/* kernelsearch", '"""kernelsearch'))
        proposal = proposal_of(opened, hash_, text, mutation, rationale, answer=not whole)
        record = opened.tell_proposal(proposal)
    finally:
        opened.close()
    if record is None:
        return {"new": False, "note": "this variant is in the study already"}
    return {"new": True, "variant": record.hash, "name": record.name}


def evaluate(study: str, budget: str = "30s") -> dict[str, Any]:
    """Run a study on this machine's device: new structures, then parameters, within a budget.

    Args:
        study: name or folder.
        budget: what this run may spend: "30s", "10" (candidates), or both, "10,60s".

    Returns:
        The best so far, and each candidate of this run with status, speed-up and, where it failed,
        why.
    """
    limits = parse_budget(budget)
    folder = find_study(study)
    with StoredStudy(folder) as stored:
        target = choose_target(stored.settings.target, cache_folder())
        before = {(e.candidate.key, e.created) for e in stored.archive.evaluations()}
    opened = open_study(folder, trust=False, target=target)
    try:
        with Equipment(target) as equipment:
            result = api.run_study(opened, equipment, limits)
    finally:
        opened.close()
    with StoredStudy(folder) as stored:
        fresh = [
            _shown(stored, e) for e in stored.archive.evaluations()
            if (e.candidate.key, e.created) not in before
        ]  # fmt: skip
    return {
        "speedup": result.speedup, "low": result.low, "high": result.high,
        "variant": result.variant, "name": result.variant_name, "params": dict(result.params),
        "evaluated": fresh,
    }  # fmt: skip


def explain(study: str, variant: str | None = None) -> dict[str, Any]:
    """Return the stored diagnosis of a variant: bottleneck, evidence, headroom, what to try.

    Args:
        study: name or folder.
        variant: name or hash; default: the winner.
    """
    with StoredStudy(find_study(study)) as stored:
        hash_ = chosen_variant(stored, variant)
        best = stored.archive.best_of(hash_)
        if best is None:
            raise StudyError(
                f"no right candidate of {stored.archive.variant(hash_).name} yet; evaluate first"
            )
        found = stored_diagnoses(stored.ledger).get(best.candidate.key)
        return {
            "variant": hash_, "name": stored.archive.variant(hash_).name,
            "times_us": {t.workload: t.median_us for t in best.timings},
            "speed_of_light_us": {t.workload: t.sol_us for t in best.timings},
            "diagnosis": found.to_json() if found is not None else None,
        }  # fmt: skip


def best(study: str) -> dict[str, Any]:
    """Return the fastest right variant of a study: source, params, speed-up and times.

    Args:
        study: name or folder.
    """
    with StoredStudy(find_study(study)) as stored:
        hash_ = chosen_variant(stored, None)
        evaluation = stored.archive.best_of(hash_)
        record = stored.archive.variant(hash_)
        shown = _shown(stored, evaluation) if evaluation is not None else {}
        return {**shown, "variant": hash_, "name": record.name, "source": record.source}


TOOLS = (list_studies, get_request, submit_variant, evaluate, explain, best)


def _shown(stored: StoredStudy, evaluation: Evaluation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": stored.archive.variant(evaluation.candidate.variant).name,
        "params": evaluation.candidate.values, "status": evaluation.status.value,
    }  # fmt: skip
    if evaluation.ok:
        shown["speedup"] = stored.archive.objective(evaluation)
        shown["times_us"] = {t.workload: t.median_us for t in evaluation.timings}
    else:
        shown["why"] = evaluation.message[:SHOWN_LOG]
    return shown
