"""``audit``: which of a study's claims hold when they are taken up again from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from kernelsearch.audit import AuditRow, ClaimVerdict, all_hold, audit_study
from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import coloured, emit_json, errors, out, ratio, table
from kernelsearch.cli.studies import find_study, study_operator
from kernelsearch.errors import ArgumentError
from kernelsearch.home import cache_folder
from kernelsearch.session import Equipment
from kernelsearch.study import StoredStudy
from kernelsearch.targets.choose import choose_target

NOT_ALL = 1


@app.command()
def audit(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    top: Annotated[int, typer.Option(help="How many of the best variants, beside the winner.")] = 5,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Verify and time a study's best variants again from scratch; exit code 1 unless all hold."""
    if top < 1:
        raise ArgumentError(f"--top must be at least 1 (got {top})")
    folder = find_study(study)
    operator, settings = study_operator(folder, trust)
    target = choose_target(settings.target, cache_folder())

    def told(row: AuditRow) -> None:
        if not json_:
            errors.print(f"{row.name}: {row.verdict}", markup=False, highlight=False)

    with StoredStudy(folder) as stored, Equipment(target) as equipment:
        rows = audit_study(stored, operator, equipment, top, told)
    if json_:
        emit_json({"folder": str(folder), "all_hold": all_hold(rows),
                   "claims": [asdict(r) for r in rows]})  # fmt: skip
    else:
        _print(rows)
    raise typer.Exit(0 if all_hold(rows) else NOT_ALL)


def _print(rows: Sequence[AuditRow]) -> None:
    shown = table("", "variant", "params", ">claimed", ">measured", ">95 % interval", ">cases",
                  "verdict", "note")  # fmt: skip
    for number, row in enumerate(rows):
        note = "; ".join(n for n in (
            "the baseline" if number == 0 else "", "the claimed winner" if row.winner else "",
            row.message,
        ) if n)  # fmt: skip
        interval = f"{row.low:.3f} to {row.high:.3f}" if row.low and row.high else "-"
        good = row.verdict is ClaimVerdict.HOLDS
        shown.add_row(
            row.name, " ".join(f"{k}={v}" for k, v in row.params.items()), ratio(row.claimed),
            ratio(row.measured), interval, str(row.cases or "-"),
            coloured(str(row.verdict), "green" if good else "red"), note,
        )  # fmt: skip
    out.print(shown)
