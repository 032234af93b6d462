"""Runs plain CUDA kernels on the host, one thread a CUDA thread, to check what a mutation computes.

Only for tests: no GPU is needed, so every CUDA rule can be held to "computes the same thing". Knows
float32, static and dynamic shared memory, block barriers and shuffles; one block runs at a time.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.operator import Operator
from kernelsearch.records import DTYPE_BYTES, FillStep, LaunchPlan, Params, ScalarArg
from kernelsearch.variant import Variant

GUARD = 64
MARK = 12345.0
_CASTS = {"i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long",
          "f32": "float", "f64": "double"}  # fmt: skip
_PRELUDE = r"""
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>
using std::min; using std::max;
struct Dim { unsigned int x, y, z; };
static thread_local Dim threadIdx, blockIdx;
static Dim blockDim, gridDim;
static std::unique_ptr<std::barrier<>> block_barrier;
static std::vector<std::unique_ptr<std::barrier<>>> warp_barrier;
static std::vector<unsigned long long> slots;
static unsigned flat() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n)
#define __launch_bounds__(...)
#define __syncthreads() block_barrier->arrive_and_wait()
template <typename T> T __ldg(const T* p) { return *p; }
template <typename T> T __ldcs(const T* p) { return *p; }
template <typename T> void __stcs(T* p, T v) { *p = v; }
template <typename T> T __shfl_xor_sync(unsigned, T v, int d, int width = 32) {
    const unsigned t = flat(), lane = t % 32;
    unsigned long long bits = 0;
    std::memcpy(&bits, &v, sizeof v);
    slots[t] = bits;
    warp_barrier[t / 32]->arrive_and_wait();
    const unsigned from = (lane ^ d) / width == lane / width ? (t ^ d) : t;
    T r;
    std::memcpy(&r, &slots[from], sizeof r);
    warp_barrier[t / 32]->arrive_and_wait();
    return r;
}
struct Pointer {
    void* p;
    template <typename T> operator T*() const { return static_cast<T*>(p); }
};
template <typename F> void launch(Dim grid, Dim block, bool together, F body) {
    gridDim = grid; blockDim = block;
    const unsigned count = block.x * block.y * block.z;
    slots.assign(count + 32, 0);
    auto one = [&](unsigned t, Dim b) {
        threadIdx = {t % block.x, t / block.x % block.y, t / block.x / block.y};
        blockIdx = b;
        body();
    };
    for (unsigned z = 0; z < grid.z; ++z) for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
        if (!together) { for (unsigned t = 0; t < count; ++t) one(t, {x, y, z}); continue; }
        block_barrier = std::make_unique<std::barrier<>>(count);
        warp_barrier.clear();
        for (unsigned w = 0; w * 32 < count; ++w)
            warp_barrier.push_back(std::make_unique<std::barrier<>>(min(32u, count - w * 32)));
        std::vector<std::thread> threads;
        for (unsigned t = 0; t < count; ++t) threads.emplace_back([&, t] {
            one(t, {x, y, z});
            warp_barrier[t / 32]->arrive_and_drop();
            block_barrier->arrive_and_drop();
        });
        for (auto& t : threads) t.join();
    }
}
typedef float elem_t;
#define ELEM_FLOAT32 1
#define ELEM_BYTES 4
"""


@dataclass(frozen=True)
class Run:
    """One candidate on one set of inputs."""

    variant: Variant
    params: Params
    sizes: Mapping[str, int]
    arrays: Mapping[str, NDArray[Any]]


def emulate(
    operator: Operator, runs: Sequence[Run], facts: Mapping[str, int], folder: Path
) -> list[dict[str, NDArray[Any]]]:
    """Run each candidate once; return its outputs.

    Raises:
        AssertionError: an output's surroundings were written to.
    """
    plans = [
        r.variant.plan(r.params, r.sizes, operator.scalar_values(), facts, "float32") for r in runs
    ]
    code = [_PRELUDE]
    for number, (run, plan) in enumerate(zip(runs, plans, strict=True)):
        code.append(_unit(number, run, plan))
    file, library = folder / "kernels.cpp", folder / "kernels.so"
    file.write_text("\n".join(code))
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-pthread", str(file), "-o",
         str(library)], check=True, capture_output=True, text=True,
    )  # fmt: skip
    loaded = ctypes.CDLL(str(library))
    return [
        _call(loaded[f"call_{n}"], operator, r, p)
        for n, (r, p) in enumerate(zip(runs, plans, strict=True))
    ]


def _unit(number: int, run: Run, plan: LaunchPlan) -> str:
    source = run.variant.source.replace("extern __shared__", "extern")
    together = any(w in source for w in ("__syncthreads", "__shfl"))
    lines = [f"#define {n} {v}" for n, v in run.params.items()]
    lines += [f"namespace v{number} {{", "unsigned char staged_bytes[1 << 18];", source, "}"]
    lines.append(f'extern "C" void call_{number}(void** b) {{')
    names = _buffers(run, plan)
    for step in plan.steps:
        assert not isinstance(step, FillStep)
        args = ", ".join(
            f"({_CASTS[a.ctype]})({a.value!r})" if isinstance(a, ScalarArg)
            else f"Pointer{{b[{names.index(a)}]}}"
            for a in step.args
        )  # fmt: skip
        grid, block = (", ".join(map(str, d)) for d in (step.grid, step.block))
        lines.append(f"launch({{{grid}}}, {{{block}}}, {str(together).lower()}, "
                     f"[&] {{ v{number}::{step.kernel}({args}); }});")  # fmt: skip
    return "\n".join([*lines, "}", *(f"#undef {n}" for n in run.params)])


def _buffers(run: Run, plan: LaunchPlan) -> list[str]:
    names = {a for s in plan.steps if not isinstance(s, FillStep) for a in s.args}
    return sorted(n for n in names if isinstance(n, str))


def _call(function: Any, operator: Operator, run: Run, plan: LaunchPlan) -> dict[str, NDArray[Any]]:
    held: dict[str, NDArray[Any]] = {}
    addresses = []
    for name in _buffers(run, plan):
        tensor = next((t for t in operator.tensors if t.name == name), None)
        assert tensor is not None, "workspaces are not emulated"
        shape = tensor.concrete_shape(run.sizes)
        dtype = np.dtype(operator.tensor_dtype(tensor, "float32"))
        assert DTYPE_BYTES[dtype.name] == dtype.itemsize
        # NaN around an input shows up in every result that reads it; around an output there is a
        # number that any write changes. Indices must stay legal, or this process would die.
        outside = MARK if tensor.role != "in" else np.nan if dtype.kind == "f" else 0
        whole = np.full(int(np.prod(shape)) + 2 * GUARD, outside, dtype)
        inner = whole[GUARD : whole.size - GUARD]
        inner[:] = run.arrays[name].ravel() if name in run.arrays else np.nan
        held[name] = whole
        addresses.append(inner.ctypes.data)
    function((ctypes.c_void_p * len(addresses))(*addresses))
    result = {}
    for tensor in operator.outputs:
        whole = held[tensor.name]
        assert (whole[:GUARD] == MARK).all(), f"wrote before {tensor.name}"
        assert (whole[whole.size - GUARD :] == MARK).all(), f"wrote behind {tensor.name}"
        shape = tensor.concrete_shape(run.sizes)
        result[tensor.name] = whole[GUARD : whole.size - GUARD].reshape(shape)
    return result
