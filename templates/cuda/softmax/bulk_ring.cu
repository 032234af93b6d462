/* kernelsearch
format = 1
operator = "softmax"
doc = "persistent blocks: rows arrive by bulk copies in a shared-memory ring while the last one is worked on"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_90"}
[tunables]
THREADS = [512, 128, 256, 1024]
ITEMS = [4, 1, 2, 8]
STAGES = [4, 2]
BLOCKS_PER_SM = [1, 2, 4]
[constraints]
block = "THREADS <= max_threads_per_block"
threads = "THREADS * BLOCKS_PER_SM <= max_threads_per_sm"
registers = "ITEMS * (16 // elem_bytes) <= 32 and THREADS * BLOCKS_PER_SM * (ITEMS * (16 // elem_bytes) + 28) <= regs_per_sm"
shared = "STAGES * BLOCKS_PER_SM * THREADS * ITEMS * 16 <= max_shared_per_sm - 4096"
enough_in_flight = "STAGES * BLOCKS_PER_SM * THREADS * ITEMS * 16 >= 32768"
[domain]
fits = "cols * elem_bytes <= THREADS * ITEMS * 16"
whole_packs = "cols * elem_bytes % 16 == 0"
aligned = "min(align_y, align_x) >= 16"
[[launch]]
kernel = "softmax"
grid = ["min(rows, sm_count * BLOCKS_PER_SM)"]
block = ["THREADS"]
shared = "STAGES * cols * elem_bytes"
args = ["y", "x", "rows:i64", "cols:i32"]
*/
#include "async_copy.cuh"
#include "softmax_row.cuh"

constexpr int kVec = 16 / ELEM_BYTES;

__global__ __launch_bounds__(THREADS, BLOCKS_PER_SM) void softmax(elem_t* __restrict__ y,
                                                                  const elem_t* __restrict__ x,
                                                                  long long rows, int cols) {
    extern __shared__ __align__(128) unsigned char ring_bytes[];
    elem_t* ring = reinterpret_cast<elem_t*>(ring_bytes);
    __shared__ uint64_t arrived[STAGES];
    // Two sets: a warp may start the next row's reduction while another still reads this one's.
    __shared__ TopSum scratch[2][THREADS / 32];
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
    __syncthreads();

    int stage = 0;
    unsigned parity = 0;
    int set = 0;
    for (long long row = first; row < rows; row += stride) {
        arrival_wait(&arrived[stage], parity);
        Pack<kVec> held[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int j = (i * THREADS + threadIdx.x) * kVec;
            held[i].clear();
            if (j < cols) held[i].word = *reinterpret_cast<const uint4*>(ring + stage * cols + j);
        }
        SoftmaxPart<kVec, ITEMS, THREADS> part;
        const TopSum own = part.absorb(held, threadIdx.x, cols);
        const TopSum whole = block_merge<THREADS>(own, scratch[set]);
        set ^= 1;
        // Past the reduction's barrier every thread has its part of the row: the slot is free.
        const long long refill = row + STAGES * stride;
        if (threadIdx.x == 0 && refill < rows) {
            bulk_load(ring + stage * cols, x + refill * cols, row_bytes, &arrived[stage]);
        }
        part.emit(y + row * cols, own.top, whole, threadIdx.x, cols);
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}
