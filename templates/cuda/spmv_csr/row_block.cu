/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "a block takes neighbouring rows as one stream of products in shared memory; long rows get the whole block"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
LANES = [1, 2, 4, 8]
THREADS = [128, 256, 512]
IPT = [2, 4, 8, 16]
[constraints]
shared = "THREADS * IPT <= 4096"
[domain]
rows = "rows <= 2147483647"
[[launch]]
kernel = "spmv_csr"
grid = ["ceildiv(rows, THREADS // LANES)"]
block = ["THREADS"]
args = ["y", "row_ptr", "col_idx", "values", "x", "rows:i32"]
*/
#include "reduce.cuh"

constexpr int kChunk = THREADS * IPT;

__global__ __launch_bounds__(THREADS) void spmv_csr(
    elem_t* __restrict__ y, const int* __restrict__ row_ptr, const int* __restrict__ col_idx,
    const elem_t* __restrict__ values, const elem_t* __restrict__ x, int rows) {
    __shared__ float product[kChunk];
    __shared__ float scratch[THREADS / 32];
    constexpr int rows_here = THREADS / LANES;
    const long long first = static_cast<long long>(blockIdx.x) * rows_here;
    const long long last = min(first + rows_here, static_cast<long long>(rows));
    const long long row = first + threadIdx.x / LANES;
    const int lane = threadIdx.x % LANES;
    const long long stream_end = __ldg(row_ptr + last);
    long long chunk = __ldg(row_ptr + first);
    long long begin = stream_end, end = stream_end;
    if (row < last) {
        begin = __ldg(row_ptr + row);
        end = __ldg(row_ptr + row + 1);
    }

    float sum = 0.0f;
    for (; chunk < stream_end; chunk += kChunk) {
        const long long chunk_end = min(chunk + kChunk, stream_end);
        int col[IPT];
        float value[IPT], factor[IPT];
#pragma unroll
        for (int u = 0; u < IPT; ++u) {
            const long long k = chunk + u * THREADS + threadIdx.x;
            // The matrix is read once and must not push x out of the cache.
            col[u] = k < chunk_end ? __ldcs(col_idx + k) : 0;
            value[u] = k < chunk_end ? __ldcs(values + k) : 0.0f;
        }
#pragma unroll
        for (int u = 0; u < IPT; ++u) {
            const long long k = chunk + u * THREADS + threadIdx.x;
            factor[u] = k < chunk_end ? __ldg(x + col[u]) : 0.0f;
        }
        const bool mine = begin <= chunk && end >= chunk_end;
        if (__syncthreads_or(mine)) {
            float part = 0.0f;
#pragma unroll
            for (int u = 0; u < IPT; ++u) part = fmaf(value[u], factor[u], part);
            part = block_sum<THREADS>(part, scratch);
            if (mine && lane == 0) sum += part;
        } else {
#pragma unroll
            for (int u = 0; u < IPT; ++u) {
                product[u * THREADS + threadIdx.x] = value[u] * factor[u];
            }
            __syncthreads();
            const int from = static_cast<int>(max(begin, chunk) - chunk);
            const int to = static_cast<int>(min(end, chunk_end) - chunk);
            for (int k = from + lane; k < to; k += LANES) sum += product[k];
        }
        // The next chunk's vote is the barrier between these reads and its writes.
    }
    sum = warp_sum<LANES>(sum);
    if (lane == 0 && row < last) y[row] = sum;
}
