/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "float32 units, k cut into SPLIT parts for small results; partial sums added in a fixed order"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
SPLIT = [2, 4, 8, 16, 32]
BM = [32, 64, 128]
BN = [64, 128]
VEC = [1, 4]
STAGES = [4]
[constraints]
shape = "BM <= BN"
[domain]
sizes = "max(m, n, k) <= 2147483000"
small = "SPLIT * m * n <= 2 ** 31"
deep = "k >= 16 * SPLIT"
whole_quads = "n % VEC == 0"
aligned = "min(align_b, align_c) >= 4 * VEC"
[workspace]
partial = {dtype = "float32", shape = ["SPLIT", "m", "n"]}
[[launch]]
kernel = "multiply_part"
grid = ["ceildiv(m, BM) * ceildiv(n, BN)", "SPLIT"]
block = ["BM * BN // (32 if BM == 32 else 64)"]
shared = "STAGES * 8 * (BM + 4 + BN) * 4"
args = ["partial", "a", "b", "m:i32", "n:i32", "k:i32"]
[[launch]]
kernel = "add_parts"
grid = ["ceildiv(m * n, 256 * VEC)"]
block = ["256"]
args = ["c", "partial", "m * n:i64"]
*/
#include "gemm_simt.cuh"

constexpr int kTm = BM == 32 ? 4 : 8;
using Tile = SimtTile<BM, BN, 8, kTm, 8, STAGES, VEC, 0>;

__global__ __launch_bounds__(Tile::kThreads, 2) void multiply_part(
    float* __restrict__ partial, const float* __restrict__ a, const float* __restrict__ b, int m,
    int n, int k) {
    extern __shared__ __align__(16) float ring[];
    const TileIndex at = tile_at(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, 8);
    const int part = (k + SPLIT - 1) / SPLIT;
    const int begin = min(static_cast<int>(blockIdx.y) * part, k);
    const Tile tile{a, b, m, n, min(begin + part, k), at.m * BM, at.n * BN, k, ring};
    float acc[kTm][8];
    tile.multiply(acc, begin);
    tile.store(partial + static_cast<long long>(blockIdx.y) * m * n, acc);
}

__global__ __launch_bounds__(256) void add_parts(float* __restrict__ c,
                                                 const float* __restrict__ partial,
                                                 long long count) {
    const long long i = (blockIdx.x * 256ll + threadIdx.x) * VEC;
    if (i >= count) return;
    float sum[VEC] = {};
#pragma unroll
    for (int s = 0; s < SPLIT; ++s) {
        float v[VEC];
        if constexpr (VEC == 4) {
            const float4 q = __ldcs(reinterpret_cast<const float4*>(partial + s * count + i));
            v[0] = q.x, v[1] = q.y, v[2] = q.z, v[3] = q.w;
        } else {
            v[0] = __ldcs(partial + s * count + i);
        }
#pragma unroll
        for (int e = 0; e < VEC; ++e) sum[e] += v[e];
    }
    if constexpr (VEC == 4) {
        *reinterpret_cast<float4*>(c + i) = make_float4(sum[0], sum[1], sum[2], sum[3]);
    } else {
        c[i] = sum[0];
    }
}
