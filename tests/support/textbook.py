"""Textbook kernels of the five operators, as somebody would write them who never tuned one."""

from __future__ import annotations

from typing import Any

from kernelsearch.operator import Operator, Workload
from kernelsearch.operators_io import load_operator
from kernelsearch.propose.draft import Site
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import Device, Evaluation, Status, Timing, VariantRecord
from kernelsearch.resources import operator_paths, template_paths
from kernelsearch.variant import Variant, load_variant, parse_variant

GPU = Device(
    "cuda", "test GPU", "sm_90a",
    {"max_threads_per_block": 1024, "max_shared_per_block": 232448, "max_shared_per_sm": 233472,
     "regs_per_sm": 65536, "max_threads_per_sm": 2048, "sm_count": 2, "warp_size": 32,
     "l2_bytes": 50 << 20, "cache_line_bytes": 128},
)  # fmt: skip
CPU = Device(
    "cpu", "test CPU", "generic",
    {"cores": 2, "l2_bytes": 1 << 22, "cache_line_bytes": 64, "simd_bytes": 32},
)  # fmt: skip
# Awkward on purpose: tails of every loop, one row, one column, nothing at all.
SIZES: dict[str, list[dict[str, int]]] = {
    "rms_norm": [{"rows": 3, "cols": 131}, {"rows": 1, "cols": 1}, {"rows": 2, "cols": 256}],
    "softmax": [{"rows": 3, "cols": 133}, {"rows": 1, "cols": 1}, {"rows": 1, "cols": 128}],
    "matrix_mul": [{"m": 17, "n": 19, "k": 23}, {"m": 1, "n": 1, "k": 1},
                   {"m": 33, "n": 16, "k": 8}],
    "spmv_csr": [{"rows": 67, "cols": 31, "nnz": 401}, {"rows": 5, "cols": 3, "nnz": 0}],
    "stencil_2d": [{"nx": 35, "ny": 37}, {"nx": 1, "ny": 1}, {"nx": 2, "ny": 70}],
}  # fmt: skip

CUDA: dict[str, str] = {}
CUDA["rms_norm"] = """/* kernelsearch
format = 1
operator = "rms_norm"
doc = "textbook"
[[launch]]
kernel = "rms"
grid = ["rows"]
block = ["128"]
args = ["y", "x", "weight", "bias", "cols:i32", "eps:f32"]
*/
#define BLOCK 128  // threads in a block
__global__ void rms(float *y, const float *x, const float *weight, const float *bias, int cols,
                     float eps)
{
    __shared__ float s[BLOCK];
    int tid = threadIdx.x;
    const float *row = x + (size_t)blockIdx.x * cols;
    float *out = y + (size_t)blockIdx.x * cols;
    float acc = 0.f;
    for (int i = tid; i < cols; i += blockDim.x)
        acc += row[i] * row[i];   /* for (this; is; no loop) */
    s[tid] = acc;
    __syncthreads();
    for (unsigned int half = BLOCK / 2; half > 0; half >>= 1) {
        if (tid < half) { s[tid] += s[tid + half]; }
        __syncthreads();
    }
    float rms = sqrtf(s[0] / cols + eps);
    for (int i = tid; i < cols; i += blockDim.x) {
        out[i] = row[i] / rms * weight[i] + bias[i];
    }
}
"""
CUDA["softmax"] = """/* kernelsearch
format = 1
operator = "softmax"
doc = "textbook"
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["64"]
args = ["y", "x", "cols:i64"]
*/
__global__ void softmax(elem_t* y, const elem_t* x, long long cols) {
    __shared__ float partial[64];
    const elem_t* in = x + blockIdx.x * cols;
    elem_t* out = y + blockIdx.x * cols;
    float top = -3.402823466e+38f;
    for (long long j = threadIdx.x; j < cols; j += 64) {
        top = fmaxf(top, in[j]);
    }
    partial[threadIdx.x] = top;
    __syncthreads();
    for (int half = 64 / 2; half > 0; half /= 2) {
        if (threadIdx.x < half)
            partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
        __syncthreads();
    }
    top = partial[0];
    __syncthreads();
    float sum = 0.0f;
    for (long long j = threadIdx.x; j < cols; j += 64) sum += expf(in[j] - top);
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 64 / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    const float total = partial[0];
    for (long long j = threadIdx.x; j < cols; j += 64) out[j] = expf(in[j] - top) / total;
}
"""
CUDA["matrix_mul"] = """/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "textbook"
[tunables]
SIDE = [16]
[[launch]]
kernel = "gemm"
grid = ["ceildiv(n, SIDE)", "ceildiv(m, SIDE)"]
block = ["SIDE", "SIDE"]
args = ["c", "a", "b", "m:i32", "n:i32", "k:i32"]
*/
__global__ void gemm(float* c, const float* a, const float* b, int m, int n, int k) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || col >= n) return;
    float acc = 0.0f;
#pragma unroll 4
    for (int p = 0; p < k; p++) acc += a[row * k + p] * b[p * n + col];
    c[row * n + col] = acc;
}
"""
CUDA["spmv_csr"] = """/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "textbook"
[[launch]]
kernel = "spmv"
grid = ["ceildiv(rows, 256)"]
block = [256]
args = ["y", "row_ptr", "col_idx", "values", "x", "rows:i32"]
*/
static constexpr int kBlock = 256;
__global__ void spmv(float* y, const int* row_ptr, const int* col_idx, const float* values,
                     const float* x, int rows) {
    int row = blockIdx.x * kBlock + threadIdx.x;
    if (row < rows) {
        float dot = 0.0f;
        for (int k = row_ptr[row]; k < row_ptr[row + 1]; ++k) {
            dot += values[k] * x[col_idx[k]];
        }
        y[row] = dot;
    }
}
"""
CUDA["stencil_2d"] = """/* kernelsearch
format = 1
operator = "stencil_2d"
doc = "textbook"
[[launch]]
kernel = "heat"
grid = ["ceildiv(nx * ny, 256)"]
block = ["256"]
args = ["dst", "src", "nx:i32", "ny:i32", "alpha:f32"]
*/
__global__ void heat(float* dst, const float* src, int nx, int ny, float alpha) {
    int t = blockIdx.x * 256 + threadIdx.x;
    if (t >= nx * ny) return;
    int i = t / ny, j = t % ny;
    if (i == 0 || j == 0 || i == nx - 1 || j == ny - 1) {
        dst[t] = src[t];
        return;
    }
    float neighbours = src[t - 1] + src[t + 1] + src[t - ny] + src[t + ny];
    dst[t] = src[t] + alpha * (neighbours - 4.0f * src[t]);
}
"""

NUMBA: dict[str, str] = {}
NUMBA["rms_norm"] = '''"""kernelsearch
format = 1
operator = "rms_norm"
doc = "textbook"
[[launch]]
kernel = "norm"
args = ["y", "x", "weight", "bias", "eps:f32"]
"""
import math


def norm(y, x, weight, bias, eps):
    rows, cols = x.shape
    for i in range(rows):
        acc = 0.0
        for j in range(cols):
            acc += x[i, j] * x[i, j]
        rms = math.sqrt(acc / cols + eps)
        for j in range(cols):
            y[i, j] = x[i, j] / rms * weight[j] + bias[j]
'''
NUMBA["softmax"] = '''"""kernelsearch
format = 1
operator = "softmax"
doc = "textbook"
[[launch]]
kernel = "softmax"
args = ["y", "x"]
"""
import math


def softmax(y, x):
    rows = x.shape[0]
    cols = x.shape[1]
    for i in range(rows):
        top = x[i, 0]
        for j in range(cols):
            top = max(top, x[i, j])
        total = 0.0
        for j in range(cols):
            y[i, j] = math.exp(x[i, j] - top)
            total += y[i, j]
        for j in range(cols):
            y[i, j] = y[i, j] / total
'''
NUMBA["matrix_mul"] = '''"""kernelsearch
format = 1
operator = "matrix_mul"
doc = "textbook"
[[launch]]
kernel = "gemm"
args = ["c", "a", "b", "m:i64", "n:i64", "k:i64"]
"""


def gemm(c, a, b, m, n, k):
    for i in range(m):
        for j in range(n):
            acc = 0.0
            for p in range(k):
                acc += a[i, p] * b[p, j]
            c[i, j] = acc
'''
NUMBA["spmv_csr"] = '''"""kernelsearch
format = 1
operator = "spmv_csr"
doc = "textbook"
[[launch]]
kernel = "spmv"
args = ["y", "row_ptr", "col_idx", "values", "x"]
"""


def spmv(y, row_ptr, col_idx, values, x):
    for i in range(y.shape[0]):
        dot = 0.0
        for k in range(row_ptr[i], row_ptr[i + 1]):
            dot += values[k] * x[col_idx[k]]
        y[i] = dot
'''
NUMBA["stencil_2d"] = '''"""kernelsearch
format = 1
operator = "stencil_2d"
doc = "textbook, columns first by mistake"
[[launch]]
kernel = "heat"
args = ["dst", "src", "nx:i64", "ny:i64", "alpha:f32"]
"""


def heat(dst, src, nx, ny, alpha):
    for j in range(ny):
        for i in range(nx):
            if i == 0 or j == 0 or i == nx - 1 or j == ny - 1:
                dst[i, j] = src[i, j]
            else:
                around = src[i - 1, j] + src[i + 1, j] + src[i, j - 1] + src[i, j + 1]
                dst[i, j] = src[i, j] + alpha * (around - ELEM(4) * src[i, j])
'''


def operator(name: str) -> Operator:
    return load_operator(operator_paths()[name])


def variants(language: str) -> list[Variant]:
    """Return the textbook kernels and the shipped naive ones."""
    texts = CUDA if language == "cuda" else NUMBA
    found = [parse_variant(t, language, f"textbook_{n}") for n, t in texts.items()]
    for name in texts:
        found += [load_variant(p) for p in template_paths(name, language) if p.stem == "naive"]
    return found


def request(variant: Variant, **changes: Any) -> ProposalRequest:
    """Return a request for children of ``variant``."""
    contract = operator(variant.operator)
    device = GPU if variant.language == "cuda" else CPU
    fields: dict[str, Any] = {
        "operator": contract, "parent": variant, "best": None, "history": (), "device": device,
        "parent_record": VariantRecord(
            variant.hash, variant.operator, variant.language, variant.source, variant.name
        ),
        "dtype": "float32", "workloads": contract.workload_set("smoke", variant.language),
        "count": 99,
    }  # fmt: skip
    return ProposalRequest(**(fields | changes))


def site(variant: Variant, **changes: Any) -> Site:
    return Site(request(variant, **changes))


def inputs(contract: Operator, sizes: dict[str, int]) -> dict[str, Any]:
    """Return seeded inputs of a workload."""
    import numpy as np

    workload = Workload(sizes)
    return dict(contract.generate(workload.sizes, "default", np.random.default_rng(7), "float32"))


def evaluation(variant: Variant, params: dict[str, Any], us: float = 10.0) -> Evaluation:
    """Return an ok evaluation of one candidate."""
    return Evaluation(
        variant.candidate(params, "float32"), Status.OK, timings=(Timing("w", (us,)),)
    )
