"""Write the C++ header of a bundle: typed calls, images, launch plans and the dispatch table."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence

from kernelsearch.errors import ArgumentError, ExpressionError
from kernelsearch.export.cpp_expressions import CppExpressions
from kernelsearch.export.kernel import ExportedKernel, architecture
from kernelsearch.expressions import Expression
from kernelsearch.operator import Interface, Tensor
from kernelsearch.records import DTYPE_BYTES
from kernelsearch.variant import StepSpec

C_TYPES = {
    "float64": "double", "float32": "float", "float16": "void", "bfloat16": "void",
    "int64": "int64_t", "uint64": "uint64_t", "int32": "int32_t", "uint32": "uint32_t",
    "int16": "int16_t", "uint16": "uint16_t", "int8": "int8_t", "uint8": "uint8_t",
    "complex64": "void", "complex128": "void",
}  # fmt: skip
FACTS = (
    "max_threads_per_block", "max_shared_per_block", "max_shared_per_sm", "regs_per_sm",
    "max_threads_per_sm", "sm_count", "warp_size", "l2_bytes", "cache_line_bytes",
)  # fmt: skip
_ARGUMENT_TYPES = {
    "i32": "std::int32_t", "u32": "std::uint32_t", "i64": "std::int64_t", "u64": "std::uint64_t",
    "f32": "float", "f64": "double",
}  # fmt: skip
# The driver's CU_TENSOR_MAP_DATA_TYPE_*, ..._SWIZZLE_* and ..._L2_PROMOTION_*.
_MAP_TYPES = {
    "uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6,
    "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_SWIZZLE = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
_PROMOTION = {"none": 0, "64B": 1, "128B": 2, "256B": 3}
MAX_ARGUMENTS = 64
MAX_MAPS = 8


def cpp_header(
    interface: Interface, checks: Sequence[str], kernels: Sequence[ExportedKernel]
) -> str:
    """Return ``<operator>.hpp``.

    Args:
        interface: the operator's arguments.
        checks: conditions on the sizes that every call must meet.
        kernels: in order of preference where no measurement decides.

    Raises:
        ArgumentError: a launch plan uses something that C++ cannot say.
    """
    guard = f"KERNELSEARCH_BUNDLE_{interface.name.upper()}_HPP"
    lines = [
        f"// {interface.name}: {interface.doc}",
        "// Written by kernelsearch export; do not edit. launch() takes one call.",
        f"#ifndef {guard}", f"#define {guard}", "",
        '#include "kernelsearch/launcher.hpp"', "",
        f"namespace kernelsearch {{ namespace {interface.name} {{", "",
    ]  # fmt: skip
    for dtype in dict.fromkeys(k.dtype for k in kernels):
        lines += _Edition(interface, checks, [k for k in kernels if k.dtype == dtype]).lines()
    lines += [f"}} }}  // namespace kernelsearch::{interface.name}", "", "#endif", ""]
    return "\n".join(lines)


def declarations(interface: Interface, dtype: str) -> list[tuple[str, str]]:
    """Return (C type, name) of a call's arguments: the operator's, then the sizes."""
    found = []
    for argument in interface.arguments:
        kind = C_TYPES[interface.tensor_dtype(argument, dtype)]
        if isinstance(argument, Tensor):
            const = "const " if argument.role == "in" else ""
            found.append((f"{const}{kind}*", argument.name))
        else:
            # A host has no type of its own for half precision.
            found.append(("float" if kind == "void" else kind, argument.name))
    return found + [("int64_t", symbol) for symbol in interface.symbols]


class _Edition:
    """All that the header says of one element type."""

    def __init__(
        self, interface: Interface, checks: Sequence[str], kernels: Sequence[ExportedKernel]
    ) -> None:
        self.interface, self.checks, self.kernels = interface, checks, kernels
        self.dtype = kernels[0].dtype
        self.tensors = {t.name: i for i, t in enumerate(interface.tensors)}
        self.names = {f: f"facts.{f}" for f in FACTS}
        self.sizes = {s: f"call.sizes[{i}]" for i, s in enumerate(interface.symbols)}
        self.aligned = {f"align_{t}": f"call.alignment({i})" for t, i in self.tensors.items()}
        self.scalars = {s.name: f"call.scalars[{i}]" for i, s in enumerate(interface.scalars)}

    def lines(self) -> Iterator[str]:
        """Yield the edition's lines."""
        yield from self._arguments()
        yield f"namespace {self.dtype}_plans {{"
        for kernel in self.kernels:
            yield from self._kernel(kernel)
        yield from self._table()
        yield f"}}  // namespace {self.dtype}_plans"
        yield ""
        yield from self._functions()

    def _arguments(self) -> Iterator[str]:
        defaults = {s.name: s for s in self.interface.scalars}
        yield f"// Arguments of one call with {self.dtype} elements; tensors lie on the device."
        yield f"struct {self.dtype}_call {{"
        for kind, name in declarations(self.interface, self.dtype):
            scalar = defaults.get(name)
            value = " = nullptr" if kind.endswith("*") else " = 0"
            if scalar is not None:
                value = f" = static_cast<{kind}>({float(scalar.value).hex()})"
            yield f"  {_std(kind)} {name}{value};"
        yield "};"
        yield ""

    def _kernel(self, kernel: ExportedKernel) -> Iterator[str]:
        stem = f"k_{kernel.id}"
        variant = kernel.variant
        known = {**kernel.params, "elem_bytes": DTYPE_BYTES[self.dtype]}
        yield f"// {variant.name}: {_one_line(variant.doc)}"
        yield f"// params: {', '.join(f'{k} = {v}' for k, v in sorted(kernel.params.items()))}"
        for number, image in enumerate(kernel.images):
            yield f"alignas(16) inline constexpr std::uint64_t {stem}_image{number}[] = {{"
            yield from _words(image.data)
            yield "};"
        yield f"inline constexpr Image {stem}_images[] = {{"
        for number, image in enumerate(kernel.images):
            major, minor, exact = architecture(image.arch)
            yield (
                f"    {{{major}, {minor}, {_bool(exact)}, {_bool(image.ptx)}, "
                f"{stem}_image{number}}},"
            )
        yield "};"
        symbols = ", ".join(_quoted(s) for s in kernel.symbols.values())
        yield f"inline constexpr const char* {stem}_symbols[] = {{{symbols}}};"
        try:
            facts = CppExpressions(known, self.names)
            yield from _condition(f"{stem}_fits", "const Facts& facts", variant.constraints, facts)
            sizes = CppExpressions(known, {**self.names, **self.sizes, **self.aligned})
            yield from _condition(
                f"{stem}_covers", "const Facts& facts, const Call& call", variant.domain, sizes
            )
            yield from self._plan(stem, kernel, known)
        except ExpressionError as error:
            raise ArgumentError(f"{variant.path}: cannot be written as C++: {error}") from error

    def _plan(
        self, stem: str, kernel: ExportedKernel, known: Mapping[str, int | str]
    ) -> Iterator[str]:
        names = {**self.names, **self.sizes}
        sizes = CppExpressions(known, names, math="plan.math")
        values = CppExpressions(
            known, {**names, **self.scalars}, frozenset(self.scalars), math="plan.math"
        )
        yield f"inline void {stem}_plan(const Facts& facts, const Call& call, Plan& plan) {{"
        yield "  (void)facts; (void)call;"
        shapes = {
            t.name: (
                self.interface.tensor_dtype(t, self.dtype),
                [sizes.integer(Expression.parse(e)) for e in t.shape],
            )
            for t in self.interface.tensors
        }
        for name, (element, extents) in kernel.variant.workspace.items():
            dtype = self.dtype if element == "elem" else element
            counts = [f"plan.math.max({sizes.integer(e)}, integer{{0}})" for e in extents]
            shapes[name] = (dtype, counts)
            yield (
                f"  const DevicePointer w_{name} = plan.workspace + plan.reserve("
                f"{_product(counts)}, {DTYPE_BYTES[dtype]});"
            )
        yield "  if (plan.measuring || !plan.status) return;"
        for index, name in enumerate(kernel.variant.tensormaps):
            yield from self._map(index, name, kernel, shapes, sizes)
        for step in kernel.variant.steps:
            yield from self._step(step, kernel, shapes, sizes, values)
        yield "}"

    def _pointer(self, name: str) -> str:
        return f"call.tensors[{self.tensors[name]}]" if name in self.tensors else f"w_{name}"

    def _map(
        self, index: int, name: str, kernel: ExportedKernel,
        shapes: Mapping[str, tuple[str, list[str]]], sizes: CppExpressions,
    ) -> Iterator[str]:  # fmt: skip
        tensor, box, swizzle, promotion = kernel.variant.tensormaps[name]
        dtype, extents = shapes[tensor]
        if index >= MAX_MAPS or len(extents) > 5 or len(box) != len(extents):
            raise ArgumentError(
                f"{kernel.variant.path}: tensor map {name} cannot be exported: at most {MAX_MAPS} "
                f"maps, of 1 to 5 dimensions, with a box of as many (got {len(box)})"
            )
        boxes = ", ".join(sizes.integer(b) for b in box)
        yield f"  {{  // tensor map {name}"
        yield f"    const integer shape[] = {{{', '.join(extents)}}};"
        yield f"    const integer box[] = {{{boxes}}};"
        yield (
            f"    plan.tensor_map({index}, {self._pointer(tensor)}, {_MAP_TYPES[dtype]}, "
            f"{DTYPE_BYTES[dtype]}, {len(extents)}, shape, box, {_SWIZZLE[swizzle]}, "
            f"{_PROMOTION[promotion]});"
        )
        yield "  }"

    def _step(
        self, step: StepSpec, kernel: ExportedKernel,
        shapes: Mapping[str, tuple[str, list[str]]], sizes: CppExpressions, values: CppExpressions,
    ) -> Iterator[str]:  # fmt: skip
        if len(step.args) > MAX_ARGUMENTS:
            raise ArgumentError(
                f"{kernel.variant.path}: {step.kernel} has {len(step.args)} arguments; at most "
                f"{MAX_ARGUMENTS} can be exported"
            )
        yield f"  if ({sizes.truth(step.when)}) {{" if step.when is not None else "  {"
        if step.fill:
            dtype, extents = shapes[step.fill]
            yield (
                f"    plan.fill({self._pointer(step.fill)}, {_product(extents)}, "
                f"{DTYPE_BYTES[dtype]}, {step.value});"
            )
            yield "  }"
            return
        grid = [sizes.integer(e) for e in step.grid] + ["integer{1}"] * (3 - len(step.grid))
        block = [sizes.integer(e) for e in step.block] + ["integer{1}"] * (3 - len(step.block))
        shared = sizes.integer(step.shared) if step.shared is not None else "integer{0}"
        name = kernel.variant.kernel_name(step.kernel, kernel.params)
        index = list(kernel.symbols).index(name)
        yield f"    const std::array<integer, 3> grid = {{{', '.join(grid)}}};"
        yield "    if (grid[0] > 0 && grid[1] > 0 && grid[2] > 0) {"
        yield f"      Step& s = plan.launch({index}, grid, {{{', '.join(block)}}}, {shared});"
        if step.cluster:
            cluster = [sizes.integer(e) for e in step.cluster]
            cluster += ["integer{1}"] * (3 - len(cluster))
            yield f"      plan.cluster(s, {{{', '.join(cluster)}}});"
        if step.cooperative:
            yield "      s.cooperative = true;"
        maps = list(kernel.variant.tensormaps)
        for argument in step.args:
            if isinstance(argument, str):
                yield (
                    f"      plan.map(s, {maps.index(argument)});" if argument in maps
                    else f"      plan.pointer(s, {self._pointer(argument)});"
                )  # fmt: skip
                continue
            expression, kind = argument
            ctype = _ARGUMENT_TYPES[kind]
            if kind[0] in "iu":
                yield f"      plan.whole<{ctype}>(s, {values.integer(expression)});"
            else:
                text, _ = values.number(expression)
                yield f"      plan.scalar<{ctype}>(s, static_cast<{ctype}>({text}));"
        yield "    }"
        yield "  }"

    def _table(self) -> Iterator[str]:
        yield "inline constexpr Entry entries[] = {"
        for kernel in self.kernels:
            stem = f"k_{kernel.id}"
            major, minor, exact = (
                architecture(kernel.variant.arch) if kernel.variant.arch else (0, 0, False)
            )
            yield (
                f"    {{{_quoted(kernel.id)}, {10 * major + minor}, {_bool(exact)}, "
                f"{stem}_images, {len(kernel.images)}, {stem}_symbols, {len(kernel.symbols)}, "
                f"{stem}_fits, {stem}_covers, {stem}_plan}},"
            )
        yield "};"
        records = [(i, m) for i, k in enumerate(self.kernels) for m in k.measured]
        records.sort(key=lambda r: (r[1].device, r[1].sizes, r[1].time_us, r[0]))
        for number, (_, m) in enumerate(records):
            sizes = ", ".join(f"{s}LL" for s in m.sizes) or "0"
            yield f"inline constexpr std::int64_t sizes{number}[] = {{{sizes}}};"
        if records:
            yield "inline constexpr Record records[] = {"
            for number, (index, m) in enumerate(records):
                major, minor, _ = architecture(m.arch)
                yield (
                    f"    {{{_quoted(m.device)}, {10 * major + minor}, sizes{number}, {index}}},"
                    f"  // {m.time_us:.6g} us"
                )
            yield "};"
        table = "records" if records else "nullptr"
        yield (
            f"inline constexpr Table table = {{{_quoted(self.interface.name)}, entries, "
            f"{len(self.kernels)}, {table}, {len(records)}, {len(self.sizes)}}};"
        )
        yield "inline Launcher& launcher() {"
        yield "  static Launcher one(table);"
        yield "  return one;"
        yield "}"
        yield from self._checked()

    def _checked(self) -> Iterator[str]:
        """What turns a typed call into the launcher's, or says what cannot be."""
        tensors, symbols = self.interface.tensors, self.interface.symbols
        names = {s: f"c.{s}" for s in symbols}
        sizes = CppExpressions({}, names)
        yield "struct Unpacked {"
        yield f"  std::int64_t sizes[{max(1, len(symbols))}];"
        yield f"  DevicePointer tensors[{len(tensors)}];"
        yield f"  double scalars[{max(1, len(self.interface.scalars))}];"
        yield "  Call call() const { return {sizes, tensors, scalars}; }"
        yield "};"
        yield f"inline Status unpack(const {self.dtype}_call& c, Unpacked& u) {{"
        yield "  Arithmetic math;"
        for index, symbol in enumerate(symbols):
            yield f'  if (c.{symbol} < 0) return {{Code::bad_argument, 0, "{symbol} is negative"}};'
            yield f"  u.sizes[{index}] = c.{symbol};"
        for check in self.checks:
            condition = sizes.truth(Expression.parse(check))
            text = _quoted(f"the sizes must meet: {check}")
            yield f"  if (!{condition}) return {{Code::bad_argument, 0, {text}}};"
        for index, tensor in enumerate(tensors):
            element = DTYPE_BYTES[self.interface.tensor_dtype(tensor, self.dtype)]
            count = _product([sizes.integer(Expression.parse(e)) for e in tensor.shape], "math")
            yield f"  u.tensors[{index}] = reinterpret_cast<std::uintptr_t>(c.{tensor.name});"
            yield f"  if (c.{tensor.name} == nullptr && {count} > 0)"
            yield f'    return {{Code::bad_argument, 0, "{tensor.name} is null"}};'
            yield f"  if (u.tensors[{index}] % {max(tensor.align, element)} != 0)"
            yield f'    return {{Code::bad_argument, 0, "{tensor.name} is misaligned"}};'
        for index, scalar in enumerate(self.interface.scalars):
            yield f"  u.scalars[{index}] = static_cast<double>(c.{scalar.name});"
        yield '  if (math.failed()) return {Code::bad_argument, 0, "the sizes are out of hand"};'
        yield "  return {};"
        yield "}"

    def _functions(self) -> Iterator[str]:
        plans, call = f"{self.dtype}_plans", f"{self.dtype}_call"
        yield "// Queues a call on a stream. Workspace: the caller's, or from the stream's pool."
        yield f"inline Status launch(const {call}& call, Stream stream = nullptr,"
        yield "                     void* workspace = nullptr, std::size_t bytes = 0) {"
        yield f"  {plans}::Unpacked u;"
        yield f"  const Status status = {plans}::unpack(call, u);"
        yield "  if (!status) return status;"
        yield f"  return {plans}::launcher().launch("
        yield "      u.call(), stream, reinterpret_cast<std::uintptr_t>(workspace), bytes);"
        yield "}"
        yield "// How many bytes of workspace a call takes on the current device."
        yield f"inline Status workspace_bytes(const {call}& call, std::size_t& bytes) {{"
        yield f"  {plans}::Unpacked u;"
        yield f"  const Status status = {plans}::unpack(call, u);"
        yield f"  return status ? {plans}::launcher().workspace_bytes(u.call(), bytes) : status;"
        yield "}"
        yield "// Which kernel a call would use, and how it was chosen."
        yield f"inline Status choose(const {call}& call, Choice& choice,"
        yield "                     const char** id = nullptr) {"
        yield f"  {plans}::Unpacked u;"
        yield f"  const Status status = {plans}::unpack(call, u);"
        yield f"  return status ? {plans}::launcher().choose(u.call(), choice, id) : status;"
        yield "}"
        yield "// Loads the kernels now: the first call, or one in a stream capture, need not."
        yield f"inline Status prepare_{self.dtype}() {{ return {plans}::launcher().prepare(); }}"
        yield ""


def _condition(
    name: str, parameters: str, conditions: Mapping[str, Expression], cpp: CppExpressions
) -> Iterator[str]:
    yield f"inline bool {name}({parameters}) {{"
    for parameter in parameters.split(", "):
        yield f"  (void){parameter.split()[-1].lstrip('&')};"
    for key, expression in conditions.items():
        # A condition without a value is not met: each has an arithmetic of its own.
        condition = cpp.truth(expression)
        if condition != "true":
            yield f"  {{  // {key}"
            yield f"    Arithmetic math; if (!{condition} || math.failed()) return false;"
            yield "  }"
    yield "  return true;"
    yield "}"


def _product(parts: Sequence[str], math: str = "plan.math") -> str:
    result = parts[0] if parts else "integer{1}"
    for part in parts[1:]:
        result = f"{math}.mul({result}, {part})"
    return result


def _words(data: bytes) -> Iterator[str]:
    padded = data + b"\0" * (8 - len(data) % 8)
    words = struct.unpack(f"<{len(padded) // 8}Q", padded)
    for start in range(0, len(words), 8):
        yield "".join(f"{w:#x}," for w in words[start : start + 8])


def _std(kind: str) -> str:
    bare = kind.removeprefix("const ").rstrip("*")
    return kind.replace(bare, f"std::{bare}") if bare.endswith("_t") else kind


def _one_line(text: str) -> str:
    # A backslash at the end would continue the comment on the next line.
    return " ".join(text.split()).rstrip("\\")


def _quoted(text: str) -> str:
    escaped = "".join(
        c if 32 <= ord(c) < 127 and c not in '"\\?' else "".join(f"\\{b:03o}" for b in c.encode())
        for c in text
    )
    return f'"{escaped}"'


def _bool(value: bool) -> str:
    return "true" if value else "false"
