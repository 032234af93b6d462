// What the matrix products share: the order of tiles, conversions and asynchronous copies.
#pragma once

__device__ __forceinline__ float gemm_float(float v) { return v; }
__device__ __forceinline__ void gemm_store(float* p, float v) { *p = v; }
#if ELEM_BFLOAT16
__device__ __forceinline__ float gemm_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ void gemm_store(__nv_bfloat16* p, float v) {
    *p = __float2bfloat16_rn(v);
}
#endif

struct TileIndex {
    int m, n;
};

// Tiles run down a band of `group` tile rows before they step to the next column, so that blocks
// running at the same time share both their rows of A and their columns of B in L2.
__device__ __forceinline__ TileIndex tile_at(int index, int tiles_m, int tiles_n, int group) {
    const long long per_band = static_cast<long long>(group) * tiles_n;
    const int band = static_cast<int>(index / per_band);
    const int inside = static_cast<int>(index - band * per_band);
    const int first = band * group;
    const int height = min(group, tiles_m - first);
    return {first + inside % height, inside / height};
}

// Copies kBytes (4, 8 or 16) or, where `valid` is false, writes zeros and reads nothing.
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned dst, const void* src, bool valid) {
    const int size = valid ? kBytes : 0;
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src),
                     "r"(size)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src),
                     "n"(kBytes), "r"(size)
                     : "memory");
    }
}
template <int kBytes>
__device__ __forceinline__ void copy_async(unsigned dst, const void* src) {
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(kBytes)
                     : "memory");
    }
}
__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ unsigned smem_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Calls product(i, j) for every element of a rows x columns register tile, in one of three orders:
// 0 row after row, 1 the same to and fro, 2 column after column to and fro. Going to and fro,
// nearly every product finds one operand in the register reuse cache; products that read three
// registers anew were the slower ones on an H200. The compiler reorders what it is given, so which
// order is best is left to measurement.
template <int kOrder, int kRows, int kColumns, typename Product>
__device__ __forceinline__ void outer_product(const Product& product) {
    if constexpr (kOrder < 2) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
                product(i, kOrder == 1 && i % 2 == 1 ? kColumns - 1 - j : j);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
            for (int i = 0; i < kRows; ++i) product(j % 2 == 1 ? kRows - 1 - i : i, j);
        }
    }
}
