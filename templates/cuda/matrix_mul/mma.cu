/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "tensor cores through mma.sync, ldmatrix from a flipped cp.async ring"
dtypes = ["bfloat16"]
requires = {arch = "sm_80"}
[tunables]
BM = [64, 128, 256]
BN = [64, 128, 256]
BK = [32, 64]
WM = [32, 64]
WN = [64]
STAGES = [3, 4]
VEC = [2, 4, 8]
GROUP = [8]
[constraints]
warps = "128 <= BM // WM * (BN // WN) * 32 <= 256"
narrow = "VEC == 8 or (BM == 128 and BN == 128 and BK == 32 and STAGES == 4)"
spill = "BK == 32 or WM == 32"
small = "BM * BN <= 128 * 256"
fits = "STAGES * BK * (BM + BN) * 2 <= max_shared_per_block"
[domain]
sizes = "max(m, n, k) <= 2147483000"
grid = "ceildiv(m, BM) * ceildiv(n, BN) <= 2147483647"
whole_parts = "k % VEC == 0 and n % VEC == 0"
aligned = "min(align_a, align_b) >= 2 * VEC and align_c >= 4"
[[launch]]
kernel = "matrix_mul"
grid = ["ceildiv(m, BM) * ceildiv(n, BN)"]
block = ["BM // WM * (BN // WN) * 32"]
shared = "STAGES * BK * (BM + BN) * 2"
args = ["c", "a", "b", "m:i32", "n:i32", "k:i32"]
*/
#include "gemm_mma.cuh"

using Tile = MmaTile<BM, BN, BK, BM / WM, BN / WN>;

// Copies 8 elements of a row in parts of VEC; what lies outside the matrix becomes zero.
__device__ __forceinline__ void copy_chunk(unsigned dst, const elem_t* row, const elem_t* safe,
                                           int first, int count, bool valid) {
#pragma unroll
    for (int e = 0; e < 8; e += VEC) {
        const bool in = valid && first + e < count;
        copy_async<2 * VEC>(dst + 2 * e, in ? row + first + e : safe, in);
    }
}

__device__ __forceinline__ void fill(unsigned stage, const elem_t* a, const elem_t* b, int m, int n,
                                     int k, int row0, int col0, int k0) {
    if (k0 < k) {
#pragma unroll
        for (int p = 0; p < BM * Tile::kChunksA / Tile::kThreads; ++p) {
            const int unit = threadIdx.x + p * Tile::kThreads;
            const int r = unit / Tile::kChunksA, chunk = unit % Tile::kChunksA;
            copy_chunk(stage + Tile::at_a(r, chunk), a + static_cast<long long>(row0 + r) * k, a,
                       k0 + chunk * 8, k, row0 + r < m);
        }
#pragma unroll
        for (int p = 0; p < BK * Tile::kChunksB / Tile::kThreads; ++p) {
            const int unit = threadIdx.x + p * Tile::kThreads;
            const int r = unit / Tile::kChunksB, chunk = unit % Tile::kChunksB;
            copy_chunk(stage + Tile::at_b(r, chunk), b + static_cast<long long>(k0 + r) * n, b,
                       col0 + chunk * 8, n, k0 + r < k);
        }
    }
    copy_commit();
}

__global__ __launch_bounds__(Tile::kThreads) void matrix_mul(elem_t* __restrict__ c,
                                                             const elem_t* __restrict__ a,
                                                             const elem_t* __restrict__ b, int m,
                                                             int n, int k) {
    extern __shared__ __align__(128) unsigned char ring_bytes[];
    const unsigned ring = smem_address(ring_bytes);
    const TileIndex at = tile_at(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, GROUP);
    const int row0 = at.m * BM, col0 = at.n * BN;
    const int steps = (k + BK - 1) / BK;
    constexpr int kParts = BK / 16;

    float acc[Tile::kMi][Tile::kNi][4];
    Tile::clear(acc);
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        fill(ring + s * Tile::kStage, a, b, m, n, k, row0, col0, s * BK);
    }
    copy_wait<STAGES - 2>();
    __syncthreads();
    unsigned fa[2][Tile::kMi][4], fb[2][Tile::kNi][2];
    int reading = 0, filling = STAGES - 1;
    if (steps > 0) Tile::load(fa[0], fb[0], ring, 0);
    for (int step = 0; step < steps; ++step) {
#pragma unroll
        for (int kk = 0; kk < kParts; ++kk) {
            if (kk == kParts - 1) {
                // The next stage has arrived, and no thread needs this one any more.
                copy_wait<STAGES - 2>();
                __syncthreads();
                reading = reading + 1 == STAGES ? 0 : reading + 1;
            }
            Tile::load(fa[(kk + 1) % 2], fb[(kk + 1) % 2], ring + reading * Tile::kStage,
                       (kk + 1) % kParts);
            if (kk == 0) {
                fill(ring + filling * Tile::kStage, a, b, m, n, k, row0, col0,
                     (step + STAGES - 1) * BK);
                filling = filling + 1 == STAGES ? 0 : filling + 1;
            }
            Tile::multiply(acc, fa[kk % 2], fb[kk % 2]);
        }
    }
    copy_wait<0>();
    Tile::store<true>(c, acc, m, n, row0, col0);
}
