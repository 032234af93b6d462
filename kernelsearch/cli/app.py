"""The Typer application that the command modules register themselves with."""

from __future__ import annotations

from typing import Annotated

import typer

from kernelsearch.versions import PACKAGE, installed

app = typer.Typer(
    name="kernelsearch",
    help="Make a compute kernel faster and prove that it still computes the same thing.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
TrustFlag = Annotated[
    bool, typer.Option("--trust", help="Run operator and study files from elsewhere unasked.")
]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"{PACKAGE} {installed(PACKAGE) or 'unknown'}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Make a compute kernel faster and prove that it still computes the same thing."""
    del version
