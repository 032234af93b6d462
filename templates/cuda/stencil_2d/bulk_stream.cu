/* kernelsearch
format = 1
operator = "stencil_2d"
doc = "bulk copies bring rows into a shared-memory ring while the block walks down its columns"
dtypes = ["float32"]
requires = {arch = "sm_90"}
[tunables]
THREADS = [256, 64, 128]
VEC = [4]
ROWS = [64, 32, 128]
GROUP = [4, 2, 8]
STAGES = [3, 2]
[constraints]
shared = "STAGES * GROUP * (THREADS * VEC + 8) * elem_bytes <= max_shared_per_block"
half_full = "STAGES * GROUP * (THREADS * VEC + 8) * elem_bytes * max_threads_per_sm <= 2 * THREADS * max_shared_per_sm"
[domain]
whole_packs = "ny % 4 == 0"
aligned = "min(align_dst, align_src) >= 16"
[[launch]]
kernel = "stencil_2d"
grid = ["ceildiv(ny, THREADS * VEC)", "min(ceildiv(nx, ROWS), 65535)"]
block = ["THREADS"]
shared = "STAGES * GROUP * (THREADS * VEC + 8) * elem_bytes"
args = ["dst", "src", "nx:i64", "ny:i64", "alpha:f32"]
*/
#include "async_copy.cuh"
#include "pack.cuh"

// A row of the ring: four cells before the block's columns, its columns, four after. Four, because
// bulk copies move multiples of 16 bytes.
constexpr int kRow = THREADS * VEC + 8;

__global__ __launch_bounds__(THREADS) void stencil_2d(elem_t* __restrict__ dst,
                                                      const elem_t* __restrict__ src,
                                                      long long nx, long long ny, float alpha) {
    extern __shared__ __align__(128) unsigned char ring_bytes[];
    elem_t* ring = reinterpret_cast<elem_t*>(ring_bytes);
    __shared__ uint64_t arrived[STAGES];
    const long long first = static_cast<long long>(blockIdx.x) * (THREADS * VEC);
    const long long from = max(first - 4, 0LL);
    const long long to = min(first + THREADS * VEC + 4, ny);
    const int at = threadIdx.x * VEC + 4;
    const long long j = first + threadIdx.x * VEC;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) arrival_init(&arrived[s]);
        arrival_init_fence();
    }
    __syncthreads();

    int stage = 0;
    unsigned parity = 0;
    // A loop, because the grid's second axis is too short for a very tall array.
    for (long long band = static_cast<long long>(blockIdx.y) * ROWS; band < nx;
         band += static_cast<long long>(gridDim.y) * ROWS) {
        const long long stop = min(band + ROWS, nx);
        // Rows band - 1 to stop, those inside the grid, in groups of GROUP.
        const long long top = max(band - 1, 0LL);
        const long long end = min(stop + 1, nx);
        const auto fetch = [&](long long row, int slot) {
            if (row >= end) return;
            const int count = static_cast<int>(min(static_cast<long long>(GROUP), end - row));
            const unsigned bytes = static_cast<unsigned>((to - from) * ELEM_BYTES);
            arrival_expect(&arrived[slot], bytes * count);
            for (int r = 0; r < count; ++r) {
                bulk_copy(ring + (slot * GROUP + r) * kRow + (from - (first - 4)),
                          src + (row + r) * ny + from, bytes, &arrived[slot]);
            }
        };
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; ++s) {
                fetch(top + static_cast<long long>(s) * GROUP, (stage + s) % STAGES);
            }
        }
        float up[VEC] = {}, here[VEC] = {}, down[VEC];
        float left = 0.0f, right = 0.0f;
        for (long long row = top; row < end; row += GROUP) {
            arrival_wait(&arrived[stage], parity);
#pragma unroll
            for (int r = 0; r <= GROUP; ++r) {
                // Row `i` is finished once the row below it is here; the grid's last row, at once
                // after that.
                const long long below = row + r;
                if (r == GROUP && below != nx) break;
                if (below > end || (below == end && end != nx)) break;
                const elem_t* line = ring + (stage * GROUP + r) * kRow + at;
                if (below < end) {
                    Pack<VEC> p;
                    p.word = *reinterpret_cast<const Pack<VEC>::word_t*>(line);
                    p.unpack(down);
                }
                const long long i = below - 1;
                if (i >= band && i < stop && j < ny) {
                    float v[VEC];
#pragma unroll
                    for (int k = 0; k < VEC; ++k) {
                        const float l = k == 0 ? left : here[k - 1];
                        const float q = k == VEC - 1 ? right : here[k + 1];
                        v[k] = fmaf(alpha, (up[k] + down[k]) + (l + q) - 4.0f * here[k], here[k]);
                        if (i == 0 || i == nx - 1) v[k] = here[k];
                    }
                    if (j == 0) v[0] = here[0];
                    if (j + VEC == ny) v[VEC - 1] = here[VEC - 1];
                    Pack<VEC> out;
                    out.pack(v);
                    store_once<VEC>(dst + i * ny + j, out);
                }
                if (below < end) {
#pragma unroll
                    for (int k = 0; k < VEC; ++k) {
                        up[k] = here[k];
                        here[k] = down[k];
                    }
                    left = to_float(line[-1]);
                    right = to_float(line[VEC]);
                }
            }
            __syncthreads();
            if (threadIdx.x == 0) fetch(row + static_cast<long long>(STAGES) * GROUP, stage);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}
