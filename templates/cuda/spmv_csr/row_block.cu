/* kernelsearch
format = 1
operator = "spmv_csr"
doc = "a block takes neighbouring rows as one stream of products in shared memory; the longest rows are cut into pieces for blocks of their own"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
LANES = [4, 2, 8]
THREADS = [256, 128]
IPT = [2, 4, 8]
LONG = [8192, 2048, 4096, 32768]
[constraints]
shared = "THREADS * IPT <= 2048"
sized = "LANES * IPT <= 16"
[domain]
rows = "rows <= 2 ** 30 and nnz <= 2 ** 31 - 65536"
[workspace]
piece_row = {dtype = "int32", shape = ["max(ceildiv(nnz, LONG), 1)"]}
piece_sum = {dtype = "float32", shape = ["max(ceildiv(nnz, LONG), 1)"]}
[[launch]]
kernel = "spmv_csr"
grid = ["ceildiv(rows, THREADS // LANES) + (ceildiv(nnz, LONG) if nnz > LONG else 0)"]
block = ["THREADS"]
args = ["y", "row_ptr", "col_idx", "values", "x", "piece_row", "piece_sum", "rows:i32", "(ceildiv(nnz, LONG) if nnz > LONG else 0):i32"]
[[launch]]
kernel = "join_pieces"
when = "nnz > LONG"
grid = ["ceildiv(ceildiv(nnz, LONG), 256)"]
block = ["256"]
args = ["y", "piece_row", "piece_sum", "rows:i32", "ceildiv(nnz, LONG):i32"]
*/
#include "reduce.cuh"
#include "row_parts.cuh"

constexpr int kChunk = THREADS * IPT;
constexpr int kRows = THREADS / LANES;
// A row longer than this many steps of its lanes is left to a whole warp.
constexpr int kPatience = 16;

// Chunks start at a line's boundary, so that no warp touches two lines where one would do.
__device__ __forceinline__ int line_start(int entry) { return entry & ~31; }

// This thread's entries of the chunk at `from`, every THREADS-th, those in [low, to): values in
// `value`, x in `factor`, zeros for the others.
__device__ __forceinline__ void load_entries(float (&value)[IPT], float (&factor)[IPT],
                                             const int* __restrict__ col_idx,
                                             const elem_t* __restrict__ values,
                                             const elem_t* __restrict__ x, int from, int low,
                                             int to) {
    int col[IPT];
    // Unsigned: near the largest index the sum of a signed one would overflow.
    const unsigned first = static_cast<unsigned>(from) + threadIdx.x;
    const unsigned start = static_cast<unsigned>(low), end = static_cast<unsigned>(to);
#pragma unroll
    for (int u = 0; u < IPT; ++u) {
        const unsigned k = first + u * THREADS;
        // The matrix is read once and must not push x out of the cache.
        const bool in = k >= start && k < end;
        col[u] = in ? __ldcs(col_idx + k) : 0;
        value[u] = in ? __ldcs(values + k) : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < IPT; ++u) {
        const unsigned k = first + u * THREADS;
        factor[u] = k >= start && k < end ? __ldg(x + col[u]) : 0.0f;
    }
}

// This thread's share of the sum over [low, to), two chunks in flight.
__device__ __forceinline__ float sum_stretch(const int* __restrict__ col_idx,
                                             const elem_t* __restrict__ values,
                                             const elem_t* __restrict__ x, int low, int to) {
    float sum = 0.0f;
    int from = line_start(low);
    while (from < to) {
        float value[2][IPT], factor[2][IPT];
        const int middle = to - from > kChunk ? from + kChunk : to;
        load_entries(value[0], factor[0], col_idx, values, x, from, low, middle);
        load_entries(value[1], factor[1], col_idx, values, x, middle, low, to);
#pragma unroll
        for (int u = 0; u < IPT; ++u) {
            sum = fmaf(value[0][u], factor[0][u], sum);
            sum = fmaf(value[1][u], factor[1][u], sum);
        }
        from = to - middle > kChunk ? middle + kChunk : to;
    }
    return sum;
}

// A row of more than LONG entries holds a multiple of LONG. The block of each such multiple takes
// the row's entries from there to the next; the first one also takes those before it.
__device__ void sum_piece(const int* __restrict__ row_ptr, const int* __restrict__ col_idx,
                          const elem_t* __restrict__ values, const elem_t* __restrict__ x,
                          int* __restrict__ piece_row, float* __restrict__ piece_sum, int rows,
                          int piece) {
    __shared__ float scratch[THREADS / 32];
    __shared__ int found;
    const int entry = piece * LONG;
    if (threadIdx.x < 32) {
        // The row of `entry`: as many rows end at or before it. 32 probes at once.
        int low = 0, high = rows;
        while (low < high) {
            const int step = (high - low) / 33 + 1;
            const int at = low + (threadIdx.x + 1) * step - 1;
            const bool passed = at < high && __ldg(row_ptr + at + 1) <= entry;
            const int count = __popc(__ballot_sync(kFullWarp, passed));
            high = min(high, low + (count + 1) * step - 1);
            low += count * step;
        }
        if (threadIdx.x == 0) found = low;
    }
    __syncthreads();
    const int row = found;
    const int begin = __ldg(row_ptr + row), end = __ldg(row_ptr + row + 1);
    if (end - begin <= LONG) {
        if (threadIdx.x == 0) piece_row[piece] = rows;
        return;
    }
    const int stop = end - entry < LONG ? end : entry + LONG;
    const int start = begin > entry - LONG ? begin : entry;
    const float sum =
        block_sum<THREADS>(sum_stretch(col_idx, values, x, start, stop), scratch);
    if (threadIdx.x == 0) {
        piece_row[piece] = row;
        piece_sum[piece] = sum;
    }
}

__device__ void sum_rows(elem_t* __restrict__ y, const int* __restrict__ row_ptr,
                         const int* __restrict__ col_idx, const elem_t* __restrict__ values,
                         const elem_t* __restrict__ x, int rows, int first) {
    __shared__ float product[kChunk];
    __shared__ float scratch[THREADS / 32];
    __shared__ int range[kRows];
    __shared__ float late[kRows];
    __shared__ int waiting[kChunk / kPatience];
    __shared__ int waiting_count;
    __shared__ int resume;
    const int last = min(first + kRows, rows);
    const int own = threadIdx.x / LANES;
    const int row = first + own;
    const int lane = threadIdx.x % LANES;
    const int stream_end = __ldg(row_ptr + last);
    int next = __ldg(row_ptr + first);
    int begin = stream_end, end = stream_end;
    if (row < last) {
        begin = __ldg(row_ptr + row);
        end = __ldg(row_ptr + row + 1);
    }
    const bool is_long = end - begin > LONG;
    if (threadIdx.x == 0) waiting_count = 0;
    const bool any_long = __syncthreads_or(is_long);

    float sum = 0.0f;
    while (next < stream_end) {
        if (any_long) {
            // Entries of a long row are not this block's to read.
            const bool covers = is_long && begin <= next && end > next;
            if (covers && lane == 0) resume = end;
            if (__syncthreads_or(covers)) {
                next = resume;
                __syncthreads();
                continue;
            }
        }
        const int chunk = line_start(next);
        const int chunk_end = stream_end - chunk > kChunk ? chunk + kChunk : stream_end;
        float value[IPT], factor[IPT];
        load_entries(value, factor, col_idx, values, x, chunk, next, chunk_end);
        const bool whole = begin <= next && end >= chunk_end;
        if (whole && lane == 0) resume = end;
        if (__syncthreads_or(whole)) {
            // One row fills the chunk: all threads see it through to its end.
            const int row_end = resume;
            float part = sum_stretch(col_idx, values, x, chunk_end, row_end);
#pragma unroll
            for (int u = 0; u < IPT; ++u) part = fmaf(value[u], factor[u], part);
            part = block_sum<THREADS>(part, scratch);
            if (whole && lane == 0) sum += part;
            next = row_end;
        } else {
#pragma unroll
            for (int u = 0; u < IPT; ++u) {
                product[u * THREADS + threadIdx.x] = value[u] * factor[u];
            }
            __syncthreads();
            const int from = max(begin, next) - chunk;
            const int to = is_long ? from : min(end, chunk_end) - chunk;
            const bool waits = to - from > kPatience * LANES;
            if (!waits) {
                for (int k = from + lane; k < to; k += LANES) sum += product[k];
            } else if (lane == 0) {
                const int slot = atomicAdd(&waiting_count, 1);
                waiting[slot] = own;
                range[own] = from << 16 | to;
            }
            if (__syncthreads_or(waits)) {
                const int count = waiting_count;
                for (int w = threadIdx.x / 32; w < count; w += THREADS / 32) {
                    const int who = waiting[w];
                    const int first_k = range[who] >> 16;
                    const int last_k = range[who] & 0xffff;
                    float part = 0.0f;
#pragma unroll 4
                    for (int k = first_k + threadIdx.x % 32; k < last_k; k += 32) {
                        part += product[k];
                    }
                    part = warp_sum(part);
                    if (threadIdx.x % 32 == 0) late[who] = part;
                }
                __syncthreads();
                if (waits && lane == 0) sum += late[own];
                if (threadIdx.x == 0) waiting_count = 0;
            }
            next = chunk_end;
        }
        // The next chunk's vote is the barrier between these reads and its writes.
    }
    sum = warp_sum<LANES>(sum);
    if (lane == 0 && row < last && !is_long) y[row] = sum;
}

__global__ __launch_bounds__(THREADS) void spmv_csr(
    elem_t* __restrict__ y, const int* __restrict__ row_ptr, const int* __restrict__ col_idx,
    const elem_t* __restrict__ values, const elem_t* __restrict__ x, int* __restrict__ piece_row,
    float* __restrict__ piece_sum, int rows, int pieces) {
    const int block = blockIdx.x;
    int before = 0;
    if (pieces > 0) {
        // Pieces are spread among the blocks: most only search, and others hide their latency.
        const int step = static_cast<int>(gridDim.x) / pieces;
        if (block % step == 0 && block / step < pieces) {
            sum_piece(row_ptr, col_idx, values, x, piece_row, piece_sum, rows, block / step);
            return;
        }
        before = min(pieces, block / step + 1);
    }
    sum_rows(y, row_ptr, col_idx, values, x, rows, (block - before) * kRows);
}

__global__ __launch_bounds__(256) void join_pieces(elem_t* __restrict__ y,
                                                   const int* __restrict__ piece_row,
                                                   const float* __restrict__ piece_sum, int rows,
                                                   int pieces) {
    const RowTotal total =
        join_parts(piece_row, piece_sum, rows, pieces, blockIdx.x * 256 + threadIdx.x);
    if (total.row < rows) y[total.row] = total.sum;
}
