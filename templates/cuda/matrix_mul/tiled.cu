/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "square tiles of both operands in shared memory, ITEMS rows of one column a thread"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
SIDE = [16, 32]
ITEMS = [1, 2, 4, 8]
GROUP = [8]
[constraints]
fits = "SIDE * SIDE // ITEMS <= max_threads_per_block"
[domain]
sizes = "max(m, n, k) <= 2147483000"
grid = "ceildiv(m, SIDE) * ceildiv(n, SIDE) <= 2147483647"
[[launch]]
kernel = "matrix_mul"
grid = ["ceildiv(m, SIDE) * ceildiv(n, SIDE)"]
block = ["SIDE", "SIDE // ITEMS"]
args = ["c", "a", "b", "m:i32", "n:i32", "k:i32"]
*/
#include "gemm_common.cuh"

__global__ __launch_bounds__(SIDE * SIDE / ITEMS) void matrix_mul(
    elem_t* __restrict__ c, const elem_t* __restrict__ a, const elem_t* __restrict__ b, int m,
    int n, int k) {
    __shared__ float tile_a[SIDE][SIDE];
    __shared__ float tile_b[SIDE][SIDE];
    constexpr int kRows = SIDE / ITEMS;
    const TileIndex tile =
        tile_at(blockIdx.x, (m + SIDE - 1) / SIDE, (n + SIDE - 1) / SIDE, GROUP);
    const int row0 = tile.m * SIDE, col = tile.n * SIDE + threadIdx.x;
    float sum[ITEMS] = {};

    for (int k0 = 0; k0 < k; k0 += SIDE) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int r = threadIdx.y + i * kRows;
            const int ka = k0 + threadIdx.x, kb = k0 + r;
            const bool in_a = row0 + r < m && ka < k, in_b = kb < k && col < n;
            tile_a[r][threadIdx.x] =
                in_a ? gemm_float(a[static_cast<long long>(row0 + r) * k + ka]) : 0.0f;
            tile_b[r][threadIdx.x] =
                in_b ? gemm_float(b[static_cast<long long>(kb) * n + col]) : 0.0f;
        }
        __syncthreads();
#pragma unroll 8
        for (int kk = 0; kk < SIDE; ++kk) {
            const float v = tile_b[kk][threadIdx.x];
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                sum[i] = fmaf(tile_a[threadIdx.y + i * kRows][kk], v, sum[i]);
            }
        }
        __syncthreads();
    }
    if (col >= n) return;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const int row = row0 + threadIdx.y + i * kRows;
        if (row < m) gemm_store(c + static_cast<long long>(row) * n + col, sum[i]);
    }
}
