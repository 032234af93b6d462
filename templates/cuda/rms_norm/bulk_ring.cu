/* kernelsearch
format = 1
operator = "rms_norm"
doc = "persistent blocks: rows arrive by bulk copies in a shared-memory ring, weight and bias stay in registers"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_90"}
[tunables]
THREADS = [256, 128, 512, 1024]
ITEMS = [4, 1, 2, 8]
STAGES = [4, 2]
BLOCKS_PER_SM = [2, 1, 4]
[constraints]
block = "THREADS <= max_threads_per_block"
threads = "THREADS * BLOCKS_PER_SM <= max_threads_per_sm"
registers = "ITEMS * (16 // elem_bytes) <= 32 and THREADS * BLOCKS_PER_SM * (ITEMS * 12 + 24) <= regs_per_sm"
shared = "STAGES * BLOCKS_PER_SM * THREADS * ITEMS * 16 <= max_shared_per_sm - 4096"
enough_in_flight = "STAGES * BLOCKS_PER_SM * THREADS * ITEMS * 16 >= 32768"
[domain]
fits = "cols * elem_bytes <= THREADS * ITEMS * 16"
whole_packs = "cols * elem_bytes % 16 == 0"
aligned = "min(align_y, align_x, align_weight, align_bias) >= 16"
[[launch]]
kernel = "rms_norm"
grid = ["min(rows, sm_count * BLOCKS_PER_SM)"]
block = ["THREADS"]
shared = "STAGES * cols * elem_bytes"
args = ["y", "x", "weight", "bias", "rows:i64", "cols:i32", "eps:f32"]
*/
#include "async_copy.cuh"
#include "pack.cuh"
#include "reduce.cuh"

constexpr int kVec = 16 / ELEM_BYTES;

__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void rms_norm(
    elem_t* __restrict__ y, const elem_t* __restrict__ x, const elem_t* __restrict__ weight,
    const elem_t* __restrict__ bias, long long rows, int cols, float eps) {
    extern __shared__ __align__(128) unsigned char ring_bytes[];
    elem_t* ring = reinterpret_cast<elem_t*>(ring_bytes);
    __shared__ uint64_t arrived[STAGES];
    // Two sets: a warp may start the next row's reduction while another still reads this one's.
    __shared__ float scratch[2][THREADS / 32];
    const unsigned row_bytes = static_cast<unsigned>(cols) * ELEM_BYTES;
    const long long first = blockIdx.x;
    const long long stride = gridDim.x;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) arrival_init(&arrived[s]);
        arrival_init_fence();
        for (int s = 0; s < STAGES; ++s) {
            const long long row = first + s * stride;
            if (row < rows) bulk_load(ring + s * cols, x + row * cols, row_bytes, &arrived[s]);
        }
    }
    Pack<kVec> held_w[ITEMS], held_b[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int j = (i * THREADS + threadIdx.x) * kVec;
        held_w[i].clear();
        held_b[i].clear();
        if (j < cols) {
            held_w[i] = load_shared_use<kVec>(weight + j);
            held_b[i] = load_shared_use<kVec>(bias + j);
        }
    }
    __syncthreads();

    int stage = 0;
    unsigned parity = 0;
    int set = 0;
    for (long long row = first; row < rows; row += stride) {
        arrival_wait(&arrived[stage], parity);
        Pack<kVec> held[ITEMS];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int j = (i * THREADS + threadIdx.x) * kVec;
            held[i].clear();
            if (j < cols) {
                held[i].word = *reinterpret_cast<const uint4*>(ring + stage * cols + j);
            }
            float v[kVec];
            held[i].unpack(v);
#pragma unroll
            for (int k = 0; k < kVec; ++k) sum = fmaf(v[k], v[k], sum);
        }
        sum = block_sum<THREADS>(sum, scratch[set]);
        set ^= 1;
        // Past the reduction's barrier every thread has its part of the row: the slot is free.
        const long long refill = row + STAGES * stride;
        if (threadIdx.x == 0 && refill < rows) {
            bulk_load(ring + stage * cols, x + refill * cols, row_bytes, &arrived[stage]);
        }
        const float scale = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
        elem_t* out = y + row * cols;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int j = (i * THREADS + threadIdx.x) * kVec;
            if (j < cols) {
                float v[kVec], w[kVec], b[kVec];
                held[i].unpack(v);
                held_w[i].unpack(w);
                held_b[i].unpack(b);
#pragma unroll
                for (int k = 0; k < kVec; ++k) v[k] = fmaf(v[k] * scale, w[k], b[k]);
                Pack<kVec> r;
                r.pack(v);
                store_once<kVec>(out + j, r);
            }
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}
