/* kernelsearch
format = 1
operator = "softmax"
doc = "one block a row held in registers: maximum and sum are reduced together, behind one barrier"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [512, 64, 128, 256, 1024]
VEC = [4, 8, 1]
ITEMS = [4, 1, 2, 8, 16]
[constraints]
block = "THREADS <= max_threads_per_block"
widest = "VEC * elem_bytes <= 16"
wide = "VEC * elem_bytes == 16 or VEC == 1"
registers = "VEC * ITEMS <= 64 and THREADS * (VEC * ITEMS + 24) <= regs_per_sm"
[domain]
fits = "cols <= THREADS * VEC * ITEMS"
whole_packs = "cols % VEC == 0"
aligned = "min(align_y, align_x) >= VEC * elem_bytes"
grid = "rows <= 2147483647"
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["THREADS"]
args = ["y", "x", "cols:i32"]
*/
#include "softmax_row.cuh"

__global__ __launch_bounds__(THREADS) void softmax(elem_t* __restrict__ y,
                                                   const elem_t* __restrict__ x, int cols) {
    __shared__ TopSum scratch[THREADS / 32];
    const long long start = static_cast<long long>(blockIdx.x) * cols;
    Pack<VEC> held[ITEMS];
    SoftmaxPart<VEC, ITEMS, THREADS> part;
    load_row<VEC, ITEMS, THREADS>(held, x + start, threadIdx.x, cols);
    const TopSum own = part.absorb(held, threadIdx.x, cols);
    part.emit(y + start, own.top, block_merge<THREADS>(own, scratch), threadIdx.x, cols);
}
