"""``export``: write a winner as files for a build."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelsearch import api
from kernelsearch.cli.app import JsonFlag, TrustFlag, app
from kernelsearch.cli.console import emit_json, out
from kernelsearch.cli.studies import find_study, study_operator
from kernelsearch.errors import StudyError
from kernelsearch.export.bundle import BundleContents, write_bundle
from kernelsearch.home import cache_folder
from kernelsearch.study import StoredStudy
from kernelsearch.targets.choose import choose_target
from kernelsearch.versions import versions


@app.command()
def export(
    study: Annotated[str, typer.Argument(help="Folder or name of a study.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder.")] = False,
    trust: TrustFlag = False, json_: JsonFlag = False,
) -> None:  # fmt: skip
    """Write a study's winner: source, machine code, parameters and a manifest."""
    folder = find_study(study)
    operator, settings = study_operator(folder, trust)
    with StoredStudy(folder) as stored:
        result = stored.result()
        if result is None:
            raise StudyError(
                f"the study in {folder} has no confirmed winner yet; run: "
                f"kernelsearch resume {folder}"
            )
        evaluation = api.winner(stored.archive, result, folder)
        # The study's own architecture: a bundle can be made where there is no such device.
        arch = stored.device.arch if settings.target == "cuda" else None
        target = choose_target(settings.target, cache_folder(), arch)
        variant = stored.variant(result.variant)
        binary = None
        if settings.target == "cuda":
            binary = target.compile(variant.compile_job(
                evaluation.candidate.values, settings.dtype, stored.device.arch, operator
            ))  # fmt: skip
        files = write_bundle(output, BundleContents(
            operator=operator, variant=variant, evaluation=evaluation, device=stored.device,
            lineage=stored.archive.path_to_root(result.variant), result=result.to_json(),
            versions=versions(), binary=binary,
        ), overwrite=overwrite)  # fmt: skip
    if json_:
        emit_json({"folder": str(output), "files": [str(f) for f in files]})
        return
    for file in files:
        out.print(str(file), markup=False, highlight=False)
