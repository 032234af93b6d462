/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "tensor cores through mma.sync, copied element by element: any size and alignment"
dtypes = ["bfloat16"]
requires = {arch = "sm_80"}
[tunables]
BM = [64, 128]
BN = [64, 128]
WM = [32, 64]
WN = [32, 64]
GROUP = [8]
[constraints]
warps = "128 <= BM // WM * (BN // WN) * 32 <= 256"
[domain]
sizes = "max(m, n, k) <= 2147483000"
grid = "ceildiv(m, BM) * ceildiv(n, BN) <= 2147483647"
[[launch]]
kernel = "matrix_mul"
grid = ["ceildiv(m, BM) * ceildiv(n, BN)"]
block = ["BM // WM * (BN // WN) * 32"]
args = ["c", "a", "b", "m:i32", "n:i32", "k:i32"]
*/
#include "gemm_mma.cuh"

constexpr int kBk = 32;
using Tile = MmaTile<BM, BN, kBk, BM / WM, BN / WN>;
constexpr int kTurnsA = BM * Tile::kChunksA / Tile::kThreads;
constexpr int kTurnsB = kBk * Tile::kChunksB / Tile::kThreads;

// Reads 8 neighbours of a row one by one; what lies outside the matrix becomes zero.
__device__ __forceinline__ uint4 read_chunk(const elem_t* row, int first, int count, bool valid) {
    const unsigned short* bits = reinterpret_cast<const unsigned short*>(row);
    unsigned short e[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) e[i] = valid && first + i < count ? __ldg(bits + first + i) : 0;
    return make_uint4(e[0] | e[1] << 16, e[2] | e[3] << 16, e[4] | e[5] << 16, e[6] | e[7] << 16);
}

__global__ __launch_bounds__(Tile::kThreads) void matrix_mul(elem_t* __restrict__ c,
                                                             const elem_t* __restrict__ a,
                                                             const elem_t* __restrict__ b, int m,
                                                             int n, int k) {
    __shared__ __align__(128) unsigned char ring_bytes[2 * Tile::kStage];
    const unsigned ring = smem_address(ring_bytes);
    const TileIndex at = tile_at(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, GROUP);
    const int row0 = at.m * BM, col0 = at.n * BN;
    const int steps = (k + kBk - 1) / kBk;

    uint4 held_a[kTurnsA], held_b[kTurnsB];
    const auto read = [&](int k0) {
#pragma unroll
        for (int p = 0; p < kTurnsA; ++p) {
            const int unit = threadIdx.x + p * Tile::kThreads;
            const int r = unit / Tile::kChunksA, chunk = unit % Tile::kChunksA;
            held_a[p] = read_chunk(a + static_cast<long long>(row0 + r) * k, k0 + chunk * 8, k,
                                   row0 + r < m);
        }
#pragma unroll
        for (int p = 0; p < kTurnsB; ++p) {
            const int unit = threadIdx.x + p * Tile::kThreads;
            const int r = unit / Tile::kChunksB, chunk = unit % Tile::kChunksB;
            held_b[p] = read_chunk(b + static_cast<long long>(k0 + r) * n, col0 + chunk * 8, n,
                                   k0 + r < k);
        }
    };
    const auto write = [&](int slot) {
        unsigned char* to = ring_bytes + slot * Tile::kStage;
#pragma unroll
        for (int p = 0; p < kTurnsA; ++p) {
            const int unit = threadIdx.x + p * Tile::kThreads;
            const int r = unit / Tile::kChunksA, chunk = unit % Tile::kChunksA;
            *reinterpret_cast<uint4*>(to + Tile::at_a(r, chunk)) = held_a[p];
        }
#pragma unroll
        for (int p = 0; p < kTurnsB; ++p) {
            const int unit = threadIdx.x + p * Tile::kThreads;
            const int r = unit / Tile::kChunksB, chunk = unit % Tile::kChunksB;
            *reinterpret_cast<uint4*>(to + Tile::at_b(r, chunk)) = held_b[p];
        }
    };

    float acc[Tile::kMi][Tile::kNi][4];
    Tile::clear(acc);
    if (steps > 0) {
        read(0);
        write(0);
    }
    __syncthreads();
    for (int step = 0; step < steps; ++step) {
        // The next stage's reads are under way while this one is multiplied.
        if (step + 1 < steps) read((step + 1) * kBk);
#pragma unroll
        for (int kk = 0; kk < kBk / 16; ++kk) {
            unsigned fa[Tile::kMi][4], fb[Tile::kNi][2];
            Tile::load(fa, fb, ring + step % 2 * Tile::kStage, kk);
            Tile::multiply(acc, fa, fb);
        }
        if (step + 1 < steps) write((step + 1) % 2);
        __syncthreads();
    }
    Tile::store<false>(c, acc, m, n, row0, col0);
}
