"""Parse, hash and bind a variant file. The file format is described in docs/variants.md."""

from __future__ import annotations

import ast
import hashlib
import itertools
import keyword
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelsearch.errors import (
    ExpressionError,
    RejectedError,
    ResourceLimitError,
    VariantError,
)
from kernelsearch.expressions import FUNCTIONS, Expression, Value
from kernelsearch.operator import Interface, Operator
from kernelsearch.records import (
    DTYPE_BYTES,
    Candidate,
    CompileJob,
    FillStep,
    KernelStep,
    LaunchPlan,
    Params,
    ParamValue,
    ScalarArg,
    TensorMapSpec,
    WorkspaceSpec,
    frozen_params,
)

FORMAT = 1
LANGUAGES = {".cu": "cuda", ".py": "cpu"}
SCALAR_TYPES = frozenset({"i32", "u32", "i64", "u64", "f32", "f64"})
PRECISIONS = ("strict", "tf32", "fast")
MAX_SOURCE_BYTES = 1 << 20
MAX_LAUNCHES = 64
MAX_LOOKED_AT = 100_000
# Far more than any device has; an address computed beyond it would wrap around.
MAX_WORKSPACE_BYTES = 1 << 46
_INT64 = 1 << 63
# Words with a meaning of their own in sources and expressions.
_RESERVED = frozenset(keyword.kwlist) | set(FUNCTIONS) | {
    "ELEM", "elem_t", "elem_bytes", "np", "math", "prange", "range", "int", "float", "bool",
    "len", "round",
}  # fmt: skip
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_CUDA_OPENING = re.compile(r"/\*\s*kernelsearch\b")
CUDA_BLOCK = re.compile(_CUDA_OPENING.pattern + r"(.*?)\*/", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
_LINE_MARKER = re.compile(r'#line \d+ "[^"\n]*"\s*\Z')
_TOP_KEYS = {
    "format", "operator", "doc", "dtypes", "requires", "tunables", "constraints", "domain",
    "workspace", "tensormap", "numba", "launch",
}  # fmt: skip
_STEP_KEYS = {"kernel", "grid", "block", "args", "shared", "cluster", "cooperative", "when"}


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One launch step, still symbolic. ``fill`` is set for a fill step, ``kernel`` otherwise."""

    kernel: str = ""
    args: tuple[str | tuple[Expression, str], ...] = ()
    grid: tuple[Expression, ...] = ()
    block: tuple[Expression, ...] = ()
    shared: Expression | None = None
    cluster: tuple[Expression, ...] = ()
    cooperative: bool = False
    when: Expression | None = None
    fill: str = ""
    value: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel source and its launch plan with the tunables still open.

    ``source`` is the whole file with quoted includes resolved; ``hash`` is over its content without
    comments in the metadata or differences of name.
    """

    operator: str
    language: str
    source: str
    doc: str
    dtypes: tuple[str, ...]
    tunables: Mapping[str, tuple[ParamValue, ...]]
    constraints: Mapping[str, Expression]
    domain: Mapping[str, Expression]
    workspace: Mapping[str, tuple[str, tuple[Expression, ...]]]
    tensormaps: Mapping[str, tuple[str, tuple[Expression, ...], str, str]]
    numba: Mapping[str, Any]
    steps: tuple[StepSpec, ...]
    arch: str = ""
    precision: str = "strict"
    path: str = "<variant>"
    name: str = ""
    hash: str = field(default="", compare=False)

    # --- parameters -------------------------------------------------------------------------

    def combinations(self) -> Iterator[dict[str, ParamValue]]:
        """Yield every combination of the tunables' choices, constraints not applied."""
        names = list(self.tunables)
        for values in itertools.product(*(self.tunables[n] for n in names)):
            yield dict(zip(names, values, strict=True))

    def violated(self, params: Params, facts: Mapping[str, int], dtype: str) -> str | None:
        """Return the name of the first constraint that is false for ``params``, or None.

        A constraint without a value (a division by zero, a fact this device does not have) is not
        met.
        """
        names: dict[str, Value] = {**facts, **params, "elem_bytes": DTYPE_BYTES[dtype]}
        for name, expression in self.constraints.items():
            if not _holds(expression, names):
                return name
        return None

    def valid_combinations(
        self, facts: Mapping[str, int], dtype: str, limit: int = MAX_LOOKED_AT
    ) -> Iterator[dict[str, ParamValue]]:
        """Yield the combinations that meet the constraints, in the order of ``combinations``.

        A constraint is looked at as soon as its tunables have values, so that what it forbids is
        not gone through one by one; ``limit`` bounds how many, whole or cut short, are looked at.
        """
        names = list(self.tunables)
        depth = {n: i for i, n in enumerate(names)}
        decided: list[list[Expression]] = [[] for _ in range(len(names) + 1)]
        for expression in self.constraints.values():
            last = max((depth[n] + 1 for n in expression.names if n in depth), default=0)
            decided[last].append(expression)
        bound: dict[str, Value] = {**facts, "elem_bytes": DTYPE_BYTES[dtype]}
        if not all(_holds(e, bound) for e in decided[0]):
            return
        if not names:
            yield {}
            return
        left = limit
        open_choices = [iter(self.tunables[names[0]])]
        while open_choices:
            level = len(open_choices)
            choice = next(open_choices[-1], None)
            if choice is None:
                open_choices.pop()
                continue
            bound[names[level - 1]] = choice
            good = all(_holds(e, bound) for e in decided[level])
            if good and level < len(names):
                open_choices.append(iter(self.tunables[names[level]]))
                continue
            if left == 0:
                return
            left -= 1
            if good:
                yield {n: bound[n] for n in names}  # type: ignore[misc]

    def valid_params(
        self, facts: Mapping[str, int], dtype: str, limit: int = MAX_LOOKED_AT
    ) -> list[dict[str, ParamValue]]:
        """Return the combinations that meet the constraints; see ``valid_combinations``."""
        return list(self.valid_combinations(facts, dtype, limit))

    def default_params(self, facts: Mapping[str, int], dtype: str) -> dict[str, ParamValue]:
        """Return the first combination that meets the constraints.

        Raises:
            VariantError: no combination does.
        """
        params = self.first_params(facts, dtype)
        if params is not None:
            return params
        rules = "; ".join(f"{k}: {e.text}" for k, e in self.constraints.items())
        raise VariantError(
            f"its constraints leave no candidate on this device ({rules}); widen a tunable or a "
            "constraint", self.path,
        )  # fmt: skip

    def first_params(self, facts: Mapping[str, int], dtype: str) -> dict[str, ParamValue] | None:
        """Return the first combination that meets the constraints, None if there is none."""
        return next(self.valid_combinations(facts, dtype), None)

    def check_params(self, params: Params) -> None:
        """Raise ``RejectedError`` unless ``params`` binds every tunable to one of its choices."""
        for name, choices in self.tunables.items():
            if name not in params or params[name] not in choices:
                raise RejectedError(
                    f"tunable {name} must be one of {list(choices)} (got {params.get(name)!r})"
                )
        unknown = [n for n in params if n not in self.tunables]
        if unknown:
            raise RejectedError(f"params name tunables the variant does not have: {unknown}")

    def candidate(self, params: Params, dtype: str) -> Candidate:
        return Candidate(self.hash, frozen_params(params), dtype)

    def applies(
        self, params: Params, workload: Mapping[str, int], facts: Mapping[str, int], dtype: str,
        alignment: Mapping[str, int] | None = None,
    ) -> str | None:  # fmt: skip
        """Return None if the domain covers a workload, else the broken condition's name."""
        names = self._names(params, workload, facts, dtype)
        names.update({f"align_{k}": v for k, v in (alignment or {}).items()})
        for name, expression in self.domain.items():
            unbound = [n for n in expression.names if n.startswith("align_") and n not in names]
            names.update(dict.fromkeys(unbound, 256))
            if not _holds(expression, names):
                return name
        return None

    def within(self, workloads: Mapping[str, Mapping[str, int]]) -> Variant:
        """Return the variant constrained to params whose domain covers all these workloads.

        Args:
            workloads: sizes by workload key. Ordinary, fully aligned buffers are assumed.
        """
        extra: dict[str, Expression] = {}
        for key, sizes in workloads.items():
            for name, expression in self.domain.items():
                bound = expression.bind(
                    {**sizes, **{n: 256 for n in expression.names if n.startswith("align_")}}
                )
                if bound.text not in {e.text for e in extra.values()}:
                    extra[f"{name}@{key}"] = bound
        return replace(self, constraints={**self.constraints, **extra})

    def _names(
        self, params: Params, sizes: Mapping[str, int], facts: Mapping[str, int], dtype: str
    ) -> dict[str, Value]:
        return {**facts, **sizes, **params, "elem_bytes": DTYPE_BYTES[dtype]}

    # --- binding ----------------------------------------------------------------------------

    def compile_job(
        self, params: Params, dtype: str, arch: str, operator: Interface | None = None
    ) -> CompileJob:
        """Return what a compiler needs for one candidate.

        Args:
            params: values of the tunables.
            dtype: element type.
            arch: architecture to compile for.
            operator: needed for Numba, which compiles for the types of the arguments.
        """
        kernels = tuple(dict.fromkeys(
            self.kernel_name(s.kernel, params) for s in self.steps if s.kernel
        ))  # fmt: skip
        options: dict[str, Any] = {"dtype": dtype, "defines": frozen_params(params)}
        if self.precision != "strict":
            options["precision"] = self.precision
        if self.language == "cpu":
            options["numba"] = tuple(sorted(
                (k, tuple(v) if isinstance(v, list) else v) for k, v in self.numba.items()
            ))  # fmt: skip
            if operator is not None:
                options["args"] = self._argument_types(params, dtype, operator)
        return CompileJob(
            target=self.language, source=self.source, kernels=kernels, arch=arch,
            name=Path(self.path).name, options=tuple(sorted(options.items())),
        )  # fmt: skip

    def _argument_types(
        self, params: Params, dtype: str, operator: Interface
    ) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return each kernel's argument types: ``in:float32:2`` for arrays, ``i32`` for scalars."""
        kinds: dict[str, str] = {}
        for tensor in operator.tensors:
            element = operator.tensor_dtype(tensor, dtype)
            kinds[tensor.name] = f"{tensor.role}:{element}:{len(tensor.shape)}"
        for name, (element, shape) in self.workspace.items():
            element = dtype if element == "elem" else element
            kinds[name] = f"workspace:{element}:{len(shape)}"
        result: dict[str, tuple[str, ...]] = {}
        for spec in self.steps:
            if not spec.kernel:
                continue
            types = tuple(kinds[a] if isinstance(a, str) else a[1] for a in spec.args)
            name = self.kernel_name(spec.kernel, params)
            if result.setdefault(name, types) != types:
                raise VariantError(
                    f"kernel {name} is launched with arguments of different types "
                    f"({', '.join(result[name])}; then {', '.join(types)}); use two kernels",
                    self.path,
                )
        return tuple(result.items())

    def kernel_name(self, kernel: str, params: Params) -> str:
        """Return a kernel's name expression with the tunables replaced by their values."""
        return re.sub(r"[A-Za-z_]\w*", lambda m: str(params.get(m[0], m[0])), kernel)

    def plan(
        self, params: Params, workload: Mapping[str, int], scalars: Mapping[str, float],
        facts: Mapping[str, int], dtype: str,
    ) -> LaunchPlan:  # fmt: skip
        """Return the concrete launch plan for one workload.

        Raises:
            RejectedError: an expression of the plan cannot be evaluated for these values.
            ResourceLimitError: a workspace is larger than any memory.
        """
        names = self._names(params, workload, facts, dtype)
        try:
            steps = [s for spec in self.steps for s in self._bind(spec, params, names, scalars)]
            workspaces = tuple(
                WorkspaceSpec(n, dtype if d == "elem" else d,
                              tuple(max(0, e.integer(names)) for e in shape))
                for n, (d, shape) in self.workspace.items()
            )  # fmt: skip
            for space in workspaces:
                if math.prod(space.shape) * DTYPE_BYTES[space.dtype] > MAX_WORKSPACE_BYTES:
                    raise ResourceLimitError(
                        f"workspace {space.name} of shape {space.shape} is larger than "
                        f"{MAX_WORKSPACE_BYTES} bytes",
                        {"workspace": space.name, "shape": list(space.shape)},
                    )
            maps = tuple(
                TensorMapSpec(n, tensor, tuple(e.integer(names) for e in box), swizzle, promotion)
                for n, (tensor, box, swizzle, promotion) in self.tensormaps.items()
            )
        except ExpressionError as error:
            raise RejectedError(f"launch plan cannot be bound: {error}") from error
        return LaunchPlan(tuple(steps), workspaces, maps)

    def _bind(
        self, spec: StepSpec, params: Params, names: Mapping[str, Value],
        scalars: Mapping[str, float],
    ) -> list[KernelStep | FillStep]:  # fmt: skip
        if spec.when is not None and not spec.when.truth(names):
            return []
        if spec.fill:
            return [FillStep(spec.fill, spec.value)]
        grid = _three(spec.grid, names)
        if min(grid) <= 0:
            return []
        args: list[str | ScalarArg] = []
        for arg in spec.args:
            if isinstance(arg, str):
                args.append(arg)
                continue
            expression, ctype = arg
            values = {**names, **scalars}
            value = expression.evaluate(values)
            if ctype[0] in "iu":
                args.append(ScalarArg(ctype, _fitting(expression, ctype, values)))
            elif isinstance(value, str):
                raise ExpressionError("gives a word, not a number", expression.text)
            else:
                args.append(ScalarArg(ctype, float(value)))
        return [KernelStep(
            kernel=self.kernel_name(spec.kernel, params), args=tuple(args), grid=grid,
            block=_three(spec.block, names),
            shared=spec.shared.integer(names) if spec.shared is not None else 0,
            cluster=_three(spec.cluster, names) if spec.cluster else None,
            cooperative=spec.cooperative,
        )]  # fmt: skip

    def check_against(self, operator: Operator) -> None:
        """Raise ``VariantError`` unless names in the plan exist in ``operator``."""
        if self.operator != operator.name:
            raise VariantError(
                f"is for operator {self.operator!r}, not {operator.name!r}", self.path
            )
        tensors = {t.name: t for t in operator.tensors}
        for name in (*self.workspace, *self.tensormaps):
            if name in tensors:
                raise VariantError(
                    f"{name!r} is a tensor of {operator.name}; give the workspace or tensormap "
                    "another name", self.path,
                )  # fmt: skip
        for name in self.tunables:
            if name in tensors or name in operator.symbols or name in operator.scalar_values():
                raise VariantError(
                    f"tunable {name!r} is an argument or size of {operator.name}; give it another "
                    "name", self.path,
                )  # fmt: skip
        buffers = set(tensors) | set(self.workspace)
        for spec in self.steps:
            wanted = [spec.fill] if spec.fill else [a for a in spec.args if isinstance(a, str)]
            known = buffers if spec.fill else buffers | set(self.tensormaps)
            if spec.fill in tensors and tensors[spec.fill].role == "in":
                raise VariantError(
                    f"fills {spec.fill!r}, an input of {operator.name}; only outputs and "
                    "workspaces may be filled", self.path,
                )  # fmt: skip
            for name in wanted:
                if name not in known:
                    raise VariantError(
                        f"launch names {name!r}, which is no tensor or workspace of "
                        f"{operator.name} (known: {', '.join(sorted(known))})", self.path,
                    )  # fmt: skip
        if PRECISIONS.index(self.precision) > PRECISIONS.index(operator.precision):
            raise VariantError(
                f"requires precision {self.precision!r}, but operator {operator.name} allows "
                f"only {operator.precision!r}", self.path,
            )  # fmt: skip
        sizes = set(operator.symbols)
        for name, expression in self.domain.items():
            bad = {n for n in expression.names if n.islower() and not n.startswith("align_")}
            bad -= sizes | set(self.tunables) | _KNOWN_FACTS
            if bad:
                raise VariantError(
                    f"[domain] {name} uses {sorted(bad)}, unknown to {operator.name} "
                    f"(sizes: {', '.join(operator.symbols)})", self.path,
                )  # fmt: skip


_KNOWN_FACTS = {
    "elem_bytes", "max_threads_per_block", "max_shared_per_block", "max_shared_per_sm",
    "regs_per_sm", "max_threads_per_sm", "sm_count", "warp_size", "l2_bytes", "cores",
    "cache_line_bytes", "simd_bytes",
}  # fmt: skip


def _fitting(expression: Expression, ctype: str, names: Mapping[str, Value]) -> int:
    """Return an integer argument's value; one that its C type cannot hold would wrap silently."""
    value = expression.integer(names)
    bits = int(ctype[1:])
    low, high = (0, 1 << bits) if ctype[0] == "u" else (-(1 << bits - 1), 1 << bits - 1)
    if not low <= value < high:
        raise ExpressionError(f"gives {value}, which does not fit in {ctype},", expression.text)
    return value


def _known_dtype(name: object) -> bool:
    return isinstance(name, str) and name in DTYPE_BYTES


def _holds(expression: Expression, names: Mapping[str, Value]) -> bool:
    try:
        return expression.truth(names)
    except ExpressionError:
        return False


def _three(parts: tuple[Expression, ...], names: Mapping[str, Value]) -> tuple[int, int, int]:
    values = [p.integer(names) for p in parts] + [1, 1, 1]
    return (values[0], values[1], values[2])


# --- parsing ------------------------------------------------------------------------------------


def load_variant(path: Path, include_dir: Path | None = None) -> Variant:
    """Read and parse a variant file.

    Raises:
        VariantError: with file, line and column of what is wrong.
    """
    language = LANGUAGES.get(path.suffix)
    if language is None:
        raise VariantError(f"must end in .cu or .py (got {path.suffix!r})", str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise VariantError(f"is not UTF-8 text (byte {error.start})", str(path)) from None
    except OSError as error:
        raise VariantError(
            f"cannot be read ({error.strerror}); check the path", str(path)
        ) from None
    return parse_variant(text, language, str(path), include_dir)


def parse_variant(
    text: str, language: str, path: str = "<variant>", include_dir: Path | None = None
) -> Variant:
    """Parse the text of a variant file (``language`` is ``cuda`` or ``cpu``).

    Raises:
        VariantError: with file, line and column of what is wrong.
    """
    try:
        nbytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise VariantError(f"is not Unicode text (character {error.start})", path) from None
    if nbytes > MAX_SOURCE_BYTES:
        raise VariantError(f"is larger than {MAX_SOURCE_BYTES} bytes", path)
    if "\0" in text:
        raise VariantError("contains a NUL character", path)
    block, first_line = metadata_text(text, language, path)
    try:
        meta = tomllib.loads(block)
    except tomllib.TOMLDecodeError as error:
        line, column = _toml_position(error, block)
        raise VariantError(
            f"metadata is not TOML: {_toml_reason(error)}", path, first_line + line - 1, column
        ) from None
    except (RecursionError, ValueError) as error:  # nested too deeply, or an endless integer
        raise VariantError(f"metadata is not TOML: {error}", path, first_line) from None
    source = _resolve_includes(text, path, include_dir) if language == "cuda" else text
    return _Builder(meta, language, source, path, block, first_line).build()


def metadata_text(text: str, language: str, path: str) -> tuple[str, int]:
    """Return the TOML block of a variant file's text, and the line it begins on.

    Raises:
        VariantError: there is none, or the file is not Python where it should be.
    """
    if language == "cuda":
        # From the first opening only: without an end, each further one would be tried in turn.
        opening = _CUDA_OPENING.search(text)
        match = CUDA_BLOCK.match(text, opening.start()) if opening is not None else None
        if match is None:
            raise VariantError(
                "has no /* kernelsearch ... */ block; docs/variants.md says what it holds, and "
                "`kernelsearch new NAME` writes an example", path, 1,
            )  # fmt: skip
        return match[1], text.count("\n", 0, match.start(1)) + 1
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise VariantError(
            f"is not Python: {getattr(error, 'msg', None) or error}", path,
            getattr(error, "lineno", None), getattr(error, "offset", None),
        ) from None  # fmt: skip
    doc = ast.get_docstring(tree, clean=False) or ""
    stripped = doc.lstrip()
    if not re.match(r"kernelsearch\b", stripped):
        raise VariantError("must begin with a string that starts with 'kernelsearch'", path, 1)
    skipped = len(doc) - len(stripped)
    line = tree.body[0].lineno + doc.count("\n", 0, skipped)
    return stripped.removeprefix("kernelsearch"), line


def _toml_position(error: tomllib.TOMLDecodeError, block: str) -> tuple[int, int | None]:
    found = re.search(r"at line (\d+), column (\d+)", str(error))
    if found:
        return int(found[1]), int(found[2])
    return block.count("\n") + 1, None


def _toml_reason(error: tomllib.TOMLDecodeError) -> str:
    return re.sub(r" \(at .*\)$", "", str(error))


def _resolve_includes(text: str, path: str, include_dir: Path | None) -> str:
    """Replace quoted includes by the shipped header's text, each header once."""
    from kernelsearch.resources import include_folder

    folder = include_dir or include_folder()
    seen: set[str] = set()

    def expand(body: str, where: str) -> str:
        def replace(match: re.Match[str]) -> str:
            name = match[1]
            if name in seen:
                return ""
            seen.add(name)
            file = (folder / name).resolve()
            line = body.count("\n", 0, match.start()) + 1
            try:
                found = folder.resolve() in file.parents and file.is_file()
            except OSError:  # a name no file can have
                found = False
            if not found:
                raise VariantError(
                    f'#include "{name}" is not a header of templates/cuda/include', where, line
                )
            inner = expand(file.read_text(encoding="utf-8"), name)
            return f'#line 1 "{name}"\n{inner}\n#line {line + 1} "{Path(where).name}"'

        return _INCLUDE.sub(replace, body)

    return expand(text, path)


class _Builder:
    """Turns parsed TOML into a ``Variant``, pointing at the line of what is wrong."""

    def __init__(
        self, meta: dict[str, Any], language: str, source: str, path: str, block: str, line: int
    ) -> None:
        self.meta, self.language, self.source = meta, language, source
        self.path, self.block, self.line = path, block, line

    def fail(self, message: str, needle: str = "") -> VariantError:
        # A whole word first: the tunable N must not be found in the N of another word.
        found = needle and (
            re.search(rf"(?<!\w){re.escape(needle)}(?!\w)", self.block)
            or re.search(re.escape(needle), self.block)
        )
        if not found:
            return VariantError(message, self.path, self.line)
        before = self.block[: found.start()]
        number = before.count("\n")
        # The block's first line is the rest of the line that names it: no column is known there.
        column = len(before) - before.rfind("\n") if number else None
        return VariantError(message, self.path, self.line + number, column)

    def expression(self, text: Any, needle: str = "") -> Expression:
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise self.fail(f"must be an expression (got {text!r})", needle)
        try:
            return Expression.parse(text)
        except ExpressionError as error:
            raise self.fail(str(error), str(text)) from error

    def expressions(self, value: Any, key: str, low: int, high: int) -> tuple[Expression, ...]:
        if not isinstance(value, list) or not low <= len(value) <= high:
            raise self.fail(
                f"{key} must be a list of {low} to {high} expressions (got {value!r})", key
            )
        return tuple(self.expression(v, key) for v in value)

    def table(self, key: str) -> dict[str, Any]:
        value = self.meta.get(key, {})
        if not isinstance(value, dict):
            raise self.fail(f"{key} must be a table (got {value!r})", key)
        for name in value:
            if not _IDENTIFIER.match(name):
                raise self.fail(f"{key}: {name!r} is not an identifier", name)
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.meta.get(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.fail(f"{key} must be a string (got {value!r})", key)
        return value

    def build(self) -> Variant:
        unknown = sorted(set(self.meta) - _TOP_KEYS)
        if unknown:
            raise self.fail(
                f"unknown key {unknown[0]!r}; known: {', '.join(sorted(_TOP_KEYS))}", unknown[0]
            )
        if type(self.meta.get("format")) is not int or self.meta["format"] != FORMAT:
            raise self.fail(f"format must be {FORMAT} (got {self.meta.get('format')!r})", "format")
        requires = self.table("requires")
        if set(requires) - {"arch", "precision"}:
            raise self.fail(
                f"requires knows arch and precision (got {sorted(requires)})", "requires"
            )
        precision = requires.get("precision", "strict")
        if precision not in PRECISIONS:
            raise self.fail(
                f"precision must be one of {PRECISIONS} (got {precision!r})", "precision"
            )
        arch = requires.get("arch", "")
        if not isinstance(arch, str) or (arch and not re.fullmatch(r"sm_\d{2,3}[af]?", arch)):
            raise self.fail(f"requires.arch must look like sm_90 or sm_90a (got {arch!r})", "arch")
        workspace = self.workspace()
        tensormaps = self.tensormaps()
        variant = Variant(
            operator=self.text("operator"), language=self.language, source=self.source,
            doc=self.text("doc", ""), dtypes=self.dtypes(), tunables=self.tunables(),
            constraints={k: self.expression(v, k) for k, v in self.table("constraints").items()},
            domain={k: self.expression(v, k) for k, v in self.table("domain").items()},
            workspace=workspace, tensormaps=tensormaps, numba=self.numba(precision),
            steps=self.steps(), arch=arch, precision=precision, path=self.path,
            name=Path(self.path).stem, hash=self.content_hash(),
        )  # fmt: skip
        self.check_names(variant)
        return variant

    def content_hash(self) -> str:
        body = self.source.replace(self.block, "") if self.language == "cuda" else self.source
        # Line markers carry the file's name, which is no part of the content.
        body = "\n".join(
            line.rstrip()
            for line in body.splitlines()
            if line.strip() and not _LINE_MARKER.match(line)
        )
        meta = {k: v for k, v in self.meta.items() if k != "doc"}
        if self.language == "cpu":
            # Unparsed text, not a dump of the tree: dumps differ between versions of Python.
            try:
                body = ast.unparse(_without_docstring(ast.parse(self.source)))
            except RecursionError:
                raise self.fail("is nested too deeply") from None
        return hashlib.sha256(f"{self.language}\0{meta!r}\0{body}".encode()).hexdigest()[:16]

    def dtypes(self) -> tuple[str, ...]:
        value = self.meta.get("dtypes", ["float32"])
        if not isinstance(value, list) or not value or not all(map(_known_dtype, value)):
            raise self.fail(f"dtypes must list known element types (got {value!r})", "dtypes")
        return tuple(value)

    def tunables(self) -> dict[str, tuple[ParamValue, ...]]:
        result: dict[str, tuple[ParamValue, ...]] = {}
        for name, choices in self.table("tunables").items():
            if name in _RESERVED or name in _KNOWN_FACTS or name.startswith("__"):
                raise self.fail(
                    f"tunable {name}: the name has a meaning already; give it another", name
                )
            good = (
                isinstance(choices, list)
                and choices
                and all(isinstance(c, int | str) and not isinstance(c, bool) for c in choices)
            )
            if not good:
                raise self.fail(
                    f"tunable {name} must list integers or words (got {choices!r})", name
                )
            words = [c for c in choices if isinstance(c, str)]
            if any(not _IDENTIFIER.match(w) for w in words):
                raise self.fail(f"tunable {name}: words must be identifiers (got {words})", name)
            if not all(-_INT64 <= c < _INT64 for c in choices if isinstance(c, int)):
                raise self.fail(f"tunable {name}: integers must fit 64 bits", name)
            if len(set(choices)) != len(choices):
                raise self.fail(f"tunable {name} lists a choice twice (got {choices!r})", name)
            result[name] = tuple(choices)
        return result

    def workspace(self) -> dict[str, tuple[str, tuple[Expression, ...]]]:
        result: dict[str, tuple[str, tuple[Expression, ...]]] = {}
        for name, spec in self.table("workspace").items():
            if not isinstance(spec, dict) or set(spec) != {"dtype", "shape"}:
                raise self.fail(f"workspace {name} must have dtype and shape", name)
            if spec["dtype"] != "elem" and not _known_dtype(spec["dtype"]):
                raise self.fail(f"workspace {name}: unknown dtype {spec['dtype']!r}", name)
            result[name] = (spec["dtype"], self.expressions(spec["shape"], "shape", 1, 5))
        return result

    def tensormaps(self) -> dict[str, tuple[str, tuple[Expression, ...], str, str]]:
        result: dict[str, tuple[str, tuple[Expression, ...], str, str]] = {}
        for name, spec in self.table("tensormap").items():
            known = {"tensor", "box", "swizzle", "l2_promotion"}
            if not isinstance(spec, dict) or not {"tensor", "box"} <= set(spec) <= known:
                raise self.fail(f"tensormap {name} must have tensor and box, may have swizzle "
                                "and l2_promotion", name)  # fmt: skip
            swizzle, promotion = spec.get("swizzle", "none"), spec.get("l2_promotion", "none")
            if swizzle not in ("none", "32B", "64B", "128B"):
                raise self.fail(f"tensormap {name}: swizzle {swizzle!r} is unknown", name)
            if promotion not in ("none", "64B", "128B", "256B"):
                raise self.fail(f"tensormap {name}: l2_promotion {promotion!r} is unknown", name)
            if not isinstance(spec["tensor"], str):
                raise self.fail(f"tensormap {name}: tensor must be a name", name)
            box = self.expressions(spec["box"], "box", 1, 5)
            result[name] = (spec["tensor"], box, swizzle, promotion)
        return result

    def numba(self, precision: str) -> dict[str, Any]:
        options = self.table("numba")
        if options and self.language != "cpu":
            raise self.fail("[numba] belongs to .py variants", "[numba]")
        unknown = sorted(set(options) - {"parallel", "fastmath"})
        if unknown:
            raise self.fail(f"[numba] knows parallel and fastmath (got {unknown[0]!r})", unknown[0])
        fastmath = options.get("fastmath", False)
        flags = {"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"}
        if not isinstance(options.get("parallel", False), bool):
            raise self.fail("parallel must be true or false", "parallel")
        if isinstance(fastmath, list):
            if not all(isinstance(f, str) and f in flags for f in fastmath):
                raise self.fail(f"fastmath flags are {sorted(flags)} (got {fastmath})", "fastmath")
            strict_flags = {"contract", "reassoc", "nsz", "arcp"}
            if precision != "fast" and not set(fastmath) <= strict_flags:
                raise self.fail(
                    f"fastmath flags beyond {sorted(strict_flags)} need precision = 'fast'",
                    "fastmath")  # fmt: skip
        elif not isinstance(fastmath, bool):
            raise self.fail(
                f"fastmath must be true, false or a list (got {fastmath!r})", "fastmath"
            )
        elif fastmath and precision != "fast":
            raise self.fail("fastmath = true needs requires.precision = 'fast'", "fastmath")
        return dict(options)

    def steps(self) -> tuple[StepSpec, ...]:
        steps = self.meta.get("launch", [])
        if not isinstance(steps, list) or not steps:
            raise self.fail("needs at least one [[launch]] step", "launch")
        if len(steps) > MAX_LAUNCHES:
            raise self.fail(f"has {len(steps)} launch steps; at most {MAX_LAUNCHES}", "launch")
        return tuple(self.step(s) for s in steps)

    def step(self, step: Any) -> StepSpec:
        if not isinstance(step, dict):
            raise self.fail(f"a launch step must be a table (got {step!r})", "launch")
        when = self.expression(step["when"], "when") if "when" in step else None
        if "fill" in step:
            value = step.get("value", 0)
            if (
                set(step) - {"fill", "value", "when"}
                or not isinstance(step["fill"], str)
                or type(value) is not int
                or not 0 <= value <= 255
            ):
                raise self.fail("a fill step has fill, value (0 to 255) and when", "fill")
            return StepSpec(fill=step["fill"], value=value, when=when)
        unknown = sorted(set(step) - _STEP_KEYS)
        if unknown:
            raise self.fail(f"launch step: unknown key {unknown[0]!r}", unknown[0])
        if not isinstance(step.get("kernel"), str):
            raise self.fail('launch step needs kernel = "name"', "launch")
        cuda = self.language == "cuda"
        if not cuda and set(step) & {"grid", "block", "shared", "cluster", "cooperative"}:
            raise self.fail("a .py launch step has only kernel, args and when", step["kernel"])
        args = step.get("args", [])
        if not isinstance(args, list):
            raise self.fail(f"args of {step['kernel']} must be a list (got {args!r})", "args")
        if not isinstance(step.get("cooperative", False), bool):
            raise self.fail("cooperative must be true or false", "cooperative")
        return StepSpec(
            kernel=step["kernel"],
            args=tuple(self.arg(a, step["kernel"]) for a in args),
            grid=self.expressions(step.get("grid"), "grid", 1, 3) if cuda else (),
            block=self.expressions(step.get("block"), "block", 1, 3) if cuda else (),
            shared=self.expression(step["shared"], "shared") if "shared" in step else None,
            cluster=self.expressions(step["cluster"], "cluster", 1, 3) if "cluster" in step else (),
            cooperative=step.get("cooperative", False),
            when=when,
        )

    def arg(self, text: Any, kernel: str) -> str | tuple[Expression, str]:
        if not isinstance(text, str):
            raise self.fail(f"args of {kernel} must be strings (got {text!r})", kernel)
        name, colon, ctype = text.rpartition(":")
        if not colon:
            if not _IDENTIFIER.match(text):
                raise self.fail(f"argument {text!r} must be a name, or expression:type", text)
            return text
        if ctype not in SCALAR_TYPES:
            raise self.fail(
                f"argument {text!r}: type must be one of {', '.join(sorted(SCALAR_TYPES))}", text
            )
        return self.expression(name, text), ctype

    def check_names(self, variant: Variant) -> None:
        for name, tensormap in variant.tensormaps.items():
            if name in variant.workspace:
                raise self.fail(f"{name} is both a workspace and a tensormap", name)
            del tensormap
        for name, expression in variant.constraints.items():
            unknown = expression.names - set(variant.tunables) - _KNOWN_FACTS
            if unknown:
                raise self.fail(
                    f"constraint {name} uses {sorted(unknown)}; it may use tunables "
                    f"({', '.join(variant.tunables) or 'none'}) and device facts", name,
                )  # fmt: skip


def _without_docstring(tree: ast.Module) -> ast.Module:
    return ast.Module(body=tree.body[1:], type_ignores=[])
