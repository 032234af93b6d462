"""``dashboard``: a study in optuna-dashboard, with a note and the source at each variant."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelsearch.cli.app import app
from kernelsearch.cli.console import out
from kernelsearch.cli.studies import find_study
from kernelsearch.report.collect import collect
from kernelsearch.report.text import variant_note
from kernelsearch.store_dashboard import Dashboard, Described
from kernelsearch.study import StoredStudy


@app.command()
def dashboard(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8080,
    host: Annotated[str, typer.Option(
        help="Address to listen on; anything but localhost lets others in.")] = "localhost",
) -> None:  # fmt: skip
    """Open a study in optuna-dashboard (pip install 'kernelsearch[dashboard]'); Ctrl-C ends it.

    Each trial of the Optuna study NAME is a variant: its note says what it is, its source is an
    artifact. The Optuna studies NAME/HASH hold the parameters of one variant.
    """
    with StoredStudy(find_study(study)) as stored:
        report, url, folder = collect(stored), stored.ledger.url, stored.folder
    suffix = ".cu" if report.settings["target"] == "cuda" else ".py"
    board = Dashboard(url, report.name, folder)
    count = board.describe({
        v.hash: Described(variant_note(report, v), f"{v.hash}{suffix}", v.source)
        for v in report.variants
    })  # fmt: skip
    out.print(f"{report.name}, {count} variants: http://{host}:{port}/  (Ctrl-C ends)",
              markup=False, highlight=False)  # fmt: skip
    board.serve(host, port)
