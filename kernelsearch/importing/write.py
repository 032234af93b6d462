"""Write the operator and the variant file of an imported kernel, for people to read and edit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelsearch.importing.contract import Imported, TensorFact


@dataclass(frozen=True)
class Written:
    """The files of one import.

    Args:
        operator: the operator file's text.
        variant: the variant file's text.
        name: of the operator; the files are ``name.py`` and ``name.cu``.
    """

    operator: str
    variant: str
    name: str

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Write both files; return their paths.

        Raises:
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        operator, variant = folder / f"{self.name}.py", folder / f"{self.name}.cu"
        variant.write_text(self.variant, encoding="utf-8")
        operator.write_text(self.operator, encoding="utf-8")
        return operator, variant


def write(
    imported: Imported, device: str, source: str, sets: Mapping[str, Sequence[Mapping[str, int]]]
) -> Written:
    """Return the two files.

    Args:
        imported: what was derived.
        device: the device code.
        source: the name of the file it came from.
        sets: workload sets.
    """
    variant = variant_text(imported, device, source)
    return Written(operator_text(imported, source, sets), variant, imported.name)


def _quoted(items: Sequence[str]) -> str:
    return "[" + ", ".join(json.dumps(i) for i in items) + "]"


def variant_text(imported: Imported, device: str, source: str) -> str:
    """Return the variant file: the launch plan, then the device code."""
    lines = [
        "/* kernelsearch", "format = 1", f'operator = "{imported.name}"',
        f"doc = {json.dumps(f'as it is in {source}')}", f'dtypes = ["{imported.element}"]',
    ]  # fmt: skip
    if imported.tunables:
        lines.append("[tunables]")
        lines += [f"{n} = {choices}" for n, choices in imported.tunables.items()]
        blocks = [e for s in imported.steps for e in _blocks(s, imported)]
        if blocks:
            lines.append("[constraints]")
            lines += [
                f'threads_{i} = "{b} <= max_threads_per_block"'
                for i, b in enumerate(dict.fromkeys(blocks))
            ]
    if imported.domain:
        lines.append("[domain]")
        lines += [f"whole_{i} = {json.dumps(d)}" for i, d in enumerate(imported.domain)]
    if imported.workspaces:
        lines.append("[workspace]")
        lines += [
            f'{n} = {{dtype = "{dtype}", shape = [{json.dumps(extent)}]}}'
            for n, (dtype, extent) in imported.workspaces.items()
        ]
    for step in imported.steps:
        lines.append("[[launch]]")
        for key, value in step.items():
            if isinstance(value, bool):
                lines.append(f"{key} = {str(value).lower()}")
            elif isinstance(value, list):
                lines.append(f"{key} = {_quoted(value)}")
            else:
                lines.append(f"{key} = {value if isinstance(value, int) else json.dumps(value)}")
    return "\n".join([*lines, "*/", device])


def _blocks(step: Mapping[str, object], imported: Imported) -> list[str]:
    block = step.get("block")
    if not isinstance(block, list):
        return []
    text = " * ".join(b if b.isalnum() else f"({b})" for b in block)
    return [text] if any(t in text for t in imported.tunables) else []


def operator_text(
    imported: Imported, source: str, sets: Mapping[str, Sequence[Mapping[str, int]]]
) -> str:
    """Return the operator file."""
    scalars = bool(imported.scalars)
    meanings = [t for t in imported.tensors if t.values]
    needed = ["Original", "OriginalScale", "draw_inputs", "DISTRIBUTIONS"]
    kinds = {"index": "Index", "offsets": "Offsets"}
    needed += [kinds[k] for k in {t.values for t in meanings}]
    arguments = [_tensor(t, imported) for t in imported.tensors]
    arguments += [f'Scalar("{n}", "{d}", {v!r})' for n, d, v in imported.scalars]
    values = ", ".join(f'"{t.name}": {kinds[t.values]}("{t.limit}")' for t in meanings)
    assumed = "".join(f"\n- {note}" for note in imported.notes)
    doc = (
        f'"""The operator {imported.name}, imported from {source} ({imported.entry}).\n\n'
        "The original is the specification: it is run in float64 where its types allow.\n"
        + (f"Assumed, and to be corrected here where it is wrong:\n{assumed}\n" if assumed else "")
    ).replace("\\", "\\\\") + '"""'
    workloads = []
    for name, listed in sets.items():
        inner = "".join(f"            Workload({dict(w)!r}),\n" for w in listed)
        if inner:
            workloads.append(f'        "{name}": (\n{inner}        ),\n')
    work = " * ".join(f"({s})" for t in imported.tensors if t.role != "in" for s in t.shape[:])
    flops = f"({imported.terms}) * {_first_output(imported)}" if work else "0"
    contract = f"ErrorModel, Operator, {'Scalar, ' if scalars else ''}Tensor, Workload"
    derived = f"    derived={tuple(imported.derived)!r},\n" if imported.derived else ""
    checks = f"    checks={tuple(imported.checks)!r},\n" if imported.checks else ""
    loose = "" if imported.deterministic else "    deterministic=False,\n"
    return f'''{doc}

from __future__ import annotations

from pathlib import Path

from kernelsearch.operator import {contract}
from kernelsearch.original import {", ".join(sorted(needed, key=str.lower))}

ARGUMENTS = (
{"".join(f"    {a}," + chr(10) for a in arguments)})
VALUES = {{{values}}}
SOURCE = Path(__file__).with_suffix(".cu")
ORIGINAL = Original(SOURCE, ARGUMENTS, "{imported.element}")


def generate(sizes, distribution, rng, dtype):
    """Draw every input."""
    return draw_inputs(ARGUMENTS, VALUES, sizes, distribution, rng, dtype)


operator = Operator(
    name="{imported.name}",
    doc={json.dumps(f"{imported.entry} of {source}")},
    arguments=ARGUMENTS,
    reference=ORIGINAL,
    generate=generate,
    workloads={{
{"".join(workloads)}    }},
    error=ErrorModel(
        terms="{imported.terms}",
        scale=OriginalScale(ORIGINAL),
        reasoning="the longest loop of the original; its own rounding error is granted at least",
    ),
    flops="{flops}",
    bytes="{_traffic(imported)}",
    dtypes={{"cuda": ("{imported.element}",)}},
    distributions=DISTRIBUTIONS,
{loose}{checks}{derived}    specification="original",
    sources={{"cuda": (SOURCE.read_text(encoding="utf-8"),)}},
)
'''


def _tensor(tensor: TensorFact, imported: Imported) -> str:
    dtype = "elem" if tensor.dtype == imported.element else tensor.dtype
    shape = ", ".join(f'"{s}"' for s in tensor.shape)
    comma = "," if len(tensor.shape) == 1 else ""
    role = "" if tensor.role == "in" else f', role="{tensor.role}"'
    return f'Tensor("{tensor.name}", "{dtype}", ({shape}{comma}){role})'


def _first_output(imported: Imported) -> str:
    output = next(t for t in imported.tensors if t.role != "in")
    return " * ".join(f"({s})" for s in output.shape)


def _traffic(imported: Imported) -> str:
    from kernelsearch.records import DTYPE_BYTES

    parts = []
    for tensor in imported.tensors:
        size = "elem_bytes" if tensor.dtype == imported.element else str(DTYPE_BYTES[tensor.dtype])
        count = " * ".join(f"({s})" for s in tensor.shape)
        parts.append(f"{'2 * ' if tensor.role == 'inout' else ''}{count} * {size}")
    return " + ".join(parts)
