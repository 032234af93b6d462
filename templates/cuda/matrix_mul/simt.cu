/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "float32 units: register tile over a cp.async ring, A transposed on its way to shared memory"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
BM = [64, 128, 256]
BN = [128, 256]
BK = [8, 16]
TM = [8, 16]
TN = [8, 16]
STAGES = [3]
VEC = [1, 4]
ORDER = [0, 1, 2]
GROUP = [8]
[constraints]
warps_n = "BN % (8 * TN) == 0"
threads = "128 <= BM * BN // (TM * TN) <= 256"
registers = "TM * TN <= 128"
small_tiles = "TM * TN == 128 or (BM * BN <= 128 * 128 and ORDER < 2)"
any_alignment = "VEC == 4 or (BK == 8 and BM == 128 and BN == 128 and ORDER == 0)"
copies_b = "BK * BN % (VEC * (BM * BN // (TM * TN))) == 0"
fits = "STAGES * BK * (BM + 4 + BN) * 4 <= max_shared_per_block"
[domain]
sizes = "max(m, n, k) <= 2147483000"
grid = "ceildiv(m, BM) * ceildiv(n, BN) <= 2147483647"
whole_quads = "n % VEC == 0"
aligned = "min(align_b, align_c) >= 4 * VEC"
[[launch]]
kernel = "matrix_mul"
grid = ["ceildiv(m, BM) * ceildiv(n, BN)"]
block = ["BM // TM * (BN // TN)"]
shared = "STAGES * BK * (BM + 4 + BN) * 4"
args = ["c", "a", "b", "m:i32", "n:i32", "k:i32"]
*/
#include "gemm_simt.cuh"

using Tile = SimtTile<BM, BN, BK, TM, TN, STAGES, VEC, ORDER>;
// As many blocks a multiprocessor as the accumulators leave registers for.
constexpr int kBlocks = (TM * TN == 128 ? 256 : 512) / Tile::kThreads;

__global__ __launch_bounds__(Tile::kThreads, kBlocks) void matrix_mul(
    float* __restrict__ c, const float* __restrict__ a, const float* __restrict__ b, int m, int n,
    int k) {
    extern __shared__ __align__(16) float ring[];
    const TileIndex at = tile_at(blockIdx.x, (m + BM - 1) / BM, (n + BN - 1) / BN, GROUP);
    const Tile tile{a, b, m, n, k, at.m * BM, at.n * BN, k, ring};
    float acc[TM][TN];
    tile.multiply(acc, 0);
    tile.store(c, acc);
}
