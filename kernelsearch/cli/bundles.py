"""``export``: write winners, or a variant with named params, as files for a build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelsearch import api
from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import emit_json, errors, out
from kernelsearch.cli.parsing import parse_params
from kernelsearch.cli.studies import find_study, study_operator
from kernelsearch.cli.trust import require_trust
from kernelsearch.errors import ArgumentError, CandidateError, StudyError
from kernelsearch.export.build import build_kernel
from kernelsearch.export.bundle import (
    BundleContents,
    check_folder,
    cpu_files,
    device_facts,
    lineage_facts,
    write_folder,
)
from kernelsearch.export.cuda_bundle import cuda_files
from kernelsearch.export.kernel import ExportedKernel
from kernelsearch.home import cache_folder
from kernelsearch.operator import Operator
from kernelsearch.operators_io import find_operator, load_operator
from kernelsearch.resources import cmake_folder, include_folder
from kernelsearch.result import Result
from kernelsearch.settings import StudySettings
from kernelsearch.study import StoredStudy
from kernelsearch.variant import load_variant
from kernelsearch.versions import versions


@app.command()
def export(
    studies: Annotated[
        list[str] | None, typer.Argument(help="Folders or names of studies of one operator.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder to write.")
    ] = Path("bundle"),
    variant: Annotated[
        Path | None, typer.Option("--variant", help="A .cu variant file instead of a study.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Operator of --variant: a name or a file.")
    ] = None,
    param: Annotated[
        list[str] | None, typer.Option("--param", help="NAME=VALUE of --variant; repeatable.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="Element type of --variant.")
    ] = None,
    archs: Annotated[
        str, typer.Option("--archs", help="CUDA architectures, like sm_80,sm_90a.")
    ] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle.")] = False,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Write kernels as files a build takes without Python: CUDA sources, binaries and a launcher.

    Several studies of one operator (other devices, sizes or element types) become one bundle that
    picks among them. From a CPU study, the Numba file is exported.
    """
    check_folder(output, overwrite=overwrite)
    named = [a.strip() for a in archs.split(",") if a.strip()]
    if (variant is None) == (not studies):
        raise ArgumentError("name studies, or a --variant with its --operator (one of the two)")
    if variant is None and (operator or param or dtype):
        raise ArgumentError("--operator, --param and --dtype belong to --variant")
    if variant is not None:
        found, kernel = _from_variant(variant, operator, param or [], dtype, named, trust)
        files = cuda_files(found, [kernel], versions())
        if not json_:
            errors.print(
                f"{kernel.id} is exported as it is: nobody has verified or timed it here",
                markup=False, highlight=False,
            )  # fmt: skip
    else:
        files = _from_studies([find_study(s) for s in studies or []], named, trust)
    written = write_folder(output, files, overwrite=overwrite)
    if json_:
        emit_json({"folder": str(output), "files": [str(f) for f in written]})
        return
    for file in written:
        out.print(str(file), markup=False, highlight=False)


def _from_variant(
    path: Path, operator: str | None, param: list[str], dtype: str | None, archs: list[str],
    trust: bool,
) -> tuple[Operator, ExportedKernel]:  # fmt: skip
    found = load_variant(path, include_folder())
    if found.language != "cuda":
        raise ArgumentError(
            f"{path}: only .cu variants are exported; a Numba variant is used from Python"
        )
    file = find_operator(operator or found.operator)
    require_trust(file, trust)
    contract = load_operator(file)
    params = parse_params(found, param)
    params.update({n: c[0] for n, c in found.tunables.items() if n not in params and len(c) == 1})
    missing = [n for n in found.tunables if n not in params]
    if missing:
        raise ArgumentError(
            f"give a value to every tunable of {found.name} with --param NAME=VALUE (missing: "
            f"{', '.join(missing)})"
        )
    try:
        kernel = build_kernel(
            contract, found, params, dtype or found.dtypes[0], archs, cache=str(cache_folder())
        )
    except CandidateError as error:
        raise ArgumentError(f"{path} cannot be exported: {error}") from error
    return contract, kernel


def _from_studies(folders: list[Path], archs: list[str], trust: bool) -> dict[str, bytes]:
    opened = [(folder, *study_operator(folder, trust)) for folder in folders]
    operators = {operator.contract for _, operator, _ in opened}
    if len(operators) > 1:
        raise StudyError(
            f"the studies are of different operators or contracts "
            f"({', '.join(o.name for _, o, _ in opened)}); a bundle has one"
        )
    if any(settings.target != "cuda" for _, _, settings in opened):
        if len(opened) > 1 or archs:
            raise StudyError(
                "a CPU study is exported alone and without --archs: its kernel is a Numba file, "
                "which no C++ build takes"
            )
        return _cpu_study(opened[0][0], opened[0][1])
    kernels = [_cuda_study(*entry, archs) for entry in opened]
    return cuda_files(opened[0][1], kernels, versions())


def _winner(stored: StoredStudy, folder: Path) -> Result:
    result = stored.result()
    if result is None:
        raise StudyError(
            f"the study in {folder} has no confirmed winner yet; run: kernelsearch resume {folder}"
        )
    return result


def _cpu_study(folder: Path, operator: Operator) -> dict[str, bytes]:
    with StoredStudy(folder) as stored:
        result = _winner(stored, folder)
        return cpu_files(BundleContents(
            operator=operator, variant=stored.variant(result.variant),
            evaluation=api.winner(stored.archive, result, folder), device=stored.device,
            lineage=stored.archive.path_to_root(result.variant), result=result.to_json(),
            versions=versions(),
        ))  # fmt: skip


def _cuda_study(
    folder: Path, operator: Operator, settings: StudySettings, archs: list[str]
) -> ExportedKernel:
    with StoredStudy(folder) as stored:
        result = _winner(stored, folder)
        evaluation = api.winner(stored.archive, result, folder)
        facts = result.to_json()
        facts.pop("folder")  # where a study lies is no part of what it found
        origin = {
            "device": device_facts(stored.device), "result": facts,
            "lineage": lineage_facts(stored.archive.path_to_root(result.variant)),
        }  # fmt: skip
        return build_kernel(
            operator, stored.variant(result.variant), evaluation.candidate.values, settings.dtype,
            archs or [stored.device.arch], device=stored.device, evaluation=evaluation,
            origin=origin, cache=str(cache_folder()),
        )  # fmt: skip


@app.command("cmake-dir")
def cmake_dir() -> None:
    """Print the folder of the CMake package, for CMAKE_PREFIX_PATH or kernelsearch_DIR."""
    out.print(str(cmake_folder()), markup=False, highlight=False, soft_wrap=True)
