"""``ask`` and ``tell``: a person or another program proposes variants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import emit_json, errors, out
from kernelsearch.cli.studies import find_study, open_study
from kernelsearch.diagnoser import stored_diagnoses
from kernelsearch.errors import StudyError, UnknownNameError, VariantError
from kernelsearch.propose.agent import coder_prompt
from kernelsearch.propose.answer import applied, read_text
from kernelsearch.propose.inbox import request_text
from kernelsearch.propose.sections import shown_source
from kernelsearch.protocols import ProposalRequest
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
        hash_ = parent_of(opened, parent)
        text = request_text(request_of(opened, hash_))
    finally:
        opened.close()
    if json_:
        emit_json({"parent": hash_, "prompt": text})
    else:
        out.print(text, markup=False, highlight=False)


@app.command()
def prompt(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    variant: Annotated[str | None, typer.Argument(
        help="Parent (name or hash); default: the best.")] = None,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Print exactly what a language model would be sent, and about how many tokens that is."""
    opened = open_study(find_study(study), trust)
    try:
        told = coder_prompt(request_of(opened, parent_of(opened, variant)), "")
    finally:
        opened.close()
    if json_:
        emit_json({**told.to_json(), "tokens": told.tokens, "stable_tokens": told.stable_tokens})
        return
    for text in (*told.stable, *(t.text for t in told.turns)):
        out.print(text, markup=False, highlight=False)
    errors.print(
        f"about {told.tokens} tokens, {told.stable_tokens} of them the same from call to call",
        markup=False, highlight=False,
    )  # fmt: skip


@app.command()
def tell(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    file: Annotated[Path, typer.Argument(
        help="The new variant (.cu or .py), or an answer to `ask` (.md).")],
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
        why = getattr(error, "strerror", None) or str(error)
        raise VariantError(f"cannot be read ({why}); check the path", str(file)) from error
    opened = open_study(find_study(study), trust)
    try:
        hash_ = parent_of(opened, parent)
        record = opened.tell_proposal(proposal_of(
            opened, hash_, text, mutation, rationale, answer=file.suffix == ".md"
        ))  # fmt: skip
    finally:
        opened.close()
    if json_:
        emit_json({"new": record is not None, "hash": record.hash if record else None})
    elif record is None:
        out.print("this variant is in the study already", highlight=False)
    else:
        out.print(f"taken as {record.name} ({record.hash}); evaluate it with:", highlight=False)
        out.print(f"  kernelsearch resume {opened.folder}", markup=False, highlight=False)


def proposal_of(
    study: Study, parent: str, text: str, mutation: str, rationale: str, *, answer: bool
) -> Proposal:
    """Return what somebody handed in: a whole variant file, or an answer to a request.

    Raises:
        AnswerError: the answer cannot be read, or does not fit its parent.
    """
    if not answer:
        return Proposal(text, parent, "inbox", mutation, rationale)
    told = read_text(text)
    source = applied(told, shown_source(study.variant(parent)))
    return Proposal(source, parent, "inbox", told.mutation, told.rationale, told.gain)


def request_of(study: Study, parent: str) -> ProposalRequest:
    """Return the request about a parent, with the diagnosis that a run has stored."""
    request = study.proposal_request(parent, 1)
    found = stored_diagnoses(study.ledger)
    if request.best is None or request.best.candidate.key not in found:
        return request
    return replace(request, diagnosis=found[request.best.candidate.key].to_json())


def parent_of(study: Study, text: str | None) -> str:
    """Return the hash of the variant to change: by name or hash, else the best, else the first.

    Raises:
        UnknownNameError: no such variant. StudyError: the study has none yet.
    """
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
