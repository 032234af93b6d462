"""Cut a CUDA file down to what the device compiles: kernels and what they need, as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelsearch.importing.calls import c_type
from kernelsearch.importing.contract import Imported, Shim
from kernelsearch.importing.syntax import Module, Node, text_of, tree_of, walk
from kernelsearch.targets.cuda_source import header_allowed

_QUALIFIED = re.compile(r"__(?:global|device|constant|shared|managed)__")
_HOST_SPACES = re.compile(r"using\s+namespace\s+(std|thrust)\s*;")
Edit = tuple[int, int, str]


def device_text(module: Module, result: Imported) -> str:
    """Return the device code of a file, with the tunables' macros taken out.

    Args:
        module: the parsed file.
        result: its tunables, the constants that become arguments, and the entries to add.
    """
    raw = module.text.encode()
    root = tree_of(module.text)
    edits: list[Edit] = []
    for node in _top(root):
        edits += _edits(node, module, result)
    shimmed = {re.sub(r"<.*", "", s.kernel).split("::")[-1] for s in result.shims}
    for name, tensor in result.constants.items():
        edits += _constant(root, name, tensor, module, result)
    for kernel in shimmed:
        edits += _demoted(root, kernel)
    text = _applied(raw, edits)
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    text = re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"
    text = _preamble(text) + _STD_NAME.sub(r"cuda::std::\1", text)
    for shim in result.shims:
        text += "\n" + shim_text(shim)
    return text


_HOLDERS = (
    "linkage_specification", "namespace_definition", "preproc_if", "preproc_ifdef", "preproc_else",
    "preproc_elif", "declaration_list",
)  # fmt: skip
_LIMITS = {
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-7f",
    "DBL_MAX": "1.7976931348623157e+308", "DBL_MIN": "2.2250738585072014e-308",
    "DBL_EPSILON": "2.2204460492503131e-16", "INT_MAX": "2147483647",
    "INT_MIN": "(-2147483647 - 1)", "UINT_MAX": "4294967295u", "LLONG_MAX": "9223372036854775807ll",
    "CHAR_BIT": "8", "M_PI": "3.14159265358979323846", "M_PI_2": "1.57079632679489661923",
    "M_SQRT2": "1.41421356237309504880", "M_E": "2.7182818284590452354",
    "M_LN2": "0.69314718055994530942", "M_2_SQRTPI": "1.12837916709551257390",
    "M_SQRT1_2": "0.70710678118654752440", "NULL": "nullptr",
    # Written so that they are infinite in double, too.
    "INFINITY": "((float)(1e308 * 10.0))", "HUGE_VALF": "((float)(1e308 * 10.0))",
    "HUGE_VAL": "(1e308 * 10.0)", "NAN": "((float)(0.0 * (1e308 * 10.0)))",
}  # fmt: skip
_STD = {
    "limits": r"numeric_limits", "type_traits": r"is_same\w*|enable_if\w*|conditional\w*|"
    r"remove_\w+|is_\w+", "array": r"array", "tuple": r"tuple|make_tuple|get",
    "utility": r"pair|swap|move|forward|make_pair", "complex": r"complex",
    "cstdint": r"u?int\d+_t", "cstddef": r"size_t|ptrdiff_t", "algorithm": r"min|max",
    "cmath": r"sqrt|exp|log|pow|fabs|abs|sin|cos|tan|floor|ceil|isnan|isinf|fma",
}  # fmt: skip

_STD_NAME = re.compile(rf"(?<![\w:])std::({'|'.join(_STD.values())})\b")


def _preamble(text: str) -> str:
    """Return what host headers gave and device code uses: limits, and std:: as cuda::std::."""
    lines: list[str] = []
    for header, names in _STD.items():
        if re.search(rf"(?<!cuda::)\bstd::({names})\b", text):
            lines.append(f"#include <cuda/std/{header}>")
    for name, value in _LIMITS.items():
        if re.search(rf"\b{name}\b", text) and not re.search(rf"#\s*define\s+{name}\b", text):
            lines += [f"#ifndef {name}", f"#define {name} {value}", "#endif"]
    return "\n".join(lines) + "\n" if lines else ""


def shim_text(shim: Shim) -> str:
    """Return the entry's source."""
    listed = ", ".join(f"{kind} {name}" for kind, name in shim.parameters)
    body = "".join(f"    {line}\n" for line in shim.before)
    call = f"    {shim.kernel}({', '.join(shim.arguments)});\n"
    note = "// An entry that builds the arguments which a launch plan cannot pass.\n"
    return f"{note}__global__ void {shim.name}({listed}) {{\n{body}{call}}}\n"


def _top(node: Node) -> Iterator[Node]:
    for item in node.children:
        if item.type in _HOLDERS:
            inner = item.child_by_field_name("body")
            if inner is not None and inner.type == "declaration_list":
                yield from _top(inner)
            elif inner is not None:
                yield item
            else:
                yield from _top(item)
        else:
            yield item


def _edits(node: Node, module: Module, result: Imported) -> list[Edit]:
    text = node.text.decode(errors="replace")
    cut = [(node.start_byte, node.end_byte, "\n" if text.endswith("\n") else "")]
    match node.type:
        case "preproc_include":
            header = re.search(r"<([^>]+)>", text)
            kept = header is not None and header_allowed(header[1].strip())
            return [] if kept else cut
        case "preproc_def":
            name = node.child_by_field_name("name")
            named = name is not None and text_of(name) in result.tunables
            return cut if named else []
        case "preproc_call":
            return cut if re.match(r"#\s*pragma\s+once", text) else []
        case "function_definition" | "template_declaration" | "linkage_specification":
            return _function(node, text, cut)
        case "declaration":
            if _QUALIFIED.search(text):
                return cut if "__managed__" in text else []
            constant = re.match(r"\s*(static\s+|inline\s+)*(const|constexpr)\b", text)
            host = re.search(r"std::|cuda\w+_t\b|\bFILE\b|\(", text.split("=")[0])
            return [] if constant and not host else cut
        case "using_declaration":
            return cut if _HOST_SPACES.match(text) else []
        case "expression_statement" | "ERROR":
            return cut if not _QUALIFIED.search(text) else []
        case "struct_specifier" | "class_specifier":
            used = _on_device(node, module) and not re.search(r"std::|cudaStream_t", text)
            return [] if used else cut
    return []


def _on_device(node: Node, module: Module) -> bool:
    """Return whether device code, or another type, speaks of a class with methods."""
    named = node.child_by_field_name("name")
    body = node.child_by_field_name("body")
    methods = [n for n in walk(body) if n.type == "function_declarator"] if body is not None else []
    if named is None or not methods or "__device__" in node.text.decode(errors="replace"):
        return True
    word = re.compile(rf"\b{re.escape(text_of(named))}\b")
    functions = [f for group in module.functions.values() for f in group if f.kernel or f.device]
    fields = [p for name, inner in module.structs.items() if name != text_of(named) for p in inner]
    return any(word.search(text_of(f.node)) for f in functions) or any(
        word.search(p.type) for p in fields
    )


def _function(node: Node, text: str, cut: list[Edit]) -> list[Edit]:
    head = text.split("{")[0]
    if "__device__" in head or "__global__" in head:
        return []
    inner = next((n for n in walk(node) if n.type == "function_definition"), None)
    if inner is None:
        # A template or a prototype of something on the device or the host.
        plain = re.search(r"\b(struct|class|using|constexpr)\b", head)
        return [] if plain else cut
    if re.search(r"\bconstexpr\b", head) and "std::" not in text:
        return [(inner.start_byte, inner.start_byte, "__host__ __device__ ")]
    return cut


def _constant(root: Node, name: str, tensor: str, module: Module, result: Imported) -> list[Edit]:
    """Take a ``__constant__`` array out and pass what was copied to it as an argument."""
    edits: list[Edit] = []
    kind = next((t.dtype for t in result.tensors if t.name == tensor), "float32")
    for node in walk(root):
        if (
            node.type == "declaration"
            and "__constant__" in text_of(node)
            and re.search(rf"\b{name}\b", text_of(node))
        ):
            edits.append((node.start_byte, node.end_byte, ""))
        if node.type != "function_definition" or not re.search(rb"\b%s\b" % name.encode(),
                                                                node.text):  # fmt: skip
            continue
        head = node.text.decode().split("{")[0]
        if "__global__" not in head and "__device__" not in head:
            continue
        if "__global__" not in head:
            raise module.fail(
                node, f"__constant__ {name} is set by the host and read in a device function",
                "pass it as a kernel argument",
            )  # fmt: skip
        for item in walk(node):
            if item.type == "parameter_list":
                comma = ", " if item.named_children else ""
                at = item.end_byte - 1
                edits.append((at, at, f"{comma}const {c_type(kind)}* __restrict__ {name}"))
                break
    return edits


def _demoted(root: Node, kernel: str) -> list[Edit]:
    """Make a kernel a device function, for the entry that calls it."""
    edits: list[Edit] = []
    for node in walk(root):
        if node.type != "function_definition":
            continue
        head = node.text.decode(errors="replace").split("{")[0]
        if "__global__" not in head or not re.search(rf"\b{kernel}\s*\(", head):
            continue
        start = node.start_byte + node.text.index(b"__global__")
        edits.append((start, start + len("__global__"), "__device__ __forceinline__"))
        for item in node.children:
            if item.type == "launch_bounds":
                edits.append((item.start_byte, item.end_byte, ""))
    return edits


def _applied(raw: bytes, edits: list[Edit]) -> str:
    out, at = [], 0
    for start, end, text in sorted(set(edits)):
        if start < at:
            continue
        out += [raw[at:start], text.encode()]
        at = end
    out.append(raw[at:])
    return b"".join(out).decode(errors="replace")
