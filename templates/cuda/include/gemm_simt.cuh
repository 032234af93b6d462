// One block's tile of a float32 product on the ordinary FP32 units, fed by cp.async.
#pragma once
#include "gemm_common.cuh"

// A tile of kBm x kBn over [k_begin, k_end), kTm x kTn of it in each thread's registers.
//
// A lies transposed in shared memory (k outermost), so that both operands are read 16 bytes at a
// time. Its copies are 4 bytes wide for that reason, and need no alignment; those of B are kVec
// floats wide. A warp is 4 x 8 threads. The lanes are dealt so that each half warp touches two
// groups of rows and eight of columns: both operands are then read by broadcast, without conflicts.
template <int kBm, int kBn, int kBk, int kTm, int kTn, int kStages, int kVec, int kOrder>
struct SimtTile {
    static constexpr int kThreads = (kBm / kTm) * (kBn / kTn);
    static constexpr int kWarpsN = kBn / (8 * kTn);
    // Four floats of padding put the eight k of a transposed copy in different banks.
    static constexpr int kLda = kBm + 4;
    static constexpr int kStageA = kBk * kLda;
    static constexpr int kStageB = kBk * kBn;
    static constexpr int kStage = kStageA + kStageB;
    static constexpr int kRowStep = kThreads / 8;
    static constexpr int kCopiesB = kBk * kBn / kVec / kThreads;
    static_assert(kBm % (4 * kTm) == 0 && kBn % (8 * kTn) == 0, "the tile is whole warps");
    static_assert(kBk % 8 == 0 && kBm % kRowStep == 0, "A is copied in groups of 8 k");
    static_assert(kCopiesB * kVec * kThreads == kBk * kBn, "B is copied in whole turns");
    static_assert(kStages >= 2, "one stage is read while another is filled");

    const float* a;
    const float* b;
    int m, n, k_end, row0, col0;
    long long lda;
    float* smem;

    template <bool CHECKED>
    __device__ __forceinline__ void fill(int stage, int k0) const {
        const int tid = threadIdx.x;
        const unsigned base = smem_address(smem + stage * kStage);
        {
            const int kk = tid % 8, r = tid / 8;
            const float* src = a + (row0 + r) * lda + k0 + kk;
            const unsigned dst = base + (kk * kLda + r) * 4;
#pragma unroll
            for (int p = 0; p < kBm / kRowStep; ++p) {
#pragma unroll
                for (int h = 0; h < kBk / 8; ++h) {
                    const unsigned to = dst + (h * 8 * kLda + p * kRowStep) * 4;
                    if constexpr (CHECKED) {
                        const bool in = row0 + r + p * kRowStep < m && k0 + kk + h * 8 < k_end;
                        copy_async<4>(to, in ? src + p * kRowStep * lda + h * 8 : a, in);
                    } else {
                        copy_async<4>(to, src + p * kRowStep * lda + h * 8);
                    }
                }
            }
        }
#pragma unroll
        for (int p = 0; p < kCopiesB; ++p) {
            const int unit = tid + p * kThreads;
            const int kk = unit / (kBn / kVec), c = unit % (kBn / kVec) * kVec;
            const unsigned to = base + (kStageA + kk * kBn + c) * 4;
            const float* src = b + static_cast<long long>(k0 + kk) * n + col0 + c;
            if constexpr (CHECKED) {
                const bool in = k0 + kk < k_end && col0 + c < n;
                copy_async<4 * kVec>(to, in ? src : b, in);
            } else {
                copy_async<4 * kVec>(to, src);
            }
        }
    }

    __device__ __forceinline__ void fill(int stage, int k0, bool whole) const {
        if (whole && k0 + kBk <= k_end) {
            fill<false>(stage, k0);
        } else if (k0 < k_end) {
            fill<true>(stage, k0);
        }
        copy_commit();
    }

    static __device__ __forceinline__ int lane_m() {
        return (threadIdx.x & 1) | ((threadIdx.x >> 3) & 2);
    }
    static __device__ __forceinline__ int lane_n() { return (threadIdx.x >> 1) & 7; }
    // The first row and column of the thread; its quads follow 16 rows and 32 columns apart.
    static __device__ __forceinline__ int first_row() {
        return static_cast<int>(threadIdx.x) / 32 / kWarpsN * (4 * kTm) + lane_m() * 4;
    }
    static __device__ __forceinline__ int first_col() {
        return static_cast<int>(threadIdx.x) / 32 % kWarpsN * (8 * kTn) + lane_n() * 4;
    }

    static __device__ __forceinline__ void read(float (&fa)[kTm], float (&fb)[kTn], const float* pa,
                                                const float* pb, int kk) {
#pragma unroll
        for (int q = 0; q < kTm / 4; ++q) {
            const float4 v = *reinterpret_cast<const float4*>(pa + kk * kLda + q * 16);
            fa[4 * q] = v.x, fa[4 * q + 1] = v.y, fa[4 * q + 2] = v.z, fa[4 * q + 3] = v.w;
        }
#pragma unroll
        for (int q = 0; q < kTn / 4; ++q) {
            const float4 v = *reinterpret_cast<const float4*>(pb + kk * kBn + q * 32);
            fb[4 * q] = v.x, fb[4 * q + 1] = v.y, fb[4 * q + 2] = v.z, fb[4 * q + 3] = v.w;
        }
    }

    __device__ __forceinline__ void multiply(float (&acc)[kTm][kTn], int k_begin) const {
        const bool whole = row0 + kBm <= m && col0 + kBn <= n;
        const int steps = (max(k_end - k_begin, 0) + kBk - 1) / kBk;
#pragma unroll
        for (int i = 0; i < kTm; ++i) {
#pragma unroll
            for (int j = 0; j < kTn; ++j) acc[i][j] = 0.0f;
        }
        if (steps == 0) return;
#pragma unroll
        for (int s = 0; s < kStages - 1; ++s) fill(s, k_begin + s * kBk, whole);
        copy_wait<kStages - 2>();
        __syncthreads();

        const float* const pa0 = smem + first_row();
        const float* const pb0 = smem + kStageA + first_col();
        float fa[2][kTm], fb[2][kTn];
        int reading = 0, filling = kStages - 1;
        const float* pa = pa0;
        const float* pb = pb0;
        read(fa[0], fb[0], pa, pb, 0);
        for (int step = 0; step < steps; ++step) {
#pragma unroll
            for (int kk = 0; kk < kBk; ++kk) {
                if (kk == kBk - 1) {
                    // The next stage has arrived, and no thread needs this one any more.
                    copy_wait<kStages - 2>();
                    __syncthreads();
                    reading = reading + 1 == kStages ? 0 : reading + 1;
                    pa = pa0 + reading * kStage;
                    pb = pb0 + reading * kStage;
                }
                read(fa[(kk + 1) & 1], fb[(kk + 1) & 1], pa, pb, (kk + 1) % kBk);
                if (kk == 0) {
                    fill(filling, k_begin + (step + kStages - 1) * kBk, whole);
                    filling = filling + 1 == kStages ? 0 : filling + 1;
                }
                outer_product<kOrder, kTm, kTn>(
                    [&](int i, int j) {
                        acc[i][j] = fmaf(fa[kk & 1][i], fb[kk & 1][j], acc[i][j]);
                    });
            }
        }
        copy_wait<0>();
    }

    // c has n columns and is aligned to kVec floats.
    __device__ __forceinline__ void store(float* c, const float (&acc)[kTm][kTn]) const {
        const int row = row0 + first_row(), col = col0 + first_col();
#pragma unroll
        for (int i = 0; i < kTm; ++i) {
            const int r = row + i / 4 * 16 + i % 4;
            if (r >= m) continue;
            float* out = c + static_cast<long long>(r) * n;
#pragma unroll
            for (int q = 0; q < kTn / 4; ++q) {
                const int j = col + q * 32;
                if constexpr (kVec == 4) {
                    if (j < n) {
                        *reinterpret_cast<float4*>(out + j) =
                            make_float4(acc[i][4 * q], acc[i][4 * q + 1], acc[i][4 * q + 2],
                                        acc[i][4 * q + 3]);
                    }
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        if (j + e < n) out[j + e] = acc[i][4 * q + e];
                    }
                }
            }
        }
    }
};
