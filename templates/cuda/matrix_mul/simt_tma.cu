/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "float32 units fed by the tensor copy engine: no copy instructions, no block barriers"
dtypes = ["float32"]
requires = {arch = "sm_90"}
[tunables]
BM = [64, 128, 256]
BN = [64, 128, 256]
TN = [8, 16]
STAGES = [3, 4]
AHEAD = [0, 1]
ORDER = [0, 2]
GROUP = [8]
[constraints]
spill = "AHEAD == 0 or TN == 16 or ORDER == 2"
warps = "BN % (8 * TN) == 0"
wide = "BM <= 2 * BN"
threads = "128 <= BM * BN // (8 * TN) <= 256"
slots = "(STAGES * 64 * (BM + BN) + 1024) * 32768 // (BM * BN) <= max_shared_per_sm - 4096"
[domain]
not_empty = "min(m, n, k) > 0"
sizes = "max(m, n, k) <= 2147483000"
grid = "ceildiv(m, BM) * ceildiv(n, BN) <= 2147483647"
whole_quads = "n % 4 == 0 and k % 4 == 0"
aligned = "min(align_a, align_b, align_c) >= 16"
[tensormap]
a_map = {tensor = "a", box = ["BM", 16], swizzle = "64B", l2_promotion = "128B"}
b_map = {tensor = "b", box = [16, "BN"], swizzle = "none", l2_promotion = "256B"}
[[launch]]
kernel = "matrix_mul"
grid = ["ceildiv(m, BM) * ceildiv(n, BN)"]
block = ["BM // 8 * (BN // TN)"]
shared = "STAGES * 16 * (BM + BN) * 4 + 1024"
args = ["c", "a_map", "b_map", "m:i32", "n:i32", "k:i32"]
*/
#include "gemm_tma.cuh"

constexpr int kBk = 16;
constexpr int kThreads = BM / 8 * (BN / TN);
constexpr int kWarps = kThreads / 32;
constexpr int kWarpsN = BN / (8 * TN);
constexpr int kBytesA = BM * kBk * 4;
constexpr int kBytesB = kBk * BN * 4;
constexpr int kBytes = kBytesA + kBytesB;
// As many blocks a multiprocessor as the accumulators leave registers for.
constexpr int kBlocks = (TN == 16 ? 256 : 512) / kThreads;
// AHEAD: the next four k of A are read while these are multiplied, and columns of B one k ahead
// where the registers allow it. Both reach over the end of a stage.
constexpr int kHeld = AHEAD && TN == 16 ? 2 : 1;

__device__ __forceinline__ void read_quad(float* to, unsigned from) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                 : "r"(from));
}

// A thread of the warp's 4 x 8 holds rows lane_m + 4 i (i < 8) and quads of columns 32 apart.
__global__ __launch_bounds__(kThreads, kBlocks) void matrix_mul(
    float* __restrict__ c, const __grid_constant__ CUtensorMap a_map,
    const __grid_constant__ CUtensorMap b_map, int m, int n, int k) {
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t bars[2 * STAGES];
    const unsigned ring = (smem_address(raw) + 1023u) & ~1023u;
    const unsigned full = smem_address(bars), empty = full + 8 * STAGES;
    const TileIndex at = tile_at(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, GROUP);
    const int row0 = at.m * BM, col0 = at.n * BN;
    const int steps = (k + kBk - 1) / kBk;
    const bool feeder = threadIdx.x == 0;

    if (feeder) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, kWarps);
        }
        barrier_init_fence();
        for (int s = 0; s < STAGES - 1 && s < steps; ++s) {
            barrier_expect(full + 8 * s, kBytes);
            box_load(ring + s * kBytes, a_map, s * kBk, row0, full + 8 * s);
            box_load(ring + s * kBytes + kBytesA, b_map, col0, s * kBk, full + 8 * s);
        }
    }
    __syncthreads();

    const int warp_m = threadIdx.x / 32 / kWarpsN, warp_n = threadIdx.x / 32 % kWarpsN;
    const int lane_m = (threadIdx.x & 1) | ((threadIdx.x >> 3) & 2);
    const int lane_n = (threadIdx.x >> 1) & 7;
    // The copy engine stored 16-byte part p of row r at p ^ (r / 2 % 4). Bit 0 of that depends on
    // the lane alone and bit 1 on i alone, so even and odd parts each have one base a thread.
    const unsigned flip = (lane_m >> 1) * 16;
    const unsigned a_at = (warp_m * 32 + lane_m) * 64;
    const unsigned b_at = kBytesA + (warp_n * 8 * TN + lane_n * 4) * 4;
    float acc[8][TN];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) acc[i][j] = 0.0f;
    }

    float fa[8][4], fb[kHeld][TN];
    const auto read_a = [&](unsigned base, int quad, int i) {
        const int part = quad ^ (2 * (i & 1));
        const unsigned from = base + a_at + (part & 1 ? 0u - flip : flip) + i * 4 * 64 + part * 16;
        read_quad(fa[i], from);
    };
    const auto read_b = [&](float (&to)[TN], unsigned base, int k_in_stage) {
#pragma unroll
        for (int q = 0; q < TN / 4; ++q) {
            read_quad(&to[4 * q], base + b_at + (k_in_stage * BN + q * 32) * 4);
        }
    };

    int stage = 0, fill_stage = STAGES - 1;
    unsigned parity = 0, fill_parity = 1;
    unsigned base = ring;
    barrier_wait(full, 0);
    if constexpr (AHEAD) {
#pragma unroll
        for (int i = 0; i < 8; ++i) read_a(base, 0, i);
    }
    if constexpr (kHeld == 2) read_b(fb[0], base, 0);
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int kk = 0; kk < kBk; ++kk) {
            if (!AHEAD && kk % 4 == 0) {
#pragma unroll
                for (int i = 0; i < 8; ++i) read_a(base, kk / 4, i);
            }
            if constexpr (kHeld == 1) read_b(fb[0], base, kk);
            if (kk == kBk - 1) {
                // Everything of this stage is in registers: give it back and turn to the next.
                __syncwarp();
                if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * stage);
                if (++stage == STAGES) stage = 0, parity ^= 1;
                base = ring + stage * kBytes;
                if (step + 1 < steps) barrier_wait(full + 8 * stage, parity);
            }
            if constexpr (kHeld == 2) read_b(fb[(kk + 1) % 2], base, (kk + 1) % kBk);
            outer_product<ORDER, 8, TN>([&](int i, int j) {
                acc[i][j] = fmaf(fa[i][kk % 4], fb[kk % kHeld][j], acc[i][j]);
                // With its last column a row's four k are used up: the next four arrive meanwhile.
                if (AHEAD && kk % 4 == 3 && j == TN - 1) read_a(base, (kk + 1) / 4 % 4, i);
            });
            // Halfway through a stage the slowest warp has most likely left the one before.
            if (kk == kBk / 2 && feeder) {
                const int next = step + STAGES - 1;
                if (next < steps) {
                    barrier_wait(empty + 8 * fill_stage, fill_parity);
                    barrier_expect(full + 8 * fill_stage, kBytes);
                    const unsigned to = ring + fill_stage * kBytes;
                    box_load(to, a_map, next * kBk, row0, full + 8 * fill_stage);
                    box_load(to + kBytesA, b_map, col0, next * kBk, full + 8 * fill_stage);
                }
                if (++fill_stage == STAGES) fill_stage = 0, fill_parity ^= 1;
            }
        }
    }

    const int row = row0 + warp_m * 32 + lane_m, col = col0 + warp_n * 8 * TN + lane_n * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (row + 4 * i >= m) continue;
        float* out = c + static_cast<long long>(row + 4 * i) * n;
#pragma unroll
        for (int q = 0; q < TN / 4; ++q) {
            if (col + q * 32 < n) {
                *reinterpret_cast<float4*>(out + col + q * 32) = make_float4(
                    acc[i][4 * q], acc[i][4 * q + 1], acc[i][4 * q + 2], acc[i][4 * q + 3]);
            }
        }
    }
}
