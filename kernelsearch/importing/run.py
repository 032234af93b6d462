"""Import a CUDA file from end to end: read, follow, derive, write, and compile to be sure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelsearch.errors import KernelSearchError, MissingExtraError
from kernelsearch.home import home
from kernelsearch.importing.choose import choose_entry
from kernelsearch.importing.contract import Imported
from kernelsearch.importing.derive import Deriver
from kernelsearch.importing.device_text import device_text
from kernelsearch.importing.host import HostReader
from kernelsearch.importing.kernel_only import plan_of_kernel
from kernelsearch.importing.problem import CannotImportError
from kernelsearch.importing.sizes import choose_sizes
from kernelsearch.importing.syntax import read
from kernelsearch.importing.write import Written, write
from kernelsearch.operator import Operator
from kernelsearch.operators_io import load_operator
from kernelsearch.variant import parse_variant

CHECK_ARCH = "sm_90a"


@dataclass(frozen=True)
class ImportOptions:
    """What a user says about a file.

    Args:
        entry: the host function or kernel to import.
        sizes: sizes of the workload to tune.
        given: integer variables and parameters with a fixed value.
        extents: elements of arrays, as expressions.
        inout: arrays whose old contents count.
        grid, block: of a kernel that nothing launches.
        name: of the operator (default: the entry's).
        defines: macros given on the compiler's command line.
    """

    entry: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)
    extents: Mapping[str, str] = field(default_factory=dict)
    inout: Sequence[str] = ()
    grid: Sequence[str] = ()
    block: Sequence[str] = ()
    name: str | None = None
    defines: Mapping[str, int] = field(default_factory=dict)


def import_cuda(path: Path, options: ImportOptions | None = None) -> tuple[Imported, Written]:
    """Return what a CUDA file is as an operator, and the files that say so.

    Raises:
        CannotImportError: it cannot be imported: file, line and reason.
        MissingExtraError: the parser is not installed.
    """
    options = options or ImportOptions()
    module = read(path, options.defines)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 4000))
    try:
        entry = choose_entry(module, options.entry)
        if entry.kernel:
            plan = plan_of_kernel(module, entry, options.given, options.grid, options.block)
        else:
            plan = HostReader(module, options.given).read(entry)
        if not plan.launches():
            raise module.fail(entry.node, f"{entry.name} launches no kernel",
                              "name another function with --entry")  # fmt: skip
        label = entry.name if entry.name != "main" else path.stem
        name = options.name or operator_name(label)
        deriver = Deriver(module, plan, options.given, options.extents, frozenset(options.inout))
        imported = deriver.derive(name)
        device = device_text(module, imported)
    except RecursionError:
        raise module.fail(None, "its expressions nest too deeply") from None
    finally:
        sys.setrecursionlimit(limit)
    unknown = sorted(set(options.sizes) - set(imported.symbols))
    if unknown:
        raise CannotImportError(
            str(path), None, f"--sizes names {', '.join(unknown)}, which is no size here (sizes: "
            f"{', '.join(imported.symbols) or 'none'})",
        )  # fmt: skip
    written = write(imported, device, path.name, choose_sizes(imported, options.sizes))
    _check(written, imported, path)
    return imported, written


def operator_from_cuda(path: Path, folder: str | Path | None = None, **options: Any) -> Operator:
    """Return the operator of a CUDA file; see ``Operator.from_cuda``."""
    _, written = import_cuda(path, ImportOptions(**options))
    operator, _ = written.save(
        Path(folder) if folder is not None else home() / "imported" / path.stem
    )
    return load_operator(operator)


def operator_name(text: str) -> str:
    """Return a legal operator name."""
    name = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)).lower().strip("_")
    return name if re.match(r"[a-z]", name) else f"op_{name}"


def _check(written: Written, imported: Imported, path: Path) -> None:
    """Make sure that what was written is a variant that compiles (with the extra ``cuda``)."""
    try:
        variant = parse_variant(written.variant, "cuda", f"{written.name}.cu")
    except KernelSearchError as error:
        raise CannotImportError(
            str(path), None, f"the plan that was derived is not legal: {error}",
            "import a simpler wrapper with --entry",
        ) from error  # fmt: skip
    try:
        from kernelsearch.targets.cuda_compile import compile_cuda
    except (ImportError, MissingExtraError):
        imported.notes.append("not compiled here: pip install 'kernelsearch[cuda]' to check it")
        return
    params = {name: choices[0] for name, choices in variant.tunables.items()}
    job = variant.compile_job(params, imported.element, CHECK_ARCH)
    try:
        compile_cuda(job)
    except MissingExtraError:
        imported.notes.append("not compiled here: pip install 'kernelsearch[cuda]' to check it")
    except KernelSearchError as error:
        log = getattr(error, "evidence", {}) or {}
        text = str(log.get("log", "")) or str(error)
        raise CannotImportError(
            str(path), None, f"its device code does not compile by itself: {text.strip()[:1500]}",
            "device code needs headers that NVRTC knows, and nothing of the host",
        ) from error  # fmt: skip
