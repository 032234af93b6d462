"""``list``: operators, their variants, study files and stored studies."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kernelsearch.cli.app import JsonFlag, app
from kernelsearch.cli.console import coloured, emit_json, out, ratio, table
from kernelsearch.cli.studies import study_folders
from kernelsearch.errors import KernelSearchError
from kernelsearch.operators_io import load_operator
from kernelsearch.resources import operator_paths, study_paths, template_paths
from kernelsearch.result import Result
from kernelsearch.study import read_study


@app.command(name="list")
def list_(
    studies: Annotated[bool, typer.Option("--studies", help="List stored studies.")] = False,
    json_: JsonFlag = False,
) -> None:
    """List the shipped operators, or the stored studies."""
    if studies:
        _studies(json_)
        return
    operators = [_operator(name) for name in operator_paths()]
    if json_:
        emit_json({"operators": operators, "study_files": sorted(study_paths())})
        return
    rows = table("", "operator", "what", "cpu", "cuda", "workload sets")
    for item in operators:
        rows.add_row(item["name"], item["doc"], _short(item, "cpu"), _short(item, "cuda"),
                     ", ".join(item["workload_sets"]))  # fmt: skip
    out.print(rows)
    out.print(f"study files: {', '.join(sorted(study_paths())) or 'none'}", highlight=False)


def _short(item: dict[str, Any], target: str) -> str:
    dtypes = item["dtypes"].get(target, ())
    return f"{len(item['variants'][target])} variants, {', '.join(dtypes)}" if dtypes else "-"


def _operator(name: str) -> dict[str, Any]:
    operator = load_operator(name)
    return {
        "name": operator.name, "doc": operator.doc,
        "dtypes": {k: list(v) for k, v in operator.dtypes.items()},
        "workload_sets": sorted({k.split("@")[0] for k in operator.workloads}),
        "variants": {t: [p.stem for p in template_paths(name, t)] for t in ("cpu", "cuda")},
    }  # fmt: skip


def _studies(json_: bool) -> None:
    found = []
    for folder in study_folders():
        entry: dict[str, Any] = {"name": folder.name, "folder": str(folder)}
        try:
            ledger, stored = read_study(folder)
            events, _ = ledger.events()
            ledger.close()
        except KernelSearchError as error:
            found.append({**entry, "error": str(error)})
            continue
        results = [Result.from_json(e.data) for e in events if e.kind == "result"]
        entry.update(operator=stored["operator"], device=stored["device"]["name"],
                     dtype=stored["settings"]["dtype"])  # fmt: skip
        if results:
            entry.update(speedup=results[-1].speedup, variant=results[-1].variant_name,
                         candidates=results[-1].candidates)  # fmt: skip
        found.append(entry)
    if json_:
        emit_json({"studies": found})
        return
    if not found:
        out.print("no studies yet; start with: kernelsearch tune rms_norm", highlight=False)
        return
    rows = table("", "study", "operator", "dtype", "device", ">speed-up", "winner")
    for entry in found:
        if "error" in entry:
            rows.add_row(entry["name"], coloured("unreadable", "red"), "", entry["error"], "", "")
            continue
        rows.add_row(entry["name"], entry["operator"], entry["dtype"], entry["device"],
                     ratio(entry.get("speedup")), entry.get("variant", "unfinished"))  # fmt: skip
    out.print(rows)
