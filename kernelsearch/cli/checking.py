"""``verify`` and ``bench``: judge and time variant files without a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelsearch import api
from kernelsearch.bench import BenchRow, bench_variants
from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import coloured, emit_json, microseconds, out, percent, ratio, table
from kernelsearch.cli.parsing import parse_params, parse_workloads
from kernelsearch.cli.progress import ProgressView
from kernelsearch.cli.trust import require_trust
from kernelsearch.errors import ArgumentError, CandidateError, StudyError, UnknownNameError
from kernelsearch.home import cache_folder
from kernelsearch.operator import Operator
from kernelsearch.operators_io import find_operator, load_operator
from kernelsearch.records import Evaluation, KernelFacts, ParamValue
from kernelsearch.resources import operator_paths, template_paths
from kernelsearch.session import Equipment, judge
from kernelsearch.settings import timing_settings
from kernelsearch.targets.choose import choose_target
from kernelsearch.variant import Variant, load_variant

NOT_OK = 1


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="Variant file (.cu or .py).")],
    operator: Annotated[str | None, typer.Option(
        help="Operator name or file; default: the one the variant names.")] = None,
    param: Annotated[list[str] | None, typer.Option(
        help="NAME=VALUE of a tunable; may be given several times.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every valid combination.")] = False,
    dtype: Annotated[str | None, typer.Option(help="Element type.")] = None,
    workloads: Annotated[str, typer.Option(
        help="Also verify on these, besides the held-out ones.")] = "smoke",
    arch: Annotated[str | None, typer.Option(
        help="Compile for this architecture only (sm_90a); needs no GPU.")] = None,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Say whether a variant computes what its operator says; exit code 1 if not."""
    variant = load_variant(file)
    op = _operator(operator, variant, trust)
    variant.check_against(op)
    target = choose_target(variant.language, cache_folder(), arch)
    element = dtype or variant.dtypes[0]
    op.check_dtype(target.name, element)
    combinations = _combinations(variant, param or (), every, target.device.facts, element)
    if arch is not None:
        rows = [_compile(op, variant, c, element, target) for c in combinations]
        ok = all(r["status"] == "ok" for r in rows)
        _print_compiled(rows, json_)
    else:
        chosen, _ = api.choose_workloads(op, parse_workloads(op, workloads), target.name)
        with Equipment(target) as equipment:
            found = [judge(op, variant, c, element, chosen, equipment, examine=True)
                     for c in combinations]  # fmt: skip
        ok = all(e.ok for e in found)
        _print_verdicts(variant, found, json_)
    raise typer.Exit(0 if ok else NOT_OK)


def _operator(name: str | None, variant: Variant, trust: bool) -> Operator:
    if name is None and variant.operator not in operator_paths():
        raise UnknownNameError(
            "operator", variant.operator, operator_paths(), "(give its file with --operator)"
        )
    path = find_operator(name or variant.operator)
    require_trust(path, trust)
    return load_operator(path)


def _combinations(
    variant: Variant, texts: Sequence[str], every: bool, facts: Mapping[str, int], dtype: str
) -> list[dict[str, ParamValue]]:
    if every:
        if texts:
            raise ArgumentError("--all and --param exclude each other")
        valid = variant.valid_params(facts, dtype)
        if not valid:
            raise StudyError(f"{variant.path}: its constraints leave no candidate")
        return valid
    params = dict(variant.default_params(facts, dtype))
    params.update(parse_params(variant, texts))
    return [params]


def _compile(
    op: Operator, variant: Variant, params: Mapping[str, ParamValue], dtype: str, target: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {"params": dict(params)}
    try:
        job = variant.compile_job(params, dtype, target.device.arch, op)
        binary = target.compile(job)
    except CandidateError as error:
        return {**row, "status": str(error.status), "message": str(error),
                "evidence": error.evidence}  # fmt: skip
    return {**row, "status": "ok", "seconds": binary.compile_s,
            "kernels": [asdict(f) for f in binary.facts]}  # fmt: skip


def _print_compiled(rows: Sequence[Mapping[str, Any]], json_: bool) -> None:
    if json_:
        emit_json({"compiled": list(rows)})
        return
    shown = table("compiled, not run", "params", "status", "kernel", ">registers", ">spills",
                  ">shared", ">stack")  # fmt: skip
    for row in rows:
        params = " ".join(f"{k}={v}" for k, v in row["params"].items())
        if row["status"] != "ok":
            shown.add_row(params, row["status"], "", "", "", "", "")
            continue
        for kernel in row["kernels"]:
            fact = KernelFacts(**kernel)
            spills = None
            if fact.spill_store_bytes is not None:
                spills = fact.spill_store_bytes + (fact.spill_load_bytes or 0)
            shown.add_row(params, "ok", fact.name, _number(fact.registers), _number(spills),
                          _number(fact.static_shared_bytes), _number(fact.stack_bytes))  # fmt: skip
    out.print(shown)
    for row in rows:
        if row["status"] != "ok":
            out.print(row["evidence"].get("log") or row["message"], markup=False, highlight=False)


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _print_verdicts(variant: Variant, found: Sequence[Evaluation], json_: bool) -> None:
    if json_:
        emit_json({"variant": variant.name, "hash": variant.hash, "verified": [{
            "params": e.candidate.values, "status": str(e.status), "message": e.message,
            "evidence": dict(e.evidence), "cases": list(e.verified),
        } for e in found]})  # fmt: skip
        return
    for evaluation in found:
        params = " ".join(f"{k}={v}" for k, v in evaluation.candidate.params)
        if evaluation.ok:
            exam: Any = evaluation.evidence.get("examined", {})
            more = ", ".join(n.replace("_", " ") for n in exam.get("passed", ()))
            out.print(coloured("right", "green"), coloured(
                f" {variant.name} {params}: {len(evaluation.verified)} cases, "
                f"examined on {exam.get('cases', 0)} more ({more})"
            ))  # fmt: skip
        else:
            out.print(
                coloured(str(evaluation.status), "red"), coloured(f" {variant.name} {params}")
            )
            out.print(f"  {evaluation.message}", markup=False, highlight=False)
            for name, value in evaluation.evidence.items():
                if name != "log":
                    out.print(f"  {name}: {str(value)[:200]}", markup=False, highlight=False)
            log = evaluation.evidence.get("log")
            if log:
                out.print(str(log), markup=False, highlight=False)


@app.command()
def bench(
    operator: Annotated[str, typer.Argument(help="Operator name or file.")],
    files: Annotated[list[Path] | None, typer.Argument(
        help="Variant files; default: all shipped ones.")] = None,
    target: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str | None, typer.Option(help="Element type.")] = None,
    workloads: Annotated[str | None, typer.Option(
        help="A set's name, or sizes: 'rows=4,cols=5;...'; default: large.")] = None,
    param: Annotated[list[str] | None, typer.Option(
        help="NAME=VALUE of a tunable; only with one file.")] = None,
    vendor: Annotated[bool, typer.Option(help="Time the vendor library too.")] = True,
    cache: Annotated[str, typer.Option(help="cold or hot caches.")] = "cold",
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Verify and time variants as they are, beside the vendor library."""
    path = find_operator(operator)
    require_trust(path, trust)
    op = load_operator(path)
    timing = timing_settings({"cache": cache}, "--cache")
    with ProgressView(op.name, quiet=json_):
        chosen = choose_target(target, cache_folder())
        element = dtype or (op.dtypes.get(chosen.name) or ("float32",))[0]
        op.check_dtype(chosen.name, element)
        wanted = parse_workloads(op, workloads) if workloads else None
        sizes, _ = api.choose_workloads(op, wanted, chosen.name)
        paths = files or template_paths(op.name, chosen.name)
        variants = [load_variant(p) for p in paths]
        if not variants:
            raise StudyError(f"operator {op.name} has no shipped variant for {chosen.name}; "
                             "name files")  # fmt: skip
        for variant in variants:
            variant.check_against(op)
        if param and len(variants) != 1:
            raise ArgumentError("--param needs exactly one variant file")
        given = parse_params(variants[0], param) if param else {}
        with Equipment(chosen) as equipment:
            rows = bench_variants(op, str(path), variants, given, element, sizes, equipment,
                                  timing, vendor=vendor)  # fmt: skip
    if json_:
        emit_json({"device": chosen.device.name, "dtype": element, "cache": cache,
                   "rows": [_bench_json(r) for r in rows]})  # fmt: skip
        return
    _print_bench(rows)


def _bench_json(row: BenchRow) -> dict[str, Any]:
    return {**asdict(row), "samples": len(row.samples_us), "clock_mhz": row.clock_mhz,
            "throttle": list(row.throttle), "disturbed": row.disturbed}  # fmt: skip


def _print_bench(rows: Sequence[BenchRow]) -> None:
    shown = table("", "kernel", "params", "workload", ">time", ">of speed of light",
                  ">against the first", ">95 % interval", "verdict", ">samples", ">clock",
                  "note")  # fmt: skip
    for row in rows:
        params = " ".join(f"{k}={v}" for k, v in row.params.items())
        versus = row.against
        interval = f"{versus.low:.3f} to {versus.high:.3f}" if versus is not None else "-"
        verdict = str(versus.verdict) if versus is not None else "-"
        clock = f"{row.clock_mhz:.0f} MHz" if row.clock_mhz is not None else "-"
        shown.add_row(
            row.name, params, row.workload, microseconds(row.time_us), percent(row.sol_fraction),
            ratio(versus.ratio if versus else None), interval, verdict,
            str(len(row.samples_us) or "-"), clock, _bench_note(row),
        )  # fmt: skip
    out.print(shown)


def _bench_note(row: BenchRow) -> str:
    notes = [row.note] if row.note else []
    if row.against is not None and not row.interleaved:
        notes.append("timed apart from the first")
    if row.throttle:
        notes.append("throttled: " + ", ".join(row.throttle))
    if row.disturbed:
        notes.append("the machine was disturbed")
    return "; ".join(notes)
