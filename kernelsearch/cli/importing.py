"""``import``: make an operator and a variant of a CUDA file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.trust import remember_trust
from kernelsearch.errors import ArgumentError
from kernelsearch.home import home


@app.command(name="import")
def import_(
    file: Annotated[Path, typer.Argument(help="CUDA source file.")],
    entry: Annotated[str | None, typer.Option(
        help="Host function (or kernel) to import, where the file has several.")] = None,
    sizes: Annotated[str, typer.Option(help="Sizes to tune for: 'n=1048576,k=64'.")] = "",
    set_: Annotated[list[str] | None, typer.Option(
        "--set", help="Fix an integer of the host code: NAME=VALUE; may be repeated.")] = None,
    extent: Annotated[list[str] | None, typer.Option(
        help="Elements of an array: NAME=EXPRESSION over sizes; may be repeated.")] = None,
    inout: Annotated[list[str] | None, typer.Option(
        help="An array whose old contents count; may be repeated.")] = None,
    grid: Annotated[str, typer.Option(help="Grid of a kernel that nothing in the file launches: "
                                      "'ceildiv(n, 256)', x first.")] = "",
    block: Annotated[str, typer.Option(help="Its block: '256' or '32,8'.")] = "",
    define: Annotated[list[str] | None, typer.Option(
        "--define", "-D", help="A macro, as for nvcc: NAME=INTEGER; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the operator.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the two files.")]
        = Path(),
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Make an operator of a CUDA file: its host code becomes the plan, its kernels a variant.

    Example: kernelsearch import saxpy.cu && kernelsearch tune saxpy.py
    """
    from kernelsearch.importing.describe import lines, summary
    from kernelsearch.importing.run import ImportOptions, import_cuda

    options = ImportOptions(
        entry=entry, sizes=_integers(sizes.split(",") if sizes else (), "--sizes"),
        given=_integers(set_ or (), "--set"), extents=_pairs(extent or (), "--extent"),
        inout=tuple(inout or ()), grid=_expressions(grid), block=_expressions(block), name=name,
        defines=_integers(define or (), "--define"),
    )  # fmt: skip
    imported, written = import_cuda(file, options)
    targets = [output / f"{written.name}{suffix}" for suffix in (".py", ".cu")]
    clash = next((t for t in targets if t.exists() and t.resolve() == file.resolve()), None)
    if clash is not None:
        raise ArgumentError(
            f"--output: {clash} is the file that is imported and would be overwritten; "
            "give another folder with -o"
        )
    operator, variant = written.save(output)
    remember_trust(operator.resolve())
    if json_:
        emit_json(summary(imported, operator, variant))
        return
    for line in lines(imported, file.name):
        out.print(line, highlight=False, markup=False)
    out.print(f"wrote {operator} and {variant}", highlight=False)
    out.print(f"tune it with: kernelsearch tune {operator}", highlight=False)


def import_for_tuning(file: Path) -> Path:
    """Import a ``.cu`` file that is to be tuned at once; return the operator file.

    The two files lie in the home folder, by the name of the file.

    Raises:
        CannotImportError: it cannot be imported as it is.
    """
    from kernelsearch.importing.describe import lines
    from kernelsearch.importing.run import import_cuda

    imported, written = import_cuda(file)
    operator, _ = written.save(home() / "imported" / file.stem)
    remember_trust(operator.resolve())
    for line in lines(imported, file.name):
        out.print(line, highlight=False, markup=False)
    return operator


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.strip().partition("=")
        if not equals or not name.isidentifier() or not value.strip():
            raise ArgumentError(f"{option}: {text!r} must look like NAME=VALUE")
        pairs[name] = value.strip()
    return pairs


def _integers(texts: Sequence[str], option: str) -> dict[str, int]:
    numbers = {}
    for name, value in _pairs(texts, option).items():
        try:
            numbers[name] = int(value)
        except ValueError:
            raise ArgumentError(
                f"{option}: {name} must be a whole number (got {value[:40]!r})"
            ) from None
    return numbers


def _expressions(text: str) -> tuple[str, ...]:
    """Split at the commas that lie in no parentheses."""
    parts, depth, last = [], 0, ""
    for c in text:
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            parts.append(last.strip())
            last = ""
        else:
            last += c
    return tuple(p for p in (*parts, last.strip()) if p)
