// The part of a softmax row that one thread holds in registers: exponentials first, then the scale.
#pragma once
#include "pack.cuh"
#include "reduce.cuh"

// LANES threads hold one row of `cols` elements between them, each ITEM_COUNT packs of N, every
// LANES-th pack. `lane` is this thread's place among them.
template <int N, int ITEM_COUNT, int LANES>
struct SoftmaxPart {
    float e[ITEM_COUNT][N];

    // Turns the packs into exp(value - own largest) and returns what the reduction needs.
    __device__ __forceinline__ TopSum absorb(const Pack<N> (&held)[ITEM_COUNT], int lane,
                                             int cols) {
        TopSum part{lowest(), 0.0f};
#pragma unroll
        for (int i = 0; i < ITEM_COUNT; ++i) {
            held[i].unpack(e[i]);
            if ((i * LANES + lane) * N < cols) {
#pragma unroll
                for (int k = 0; k < N; ++k) part.top = fmaxf(part.top, e[i][k]);
            }
        }
#pragma unroll
        for (int i = 0; i < ITEM_COUNT; ++i) {
            if ((i * LANES + lane) * N < cols) {
#pragma unroll
                for (int k = 0; k < N; ++k) {
                    e[i][k] = expf(e[i][k] - part.top);
                    part.sum += e[i][k];
                }
            }
        }
        return part;
    }

    // `own_top` is this thread's largest value, `whole` the row's normaliser.
    __device__ __forceinline__ void emit(elem_t* out, float own_top, TopSum whole, int lane,
                                         int cols) const {
        const float scale = expf(own_top - whole.top) / whole.sum;
#pragma unroll
        for (int i = 0; i < ITEM_COUNT; ++i) {
            const int j = (i * LANES + lane) * N;
            if (j < cols) {
                float v[N];
#pragma unroll
                for (int k = 0; k < N; ++k) v[k] = e[i][k] * scale;
                Pack<N> r;
                r.pack(v);
                store_once<N>(out + j, r);
            }
        }
    }
};

template <int N, int ITEM_COUNT, int LANES>
__device__ __forceinline__ void load_row(Pack<N> (&held)[ITEM_COUNT], const elem_t* in, int lane,
                                         int cols) {
#pragma unroll
    for (int i = 0; i < ITEM_COUNT; ++i) {
        const int j = (i * LANES + lane) * N;
        held[i].clear();
        if (j < cols) held[i] = load_once<N>(in + j);
    }
}
