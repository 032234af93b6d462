"""Read a CUDA file: macros expanded on their own lines, then a syntax tree of its functions.

Macros that stand for one whole number keep their names, so that what depends on them stays visible:
a block dimension ``BLOCK`` becomes a tunable, not 256.
"""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pcpp
import tree_sitter
import tree_sitter_cuda

from kernelsearch.importing.problem import CannotImportError

Node = Any
MAX_BYTES = 4 << 20
_LANGUAGE = tree_sitter.Language(tree_sitter_cuda.language())
_INTEGER = re.compile(r"\(*\s*(0[xX][0-9a-fA-F]+|\d+)[uUlL]*\s*\)*\Z")
_LOCAL_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"[^\n]*$', re.MULTILINE)
_PREDEFINED = ("__CUDACC__ 1", "__NVCC__ 1", "__cplusplus 201703L", "__CUDA_ARCH__ 900")
FLOATS = {
    "float": "float32", "double": "float64", "half": "float16", "__half": "float16",
    "__nv_bfloat16": "bfloat16", "nv_bfloat16": "bfloat16",
}  # fmt: skip
INTEGERS = {
    "int": "int32", "signed": "int32", "signed int": "int32", "int32_t": "int32",
    "std::int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32", "uint": "uint32",
    "uint32_t": "uint32", "std::uint32_t": "uint32", "long": "int64", "long int": "int64",
    "long long": "int64", "long long int": "int64", "int64_t": "int64", "std::int64_t": "int64",
    "ssize_t": "int64", "ptrdiff_t": "int64", "size_t": "uint64", "std::size_t": "uint64",
    "unsigned long": "uint64", "unsigned long long": "uint64", "unsigned long int": "uint64",
    "unsigned long long int": "uint64", "uint64_t": "uint64", "std::uint64_t": "uint64",
    "short": "int16", "int16_t": "int16", "unsigned short": "uint16", "uint16_t": "uint16",
    "char": "int8", "signed char": "int8", "int8_t": "int8", "unsigned char": "uint8",
    "uint8_t": "uint8", "uchar": "uint8", "bool": "uint8", "std::uint8_t": "uint8",
}  # fmt: skip
DTYPES = {**FLOATS, **INTEGERS}
# Vector types: element type and count.
VECTORS = (
    {
        f"{base}{n}": (dtype, n)
        for base, dtype in (
            ("float", "float32"),
            ("double", "float64"),
            ("int", "int32"),
            ("uint", "uint32"),
            ("char", "int8"),
            ("uchar", "uint8"),
            ("short", "int16"),
            ("longlong", "int64"),
        )
        for n in (2, 3, 4)
    }
    | {"half2": ("float16", 2), "__half2": ("float16", 2), "__nv_bfloat162": ("bfloat16", 2)}
    | {
        "cuFloatComplex": ("float32", 2),
        "cuComplex": ("float32", 2),
        "cuDoubleComplex": ("float64", 2),
    }
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function.

    Args:
        name: of the parameter.
        type: without qualifiers, pointers and references (``float``, ``T``).
        pointers: how many ``*``.
        const: the value, or what the pointer leads to, may not be written.
        reference: passed by reference.
        default: the default argument's source, "" where there is none.
    """

    name: str
    type: str
    pointers: int
    const: bool
    reference: bool = False
    default: str = ""


@dataclass
class Function:
    """A function with its body.

    Args:
        name: without namespaces.
        parameters: in order.
        body: its compound statement.
        kernel: ``__global__``.
        device: ``__device__`` (may be ``__host__`` as well).
        extern_c: declared ``extern "C"``.
        static: not visible outside the file.
        templates: name = (kind, default): ``typename``, or the type of a value.
        returns: the result's type.
        node: the whole definition.
        space: its namespaces, such as ``ops::``.
        owner: the class of a method, "" for a function.
    """

    name: str
    parameters: tuple[Parameter, ...]
    body: Node
    kernel: bool
    device: bool
    extern_c: bool
    static: bool
    templates: dict[str, tuple[str, str]]
    returns: str
    node: Node
    space: str = ""
    owner: str = ""

    @property
    def qualified(self) -> str:
        """The name with its namespaces."""
        return f"{self.space}{self.name}"

    @property
    def line(self) -> int:
        return int(self.node.start_point[0]) + 1


@dataclass
class Module:
    """A parsed file.

    Args:
        path: as given, for messages.
        text: with local headers put in place, as the device code is taken from.
        expanded: with macros expanded; its lines are those of ``text``.
        root: the tree of ``expanded``.
        functions: by name; overloads one after another.
        constants: macros, ``const`` and ``enum`` values that are whole numbers.
        macros: those of them that are macros.
        structs: name = fields, for structures passed by value.
        aliases: ``using`` and ``typedef`` names of plain types.
        variables: of the file, on the host: name = (declaration, declarator).
        symbols: ``__constant__`` and ``__device__`` variables: name = declaration.
        origin: line of ``text`` = (file, line).
    """

    path: str
    text: str
    expanded: str
    root: Node
    origin: list[tuple[str, int]]
    functions: dict[str, list[Function]] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)
    macros: dict[str, int] = field(default_factory=dict)
    structs: dict[str, tuple[Parameter, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    variables: dict[str, tuple[Node, Node]] = field(default_factory=dict)
    symbols: dict[str, Node] = field(default_factory=dict)

    @property
    def vectors(self) -> dict[str, tuple[str, int]]:
        """Structures whose fields are numbers of one type, as vectors: name = (dtype, fields)."""
        found = {}
        for name, fields in self.structs.items():
            kinds = {DTYPES.get(self.plain_type(f.type)) for f in fields}
            if len(kinds) == 1 and None not in kinds and not any(f.pointers for f in fields):
                found[name] = (str(kinds.pop()), len(fields))
        return found

    def fail(self, at: Node | int | None, reason: str, remedy: str = "") -> CannotImportError:
        """Return the error for a node or a line (of ``text``, 1 for the first)."""
        line = at if isinstance(at, int) or at is None else int(at.start_point[0]) + 1
        if line is None or line > len(self.origin):
            return CannotImportError(self.path, None, reason, remedy)
        file, own = self.origin[line - 1]
        return CannotImportError(file, own, reason, remedy)

    def kernels(self) -> list[Function]:
        return [f for group in self.functions.values() for f in group if f.kernel]

    def plain_type(self, name: str) -> str:
        """Return a type's name with aliases of this file looked through."""
        for _ in range(8):
            if name not in self.aliases:
                break
            name = self.aliases[name]
        return name


def read(path: Path, defines: Mapping[str, int] | None = None) -> Module:
    """Read and parse a CUDA file.

    Args:
        path: the file.
        defines: macros given on the compiler's command line (``-D``).

    Raises:
        CannotImportError: it is missing, no text, too large, or does not parse.
    """
    shown = str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CannotImportError(
            shown, None, f"cannot be read ({error.strerror})", "check the path"
        ) from error
    if len(raw) > MAX_BYTES:
        raise CannotImportError(shown, None, f"is larger than {MAX_BYTES >> 20} MiB",
                                "import the file with the kernel only")  # fmt: skip
    if b"\0" in raw:
        raise CannotImportError(shown, None, "is no text (it holds zero bytes)",
                                "give the .cu source, not a compiled file")  # fmt: skip
    text, origin = _with_headers(path, raw, shown)
    return parse(text, shown, origin, defines)


def parse(
    text: str, path: str = "<text>", origin: list[tuple[str, int]] | None = None,
    defines: Mapping[str, int] | None = None,
) -> Module:  # fmt: skip
    """Parse CUDA source; see ``read``."""
    lines = text.count("\n") + 1
    places = origin or [(path, n + 1) for n in range(lines)]
    expanded, macros = _expand(text, path, defines or {}, places)
    root = tree_of(expanded)
    module = Module(path, text, expanded, root, places, macros=macros)
    module.constants.update(macros)
    _collect(module, root, extern_c=False, templates={})
    return module


def _decode(raw: bytes) -> str:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _with_headers(path: Path, raw: bytes, shown: str) -> tuple[str, list[tuple[str, int]]]:
    """Return the text with ``#include "file"`` replaced by the file, once each, and the places."""
    seen: set[Path] = {path.resolve()}

    def expand(file: Path, text: str, label: str) -> tuple[list[str], list[tuple[str, int]]]:
        out: list[str] = []
        places: list[tuple[str, int]] = []
        for number, line in enumerate(text.split("\n"), 1):
            match = _LOCAL_INCLUDE.match(line)
            header = (file.parent / match[1]).resolve() if match else None
            if header is not None and header.is_file():
                if header in seen:
                    out.append("")
                    places.append((label, number))
                    continue
                seen.add(header)
                inner, where = expand(header, _decode(header.read_bytes()), str(header))
                out += inner
                places += where
            else:
                out.append(line)
                places.append((label, number))
        return out, places

    lines, places = expand(path, _decode(raw), shown)
    return "\n".join(lines), places


class _Expander(pcpp.Preprocessor):  # type: ignore[misc]
    """Expands macros, but for those that stand for one whole number."""

    def __init__(self, kept: set[str]) -> None:
        super().__init__()
        self.kept = kept
        self.conditions = 0
        self.problems: list[tuple[int, str]] = []

    def on_error(self, file: str, line: int, msg: str) -> None:
        self.problems.append((line, msg))

    def on_include_not_found(
        self, is_malformed: bool, is_system_include: bool, curdir: str, includepath: str
    ) -> None:
        del is_malformed, is_system_include, curdir, includepath
        raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)

    def on_directive_handle(
        self, directive: Any, toks: Any, ifpassthru: bool, precedingtoks: Any
    ) -> Any:
        if directive.value in ("define", "undef"):
            return True
        raise pcpp.OutputDirective(pcpp.Action.IgnoreAndRemove)

    def on_unknown_macro_in_defined_expr(self, tok: Any) -> bool:
        del tok
        return False

    def on_unknown_macro_in_expr(self, ident: str) -> int:
        del ident
        return 0

    def evalexpr(self, tokens: Any) -> Any:
        self.conditions += 1
        try:
            return super().evalexpr(tokens)
        finally:
            self.conditions -= 1

    def expand_macros(self, tokens: Any, expanding_from: Sequence[str] = ()) -> Any:
        hidden = {}
        if not self.conditions:
            hidden = {n: self.macros.pop(n) for n in self.kept if n in self.macros}
        try:
            return super().expand_macros(tokens, list(expanding_from))
        finally:
            self.macros.update(hidden)


def _expand(
    text: str, path: str, defines: Mapping[str, int], places: Sequence[tuple[str, int]]
) -> tuple[str, dict[str, int]]:
    """Return the text with macros expanded, line by line, and the macros that are numbers."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    for match in re.finditer(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(?![\w(])[ \t]*(.*)$", text, re.M):
        body = re.sub(r"/\*.*?\*/|//.*", "", match[2]).strip()
        counts[match[1]] = counts.get(match[1], 0) + 1
        whole = _whole(body, found)
        if whole is not None:
            found[match[1]] = whole
        else:
            found.pop(match[1], None)
    found = {n: v for n, v in found.items() if counts[n] == 1}
    # One value in each branch of an #if: the branch that is taken decides.
    several = {n for n, c in counts.items() if c > 1}
    expander = _Expander(set(found) | set(defines))
    for name in _PREDEFINED:
        expander.define(name)
    for name, value in defines.items():
        expander.define(f"{name} {value}")
        found[name] = value
    out = io.StringIO()
    line = 1
    with redirect_stderr(io.StringIO()):
        expander.parse(text, path)
        while True:
            try:
                token = expander.token()
            except RecursionError:
                raise CannotImportError(path, None, "its macros nest too deeply") from None
            if token is None:
                break
            if token.type in expander.t_WS or token.type in expander.t_COMMENT:
                out.write(" ")
                continue
            if token.lineno > line:
                out.write("\n" * (token.lineno - line))
                line = token.lineno
            out.write(token.value.replace("\n", " "))
    if expander.problems:
        at, message = expander.problems[0]
        file, own = places[at - 1] if 0 < at <= len(places) else (path, at)
        raise CannotImportError(file, own, f"the preprocessor stops: {message}")
    for name in several:
        macro = expander.macros.get(name)
        if macro is not None and macro.arglist is None:
            whole = _whole("".join(t.value for t in macro.value), found)
            if whole is not None:
                found.setdefault(name, whole)
    expanded = out.getvalue()
    # Numbers whose branch was not taken are no macros of this program.
    alive = {n for n in found if n in expander.macros}
    return expanded, {n: v for n, v in found.items() if n in alive}


def _whole(body: str, known: Mapping[str, int]) -> int | None:
    """Return the value of a macro's text that is arithmetic on whole numbers."""
    plain = _INTEGER.match(body)
    if plain:
        return int(plain[1], 0) if not re.match(r"0\d", plain[1]) else int(plain[1], 8)
    if not re.fullmatch(r"[\w\s()+\-*/%<>]+", body) or not re.search(r"\d|[A-Za-z]", body):
        return None
    try:
        tree = ast.parse(re.sub(r"(\d)[uUlL]+\b", r"\1", body).strip(), mode="eval").body
        return _number_of(tree, known)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number_of(node: ast.expr, known: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _number_of(left, known), _number_of(right, known)
            operations: dict[type[ast.operator], Callable[[], int]] = {
                ast.Add: lambda: a + b, ast.Sub: lambda: a - b, ast.Mult: lambda: a * b,
                ast.Div: lambda: a // b, ast.Mod: lambda: a % b,
                ast.LShift: lambda: a << min(b, 64), ast.RShift: lambda: a >> min(b, 64),
            }  # fmt: skip
            if type(op) in operations:
                return operations[type(op)]()
    raise ValueError


def text_of(node: Node) -> str:
    """Return a node's source, with runs of blanks made one."""
    return " ".join(node.text.decode(errors="replace").split())


def tree_of(text: str) -> Node:
    """Return the root of CUDA source's tree, macros as they stand."""
    return tree_sitter.Parser(_LANGUAGE).parse(text.encode()).root_node


def expression(text: str) -> Node:
    """Return the tree of an expression that stands by itself."""
    root = tree_of(f"auto x_ = ({text});")
    found = next((n for n in walk(root) if n.type == "parenthesized_expression"), None)
    return found if found is not None else root


def walk(node: Node) -> Iterator[Node]:
    """Yield a node and everything below it, in order."""
    stack = [node]
    while stack:
        at = stack.pop()
        yield at
        stack.extend(reversed(at.children))


def child(node: Node, *kinds: str) -> Node | None:
    """Return the first child of one of the kinds."""
    return next((c for c in node.children if c.type in kinds), None)


def _collect(
    module: Module, node: Node, *, extern_c: bool, templates: dict[str, tuple[str, str]],
    space: str = "",
) -> None:  # fmt: skip
    for item in node.children:
        match item.type:
            case "linkage_specification":
                body = child(item, "declaration_list")
                if body is not None:
                    _collect(module, body, extern_c=True, templates={}, space=space)
                else:
                    _collect(module, item, extern_c=True, templates={}, space=space)
            case "namespace_definition":
                body, named = child(item, "declaration_list"), item.child_by_field_name("name")
                inner = f"{space}{text_of(named)}::" if named is not None else space
                if body is not None:
                    _collect(module, body, extern_c=extern_c, templates={}, space=inner)
            case "template_declaration":
                listed = child(item, "template_parameter_list")
                found = _template_parameters(listed) if listed is not None else {}
                _collect(module, item, extern_c=extern_c, templates=found, space=space)
            case "function_definition":
                function = _function(item, extern_c=extern_c, templates=templates, space=space)
                if function is not None:
                    module.functions.setdefault(function.name, []).append(function)
            case "struct_specifier" | "class_specifier":
                _struct(module, item)
                _methods(module, item)
            case "enum_specifier":
                _enumerators(module, item)
            case "alias_declaration":
                name, target = item.child_by_field_name("name"), item.child_by_field_name("type")
                if name is not None and target is not None:
                    module.aliases[text_of(name)] = text_of(target)
            case "type_definition":
                _typedef(module, item)
            case "declaration":
                _declaration(module, item)
            case "preproc_if" | "preproc_ifdef" | "preproc_else":
                _collect(module, item, extern_c=extern_c, templates=templates, space=space)


def _template_parameters(listed: Node) -> dict[str, tuple[str, str]]:
    result: dict[str, tuple[str, str]] = {}
    for item in listed.named_children:
        if item.type in ("type_parameter_declaration", "optional_type_parameter_declaration"):
            name = next((c for c in item.children if c.type == "type_identifier"), None)
            default = item.child_by_field_name("default_type")
            if name is not None:
                result[text_of(name)] = ("typename", text_of(default) if default else "")
        elif item.type in ("parameter_declaration", "optional_parameter_declaration"):
            name = item.child_by_field_name("declarator")
            kind = item.child_by_field_name("type")
            default = item.child_by_field_name("default_value")
            if name is not None and kind is not None:
                result[text_of(name)] = (text_of(kind), text_of(default) if default else "")
    return result


def _function(
    node: Node, *, extern_c: bool, templates: dict[str, tuple[str, str]], space: str
) -> Function | None:
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator") or child(
            declarator, "function_declarator", "pointer_declarator"
        )
    body = node.child_by_field_name("body")
    if declarator is None or body is None:
        return None
    named = declarator.child_by_field_name("declarator")
    listed = declarator.child_by_field_name("parameters")
    if named is None or listed is None:
        return None
    head = node.text[: body.start_byte - node.start_byte].decode(errors="replace")
    words = set(re.findall(r"\w+", head[: head.find("(")] if "(" in head else head))
    returns = node.child_by_field_name("type")
    return Function(
        name=text_of(named).split("::")[-1],
        parameters=tuple(_parameters(listed)), body=body,
        kernel="__global__" in head, device="__device__" in head,
        extern_c=extern_c or 'extern "C"' in head, static="static" in words,
        templates=templates, returns=text_of(returns) if returns is not None else "void", node=node,
        space=space, owner=_owner(node, text_of(named)),
    )  # fmt: skip


def _owner(node: Node, name: str) -> str:
    """Return the class of a method, defined within it or outside."""
    at = node.parent
    while at is not None:
        if at.type in ("class_specifier", "struct_specifier"):
            named = at.child_by_field_name("name")
            return text_of(named) if named is not None else ""
        at = at.parent
    return name.split("::")[-2] if "::" in name else ""


def _methods(module: Module, node: Node) -> None:
    """Collect the host methods of a class that are defined within it."""
    body = node.child_by_field_name("body")
    for item in body.named_children if body is not None else ():
        if item.type != "function_definition":
            continue
        function = _function(item, extern_c=False, templates={}, space="")
        # A constructor has no type, an operator no plain name.
        if function is None or function.device or not re.fullmatch(r"\w+", function.name):
            continue
        if item.child_by_field_name("type") is not None:
            module.functions.setdefault(function.name, []).append(function)


def _parameters(listed: Node) -> Iterator[Parameter]:
    for item in listed.named_children:
        if item.type not in ("parameter_declaration", "optional_parameter_declaration"):
            continue
        parsed = declared(item, item.child_by_field_name("declarator"))
        if parsed is not None and not (parsed.type == "void" and not parsed.pointers):
            default = item.child_by_field_name("default_value")
            yield replace(parsed, default=text_of(default)) if default is not None else parsed


def declared(item: Node, declarator: Node | None) -> Parameter | None:
    """Return what a declaration's declarator declares (name "" where there is none)."""
    kind = item.child_by_field_name("type")
    if kind is None:
        return None
    pointers, reference = 0, False
    at = declarator
    while at is not None and at.type not in ("identifier", "field_identifier"):
        if at.type in ("pointer_declarator", "abstract_pointer_declarator") or at.type in (
            "array_declarator",
            "abstract_array_declarator",
        ):
            pointers += 1
        elif at.type == "reference_declarator":
            reference = True
        named = at.child_by_field_name("declarator")
        at = named or next(
            (c for c in at.named_children if c.type.endswith("declarator")
             or c.type in ("identifier", "field_identifier")), None,
        )  # fmt: skip
    head = item.text[: (declarator.start_byte - item.start_byte) if declarator else None]
    const = bool(re.search(rb"\b(const|constexpr)\b", head))
    return Parameter(text_of(at) if at is not None else "", plain(text_of(kind)), pointers, const,
                     reference)  # fmt: skip


def plain(name: str) -> str:
    """Return a type's name without qualifiers."""
    return " ".join(
        w for w in name.split() if w not in ("const", "volatile", "struct", "__restrict__")
    )


def _struct(module: Module, node: Node) -> None:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is None or body is None:
        return
    fields: list[Parameter] = []
    for item in body.named_children:
        if item.type != "field_declaration":
            continue
        value = item.child_by_field_name("default_value")
        static = any(c.type == "storage_class_specifier" and text_of(c) == "static"
                     for c in item.children)  # fmt: skip
        for declarator in item.children_by_field_name("declarator"):
            parsed = declared(item, declarator)
            whole = _whole(text_of(value), module.constants) if static and value else None
            if parsed is not None and whole is not None:
                module.constants[parsed.name] = whole
            elif parsed is not None and not static:
                fields.append(parsed)
    module.structs[text_of(name)] = tuple(fields)


def _enumerators(module: Module, node: Node) -> None:
    value = -1
    for item in walk(node):
        if item.type == "enumerator":
            given = item.child_by_field_name("value")
            known = _whole(text_of(given), module.constants) if given is not None else value + 1
            if known is None:
                return
            value = known
            module.constants[text_of(item.child_by_field_name("name"))] = value


def _typedef(module: Module, node: Node) -> None:
    kind, name = node.child_by_field_name("type"), node.child_by_field_name("declarator")
    if kind is None or name is None or name.type != "type_identifier":
        return
    if kind.type == "struct_specifier":
        body = kind.child_by_field_name("body")
        if body is not None:
            _struct(module, kind)
            tag = kind.child_by_field_name("name")
            if tag is None:
                module.structs[text_of(name)] = tuple(
                    p for item in body.named_children if item.type == "field_declaration"
                    for d in item.children_by_field_name("declarator")
                    if (p := declared(item, d)) is not None
                )  # fmt: skip
                return
            module.aliases[text_of(name)] = text_of(tag)
            return
    module.aliases[text_of(name)] = plain(text_of(kind))


def _declaration(module: Module, node: Node) -> None:
    head = text_of(node)
    for kind in ("struct_specifier", "enum_specifier"):
        inner = child(node, kind)
        if inner is not None:
            _struct(module, inner) if kind == "struct_specifier" else _enumerators(module, inner)
    if re.search(r"\b__(constant|device|managed)__\b", head):
        for item in node.children_by_field_name("declarator"):
            parsed = declared(node, item)
            if parsed is not None and "(" not in text_of(item).split("=")[0]:
                module.symbols[parsed.name] = node
        return
    for item in node.children_by_field_name("declarator"):
        parsed = declared(node, item)
        if parsed is not None and parsed.name and "(" not in text_of(item).split("=")[0]:
            module.variables[parsed.name] = (node, item)
    if not re.search(r"\b(const|constexpr)\b", head):
        return
    for item in node.children_by_field_name("declarator"):
        if item.type == "init_declarator":
            value, name = item.child_by_field_name("value"), item.child_by_field_name("declarator")
            known = _whole(text_of(value), module.constants) if value is not None else None
            if known is not None and name is not None and name.type == "identifier":
                module.constants[text_of(name)] = known
