"""``explain``: where the time goes, how far from the speed of light, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelsearch.classify import shipped_table
from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import emit_json, microseconds, out, percent, ratio, table
from kernelsearch.cli.parsing import parse_params, parse_workloads
from kernelsearch.cli.studies import find_study, study_operator
from kernelsearch.cli.trust import require_trust
from kernelsearch.diagnose import Subject, diagnose_each, diagnose_unmeasured
from kernelsearch.diagnoser import best_diagnoses, migrations, stored_diagnoses
from kernelsearch.diagnosis import Diagnosis
from kernelsearch.errors import ArgumentError, TargetUnavailableError
from kernelsearch.home import cache_folder
from kernelsearch.operators_io import find_operator, load_operator
from kernelsearch.profile.sass import with_code
from kernelsearch.records import Device, Evaluation
from kernelsearch.session import Equipment, judge
from kernelsearch.study import StoredStudy
from kernelsearch.targets.choose import choose_target
from kernelsearch.targets.cuda import CudaTarget
from kernelsearch.variant import Variant, load_variant

TRIED = 6


@app.command()
def explain(
    what: Annotated[str, typer.Argument(
        metavar="VARIANT|STUDY", help="A variant file, or the folder or name of a study.")],
    variant: Annotated[str | None, typer.Option(
        help="Of a study: explain this variant (name or hash) instead of the best.")] = None,
    operator: Annotated[str | None, typer.Option(
        help="Of a variant file: the operator's file, if it is not a shipped one.")] = None,
    workloads: Annotated[str | None, typer.Option(
        help="Of a variant file: a set's name, or sizes: 'rows=4,cols=5'.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of a variant file: element type.")] = None,
    param: Annotated[list[str] | None, typer.Option(
        help="Of a variant file: NAME=VALUE; may be given several times.")] = None,
    arch: Annotated[str, typer.Option(
        help="Architecture to compile a .cu file for where there is no device.")] = "sm_90a",
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Name the bottleneck of a variant or a study, with the numbers that say so."""
    path = Path(what)
    if path.is_file():
        options = _FileOptions(operator, workloads, dtype, param or [], arch, trust)
        _explain_file(path, options, json_)
    else:
        _explain_study(find_study(what), variant, trust, json_)


@dataclass(frozen=True, slots=True)
class _FileOptions:
    operator: str | None
    workloads: str | None
    dtype: str | None
    params: list[str]
    arch: str
    trust: bool


# --- a variant file ---------------------------------------------------------------------------


def _explain_file(path: Path, options: _FileOptions, json_: bool) -> None:
    variant = load_variant(path)
    home = find_operator(options.operator or variant.operator)
    require_trust(home, options.trust)
    operator = load_operator(home)
    variant.check_against(operator)
    dtype = options.dtype or variant.dtypes[0]
    operator.check_dtype(variant.language, dtype)
    try:
        target = choose_target(variant.language, cache_folder())
    except TargetUnavailableError:
        target = CudaTarget(options.arch, cache_folder=cache_folder() / "cuda")
    asked = parse_workloads(operator, options.workloads or "smoke")
    sizes = operator.workload_set(asked, variant.language) if isinstance(asked, str) else asked
    params = variant.default_params(target.device.facts, dtype)
    params = {**params, **parse_params(variant, options.params)}
    subject = Subject(operator, variant, dtype, target.device, tuple(sizes))
    evaluation: Evaluation | None = None
    if getattr(target, "missing", ""):
        binary = target.compile(variant.compile_job(params, dtype, target.device.arch, operator))
        facts, why = with_code(binary)
        why = "; ".join(w for w in (why, "nothing was timed: no device") if w)
        found = diagnose_unmeasured(subject, params, facts, why)
    else:
        with Equipment(target) as equipment:
            subject = replace(subject, device=equipment.device)
            evaluation = judge(operator, variant, params, dtype, subject.workloads, equipment)
            if not evaluation.ok:
                raise ArgumentError(
                    f"{path} is {evaluation.status}: {evaluation.message}; only a right candidate "
                    "is explained"
                )
            facts, why = evaluation.facts, ""
            if variant.language == "cuda":
                job = variant.compile_job(params, dtype, target.device.arch, operator)
                facts, why = with_code(equipment.pool.submit(job).result())
            found = diagnose_each(subject, evaluation, facts, missing=why)
    if json_:
        emit_json({"variant": variant.name, "device": subject.device.name, "params": params,
                   "diagnoses": [d.to_json() for d in found]})  # fmt: skip
        return
    out.print(f"{variant.name} on {subject.device.name}", markup=False, highlight=False)
    if evaluation is not None:
        _print_times(evaluation)
    for diagnosis in found:
        _print_diagnosis(diagnosis)


# --- a study ----------------------------------------------------------------------------------


def _explain_study(folder: Path, name: str | None, trust: bool, json_: bool) -> None:
    with StoredStudy(folder) as stored:
        archive, found = stored.archive, stored_diagnoses(stored.ledger)
        result = stored.result()
        chosen = _chosen(stored, name, result.variant if result is not None else None)
        best = archive.best_of(chosen) if chosen else None
        if best is None:
            raise ArgumentError(
                f"the study in {folder} has no right candidate "
                f"{'of ' + name if name else 'yet'}: there is nothing to explain"
            )
        if best.candidate.key not in found:
            found[best.candidate.key] = _afresh(stored, folder, best, trust)
        diagnosis = found[best.candidate.key]
        moved = migrations(archive, found)
        if json_:
            emit_json({
                "variant": archive.variant(best.candidate.variant).name,
                "speedup": archive.objective(best), "diagnosis": diagnosis.to_json(),
                "variants": [
                    {"name": archive.variant(e.candidate.variant).name,
                     "speedup": archive.objective(e), "label": d.label,
                     "confidence": d.confidence, "headroom": d.headroom}
                    for e, d in best_diagnoses(archive, found)
                ],
                "migrations": [
                    {"before": m.before, "after": m.after, "count": m.count, "gain": m.gain}
                    for m in moved
                ],
            })  # fmt: skip
            return
        record = archive.variant(best.candidate.variant)
        params = " ".join(f"{k}={v}" for k, v in best.candidate.params)
        out.print(f"{record.name} {params} on {stored.device.name}: "
                  f"{ratio(archive.objective(best))} of the baseline",
                  markup=False, highlight=False)  # fmt: skip
        _print_times(best)
        _print_diagnosis(diagnosis)
        _print_variants(stored, found)
        if moved:
            rows = table("from parent to child", "bottleneck", "becomes", ">steps", ">gain")
            for one in moved:
                rows.add_row(one.before, one.after, str(one.count), ratio(one.gain))
            out.print(rows)


def _chosen(stored: StoredStudy, name: str | None, winner: str | None) -> str | None:
    archive = stored.archive
    if name is not None:
        for record in archive.variants():
            if name in (record.name, record.hash):
                return record.hash
        raise ArgumentError(
            f"--variant must be a name or hash of this study (got {name!r}); "
            "`kernelsearch show` lists them"
        )
    best = archive.best()
    return winner or (best.candidate.variant if best is not None else None)


def _afresh(stored: StoredStudy, folder: Path, best: Evaluation, trust: bool) -> Diagnosis:
    """Diagnose a candidate that the run did not: from what is stored, without the device."""
    operator, settings = study_operator(folder, trust)
    runs = [e.data for e in stored.ledger.events()[0] if e.kind == "run"]
    rates = dict(runs[-1].get("ceilings", {})) if runs else {}
    device = Device(
        stored.device.target, stored.device.name, stored.device.arch, stored.device.facts,
        stored.device.driver, rates,
    )  # fmt: skip
    variant: Variant = stored.variant(best.candidate.variant)
    subject = Subject(operator, variant, settings.dtype, device, settings.workloads)
    found = diagnose_each(subject, best, missing="diagnosed now, from what the study stored")
    return found[0] if found else Diagnosis(reason="nothing was timed")


# --- for people -------------------------------------------------------------------------------


def _print_times(evaluation: Evaluation) -> None:
    rows = table("time", "workload", ">time", ">speed of light", ">reached")
    for timing in evaluation.timings:
        light = timing.sol_us
        rows.add_row(timing.workload, microseconds(timing.median_us), microseconds(light),
                     percent(light / timing.median_us if light else None))  # fmt: skip
    out.print(rows)


def _print_diagnosis(diagnosis: Diagnosis) -> None:
    def line(text: str) -> None:
        out.print(text, markup=False, highlight=False)

    where = f" on {diagnosis.workload}" if diagnosis.workload else ""
    if not diagnosis.findings:
        line(f"bottleneck{where}: unknown ({diagnosis.reason})")
        return
    first = diagnosis.findings[0]
    line(f"bottleneck{where}: {first.label} ({first.group}), confidence "
         f"{percent(diagnosis.confidence)}, from {diagnosis.source}")  # fmt: skip
    line(f"  {first.says}")
    for name, value in first.evidence.items():
        line(f"    {name} = {value:.4g}")
    away = diagnosis.headroom
    light = f"; the speed of light is {ratio(away)} away" if away else ""
    line(f"  removing it alone may gain up to {ratio(first.headroom)}{light}")
    words = shipped_table().directions
    line("  to try:")
    for direction in first.directions[:TRIED]:
        line(f"    {words.get(direction, direction)}")
    others = [f"{f.label} ({ratio(f.headroom)})" for f in diagnosis.findings[1:]]
    if others:
        line(f"  also: {', '.join(others)}")
    if diagnosis.reason:
        line(f"  not known: {diagnosis.reason}")


def _print_variants(stored: StoredStudy, found: dict[str, Diagnosis]) -> None:
    pairs: Sequence[tuple[Evaluation, Diagnosis]] = best_diagnoses(stored.archive, found)
    rows = table("bottlenecks", "variant", ">speed-up", "bottleneck", ">confidence", ">headroom",
                 "first to try")  # fmt: skip
    for evaluation, diagnosis in pairs:
        rows.add_row(*_row(stored, evaluation, diagnosis))
    out.print(rows)


def _row(stored: StoredStudy, evaluation: Evaluation, diagnosis: Diagnosis) -> list[Any]:
    directions = diagnosis.directions
    return [
        stored.archive.variant(evaluation.candidate.variant).name,
        ratio(stored.archive.objective(evaluation)), diagnosis.label,
        percent(diagnosis.confidence), ratio(diagnosis.headroom),
        directions[0] if directions else "-",
    ]  # fmt: skip
