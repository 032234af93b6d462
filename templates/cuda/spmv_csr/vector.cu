/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "a few lanes a row, several entries in flight a lane: for rows of similar, small length"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
LANES = [8, 1, 2, 4, 16, 32]
THREADS = [256, 64, 128]
UNROLL = [2, 1, 4, 8]
[constraints]
in_flight = "LANES * UNROLL >= 4 and LANES * UNROLL <= 64"
[domain]
rows = "rows <= 2147483647"
[[launch]]
kernel = "spmv_csr"
grid = ["ceildiv(rows, THREADS // LANES)"]
block = ["THREADS"]
args = ["y", "row_ptr", "col_idx", "values", "x", "rows:i32"]
*/
#include "reduce.cuh"

__global__ __launch_bounds__(THREADS) void spmv_csr(
    elem_t* __restrict__ y, const int* __restrict__ row_ptr, const int* __restrict__ col_idx,
    const elem_t* __restrict__ values, const elem_t* __restrict__ x, int rows) {
    const long long row =
        static_cast<long long>(blockIdx.x) * (THREADS / LANES) + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    // Whole warps stay for the shuffles below; a row past the end is an empty one.
    long long k = 0, end = 0;
    if (row < rows) {
        k = __ldg(row_ptr + row) + static_cast<long long>(lane);
        end = __ldg(row_ptr + row + 1);
    }
    float sum = 0.0f;
    for (; k < end; k += LANES * UNROLL) {
        int col[UNROLL];
        float value[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const bool in = k + u * LANES < end;
            // The matrix is read once and must not push x out of the cache.
            col[u] = in ? __ldcs(col_idx + k + u * LANES) : 0;
            value[u] = in ? __ldcs(values + k + u * LANES) : 0.0f;
        }
        float factor[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            factor[u] = k + u * LANES < end ? __ldg(x + col[u]) : 0.0f;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) sum = fmaf(value[u], factor[u], sum);
    }
    sum = warp_sum<LANES>(sum);
    if (lane == 0 && row < rows) y[row] = sum;
}
