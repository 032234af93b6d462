/* kernelsearch
format = 1
operator = "stencil_2d"
doc = "a thread walks down its columns: every row is loaded once, the next rows while this one is worked on"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [256, 64, 128]
VEC = [4, 1]
ROWS = [64, 16, 32]
AHEAD = [2, 4, 8]
[constraints]
registers = "VEC * AHEAD <= 32"
[domain]
whole_packs = "ny % VEC == 0"
aligned = "min(align_dst, align_src) >= VEC * elem_bytes"
[[launch]]
kernel = "stencil_2d"
grid = ["ceildiv(ny, THREADS * VEC)", "min(ceildiv(nx, ROWS), 65535)"]
block = ["THREADS"]
args = ["dst", "src", "nx:i64", "ny:i64", "alpha:f32"]
*/
#include "stencil_row.cuh"

__global__ __launch_bounds__(THREADS) void stencil_2d(elem_t* __restrict__ dst,
                                                      const elem_t* __restrict__ src,
                                                      long long nx, long long ny, float alpha) {
    const int lane = threadIdx.x % 32;
    const long long j = (static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x) * VEC;
    // A loop, because the grid's second axis is too short for a very tall array.
    for (long long band = static_cast<long long>(blockIdx.y) * ROWS; band < nx;
         band += static_cast<long long>(gridDim.y) * ROWS) {
        const long long stop = min(band + ROWS, nx);
        RowPart<VEC> up, here, next[AHEAD];
        up.load(src, band - 1, j, nx, ny, lane, false);
        here.load(src, band, j, nx, ny, lane, true);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) next[a].load(src, band + 1 + a, j, nx, ny, lane, true);
        for (long long i = band; i < stop; i += AHEAD) {
            RowPart<VEC> later[AHEAD];
            // Rows past the band's end are needed by none of its cells: they are not fetched.
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const long long row = i + 1 + AHEAD + a;
                later[a].load(src, row <= stop ? row : nx, j, nx, ny, lane, true);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                if (i + a < stop) {
                    step_row<VEC>(dst, up, here, next[a], i + a, j, nx, ny, lane, alpha);
                }
                up = here;
                here = next[a];
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) next[a] = later[a];
        }
    }
}
