"""``repair``: save what is intact of a damaged study."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.studies import find_study
from kernelsearch.repair import RepairReport, repair_study

LOST = 1
LISTED = 20


@app.command()
def repair(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    output: Annotated[Path | None, typer.Option(
        "--output", "-o", help="Write to this new folder and leave the old one as it is.")] = None,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Save every intact record of a damaged study; exit code 1 if anything is lost."""
    report = repair_study(find_study(study), output)
    if json_:
        emit_json(asdict(report))
    else:
        _print(report)
    raise typer.Exit(LOST if report.lost else 0)


def _print(report: RepairReport) -> None:
    kept = (f"{report.evaluations} evaluations, {report.variants} variants, "
            f"{report.events} events")  # fmt: skip
    if not report.changed:
        out.print(f"nothing is damaged: {kept}", highlight=False)
        return
    out.print(f"saved  {kept}", highlight=False)
    out.print(f"lost   {len(report.lost) or 'nothing'}", highlight=False)
    for what in report.lost[:LISTED]:
        out.print(f"       {what}", markup=False, highlight=False)
    if len(report.lost) > LISTED:
        out.print(f"       and {len(report.lost) - LISTED} more (--json lists all)")
    out.print(f"study  {report.folder}", markup=False, highlight=False)
    if report.backup:
        out.print(f"before {report.backup}", markup=False, highlight=False)
    if not report.settings:
        out.print("its settings are lost: it can be read, but not resumed", highlight=False)
