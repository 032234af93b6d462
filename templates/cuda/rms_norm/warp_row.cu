/* kernelsearch
format = 1
operator = "rms_norm"
doc = "one warp a row held in registers: no shared memory, no barrier, one pass over the row"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
WARPS = [4, 1, 8]
VEC = [4, 8, 2, 1]
ITEMS = [8, 1, 2, 4, 16, 32]
[constraints]
widest = "VEC * elem_bytes <= 16"
registers = "VEC * ITEMS <= 128"
not_narrow = "VEC * elem_bytes >= 8 or VEC == 1"
[domain]
fits = "cols <= 32 * VEC * ITEMS"
whole_packs = "cols % VEC == 0"
aligned = "min(align_y, align_x, align_weight, align_bias) >= VEC * elem_bytes"
grid = "ceildiv(rows, WARPS) <= 2147483647"
[[launch]]
kernel = "rms_norm"
grid = ["ceildiv(rows, WARPS)"]
block = ["32", "WARPS"]
args = ["y", "x", "weight", "bias", "rows:i64", "cols:i32", "eps:f32"]
*/
#include "pack.cuh"
#include "reduce.cuh"

__global__ __launch_bounds__(32 * WARPS) void rms_norm(
    elem_t* __restrict__ y, const elem_t* __restrict__ x, const elem_t* __restrict__ weight,
    const elem_t* __restrict__ bias, long long rows, int cols, float eps) {
    const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.y;
    if (row >= rows) return;
    const elem_t* in = x + row * cols;
    elem_t* out = y + row * cols;

    Pack<VEC> held[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = (i * 32 + threadIdx.x) * VEC;
        held[i].clear();
        if (j < cols) held[i] = load_once<VEC>(in + j);
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        float v[VEC];
        held[i].unpack(v);
#pragma unroll
        for (int k = 0; k < VEC; ++k) sum = fmaf(v[k], v[k], sum);
    }
    const float scale = 1.0f / sqrtf(warp_sum(sum) / static_cast<float>(cols) + eps);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = (i * 32 + threadIdx.x) * VEC;
        if (j < cols) {
            float v[VEC], w[VEC], b[VEC];
            held[i].unpack(v);
            load_shared_use<VEC>(weight + j).unpack(w);
            load_shared_use<VEC>(bias + j).unpack(b);
#pragma unroll
            for (int k = 0; k < VEC; ++k) v[k] = fmaf(v[k] * scale, w[k], b[k]);
            Pack<VEC> r;
            r.pack(v);
            store_once<VEC>(out + j, r);
        }
    }
}
