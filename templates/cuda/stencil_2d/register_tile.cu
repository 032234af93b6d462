/* kernelsearch
format = 1
operator = "stencil_2d"
doc = "a thread holds a small tile of packs, all loaded before the first use; side neighbours by shuffle"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [128, 64, 256, 512]
VEC = [4, 1]
ROWS = [2, 1, 4, 8, 16]
[constraints]
registers = "VEC * ROWS <= 64"
[domain]
whole_packs = "ny % VEC == 0"
aligned = "min(align_dst, align_src) >= VEC * elem_bytes"
[[launch]]
kernel = "stencil_2d"
grid = ["ceildiv(ny, THREADS * VEC)", "min(ceildiv(nx, ROWS), 65535)"]
block = ["THREADS"]
args = ["dst", "src", "nx:i64", "ny:i64", "alpha:f32"]
*/
#include "stencil_row.cuh"

__global__ __launch_bounds__(THREADS) void stencil_2d(elem_t* __restrict__ dst,
                                                      const elem_t* __restrict__ src,
                                                      long long nx, long long ny, float alpha) {
    const int lane = threadIdx.x % 32;
    const long long j = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    // A loop, because the grid's second axis is too short for a very tall array.
    for (long long i = static_cast<long long>(blockIdx.y) * ROWS; i < nx;
         i += static_cast<long long>(gridDim.y) * ROWS) {
        RowPart<VEC> part[ROWS + 2];
#pragma unroll
        for (int r = 0; r < ROWS + 2; ++r) {
            part[r].load(src, i + r - 1, j, nx, ny, lane, r > 0 && r <= ROWS);
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            step_row<VEC>(dst, part[r], part[r + 1], part[r + 2], i + r, j, nx, ny, lane, alpha);
        }
    }
}
