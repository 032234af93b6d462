"""Write what C and Fortran programs see of a bundle: header, implementation, module, self-check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelsearch.export.cpp import declarations
from kernelsearch.operator import Interface

_FORTRAN = {
    "double": "real(c_double)", "float": "real(c_float)", "int64_t": "integer(c_int64_t)",
    "uint64_t": "integer(c_int64_t)", "int32_t": "integer(c_int32_t)",
    "uint32_t": "integer(c_int32_t)", "int16_t": "integer(c_int16_t)",
    "uint16_t": "integer(c_int16_t)", "int8_t": "integer(c_int8_t)",
    "uint8_t": "integer(c_int8_t)",
}  # fmt: skip
_FORTRAN_LINE = 100


def _parameters(interface: Interface, dtype: str) -> str:
    return ", ".join(f"{kind} {name}" for kind, name in declarations(interface, dtype))


def c_header(interface: Interface, dtypes: Sequence[str]) -> str:
    """Return ``<operator>.h``: one function for each element type."""
    name = interface.name
    guard = f"KERNELSEARCH_BUNDLE_{name.upper()}_H"
    lines = [
        f"/* {name}: {' '.join(interface.doc.split())}", " *",
        " * Written by kernelsearch export; do not edit. Tensors are device pointers, row-major,",
        " * contiguous; `stream` is a CUstream or cudaStream_t (0: the default one). `workspace`",
        " * holds at least what *_workspace says, or is null: then it is taken from the stream's",
        " * pool. Every function returns 0, or a code that *_message turns into a sentence about",
        " * the calling thread's last call. Any number of threads may call. */",
        f"#ifndef {guard}", f"#define {guard}", "", "#include <stddef.h>", "#include <stdint.h>",
        "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
        f"const char* {name}_message(void);",
    ]  # fmt: skip
    for dtype in dtypes:
        parameters = _parameters(interface, dtype)
        lines += [
            "",
            f"int {name}_{dtype}({parameters}, void* stream, void* workspace, size_t bytes);",
            f"int {name}_{dtype}_workspace({parameters}, size_t* bytes);",
            "/* Loads the kernels now, so that no call has to. */",
            f"int {name}_{dtype}_prepare(void);",
        ]
    lines += ["", "#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)


def c_implementation(interface: Interface, dtypes: Sequence[str]) -> str:
    """Return ``<operator>.cpp``: the C functions on top of the C++ header."""
    name = interface.name
    lines = [
        f"// {name}: the C functions. Written by kernelsearch export; do not edit.",
        f'#include "{name}.h"', "", f'#include "{name}.hpp"', "",
        "namespace {",
        "thread_local std::string last_message = \"ok\";",
        "int said(const kernelsearch::Status& status) {",
        "  if (status) return 0;",
        "  last_message = status.message();",
        "  return static_cast<int>(status.code);",
        "}",
        "}  // namespace", "",
        f'extern "C" const char* {name}_message(void) {{ return last_message.c_str(); }}',
    ]  # fmt: skip
    for dtype in dtypes:
        parameters = _parameters(interface, dtype)
        fields = ", ".join(n for _, n in declarations(interface, dtype))
        call = f"kernelsearch::{name}::{dtype}_call"
        lines += [
            "", f'extern "C" int {name}_{dtype}({parameters},',
            "    void* stream, void* workspace, size_t bytes) {",
            f"  const {call} call{{{fields}}};",
            f"  return said(kernelsearch::{name}::launch(",
            "      call, static_cast<kernelsearch::Stream>(stream), workspace, bytes));",
            "}",
            f'extern "C" int {name}_{dtype}_workspace({parameters}, size_t* bytes) {{',
            f"  const {call} call{{{fields}}};",
            f"  return said(kernelsearch::{name}::workspace_bytes(call, *bytes));",
            "}",
            f'extern "C" int {name}_{dtype}_prepare(void) {{',
            f"  return said(kernelsearch::{name}::prepare_{dtype}());",
            "}",
        ]  # fmt: skip
    return "\n".join([*lines, ""])


def fortran_module(interface: Interface, dtypes: Sequence[str]) -> str:
    """Return ``<operator>.f90``: an ``iso_c_binding`` module.

    Device arrays are passed as ``type(c_ptr)`` (CUDA Fortran: ``c_devloc``; OpenACC and OpenMP:
    ``c_loc`` under ``host_data use_device``). Extents are in C's order: the last runs fastest.
    """
    name = interface.name
    lines = [
        f"! {name}: {' '.join(interface.doc.split())}"[:_FORTRAN_LINE],
        "! Written by kernelsearch export; do not edit. Tensors are device addresses.",
        f"module {name}_kernels", "  use, intrinsic :: iso_c_binding", "  implicit none",
        "  private",
    ]  # fmt: skip
    for dtype in dtypes:
        for suffix in ("", "_workspace", "_prepare"):
            lines.append(f"  public :: {name}_{dtype}{suffix}")
    lines += ["  interface"]
    for dtype in dtypes:
        lines += _fortran_functions(interface, dtype)
    lines += ["  end interface", f"end module {name}_kernels", ""]
    return "\n".join(lines)


def _fortran_functions(interface: Interface, dtype: str) -> Iterator[str]:
    arguments = declarations(interface, dtype)
    names = [n for _, n in arguments]
    stem = f"{interface.name}_{dtype}"
    kinds = [
        f"      type(c_ptr), value :: {n}"
        if k.endswith("*")
        else f"      {_FORTRAN[k]}, value :: {n}"
        for k, n in arguments
    ]
    last = ["stream", "workspace", "nbytes"]
    yield from _signature(stem, [*names, *last])
    yield from kinds
    yield "      type(c_ptr), value :: stream, workspace"
    yield "      integer(c_size_t), value :: nbytes"
    yield "    end function"
    yield from _signature(f"{stem}_workspace", [*names, "nbytes"])
    yield from kinds
    yield "      integer(c_size_t), intent(out) :: nbytes"
    yield "    end function"
    yield from _signature(f"{stem}_prepare", [])
    yield "    end function"


def _signature(name: str, arguments: Sequence[str]) -> Iterator[str]:
    yield f"    integer(c_int) function {name}( &"
    for argument in arguments[:-1]:
        yield f"        {argument}, &"
    if arguments:
        yield f"        {arguments[-1]} &"
    yield f'        ) bind(c, name="{name}")'
    yield "      import"


def self_check(interface: Interface, dtypes: Sequence[str]) -> str:
    """Return ``selfcheck.cpp``: are there a driver, a device and kernels for it?"""
    name = interface.name
    lines = [
        f"// Says whether the kernels of {name} load on this machine's device; 0 if they do.",
        "// What they compute is checked by: kernelsearch check",
        f'#include "{name}.hpp"', "",
        "#include <dlfcn.h>", "",
        "// A context of its own: the program that embeds the bundle would have one.",
        "static int make_context() {",
        '  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);',
        '  if (cuda == nullptr) return std::fputs("no libcuda.so.1: no driver\\n", stderr), 1;',
        '  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(cuda, "cuInit"));',
        "  auto retain = reinterpret_cast<int (*)(CUctx_st**, int)>(",
        '      dlsym(cuda, "cuDevicePrimaryCtxRetain"));',
        "  auto use = reinterpret_cast<int (*)(CUctx_st*)>(dlsym(cuda, \"cuCtxSetCurrent\"));",
        "  CUctx_st* context = nullptr;",
        "  if (!init || !retain || !use || init(0) || retain(&context, 0) || use(context)) {",
        '    return std::fputs("no CUDA device answers\\n", stderr), 1;',
        "  }",
        "  return 0;",
        "}", "",
        "int main() {",
        "  if (make_context() != 0) return 1;",
        "  int failed = 0;",
    ]  # fmt: skip
    for dtype in dtypes:
        lines += [
            "  {",
            f"    const kernelsearch::Status status = kernelsearch::{name}::prepare_{dtype}();",
            f'    std::printf("{name} {dtype}: %s\\n", status.message().c_str());',
            "    failed += !status;",
            "  }",
        ]
    return "\n".join([*lines, "  return failed != 0;", "}", ""])
