"""Check CUDA source for what may not be in it, and put our prelude before it.

The checks here keep host files out of the compiler and give a clear sentence early. They are no
proof of honesty: what a kernel does is judged by its binary and by its behaviour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from kernelsearch.errors import RejectedError
from kernelsearch.records import DTYPE_BYTES, CompileJob
from kernelsearch.targets.cuda_elf import GlobalVariable

_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16",
    "int32": "int", "int64": "long long",
}  # fmt: skip
_TYPE_HEADERS = {"float16": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}
_ALLOWED_HEADERS = frozenset({
    "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp4.h", "mma.h", "cooperative_groups.h",
    "cuda_pipeline.h", "cuda_awbarrier.h", "math_constants.h", "vector_types.h",
    "cuda/atomic", "cuda/barrier", "cuda/pipeline", "cuda/ptx", "cuda/cmath", "nv/target",
})  # fmt: skip
_ALLOWED_FOLDERS = ("cuda/std/", "cub/", "cooperative_groups/")
_HEADER_NAME = re.compile(r"[A-Za-z0-9_]+(?:/[A-Za-z0-9_]+)*(?:\.(?:h|cuh|hpp))?\Z")
_DIRECTIVE = re.compile(r"[ \t\v\f]*(?:#|%:|\?\?=)[ \t\v\f]*(\w+)?[ \t\v\f]*(.*)\Z")
_FORBIDDEN_WORDS = {
    "__has_include": "it looks for files of the host",
    "__has_include_next": "it looks for files of the host",
    "__has_embed": "it looks for files of the host",
    "__TIME__": "it makes each compilation different",
    "__DATE__": "it makes each compilation different",
    "__TIMESTAMP__": "it makes each compilation different",
}
_FORBIDDEN_DIRECTIVES = frozenset({"include_next", "import", "embed", "include_alias"})
_WORD = re.compile(r"[A-Za-z_]\w*")
_LIBRARY_SPACES = ("cuda", "cub", "cooperative_groups", "nvcuda", "nv", "std", "thrust")
_REOPENED = re.compile(rf"\bnamespace\s+(?:{'|'.join(_LIBRARY_SPACES)})\b\s*(?:::[\w:\s]*)?\{{")
# Comments, raw strings, strings and characters, in the order in which they must be tried.
_LEXEME = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^()\\\s]{0,16})\(.*?\)(?P=d)"'
    r'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'',
    re.DOTALL,
)
_NUMBER = re.compile(r"[1-9]\d*")
_MANGLED_LIBRARY = re.compile(
    r"_ZN?K?(?:[SL])?(?:4cuda|3cub|18cooperative_groups|6nvcuda|2nv|3std|St)"
)
_COMPILER_MADE = re.compile(
    r"__cudart_\w*|\$str(?:\$\d+)?|__unnamed_\d+|(?:[$\w]*\$)?\.str(?:[.$]\d+)*|_ZT[VIS]\w+"
    r"|_ZZ\w+(?:8__func__|12__FUNCTION__|19__PRETTY_FUNCTION__)(?:_\d+)?"
)


def check_source(source: str) -> None:
    """Raise ``RejectedError`` where CUDA source includes or asks for what it must not."""
    joined = re.sub(r"\\[ \t]*\r?\n", "", source)
    for line, text in enumerate(without_comments(joined, keep_strings=True).split("\n"), start=1):
        _check_directive(text, line)
    code = without_comments(joined, keep_strings=False)
    for word in _WORD.findall(code):
        if word in _FORBIDDEN_WORDS:
            raise RejectedError(
                f"CUDA source may not use {word}: {_FORBIDDEN_WORDS[word]}; remove it",
                {"rule": "forbidden word", "word": word},
            )
    reopened = _REOPENED.search(code)
    if reopened:
        raise RejectedError(
            f"CUDA source may not add to a library's namespace (got {reopened[0]!r}); "
            "use a namespace of its own",
            {"rule": "library namespace", "text": reopened[0]},
        )


def _check_directive(text: str, line: int) -> None:
    match = _DIRECTIVE.match(text)
    if match is None:
        return
    directive, rest = match[1] or "", match[2].strip()
    if directive in _FORBIDDEN_DIRECTIVES:
        raise RejectedError(
            f"line {line}: the directive #{directive} is not allowed; use #include <header>",
            {"rule": "include", "line": line, "directive": directive},
        )
    if directive != "include":
        return
    name = re.match(r"<([^>\n]*)>\s*\Z", rest)
    if name is None:
        raise RejectedError(
            f"line {line}: #include must name its header between < and > (got {rest[:80]!r}); "
            'shared code is included as "name.cuh" from templates/cuda/include',
            {"rule": "include", "line": line, "text": rest[:200]},
        )
    header = name[1]
    if not header_allowed(header):
        raise RejectedError(
            f"line {line}: header <{header}> is not one a variant may include; allowed: "
            f"{', '.join(sorted(_ALLOWED_HEADERS))} and those under "
            f"{', '.join(_ALLOWED_FOLDERS)}",
            {"rule": "include", "line": line, "header": header},
        )


def header_allowed(header: str) -> bool:
    """Return whether a variant may ``#include <header>``."""
    known = header in _ALLOWED_HEADERS or header.startswith(_ALLOWED_FOLDERS)
    return known and _HEADER_NAME.match(header) is not None


def without_comments(source: str, *, keep_strings: bool) -> str:
    """Return source with each comment (and, if asked, each string) replaced by blanks."""

    def blank(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("/"):
            return " " + "\n" * text.count("\n")
        return text if keep_strings else '""' + "\n" * text.count("\n")

    return _LEXEME.sub(blank, source)


def full_source(job: CompileJob) -> str:
    """Return the prelude and the job's source; errors in it carry the variant's own lines."""
    options = dict(job.options)
    name = re.sub(r"[^\w.\-+ ]", "_", job.name) or "variant.cu"
    defines = options.get("defines", ())
    return f'{prelude(str(options.get("dtype", "float32")), defines)}#line 1 "{name}"\n{job.source}'


def prelude(dtype: str, defines: Iterable[tuple[str, int | str]] = ()) -> str:
    """Return what docs/variants.md promises to CUDA source: types, element type and tunables."""
    if dtype not in _C_TYPES:
        raise RejectedError(
            f"element type {dtype!r} has no CUDA type here; known: {', '.join(_C_TYPES)}"
        )
    lines = [
        '#line 1 "kernelsearch-prelude"',
        "typedef signed char int8_t; typedef unsigned char uint8_t;",
        "typedef short int16_t; typedef unsigned short uint16_t;",
        "typedef int int32_t; typedef unsigned int uint32_t;",
        "typedef long long int64_t; typedef unsigned long long uint64_t;",
        "struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };",
        "typedef struct CUtensorMap_st CUtensorMap;",
    ]
    if dtype in _TYPE_HEADERS:
        lines.append(f"#include <{_TYPE_HEADERS[dtype]}>")
    lines += [
        f"typedef {_C_TYPES[dtype]} elem_t;",
        f"#define ELEM_{dtype.upper()} 1",
        f"#define ELEM_BYTES {DTYPE_BYTES[dtype]}",
    ]
    # No parentheses: a tunable is also pasted into identifiers. Negative choices are rare and are
    # written as such.
    lines += [f"#define {name} {value}" for name, value in defines]
    return "\n".join(lines) + "\n"


def mutable_globals(variables: Iterable[GlobalVariable], source: str) -> list[str]:
    """Return the names of global variables that the source does not declare constant.

    A cubin does not say which of its globals are constant, so the declaration is looked up. Names
    that come from the CUDA headers (their constants stay in the binary, used or not) and those the
    compiler makes (string literals) are no state of the candidate's. This is for a clear sentence
    early; that nothing is written to any of them is seen when the kernel runs (``LoadedBinary``).
    """
    code = without_comments(re.sub(r"\\[ \t]*\r?\n", "", source), keep_strings=False)
    words = set(_WORD.findall(code))
    found = []
    for variable in variables:
        # A symbol that the source spells out is the source's own, whatever it looks like.
        if variable.name not in words and is_library_name(variable.name):
            continue
        short = _last_name(variable.name)
        declarations = list(_declarations(code, short))
        if any(_is_variable(text) for text in declarations) or not any(
            _is_constant(text) for text in declarations
        ):
            found.append(short)
    return found


def _is_variable(text: str) -> bool:
    """Return whether a declaration makes a variable of the module's that is not constant."""
    if "(" in text:  # a parameter, or what an expression mentions
        return False
    head = re.split(r"[=\[]", text, maxsplit=1)[0]
    return bool(re.search(r"\b(?:__device__|__managed__|static)\b", head)) and not _is_constant(
        text
    )


def is_library_name(symbol: str) -> bool:
    """Return whether a symbol is called like a constant of the CUDA headers or of the compiler."""
    return bool(_MANGLED_LIBRARY.match(_without_unit(symbol)) or _COMPILER_MADE.fullmatch(symbol))


def _without_unit(symbol: str) -> str:
    """Return a symbol without the name of the compilation unit that internal names start with."""
    match = re.match(r"_ZN(\d+)_INTERNAL_", symbol)
    if match is None:
        return symbol
    return "_ZN" + symbol[match.end(1) + int(match[1]) :]


def _last_name(symbol: str) -> str:
    """Return the last identifier of a mangled symbol (``_ZZ1kPfE4seen`` gives ``seen``)."""
    if not symbol.startswith("_Z"):
        return symbol
    # Integers among template arguments (Li64E) are no lengths of names.
    symbol = re.sub(r"L[a-z]n?\d+E", "_", symbol)
    last, at = symbol, 0
    while at < len(symbol):
        number = _NUMBER.search(symbol, at)
        if number is None:
            break
        length, start = int(number[0]), number.end()
        name = symbol[start : start + length]
        if len(name) == length and _WORD.fullmatch(name):
            last, at = name, start + length
        else:
            at = start
    return last


def _declarations(code: str, name: str) -> Iterator[str]:
    """Yield the statement that leads to each mention of ``name``."""
    bare = code
    while True:  # values between braces end no statement; the innermost go first
        fewer = re.sub(r"(=\s*|,\s*|\{\s*)\{[^{};]*\}", r"\1", bare)
        if fewer == bare:
            break
        bare = fewer
    code = bare
    for match in re.finditer(rf"\b{re.escape(name)}\b", code):
        begin = max(code.rfind(c, 0, match.start()) for c in ";{}")
        yield code[begin + 1 : match.start()]


def _is_constant(text: str) -> bool:
    head = re.split(r"[=(\[]", text, maxsplit=1)[0]
    # ``float (*const table[2])(float)``: it is the table that is constant.
    return bool(re.search(r"\b(?:const|constexpr|__constant__)\b", head)) or bool(
        re.search(r"\bconst\s*$", text)
    )
