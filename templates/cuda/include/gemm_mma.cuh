// A block's bfloat16 tile on the tensor cores through mma.sync: fragments, products and the store.
#pragma once
#include "gemm_common.cuh"

// Shared memory holds kBm x kBk of A and kBk x kBn of B in 16-byte chunks of 8 elements. A chunk's
// place within its row is flipped by the row, so that the eight rows an ldmatrix reads, and the
// rows a warp writes together, lie in different banks.
template <int kBm, int kBn, int kBk, int kWarpsM, int kWarpsN>
struct MmaTile {
    static constexpr int kThreads = kWarpsM * kWarpsN * 32;
    static constexpr int kWm = kBm / kWarpsM, kWn = kBn / kWarpsN;
    static constexpr int kMi = kWm / 16, kNi = kWn / 8;
    static constexpr int kBytesA = kBm * kBk * 2, kBytesB = kBk * kBn * 2;
    static constexpr int kStage = kBytesA + kBytesB;
    static constexpr int kChunksA = kBk / 8, kChunksB = kBn / 8;
    static_assert(kBk == 32 || kBk == 64, "the flip of A is written for rows of 64 or 128 bytes");
    static_assert(kBn >= 64 && kWm % 16 == 0 && kWn % 16 == 0, "whole 16 x 16 pieces a warp");
    static_assert(kBm * kChunksA % kThreads == 0 && kBk * kChunksB % kThreads == 0,
                  "operands are copied in whole turns of the block");

    static __device__ __forceinline__ unsigned at_a(int row, int chunk) {
        const int flip = kBk == 64 ? row & 7 : (row >> 1) & 3;
        return (row * kChunksA + (chunk ^ flip)) * 16;
    }
    static __device__ __forceinline__ unsigned at_b(int row, int chunk) {
        return kBytesA + (row * kChunksB + (chunk ^ (row & 7))) * 16;
    }

    static __device__ __forceinline__ void clear(float (&acc)[kMi][kNi][4]) {
#pragma unroll
        for (int i = 0; i < kMi; ++i) {
#pragma unroll
            for (int j = 0; j < kNi; ++j) {
#pragma unroll
                for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.0f;
            }
        }
    }

    static __device__ __forceinline__ void load(unsigned (&fa)[kMi][4], unsigned (&fb)[kNi][2],
                                                unsigned stage, int kk) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int m0 = warp / kWarpsN * kWm, n0 = warp % kWarpsN * kWn;
#pragma unroll
        for (int i = 0; i < kMi; ++i) {
            const unsigned from = stage + at_a(m0 + i * 16 + lane % 16, kk * 2 + lane / 16);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(fa[i][0]), "=r"(fa[i][1]), "=r"(fa[i][2]), "=r"(fa[i][3])
                         : "r"(from)
                         : "memory");
        }
#pragma unroll
        for (int j = 0; j < kNi; j += 2) {
            const unsigned from = stage + at_b(kk * 16 + lane % 16, n0 / 8 + j + lane / 16);
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(fb[j][0]), "=r"(fb[j][1]), "=r"(fb[j + 1][0]), "=r"(fb[j + 1][1])
                         : "r"(from)
                         : "memory");
        }
    }

    static __device__ __forceinline__ void multiply(float (&acc)[kMi][kNi][4],
                                                    const unsigned (&fa)[kMi][4],
                                                    const unsigned (&fb)[kNi][2]) {
#pragma unroll
        for (int i = 0; i < kMi; ++i) {
#pragma unroll
            for (int j = 0; j < kNi; ++j) {
                asm volatile(
                    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                    : "+f"(acc[i][j][0]), "+f"(acc[i][j][1]), "+f"(acc[i][j][2]),
                      "+f"(acc[i][j][3])
                    : "r"(fa[i][0]), "r"(fa[i][1]), "r"(fa[i][2]), "r"(fa[i][3]), "r"(fb[j][0]),
                      "r"(fb[j][1]));
            }
        }
    }

    // kPairs: n is even and c aligned to pairs.
    template <bool kPairs>
    static __device__ __forceinline__ void store(elem_t* c, const float (&acc)[kMi][kNi][4], int m,
                                                 int n, int row0, int col0) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        row0 += warp / kWarpsN * kWm + lane / 4;
        col0 += warp % kWarpsN * kWn + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kMi; ++i) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = row0 + i * 16 + half * 8;
                if (row >= m) continue;
                elem_t* out = c + static_cast<long long>(row) * n;
#pragma unroll
                for (int j = 0; j < kNi; ++j) {
                    const int col = col0 + j * 8;
                    const float v0 = acc[i][j][2 * half], v1 = acc[i][j][2 * half + 1];
                    if constexpr (kPairs) {
                        if (col < n) {
                            *reinterpret_cast<__nv_bfloat162*>(out + col) =
                                __floats2bfloat162_rn(v0, v1);
                        }
                    } else {
                        if (col < n) out[col] = __float2bfloat16_rn(v0);
                        if (col + 1 < n) out[col + 1] = __float2bfloat16_rn(v1);
                    }
                }
            }
        }
    }
};
