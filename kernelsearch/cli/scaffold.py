"""``new``: write an operator file and a first variant to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.trust import remember_trust
from kernelsearch.errors import ArgumentError, StorageError
from kernelsearch.resources import resource_folder

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the operator, such as scaled_add.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")] = Path(),
    target: Annotated[str, typer.Option(help="cpu or cuda: language of the variant.")] = "cpu",
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Write an operator and a first variant that run as they are, to be edited."""
    if not _NAME.match(name):
        raise ArgumentError(f"NAME must be a lower-case identifier like scaled_add (got {name!r})")
    if target not in ("cpu", "cuda"):
        raise ArgumentError(f"--target must be cpu or cuda (got {target!r})")
    suffix = ".cu" if target == "cuda" else ".py"
    folder = resource_folder("templates") / "scaffold"
    texts = {
        output / f"{name}.py": (folder / "operator.py.txt").read_text(encoding="utf-8"),
        output / f"{name}_naive{suffix}":
            (folder / f"variant{suffix}.txt").read_text(encoding="utf-8"),
    }  # fmt: skip
    for path in texts:
        if path.exists():
            raise ArgumentError(f"{path} exists already; choose another name or folder")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            path.write_text(text.replace("@NAME@", name), encoding="utf-8")
    except OSError as error:
        for path in texts:
            path.unlink(missing_ok=True)
        raise StorageError(f"cannot write to {output} ({error.strerror})") from error
    operator, variant = texts
    remember_trust(operator.resolve())
    command = f"kernelsearch tune {operator} --target {target} --variant {variant}"
    if json_:
        emit_json({"files": [str(p) for p in texts], "next": command})
        return
    for path in texts:
        out.print(f"wrote {path}", markup=False, highlight=False)
    out.print(f"next: {command}", markup=False, highlight=False)
