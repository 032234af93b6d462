"""Turn command-line text into workloads and params."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from kernelsearch.errors import ArgumentError, WorkloadError
from kernelsearch.operator import Operator, Workload
from kernelsearch.records import ParamValue
from kernelsearch.user_data import workloads_from_shapes
from kernelsearch.variant import Variant


def parse_workloads(operator: Operator, text: str) -> str | tuple[Workload, ...]:
    """Return a set's name, or the workloads that ``rows=4,cols=5@normal;rows=...`` spells out.

    Raises:
        WorkloadError: it is neither.
    """
    if "=" not in text:
        return text
    workloads = []
    for part in text.split(";"):
        sizes_text, _, distribution = part.strip().partition("@")
        sizes: dict[str, int] = {}
        for item in sizes_text.split(","):
            name, equals, value = item.strip().partition("=")
            try:
                sizes[name] = int(value)
            except ValueError:
                raise WorkloadError(
                    f"--workloads: {item.strip()!r} must look like rows=4096 (a whole number)"
                ) from None
            if not equals:
                raise WorkloadError(f"--workloads: {item.strip()!r} must look like rows=4096")
        missing = [s for s in operator.symbols if s not in sizes]
        if missing:
            example = ",".join(f"{s}={sizes.get(s, 'N')}" for s in operator.symbols)
            raise WorkloadError(
                f"--workloads: {part.strip()!r} lacks {', '.join(missing)}; write all sizes of a "
                f"workload as {example} (';' begins the next workload)"
            )
        workloads.append(Workload(sizes, distribution or "default"))
    for workload in workloads:
        operator.check_workload(workload, "--workloads")
    return tuple(workloads)


def read_shapes(operator: Operator, path: Path) -> tuple[Workload, ...]:
    """Read recorded shapes: a JSON list (or one object a line) of tensor name = shape.

    Raises:
        WorkloadError: the file is something else.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path}: cannot be read ({error})") from error
    try:
        if text.lstrip().startswith("["):
            calls = json.loads(text)
        else:
            calls = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise WorkloadError(f"{path}: is not JSON ({error})") from error
    if not calls or not all(isinstance(c, dict) for c in calls):
        raise WorkloadError(f'{path}: must list objects like {{"x": [4096, 4096]}}, one a call')
    return workloads_from_shapes(operator, calls)


def parse_params(variant: Variant, texts: Sequence[str]) -> dict[str, ParamValue]:
    """Return params given as ``NAME=VALUE``.

    Raises:
        ArgumentError: not of that form, or no such tunable.
    """
    params: dict[str, ParamValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in variant.tunables:
            raise ArgumentError(
                f"--param must be NAME=VALUE with a tunable of {variant.name} "
                f"({', '.join(variant.tunables) or 'it has none'}); got {text!r}"
            )
        try:
            params[name] = int(value)
        except ValueError:  # a word, or more digits than Python reads
            params[name] = value
    return params
