/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "rows and entries split evenly along the merge path, so no row length can unbalance it; carries are added in a fixed order"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [64, 128, 256, 512]
IPT = [3, 5, 7, 9, 11, 15]
[constraints]
shared = "THREADS * IPT <= 4096"
[domain]
path = "rows + nnz <= 2147483647"
[workspace]
tile_row = {dtype = "int32", shape = ["ceildiv(rows + nnz, THREADS * IPT) + 1"]}
carry_row = {dtype = "int32", shape = ["ceildiv(rows + nnz, THREADS * IPT)"]}
carry_sum = {dtype = "float32", shape = ["ceildiv(rows + nnz, THREADS * IPT)"]}
[[launch]]
kernel = "split_path"
grid = ["ceildiv(ceildiv(rows + nnz, THREADS * IPT) + 1, 128) if rows > 0 else 0"]
block = ["128"]
args = ["tile_row", "row_ptr", "rows:i32", "nnz:i32", "ceildiv(rows + nnz, THREADS * IPT):i32"]
[[launch]]
kernel = "walk_path"
grid = ["ceildiv(rows + nnz, THREADS * IPT)"]
block = ["THREADS"]
args = ["y", "row_ptr", "col_idx", "values", "x", "tile_row", "carry_row", "carry_sum", "rows:i32", "nnz:i32"]
[[launch]]
kernel = "add_carries"
grid = ["ceildiv(ceildiv(rows + nnz, THREADS * IPT), 8)"]
block = ["256"]
args = ["y", "carry_row", "carry_sum", "rows:i32", "ceildiv(rows + nnz, THREADS * IPT):i32"]
*/
#include "reduce.cuh"

constexpr int kTile = THREADS * IPT;

// The path merges the rows' ends with the entries 0, 1, 2, ...: an entry before its row's end.
// Every step takes one of the two, so equal shares of the path are equal shares of the work.

__global__ __launch_bounds__(128) void split_path(int* __restrict__ tile_row,
                                                  const int* __restrict__ row_ptr, int rows,
                                                  int nnz, int tiles) {
    const int tile = blockIdx.x * 128 + threadIdx.x;
    if (tile > tiles) return;
    const int diagonal =
        static_cast<int>(min(static_cast<long long>(tile) * kTile, 0LL + rows + nnz));
    int low = max(0, diagonal - nnz), high = min(diagonal, rows);
    while (low < high) {
        const int middle = low + (high - low) / 2;
        if (__ldg(row_ptr + middle + 1) <= diagonal - middle - 1) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    tile_row[tile] = low;
}

__global__ __launch_bounds__(THREADS) void walk_path(
    elem_t* __restrict__ y, const int* __restrict__ row_ptr, const int* __restrict__ col_idx,
    const elem_t* __restrict__ values, const elem_t* __restrict__ x,
    const int* __restrict__ tile_row, int* __restrict__ carry_row, float* __restrict__ carry_sum,
    int rows, int nnz) {
    // Products first, then the ends of the rows met, counted from the tile's first entry.
    __shared__ int words[kTile + 1];
    __shared__ float warp_carry[THREADS / 32];
    __shared__ bool warp_closed[THREADS / 32];
    const int row0 = tile_row[blockIdx.x];
    const int row1 = tile_row[blockIdx.x + 1];
    const long long path = 0LL + rows + nnz;
    const long long start = static_cast<long long>(blockIdx.x) * kTile;
    const int length = static_cast<int>(min(start + kTile, path) - start);
    const int entry0 = static_cast<int>(start - row0);
    const int row_count = row1 - row0;
    const int entry_count = length - row_count;

    int col[IPT];
    float value[IPT], factor[IPT];
#pragma unroll
    for (int u = 0; u < IPT; ++u) {
        const int k = u * THREADS + threadIdx.x;
        // The matrix is read once and must not push x out of the cache.
        col[u] = k < entry_count ? __ldcs(col_idx + entry0 + k) : 0;
        value[u] = k < entry_count ? __ldcs(values + entry0 + k) : 0.0f;
    }
    int* ends = words + entry_count;
    for (int r = threadIdx.x; r <= row_count; r += THREADS) {
        // The row left open at the tile's end goes on beyond every entry of the tile.
        ends[r] = r < row_count ? __ldg(row_ptr + row0 + r + 1) - entry0 : kTile + 1;
    }
#pragma unroll
    for (int u = 0; u < IPT; ++u) {
        const int k = u * THREADS + threadIdx.x;
        factor[u] = k < entry_count ? __ldg(x + col[u]) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < IPT; ++u) {
        const int k = u * THREADS + threadIdx.x;
        if (k < entry_count) words[k] = __float_as_int(value[u] * factor[u]);
    }
    __syncthreads();

    const int diagonal = min(static_cast<int>(threadIdx.x) * IPT, length);
    int low = max(0, diagonal - entry_count), high = min(diagonal, row_count);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (ends[middle] <= diagonal - middle - 1) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    const int first_row = low;
    int r = low;
    int k = diagonal - low;
    int row_end = ends[r];
    float sum = 0.0f, first_sum = 0.0f;
#pragma unroll
    for (int step = 0; step < IPT; ++step) {
        if (diagonal + step < length) {
            if (k < row_end) {
                sum += __int_as_float(words[k]);
                ++k;
            } else {
                if (r == first_row) {
                    first_sum = sum;
                } else {
                    y[row0 + r] = sum;
                }
                sum = 0.0f;
                row_end = ends[++r];
            }
        }
    }

    // What earlier threads left open belongs to this thread's first row: a scan that restarts at
    // every thread that closed a row.
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool closes = r != first_row;
    bool closed = closes;
    float carry = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float before = __shfl_up_sync(kFullWarp, carry, d);
        const bool before_closed = __shfl_up_sync(kFullWarp, static_cast<int>(closed), d);
        if (lane >= d) {
            if (!closed) carry += before;
            closed = closed || before_closed;
        }
    }
    if (lane == 31) {
        warp_carry[warp] = carry;
        warp_closed[warp] = closed;
    }
    __syncthreads();
    float into_warp = 0.0f;
    for (int w = warp - 1; w >= 0; --w) {
        into_warp += warp_carry[w];
        if (warp_closed[w]) break;
    }
    float into_thread = __shfl_up_sync(kFullWarp, carry, 1);
    const bool closed_before = __shfl_up_sync(kFullWarp, static_cast<int>(closed), 1);
    if (lane == 0) into_thread = 0.0f;
    if (lane == 0 || !closed_before) into_thread += into_warp;
    if (closes) y[row0 + first_row] = first_sum + into_thread;
    if (threadIdx.x == THREADS - 1) {
        carry_row[blockIdx.x] = row1;
        carry_sum[blockIdx.x] = closed ? carry : carry + into_warp;
    }
}

// One warp a tile; the first of the tiles that left the same row open adds for all of them.
__global__ __launch_bounds__(256) void add_carries(elem_t* __restrict__ y,
                                                   const int* __restrict__ carry_row,
                                                   const float* __restrict__ carry_sum, int rows,
                                                   int tiles) {
    const int tile = blockIdx.x * 8 + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (tile >= tiles) return;
    const int row = carry_row[tile];
    if (row >= rows || (tile > 0 && carry_row[tile - 1] == row)) return;
    float sum = 0.0f;
    for (int base = tile;; base += 32) {
        const int t = base + lane;
        const bool same = t < tiles && carry_row[t] == row;
        if (same) sum += carry_sum[t];
        if (!__all_sync(kFullWarp, same)) break;
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] += sum;
}
