// One warp's stretch of a grid row: packs in registers, side neighbours by shuffle.
#pragma once
#include "pack.cuh"
#include "reduce.cuh"

// N neighbouring cells, and for the warp's outer lanes the cell beyond the warp's stretch.
template <int N>
struct RowPart {
    Pack<N> cells;
    float edge;

    // Rows and columns outside the grid read as zero; the boundary copies, so none is used.
    __device__ __forceinline__ void load(const elem_t* __restrict__ src, long long i, long long j,
                                         long long nx, long long ny, int lane, bool edges) {
        cells.clear();
        edge = 0.0f;
        if (i < 0 || i >= nx) return;
        const elem_t* at = src + i * ny + j;
        if (j < ny) cells = load_shared_use<N>(at);
        if (edges) {
            if (lane == 0 && j > 0 && j < ny) edge = to_float(__ldg(at - 1));
            if (lane == 31 && j + N < ny) edge = to_float(__ldg(at + N));
        }
    }
};

// All 32 lanes call it. Writes row i from rows i - 1, i and i + 1.
template <int N>
__device__ __forceinline__ void step_row(elem_t* __restrict__ dst, const RowPart<N>& up,
                                         const RowPart<N>& here, const RowPart<N>& down,
                                         long long i, long long j, long long nx, long long ny,
                                         int lane, float alpha) {
    float u[N], c[N], d[N], v[N];
    up.cells.unpack(u);
    here.cells.unpack(c);
    down.cells.unpack(d);
    float left = __shfl_up_sync(kFullWarp, c[N - 1], 1);
    float right = __shfl_down_sync(kFullWarp, c[0], 1);
    if (lane == 0) left = here.edge;
    if (lane == 31) right = here.edge;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const float l = k == 0 ? left : c[k - 1];
        const float r = k == N - 1 ? right : c[k + 1];
        v[k] = fmaf(alpha, (u[k] + d[k]) + (l + r) - 4.0f * c[k], c[k]);
    }
    if (i == 0 || i == nx - 1) {
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = c[k];
    }
    if (j == 0) v[0] = c[0];
    if (j + N == ny) v[N - 1] = c[N - 1];
    if (i < nx && j < ny) {
        Pack<N> out;
        out.pack(v);
        store_once<N>(dst + i * ny + j, out);
    }
}
