"""Push chosen memory out of all caches, as a sweep through twice the cache does, but quickly.

A last-level cache may be hundreds of megabytes, shared with other machines on one host; sweeping
through twice of it takes longer than most timings. x86-64 has an instruction that drops one line
from every cache. Elsewhere there is no such thing for us, and callers sweep.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

LINE = 64
_CODE = """
declare void @{instruction}(ptr)
declare void @llvm.x86.sse2.mfence()

define void @flush(ptr %table, i64 %count) {{
entry:
  call void @llvm.x86.sse2.mfence()
  br label %region
region:
  %index = phi i64 [ 0, %entry ], [ %following, %done ]
  %more = icmp ult i64 %index, %count
  br i1 %more, label %open, label %out
open:
  %place = getelementptr i64, ptr %table, i64 %index
  %first = load i64, ptr %place
  %other = getelementptr i64, ptr %place, i64 1
  %end = load i64, ptr %other
  br label %line
line:
  %at = phi i64 [ %first, %open ], [ %next, %drop ]
  %inside = icmp ult i64 %at, %end
  br i1 %inside, label %drop, label %done
drop:
  %address = inttoptr i64 %at to ptr
  call void @{instruction}(ptr %address)
  %next = add i64 %at, {line}
  br label %line
done:
  %following = add i64 %index, 2
  br label %region
out:
  call void @llvm.x86.sse2.mfence()
  ret void
}}
"""

Flush = Callable[[Sequence[tuple[int, int]]], None]


@lru_cache(maxsize=1)
def flusher() -> Flush | None:
    """Return a function that drops regions (address, bytes) from all caches; None: not here."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return None
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    quick = bool(features.get("clflushopt"))
    module = llvm.parse_assembly(_CODE.format(
        instruction="llvm.x86.clflushopt" if quick else "llvm.x86.sse2.clflush", line=LINE
    ))  # fmt: skip
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features="+clflushopt" if quick else ""
    )
    engine: Any = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    address = engine.get_function_address("flush")
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)

    def flush(regions: Sequence[tuple[int, int]], _alive: Any = engine) -> None:
        edges = [edge for start, size in regions if size
                 for edge in (start // LINE * LINE, start + size)]  # fmt: skip
        native((ctypes.c_int64 * len(edges))(*edges), len(edges))

    return flush
