// Sums that several blocks left for one row, added in a fixed order.
#pragma once
#include "reduce.cuh"

struct RowTotal {
    int row;
    float sum;
};

// Part `at` says part_sum[at] belongs to row part_row[at]; parts of one row are neighbours, and a
// row of `rows` or more means nothing. Whole warps call it, a lane a part. The lane of a row's first
// part gets the row's total, every other lane a row of `rows`.
__device__ __forceinline__ RowTotal join_parts(const int* __restrict__ part_row,
                                               const float* __restrict__ part_sum, int rows,
                                               int parts, int at) {
    const int lane = threadIdx.x % 32;
    const int row = at < parts ? part_row[at] : rows;
    float sum = row < rows ? part_sum[at] : 0.0f;
    const bool first = at == 0 || at >= parts || part_row[at - 1] != row;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const float other = __shfl_down_sync(kFullWarp, sum, d);
        const int other_row = __shfl_down_sync(kFullWarp, row, d);
        if (lane + d < 32 && other_row == row) sum += other;
    }
    // The whole warp follows the last row if it goes on beyond the warp's own parts.
    const int last_row = __shfl_sync(kFullWarp, row, 31);
    if (last_row < rows && __any_sync(kFullWarp, first && row == last_row)) {
        float beyond = 0.0f;
        for (int base = at - lane + 32;; base += 32) {
            const int p = base + lane;
            const bool same = p < parts && part_row[p] == last_row;
            if (same) beyond += part_sum[p];
            if (!__all_sync(kFullWarp, same)) break;
        }
        beyond = warp_sum(beyond);
        if (row == last_row) sum += beyond;
    }
    return {first ? row : rows, sum};
}
