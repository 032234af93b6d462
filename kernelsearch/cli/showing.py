"""``show``: what a study knows, with the winner's source."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from kernelsearch import codec
from kernelsearch.archive import Archive
from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, microseconds, out, ratio, table
from kernelsearch.cli.results import print_result
from kernelsearch.cli.studies import chosen_variant, find_study
from kernelsearch.errors import ArgumentError, StudyError
from kernelsearch.records import Evaluation, geometric_mean
from kernelsearch.study import StoredStudy, model_spending


@app.command()
def show(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    variant: Annotated[str | None, typer.Option(
        help="Show this variant (name or hash) instead of the winner.")] = None,
    best: Annotated[bool, typer.Option(
        "--best", help="Show the best candidate so far, confirmed or not.")] = False,
    source: Annotated[bool, typer.Option("--source", help="Print the source only.")] = False,
    top: Annotated[int, typer.Option(help="How many variants to list.")] = 10,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Show what a study found. ``--source --best`` prints the fastest kernel there is by now."""
    if best and variant is not None:
        raise ArgumentError("--best and --variant exclude each other: both name what is shown")
    with StoredStudy(find_study(study)) as stored:
        archive, result = stored.archive, stored.result()
        chosen = _chosen(stored, variant, best)
        if json_:
            emit_json({
                "settings": stored.settings.to_json(),
                "result": result.to_json() if result else None,
                "statuses": archive.statuses(),
                "models": [asdict(s) for s in model_spending(stored.ledger)],
                "variants": [_row(archive, v.hash) for v in archive.variants()],
                "source": archive.variant(chosen).source if chosen else None,
            })  # fmt: skip
            return
        if source:
            if chosen is None:
                raise StudyError(
                    f"the study in {stored.folder} has no right candidate yet, so there is no "
                    "source to print; name a variant with --variant, or go on with "
                    f"`kernelsearch resume {stored.folder}`"
                )
            out.print(archive.variant(chosen).source, markup=False, highlight=False)
            return
        if result is not None:
            print_result(result)
        else:
            out.print("no confirmed result yet", highlight=False)
        for spent in model_spending(stored.ledger):
            out.print(
                f"model {spent.model} as {spent.role}: {spent.replies} replies, "
                f"{spent.tokens_in} tokens in ({spent.tokens_cached} from the cache), "
                f"{spent.tokens_out} out, {spent.usd:.4f} US dollars",
                markup=False, highlight=False,
            )  # fmt: skip
        _list(archive, top)
        if (variant or best) and chosen:
            _evaluations(archive.evaluations_of(chosen))


def _chosen(stored: StoredStudy, variant: str | None, best: bool) -> str | None:
    """Return which variant to show; None where nothing is right yet and none was named."""
    leader = stored.archive.best()
    if best or (variant is None and leader is None):
        return leader.candidate.variant if leader is not None else None
    return chosen_variant(stored, variant)


def _row(archive: Archive, hash_: str) -> dict[str, Any]:
    record, best = archive.variant(hash_), archive.best_of(hash_)
    return {
        "hash": hash_, "name": record.name, "parent": record.parent, "proposer": record.proposer,
        "mutation": record.mutation, "rationale": record.rationale,
        "candidates": len(archive.evaluations_of(hash_)),
        "speedup": archive.objective(best) if best else None,
        "best": codec.to_json(best) if best else None,
    }  # fmt: skip


def _list(archive: Archive, top: int) -> None:
    rows = table("variants", "variant", "by", ">candidates", ">best", ">speed-up", "params")
    ranked = sorted(
        archive.variants(),
        key=lambda v: -(archive.objective(b) or 0.0) if (b := archive.best_of(v.hash)) else 0.0,
    )
    for record in ranked[:top]:
        best = archive.best_of(record.hash)
        params = " ".join(f"{k}={v}" for k, v in best.candidate.params) if best else ""
        time = geometric_mean(list(best.times_us().values())) if best else None
        rows.add_row(
            record.name, record.proposer, str(len(archive.evaluations_of(record.hash))),
            microseconds(time), ratio(archive.objective(best) if best else None), params,
        )  # fmt: skip
    out.print(rows)


def _evaluations(evaluations: list[Evaluation]) -> None:
    rows = table("candidates", "params", "status", ">time", "what happened")
    for evaluation in evaluations:
        params = " ".join(f"{k}={v}" for k, v in evaluation.candidate.params)
        times = list(evaluation.times_us().values())
        rows.add_row(params, str(evaluation.status),
                     microseconds(geometric_mean(times)) if times else "-",
                     evaluation.message.splitlines()[0] if evaluation.message else "")  # fmt: skip
    out.print(rows)
