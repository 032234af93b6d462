/* kernelsearch
format = 1
operator = "softmax"
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
aligned = "min(align_y, align_x) >= VEC * elem_bytes"
grid = "ceildiv(rows, WARPS) <= 2147483647"
[[launch]]
kernel = "softmax"
grid = ["ceildiv(rows, WARPS)"]
block = ["32", "WARPS"]
args = ["y", "x", "rows:i64", "cols:i32"]
*/
#include "softmax_row.cuh"

__global__ __launch_bounds__(32 * WARPS) void softmax(elem_t* __restrict__ y,
                                                      const elem_t* __restrict__ x,
                                                      long long rows, int cols) {
    const long long row = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.y;
    if (row >= rows) return;
    Pack<VEC> held[ITEMS];
    SoftmaxPart<VEC, ITEMS, 32> part;
    load_row<VEC, ITEMS, 32>(held, x + row * cols, threadIdx.x, cols);
    const TopSum own = part.absorb(held, threadIdx.x, cols);
    part.emit(y + row * cols, own.top, warp_merge(own), threadIdx.x, cols);
}
