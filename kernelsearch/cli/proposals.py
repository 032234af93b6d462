"""``ask`` and ``tell``: a person or another program proposes variants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.studies import find_study, open_study
from kernelsearch.errors import StudyError, UnknownNameError, VariantError
from kernelsearch.propose.inbox import request_text
from kernelsearch.records import Proposal
from kernelsearch.study import Study


@app.command()
def ask(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    parent: Annotated[str | None, typer.Option(
        help="Variant to change (name or hash); default: the best.")] = None,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Print a prompt for whoever writes the next variant: contract, parent, evidence."""
    opened = open_study(find_study(study), trust)
    try:
        hash_ = _parent(opened, parent)
        text = request_text(opened.proposal_request(hash_, 1))
    finally:
        opened.close()
    if json_:
        emit_json({"parent": hash_, "prompt": text})
    else:
        out.print(text, markup=False, highlight=False)


@app.command()
def tell(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    file: Annotated[Path, typer.Argument(help="The new variant (.cu or .py).")],
    parent: Annotated[str | None, typer.Option(
        help="Variant it was made from (name or hash); default: the best.")] = None,
    mutation: Annotated[str, typer.Option(help="Short name of the change.")] = "by hand",
    rationale: Annotated[str, typer.Option(help="Why it should help.")] = "",
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Hand a new variant to a study; the next `resume` evaluates it."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise VariantError(f"cannot be read ({error})", str(file)) from error
    opened = open_study(find_study(study), trust)
    try:
        hash_ = _parent(opened, parent)
        record = opened.tell_proposal(Proposal(text, hash_, "inbox", mutation, rationale))
    finally:
        opened.close()
    if json_:
        emit_json({"new": record is not None, "hash": record.hash if record else None})
    elif record is None:
        out.print("this variant is in the study already", highlight=False)
    else:
        out.print(f"taken as {record.name} ({record.hash}); evaluate it with:", highlight=False)
        out.print(f"  kernelsearch resume {opened.folder}", markup=False, highlight=False)


def _parent(study: Study, text: str | None) -> str:
    variants = study.archive.variants()
    if text is not None:
        for record in variants:
            if text in (record.name, record.hash):
                return record.hash
        raise UnknownNameError("variant", text, [v.name for v in variants])
    best = study.archive.best()
    if best is not None:
        return best.candidate.variant
    if not variants:
        raise StudyError(f"the study in {study.folder} has no variant yet")
    return variants[0].hash
