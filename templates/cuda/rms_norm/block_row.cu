/* kernelsearch
format = 1
operator = "rms_norm"
doc = "one block a row held in registers: one pass, one barrier, weight and bias may be loaded ahead of it"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [512, 64, 128, 256, 1024]
VEC = [4, 8, 2, 1]
ITEMS = [2, 1, 4, 8]
AHEAD = [1, 0]
[constraints]
block = "THREADS <= max_threads_per_block"
widest = "VEC * elem_bytes <= 16"
wide = "VEC * elem_bytes == 16 or (VEC == 1 and AHEAD == 1)"
registers = "VEC * ITEMS <= 32 and THREADS * (ITEMS * VEC * elem_bytes // 4 * (3 if AHEAD else 1) + 28) <= regs_per_sm"
[domain]
fits = "cols <= THREADS * VEC * ITEMS"
whole_packs = "cols % VEC == 0"
aligned = "min(align_y, align_x, align_weight, align_bias) >= VEC * elem_bytes"
grid = "rows <= 2147483647"
[[launch]]
kernel = "rms_norm"
grid = ["rows"]
block = ["THREADS"]
args = ["y", "x", "weight", "bias", "cols:i32", "eps:f32"]
*/
#include "pack.cuh"
#include "reduce.cuh"

__global__ __launch_bounds__(THREADS) void rms_norm(
    elem_t* __restrict__ y, const elem_t* __restrict__ x, const elem_t* __restrict__ weight,
    const elem_t* __restrict__ bias, int cols, float eps) {
    __shared__ float scratch[THREADS / 32];
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    const elem_t* in = x + start;
    elem_t* out = y + start;

    Pack<VEC> held[ITEMS], held_w[ITEMS], held_b[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = (i * THREADS + threadIdx.x) * VEC;
        held[i].clear();
        if (j < cols) held[i] = load_once<VEC>(in + j);
    }
    // Ahead of the barrier their latency overlaps the row's own; the price is registers.
    if (AHEAD) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int j = (i * THREADS + threadIdx.x) * VEC;
            if (j < cols) {
                held_w[i] = load_shared_use<VEC>(weight + j);
                held_b[i] = load_shared_use<VEC>(bias + j);
            }
        }
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        float v[VEC];
        held[i].unpack(v);
#pragma unroll
        for (int k = 0; k < VEC; ++k) sum = fmaf(v[k], v[k], sum);
    }
    sum = block_sum<THREADS>(sum, scratch);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = (i * THREADS + threadIdx.x) * VEC;
        if (j < cols) {
            if (!AHEAD) {
                held_w[i] = load_shared_use<VEC>(weight + j);
                held_b[i] = load_shared_use<VEC>(bias + j);
            }
            float v[VEC], w[VEC], b[VEC];
            held[i].unpack(v);
            held_w[i].unpack(w);
            held_b[i].unpack(b);
#pragma unroll
            for (int k = 0; k < VEC; ++k) v[k] = fmaf(v[k] * scale, w[k], b[k]);
            Pack<VEC> r;
            r.pack(v);
            store_once<VEC>(out + j, r);
        }
    }
}
