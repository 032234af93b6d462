/* kernelsearch
format = 1
operator = "softmax"
doc = "a cluster of blocks a row, joined through distributed shared memory: for few, long rows"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_90"}
[tunables]
CLUSTER = [4, 2, 8]
THREADS = [256, 128, 512, 1024]
VEC = [4, 8, 1]
ITEMS = [4, 1, 2, 8]
[constraints]
block = "THREADS <= max_threads_per_block"
widest = "VEC * elem_bytes <= 16"
wide = "VEC * elem_bytes == 16 or (VEC == 1 and THREADS == 1024)"
registers = "VEC * ITEMS <= 32 and THREADS * (VEC * ITEMS + 24) <= regs_per_sm"
[domain]
fits = "cols <= CLUSTER * THREADS * VEC * ITEMS"
whole_packs = "cols % VEC == 0"
aligned = "min(align_y, align_x) >= VEC * elem_bytes"
grid = "rows * CLUSTER <= 2147483647"
[[launch]]
kernel = "softmax"
grid = ["rows * CLUSTER"]
block = ["THREADS"]
cluster = ["CLUSTER", "1", "1"]
args = ["y", "x", "cols:i32"]
*/
#include "cluster.cuh"
#include "softmax_row.cuh"

__global__ __launch_bounds__(THREADS) void softmax(elem_t* __restrict__ y,
                                                   const elem_t* __restrict__ x, int cols) {
    __shared__ TopSum scratch[THREADS / 32];
    __shared__ TopSum of_block[CLUSTER];
    const int rank = static_cast<int>(blockIdx.x) % CLUSTER;
    const int lane = rank * THREADS + threadIdx.x;
    const long long start = static_cast<long long>(blockIdx.x / CLUSTER) * cols;

    Pack<VEC> held[ITEMS];
    SoftmaxPart<VEC, ITEMS, CLUSTER * THREADS> part;
    load_row<VEC, ITEMS, CLUSTER * THREADS>(held, x + start, lane, cols);
    // No block may write into another's shared memory before that block has started.
    cluster_arrive();
    const TopSum own = part.absorb(held, lane, cols);
    const TopSum block = block_merge<THREADS>(own, scratch);
    cluster_wait();
    // Pushed, not pulled: after the barrier every read is local and a block may leave at once.
    if (threadIdx.x < CLUSTER) {
        store_in_block(&of_block[rank].top, threadIdx.x, block.top);
        store_in_block(&of_block[rank].sum, threadIdx.x, block.sum);
    }
    cluster_arrive();
    cluster_wait();
    TopSum whole = of_block[0];
#pragma unroll
    for (int b = 1; b < CLUSTER; ++b) whole = merge(whole, of_block[b]);
    part.emit(y + start, own.top, whole, lane, cols);
}
