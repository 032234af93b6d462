"""``diff``: two kernels side by side: what the source changes, and what the change is worth."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import emit_json, microseconds, out, ratio, table
from kernelsearch.cli.studies import chosen_variant, find_study
from kernelsearch.errors import ArgumentError, StorageError
from kernelsearch.records import ParamValue
from kernelsearch.report.words import clean, params
from kernelsearch.study import StoredStudy

KERNEL_FILES = (".cu", ".py")
COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True)
class Kernel:
    """One side: its text, and what a study knows of it (nothing of a file)."""

    name: str
    source: str
    study: Path | None = None
    speedup: float | None = None
    params: dict[str, ParamValue] = field(default_factory=dict)
    times_us: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name, "study": str(self.study) if self.study else None,
            "speedup": self.speedup, "params": self.params, "times_us": self.times_us,
        }  # fmt: skip


@app.command()
def diff(
    a: Annotated[str, typer.Argument(
        metavar="A", help="A variant file, STUDY (its winner) or STUDY:VARIANT.")],
    b: Annotated[str, typer.Argument(
        metavar="B", help="Likewise; :VARIANT is one of A's study.")],
    context: Annotated[int, typer.Option("-U", help="Lines of context.", min=0)] = 3,
    json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Compare two kernels: the difference of their sources, and their measured times.

    Example: kernelsearch diff my-study:naive my-study
    """
    first = _kernel(a, None)
    second = _kernel(b, first.study)
    lines = list(difflib.unified_diff(
        first.source.splitlines(), second.source.splitlines(), first.name, second.name,
        lineterm="", n=context,
    ))  # fmt: skip
    if json_:
        emit_json({"a": first.to_json(), "b": second.to_json(), "diff": "\n".join(lines)})
        return
    for line in lines:
        out.print(clean(line), style=COLOURS.get(line[:1], ""), markup=False, highlight=False)
    if not lines:
        out.print("the sources are the same", highlight=False)
    _print_times(first, second)


def _kernel(text: str, study: Path | None) -> Kernel:
    path = Path(text).expanduser()
    if path.suffix in KERNEL_FILES and not path.is_dir():
        return _from_file(path)
    if text.startswith(":"):
        if study is None:
            raise ArgumentError(
                f"{text!r} names a variant of A's study, but A is a file; write STUDY{text}"
            )
        return _from_study(study, text[1:])
    folder, colon, variant = text.rpartition(":")
    # A folder's own name may hold a colon.
    if not colon or path.is_dir():
        return _from_study(find_study(text), None)
    return _from_study(find_study(folder), variant)


def _from_file(path: Path) -> Kernel:
    try:
        return Kernel(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(
            f"cannot read the variant file {path} ({error}); give a file, STUDY or STUDY:VARIANT"
        ) from error


def _from_study(folder: Path, variant: str | None) -> Kernel:
    with StoredStudy(folder) as stored:
        hash_ = chosen_variant(stored, variant)
        record, best = stored.archive.variant(hash_), stored.archive.best_of(hash_)
        if best is None:
            return Kernel(record.name, record.source, folder)
        return Kernel(
            record.name, record.source, folder, stored.archive.objective(best),
            best.candidate.values, best.times_us(),
        )  # fmt: skip


def _print_times(first: Kernel, second: Kernel) -> None:
    shared = [k for k in first.times_us if k in second.times_us]
    if not shared:
        return
    rows = table("times of the search", "workload", ">A", ">B", ">A / B")
    for key in shared:
        before, after = first.times_us[key], second.times_us[key]
        rows.add_row(key, microseconds(before), microseconds(after), ratio(before / after))
    if first.study == second.study:
        rows.add_row("speed-up", ratio(first.speedup), ratio(second.speedup), "")
    out.print(rows)
    for letter, kernel in (("A", first), ("B", second)):
        words = f"{kernel.name} {params(kernel.params)}".rstrip()
        out.print(f"{letter}  {clean(words)}", markup=False, highlight=False)
    if first.study != second.study:
        out.print("A and B were measured in different studies: compare their devices and settings",
                  highlight=False)  # fmt: skip
