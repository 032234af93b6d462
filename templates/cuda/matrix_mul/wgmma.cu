/* kernelsearch
format = 1
operator = "matrix_mul"
doc = "warpgroup products: one warpgroup copies, two multiply; persistent blocks in clusters"
dtypes = ["bfloat16"]
requires = {arch = "sm_90a"}
[tunables]
MB = [1, 2]
BN = [64, 128, 192, 256]
STAGES = [3, 4, 5, 6]
CLUSTER = [1, 2]
GROUP = [4, 8, 16]
[constraints]
registers = "MB * BN <= 256"
pieces = "BN // 64 % CLUSTER == 0"
fits = "STAGES * (MB * 128 + BN) * 128 + 34048 <= max_shared_per_block"
deep = "STAGES == 6 or (STAGES + 1) * (MB * 128 + BN) * 128 + 34048 > max_shared_per_block"
[domain]
not_empty = "min(m, n, k) > 0"
sizes = "max(m, n, k) <= 2147483000"
grid = "ceildiv(m, MB * 128) * ceildiv(n, BN) <= 1073741823"
whole_chunks = "k % 8 == 0 and n % 8 == 0"
aligned = "min(align_a, align_b, align_c) >= 16"
[tensormap]
a_map = {tensor = "a", box = ["MB * 128", 64], swizzle = "128B", l2_promotion = "256B"}
b_map = {tensor = "b", box = [64, 64], swizzle = "128B", l2_promotion = "256B"}
c_map = {tensor = "c", box = [64, 64], swizzle = "128B", l2_promotion = "none"}
[[launch]]
kernel = "matrix_mul"
grid = ["CLUSTER * min(ceildiv(m, MB * 128 * CLUSTER) * ceildiv(n, BN), sm_count // CLUSTER)"]
block = [384]
cluster = ["CLUSTER", 1, 1]
shared = "STAGES * (MB * 128 + BN) * 128 + 32768 + 1024"
args = ["a_map", "b_map", "c_map", "m:i32", "n:i32", "k:i32"]
*/
#include "gemm_wgmma.cuh"

constexpr int kBm = MB * 128, kBk = 64;
constexpr int kPieces = BN / 64;
constexpr int kBytesA = kBm * kBk * 2;
constexpr int kBytesPiece = 64 * kBk * 2;
constexpr int kBytes = kBytesA + kPieces * kBytesPiece;
constexpr int kBytesOut = 64 * 64 * 2;

struct Ring {
    unsigned data, full, empty;
    int stage;
    unsigned parity;

    __device__ __forceinline__ unsigned slot() const { return data + stage * kBytes; }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// The blocks of a cluster work on tiles below each other: they read the same columns of B, of
// which each fetches its share for both.
struct Schedule {
    int tiles_m, tiles_n, count;

    __device__ __forceinline__ Schedule(int m, int n)
        : tiles_m((m + kBm * CLUSTER - 1) / (kBm * CLUSTER)),
          tiles_n((n + BN - 1) / BN),
          count(tiles_m * tiles_n) {}
    __device__ __forceinline__ TileIndex at(int index) const {
        return tile_at(index, tiles_m, tiles_n, GROUP);
    }
};

__device__ __forceinline__ void copy_tiles(const CUtensorMap& a_map, const CUtensorMap& b_map,
                                           Ring ring, const Schedule& schedule, int steps,
                                           int rank) {
    for (int t = blockIdx.x / CLUSTER; t < schedule.count; t += gridDim.x / CLUSTER) {
        const TileIndex at = schedule.at(t);
        const int row = (at.m * CLUSTER + rank) * kBm, col = at.n * BN;
        for (int step = 0; step < steps; ++step) {
            const unsigned full = ring.full + 8 * ring.stage, to = ring.slot();
            barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
            barrier_expect(full, kBytes);
            box_load(to, a_map, step * kBk, row, full);
#pragma unroll
            for (int p = 0; p < kPieces / CLUSTER; ++p) {
                const int piece = rank * (kPieces / CLUSTER) + p;
                const unsigned dst = to + kBytesA + piece * kBytesPiece;
                if constexpr (CLUSTER == 1) {
                    box_load(dst, b_map, col + piece * 64, step * kBk, full);
                } else {
                    box_load_shared(dst, b_map, col + piece * 64, step * kBk, full,
                                    (1u << CLUSTER) - 1);
                }
            }
            ring.advance();
        }
    }
}

// Releases a stage in every block that copied into it.
__device__ __forceinline__ void release(unsigned empty) {
    if constexpr (CLUSTER == 1) {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty);
    } else {
        if (threadIdx.x % 32 < CLUSTER) barrier_arrive_at(empty, threadIdx.x % 32);
    }
}

// Rounds 64 x 64 of the sums into shared memory, laid out as the 128-byte swizzle wants it.
__device__ __forceinline__ void stage_out(unsigned out, const float* acc) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        unsigned v[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const __nv_bfloat162 pair =
                __floats2bfloat162_rn(acc[j * 8 + 2 * e], acc[j * 8 + 2 * e + 1]);
            memcpy(&v[e], &pair, 4);
        }
        const int chunk = 2 * j + lane / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         out + row * 128 + ((chunk ^ (row & 7)) * 16)),
                     "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
                     : "memory");
    }
}

__device__ __forceinline__ void multiply_tiles(const CUtensorMap& c_map, Ring ring,
                                               const Schedule& schedule, int steps, int rank,
                                               unsigned out) {
    const int group = threadIdx.x / 128 - 1;
    const bool storer = threadIdx.x % 128 == 0;
    out += group * 2 * kBytesOut;
    for (int t = blockIdx.x / CLUSTER; t < schedule.count; t += gridDim.x / CLUSTER) {
        float acc[MB][BN / 2];
        unsigned previous = 0;
        for (int step = 0; step < steps; ++step) {
            const unsigned a = ring.slot() + group * MB * 64 * 128, b = ring.slot() + kBytesA;
            const unsigned empty = ring.empty + 8 * ring.stage;
            barrier_wait(ring.full + 8 * ring.stage, ring.parity);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < kBk / 16; ++kk) {
                const uint64_t of_b = matrix_descriptor(b + kk * 2048, kBytesPiece, 1024);
#pragma unroll
                for (int i = 0; i < MB; ++i) {
                    const uint64_t of_a =
                        matrix_descriptor(a + i * 64 * 128 + kk * 32, 16, 1024);
                    Wgmma<BN>::run(acc[i], of_a, of_b, step + kk);
                }
            }
            wgmma_commit();
            // One stage's products stay in flight; those of the stage before are finished.
            wgmma_wait<1>();
            if (step > 0) release(previous);
            previous = empty;
            ring.advance();
        }
        wgmma_wait<0>();
        release(previous);

        const TileIndex at = schedule.at(t);
        const int row = (at.m * CLUSTER + rank) * kBm + group * MB * 64, col = at.n * BN;
#pragma unroll
        for (int i = 0; i < MB; ++i) {
#pragma unroll
            for (int p = 0; p < kPieces; ++p) {
                const unsigned buffer = out + (i * kPieces + p) % 2 * kBytesOut;
                if (storer) store_wait_read<1>();
                warpgroup_barrier(1 + group);
                stage_out(buffer, acc[i] + p * 32);
                store_fence();
                warpgroup_barrier(1 + group);
                if (storer) {
                    box_store(c_map, col + p * 64, row + i * 64, buffer);
                    store_commit();
                }
            }
        }
        // With an odd number of buffers used, the next tile would start on the one just given away.
        if constexpr (MB * kPieces % 2 == 1) {
            if (storer) store_wait_read<0>();
        }
    }
    if (storer) store_wait_all();
}

__global__ __launch_bounds__(384, 1) void matrix_mul(const __grid_constant__ CUtensorMap a_map,
                                                     const __grid_constant__ CUtensorMap b_map,
                                                     const __grid_constant__ CUtensorMap c_map,
                                                     int m, int n, int k) {
    extern __shared__ unsigned char raw[];
    __shared__ uint64_t bars[2 * STAGES];
    Ring ring{(smem_address(raw) + 1023u) & ~1023u, smem_address(bars),
              smem_address(bars) + 8 * STAGES, 0, 0};
    const unsigned out = ring.data + STAGES * kBytes;
    const int rank = CLUSTER == 1 ? 0 : static_cast<int>(cluster_rank());
    const Schedule schedule(m, n);
    const int steps = (k + kBk - 1) / kBk;

    if (threadIdx.x == 0) {
        map_prefetch(a_map);
        map_prefetch(b_map);
        map_prefetch(c_map);
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(ring.full + 8 * s, 1);
            // Every multiplying warp of every block of the cluster reads what this block copies.
            barrier_init(ring.empty + 8 * s, 8 * CLUSTER);
        }
        barrier_init_fence();
    }
    if constexpr (CLUSTER == 1) {
        __syncthreads();
    } else {
        cluster_barrier();
    }
    if (threadIdx.x < 128) {
        registers_shrink<40>();
        if (threadIdx.x == 0) copy_tiles(a_map, b_map, ring, schedule, steps, rank);
    } else {
        registers_grow<232>();
        multiply_tiles(c_map, ring, schedule, steps, rank, out);
    }
    // A block's shared memory must outlive what the others still send to it.
    if constexpr (CLUSTER > 1) {
        __syncwarp();
        cluster_barrier();
    }
}
