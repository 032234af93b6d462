"""``tune`` and ``resume``: run a study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelsearch import api
from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import emit_json, errors, out
from kernelsearch.cli.importing import import_for_tuning
from kernelsearch.cli.parsing import parse_workloads, read_shapes
from kernelsearch.cli.progress import ProgressView
from kernelsearch.cli.results import print_result
from kernelsearch.cli.studies import find_study, open_study
from kernelsearch.cli.trust import require_trust
from kernelsearch.errors import ArgumentError, StudyError
from kernelsearch.home import cache_folder
from kernelsearch.operators_io import find_operator, load_operator
from kernelsearch.propose.agent import ModelOptions
from kernelsearch.resources import study_paths
from kernelsearch.search.budget import parse_budget
from kernelsearch.session import Equipment
from kernelsearch.settings import StudyFile, StudySettings, load_study_file, timing_settings
from kernelsearch.targets.choose import choose_target

INTERRUPTED = 130


@app.command()
def tune(
    what: Annotated[str, typer.Argument(
        metavar="OPERATOR", help="Operator name, operator file (.py), CUDA file (.cu) or study "
        "file (.toml).")],
    target: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    budget: Annotated[str | None, typer.Option(
        help="60s, 5m, 200 (candidates), or several: 200,5m.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Element type, such as bfloat16.")] = None,
    workloads: Annotated[str | None, typer.Option(
        help="A set's name, or sizes: 'rows=4,cols=5;rows=8,cols=5'.")] = None,
    data: Annotated[Path | None, typer.Option(
        help="Tune on the inputs in this file (.npz, or .mtx for sparse operators).")] = None,
    shapes: Annotated[Path | None, typer.Option(
        help="Tune for the shapes in this file, recorded from a running program (JSON).")] = None,
    variant: Annotated[list[Path] | None, typer.Option(
        help="A variant file to start from; may be given several times.")] = None,
    templates: Annotated[bool | None, typer.Option(help="Start from the shipped variants.")] = None,
    proposer: Annotated[list[str] | None, typer.Option(
        help="rules, crossover, inbox, llm; may be given several times. 'none' for none.")] = None,
    model: Annotated[str | None, typer.Option(
        help="Language model for the proposer llm; it is sent the kernels' sources.")] = None,
    spend: Annotated[float, typer.Option(help="US dollars this run may spend on the model.")] = 1.0,
    base_url: Annotated[str | None, typer.Option(
        help="Another server that speaks the Anthropic Messages API.")] = None,
    selector: Annotated[str | None, typer.Option(help="epsilon_greedy or greedy.")] = None,
    objective: Annotated[str | None, typer.Option(
        help="geometric_mean, weighted_mean or minimum, of the speed-ups.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of every random choice.")] = None,
    cache: Annotated[str | None, typer.Option(help="Time with cold (default) or hot caches.")]
        = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the study.")] = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Search on where a finished study is "
                                          "stored.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Search for the fastest verified kernel of an operator."""
    file = _study_file(what)
    options: dict[str, Any] = {}
    where = "--cache"
    timing: dict[str, Any] = {}
    if file is not None:
        options, timing, where = _from_file(file), dict(file.timing), str(file.path)
    if cache is not None:
        timing["cache"] = cache
    given = {
        "target": target, "dtype": dtype, "data": data, "variants": variant or None,
        "templates": templates, "proposers": _proposers(proposer), "selector": selector,
        "objective": objective, "seed": seed, "folder": folder,
    }  # fmt: skip
    options.update({k: v for k, v in given.items() if v is not None})
    if timing:
        options["timing"] = timing_settings(timing, where)
    if what.endswith(".cu"):
        path = import_for_tuning(Path(what))
    else:
        path = find_operator(file.operator if file is not None else what)
    require_trust(path, trust)
    operator = load_operator(path)
    if shapes is not None:
        options["workloads"] = read_shapes(operator, shapes)
    elif workloads is not None:
        options["workloads"] = parse_workloads(operator, workloads)
    limits = budget or (file.budget if file is not None else None) or api.DEFAULT_BUDGET
    parsed = parse_budget(limits)
    prepared = api.prepare(api.TuneRequest(operator, **options))
    models = _models(prepared.settings, model, spend, base_url)
    title = f"{operator.name} {prepared.settings.dtype} on {prepared.device.name}"
    with ProgressView(title, quiet=quiet or json_) as view:
        try:
            tuned = api.tune_prepared(prepared, parsed, refresh=refresh, observer=view,
                                       models=models)  # fmt: skip
        except KeyboardInterrupt:
            _stopped(prepared.folder, json_)
    if json_:
        emit_json(tuned.result.to_json())
    else:
        print_result(tuned.result)


@app.command()
def resume(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    budget: Annotated[str, typer.Option(help="What this run may spend.")] = api.DEFAULT_BUDGET,
    model: Annotated[str | None, typer.Option(
        help="Language model for the proposer llm; it is sent the kernels' sources.")] = None,
    spend: Annotated[float, typer.Option(help="US dollars this run may spend on the model.")] = 1.0,
    base_url: Annotated[str | None, typer.Option(
        help="Another server that speaks the Anthropic Messages API.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Go on with a study that was stopped."""
    folder = find_study(study)
    limits = parse_budget(budget)
    opened = open_study(folder, trust)
    try:
        target = choose_target(opened.settings.target, cache_folder())
        models = _models(opened.settings, model, spend, base_url)
        title = f"{opened.operator.name} {opened.settings.dtype} on {opened.device.name}"
        with ProgressView(title, quiet=quiet or json_) as view:
            try:
                with Equipment(target) as equipment:
                    result = api.run_study(opened, equipment, limits, view, models)
            except KeyboardInterrupt:
                _stopped(folder, json_)
    finally:
        opened.close()
    if json_:
        emit_json(result.to_json())
    else:
        print_result(result)


def _models(
    settings: StudySettings, model: str | None, spend: float, base_url: str | None
) -> ModelOptions | None:
    """Return which model is asked, having said what leaves the machine; None: none is."""
    if "llm" not in settings.proposers:
        if model is not None:
            raise ArgumentError("--model is for studies with --proposer llm")
        return None
    if model is None:
        raise ArgumentError("--proposer llm needs --model; no model is chosen for you")
    errors.print(
        f"The model {model} is sent the sources of this study's kernels, the contract of "
        f"{settings.operator}, times and compiler messages, for at most {spend:.2f} US dollars.",
        markup=False, highlight=False,
    )  # fmt: skip
    return ModelOptions(model, spend, base_url)


def _stopped(folder: Path, json_: bool) -> None:
    command = f"kernelsearch resume {folder}"
    if json_:
        emit_json({"interrupted": True, "folder": str(folder), "resume": command})
    else:
        errors.print("\nStopped. What was evaluated is kept; go on with:")
        out.print(f"  {command}", markup=False, highlight=False)
    raise typer.Exit(INTERRUPTED)


def _study_file(what: str) -> StudyFile | None:
    if not what.endswith(".toml"):
        return None
    path = Path(what)
    if not path.is_file():
        shipped = study_paths().get(path.stem)
        if shipped is None or path.parent.name not in ("", "studies"):
            raise StudyError(
                f"study file {what!r} must exist; it does not. Shipped: "
                f"{', '.join(study_paths()) or 'none'}"
            )
        path = shipped
    return load_study_file(path)


def _from_file(file: StudyFile) -> dict[str, Any]:
    options: dict[str, Any] = {"target": file.target, "seed": file.seed,
                               "templates": file.templates}  # fmt: skip
    for key in ("dtype", "workloads", "data", "selector", "proposers", "objective"):
        value = getattr(file, key)
        if value is not None:
            options[key] = value
    if file.variants:
        options["variants"] = file.variants
    return options


def _proposers(given: list[str] | None) -> tuple[str, ...] | None:
    if not given:
        return None
    if "none" in given:
        if len(given) > 1:
            raise ArgumentError(f"--proposer none excludes others (got {given})")
        return ()
    return tuple(given)
