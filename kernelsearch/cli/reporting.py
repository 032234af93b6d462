"""``report``: a study as a page, as Markdown, as JSON or as CSV."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.studies import find_study
from kernelsearch.errors import ArgumentError, StorageError, UnknownNameError
from kernelsearch.report.collect import Report, collect
from kernelsearch.report.figures import write_figures
from kernelsearch.report.page import page
from kernelsearch.report.text import as_csv, as_json, as_markdown
from kernelsearch.study import StoredStudy

WRITERS: Mapping[str, Callable[[Report], str]] = {
    "html": page, "md": as_markdown, "json": as_json, "csv": as_csv,
}  # fmt: skip
SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".csv": "csv"}
STDOUT = Path("-")


@app.command()
def report(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="File to write; '-' prints it. Default: report.html.")] = None,
    format_: Annotated[str | None, typer.Option(
        "--format", help="html, md, json or csv. Default: what the file's name ends with.")] = None,
    figures: Annotated[Path | None, typer.Option(
        help="Write the figures as PNG and SVG into this folder, and no report.")] = None,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Write a report of a study: one page that opens without a network, or text or tables.

    The study may still run, and is not changed. Example:

        kernelsearch report rms_norm-cpu -o report.html
    """
    if figures is not None:
        if output is not None or format_ is not None:
            raise ArgumentError("--figures excludes -o and --format: run the command twice")
        _figures(study, figures, json_)
        return
    kind, path = _where(output, format_)
    with StoredStudy(find_study(study)) as stored:
        found = collect(stored)
    text = WRITERS[kind](found)
    if path == STDOUT:
        if json_:
            raise ArgumentError("--json names the file that was written; give one with -o FILE")
        typer.echo(text, nl=False)
        return
    _write(path, text)
    if json_:
        emit_json({"report": str(path.absolute()), "format": kind, "bytes": path.stat().st_size})
        return
    out.print(f"wrote {path} ({path.stat().st_size / 1024:.0f} KiB)", markup=False, highlight=False)
    if kind == "html":
        out.print(f"open  {path.absolute().as_uri()}", markup=False, highlight=False)


def _figures(study: str, folder: Path, json_: bool) -> None:
    with StoredStudy(find_study(study)) as stored:
        found = collect(stored)
    written = write_figures(found, folder)
    if json_:
        emit_json({"figures": [str(p.absolute()) for p in written]})
        return
    if not written:
        out.print("the study has nothing to draw yet: no candidate is right", highlight=False)
    for path in written:
        out.print(f"wrote {path}", markup=False, highlight=False)


def _where(output: Path | None, format_: str | None) -> tuple[str, Path]:
    """Return the format and the path that the options ask for."""
    if format_ is not None and format_ not in WRITERS:
        raise UnknownNameError("--format", format_, WRITERS)
    if output is None:
        return (format_, STDOUT) if format_ not in (None, "html") else ("html", Path("report.html"))
    if output == STDOUT:
        return format_ or "md", STDOUT
    known = SUFFIXES.get(output.suffix.lower())
    if format_ is None and known is None:
        raise ArgumentError(
            f"--output {output}: its name must end in {', '.join(SUFFIXES)}, "
            "or say what it is with --format"
        )
    if output.is_dir():
        raise ArgumentError(f"--output {output} is a folder; name a file, as {output}/report.html")
    return format_ or known or "html", output


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
                file.write(text)
            # Others may read it as they may read any file that is made here.
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StorageError(
            f"cannot write the report to {path} ({error.strerror}); name another place with -o FILE"
        ) from error
