/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "rows and entries split evenly along the merge path, so no row length can unbalance it; carries are added in a fixed order"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [512, 128, 256]
IPT = [4, 2, 8, 16]
[constraints]
shared = "THREADS * IPT <= 4096 and THREADS * IPT >= 512"
[domain]
path = "rows + nnz <= 2 ** 31 - 16384"
[workspace]
tile_row = {dtype = "int32", shape = ["max(ceildiv(rows + nnz, THREADS * IPT), 1)"]}
carry_row = {dtype = "int32", shape = ["max(ceildiv(rows + nnz, THREADS * IPT), 1)"]}
carry_sum = {dtype = "float32", shape = ["max(ceildiv(rows + nnz, THREADS * IPT), 1)"]}
[[launch]]
kernel = "split_path"
grid = ["ceildiv(rows, 256)"]
block = ["256"]
args = ["tile_row", "row_ptr", "rows:i32"]
[[launch]]
kernel = "sum_tiles"
grid = ["ceildiv(rows + nnz, THREADS * IPT)"]
block = ["THREADS"]
args = ["y", "row_ptr", "col_idx", "values", "x", "tile_row", "carry_row", "carry_sum", "rows:i32", "nnz:i32"]
[[launch]]
kernel = "add_carries"
grid = ["ceildiv(ceildiv(rows + nnz, THREADS * IPT), 256)"]
block = ["256"]
args = ["y", "carry_row", "carry_sum", "rows:i32", "ceildiv(rows + nnz, THREADS * IPT):i32"]
*/
#include "reduce.cuh"
#include "row_parts.cuh"

constexpr int kTile = THREADS * IPT;
// A row longer than this many steps of its lanes waits for a whole warp.
constexpr int kPatience = 16;

// The path merges the rows' ends with the entries 0, 1, 2, ...: an entry before its row's end.
// Every step takes one of the two, so equal shares of the path are equal shares of the work.

// Row r takes the path's steps from row_ptr[r] + r on: it writes down the tiles that start there.
// A search for every tile's start would read less and wait longer.
__global__ __launch_bounds__(256) void split_path(int* __restrict__ tile_row,
                                                  const int* __restrict__ row_ptr, int rows) {
    const int row = blockIdx.x * 256 + threadIdx.x;
    if (row >= rows) return;
    const int from = __ldg(row_ptr + row) + row;
    const int to = __ldg(row_ptr + row + 1) + row + 1;
    for (int tile = (from + kTile - 1) / kTile; tile * kTile < to; ++tile) tile_row[tile] = row;
}

__global__ __launch_bounds__(THREADS) void sum_tiles(
    elem_t* __restrict__ y, const int* __restrict__ row_ptr, const int* __restrict__ col_idx,
    const elem_t* __restrict__ values, const elem_t* __restrict__ x,
    const int* __restrict__ tile_row, int* __restrict__ carry_row, float* __restrict__ carry_sum,
    int rows, int nnz) {
    // Products first, then the ends of the rows met, counted from the tile's first entry.
    __shared__ int words[kTile + 1];
    __shared__ int waiting[kTile / kPatience + 1];
    __shared__ int waiting_count;
    const long long path = 0LL + rows + nnz;
    const long long start = static_cast<long long>(blockIdx.x) * kTile;
    const long long stop = min(start + kTile, path);
    const int row0 = __ldg(tile_row + blockIdx.x);
    const int row1 = stop < path ? __ldg(tile_row + blockIdx.x + 1) : rows;
    if (threadIdx.x == 0) waiting_count = 0;
    const int row_count = row1 - row0;
    const int entry0 = static_cast<int>(start - row0);
    const int entry_count = static_cast<int>(stop - start) - row_count;

    // Loads start at a line's boundary, so that no warp touches two; the rest of the last line is
    // left to the first warp.
    const int shift = entry0 % 32;
    int col[IPT + 1];
    float value[IPT + 1], factor[IPT + 1];
#pragma unroll
    for (int u = 0; u <= IPT; ++u) {
        const int k = u * THREADS + static_cast<int>(threadIdx.x) - shift;
        const bool in = k >= 0 && k < entry_count;
        // The matrix is read once and must not push x out of the cache.
        col[u] = in ? __ldcs(col_idx + entry0 + k) : 0;
        value[u] = in ? __ldcs(values + entry0 + k) : 0.0f;
    }
    int* ends = words + entry_count;
    for (int r = threadIdx.x; r <= row_count; r += THREADS) {
        // The last one is the row that the tile leaves open.
        ends[r] = r < row_count ? __ldg(row_ptr + row0 + r + 1) - entry0 : entry_count;
    }
#pragma unroll
    for (int u = 0; u <= IPT; ++u) {
        const int k = u * THREADS + static_cast<int>(threadIdx.x) - shift;
        factor[u] = k >= 0 && k < entry_count ? __ldg(x + col[u]) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u <= IPT; ++u) {
        const int k = u * THREADS + static_cast<int>(threadIdx.x) - shift;
        if (k >= 0 && k < entry_count) words[k] = __float_as_int(value[u] * factor[u]);
    }
    __syncthreads();

    const auto finish = [&](int r, float sum) {
        if (r < row_count) {
            y[row0 + r] = sum;
        } else {
            carry_row[blockIdx.x] = row0 + r;
            carry_sum[blockIdx.x] = sum;
        }
    };
    // As many lanes a row as the tile's rows leave: a power of two, at most a warp.
    const int spare = min(THREADS / (row_count + 1), 32);
    const int lanes_log2 = spare > 0 ? 31 - __clz(spare) : 0;
    const int lanes = 1 << lanes_log2;
    const int lane = threadIdx.x & (lanes - 1);
    const int groups = THREADS >> lanes_log2;
    for (int base = 0; base <= row_count; base += groups) {
        const int r = base + (threadIdx.x >> lanes_log2);
        float sum = 0.0f;
        bool mine = r <= row_count;
        if (mine) {
            const int from = r > 0 ? ends[r - 1] : 0;
            const int to = ends[r];
            if (lanes < 32 && to - from > kPatience * lanes) {
                mine = false;
                if (lane == 0) waiting[atomicAdd(&waiting_count, 1)] = r;
            } else {
                for (int k = from + lane; k < to; k += lanes) sum += __int_as_float(words[k]);
            }
        }
        for (int d = lanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
        if (mine && lane == 0) finish(r, sum);
    }
    __syncthreads();
    for (int w = threadIdx.x / 32; w < waiting_count; w += THREADS / 32) {
        const int r = waiting[w];
        const int from = r > 0 ? ends[r - 1] : 0;
        const int to = ends[r];
        float sum = 0.0f;
#pragma unroll 4
        for (int k = from + threadIdx.x % 32; k < to; k += 32) sum += __int_as_float(words[k]);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) finish(r, sum);
    }
}

__global__ __launch_bounds__(256) void add_carries(elem_t* __restrict__ y,
                                                   const int* __restrict__ carry_row,
                                                   const float* __restrict__ carry_sum, int rows,
                                                   int tiles) {
    const RowTotal total =
        join_parts(carry_row, carry_sum, rows, tiles, blockIdx.x * 256 + threadIdx.x);
    if (total.row < rows) y[total.row] += total.sum;
}
