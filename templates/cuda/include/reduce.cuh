// Reductions across a warp and a block whose result reaches every thread.
#pragma once

constexpr unsigned kFullWarp = 0xffffffffu;

// Lowest finite float: a start for a maximum that never makes inf - inf.
__device__ constexpr float lowest() { return -3.402823466e+38f; }

template <int WIDTH_LANES = 32>
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = WIDTH_LANES / 2; d > 0; d /= 2) v += __shfl_xor_sync(kFullWarp, v, d, WIDTH_LANES);
    return v;
}

template <int WIDTH_LANES = 32>
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int d = WIDTH_LANES / 2; d > 0; d /= 2) {
        v = fmaxf(v, __shfl_xor_sync(kFullWarp, v, d, WIDTH_LANES));
    }
    return v;
}

// The block reductions have one barrier, between the writes to `scratch` and the reads. A second
// reduction may follow at once only with other scratch: a slow warp may still be reading the first.

// `scratch`: BLOCK_THREADS / 32 floats. BLOCK_THREADS is a power of two from 32 to 1024.
template <int BLOCK_THREADS>
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    constexpr int warps = BLOCK_THREADS / 32;
    v = warp_sum(v);
    if constexpr (warps > 1) {
        const int lane = threadIdx.x % 32;
        if (lane == 0) scratch[threadIdx.x / 32] = v;
        __syncthreads();
        v = warp_sum<warps>(scratch[lane % warps]);
    }
    return v;
}

// A softmax normaliser: the largest value seen, and the sum of exp(value - top).
struct TopSum {
    float top;
    float sum;
};

__device__ __forceinline__ TopSum merge(TopSum a, TopSum b) {
    const float top = fmaxf(a.top, b.top);
    return {top, a.sum * expf(a.top - top) + b.sum * expf(b.top - top)};
}

template <int WIDTH_LANES = 32>
__device__ __forceinline__ TopSum warp_merge(TopSum v) {
    // Maximum first, then one rescale: fewer exponentials than merging pairs all the way down.
    const float top = warp_max<WIDTH_LANES>(v.top);
    return {top, warp_sum<WIDTH_LANES>(v.sum * expf(v.top - top))};
}

// `scratch`: BLOCK_THREADS / 32 entries.
template <int BLOCK_THREADS>
__device__ __forceinline__ TopSum block_merge(TopSum v, TopSum* scratch) {
    constexpr int warps = BLOCK_THREADS / 32;
    v = warp_merge(v);
    if constexpr (warps > 1) {
        const int lane = threadIdx.x % 32;
        if (lane == 0) scratch[threadIdx.x / 32] = v;
        __syncthreads();
        v = warp_merge<warps>(scratch[lane % warps]);
    }
    return v;
}
