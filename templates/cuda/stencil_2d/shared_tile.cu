/* kernelsearch
format = 1
operator = "stencil_2d"
doc = "a tile and its rim in shared memory, several rows a thread: any size and alignment"
dtypes = ["float32"]
requires = {arch = "sm_80"}
[tunables]
TILE_X = [64, 32, 128, 256]
BLOCK_Y = [2, 4, 8, 16]
ROWS = [8, 1, 2, 4]
[constraints]
block = "TILE_X * BLOCK_Y <= max_threads_per_block and TILE_X * BLOCK_Y >= 128"
shared = "(TILE_X + 2) * (BLOCK_Y * ROWS + 2) * elem_bytes <= 49152"
[domain]
grid = "ceildiv(ny, TILE_X) <= 2147483647"
[[launch]]
kernel = "stencil_2d"
grid = ["ceildiv(ny, TILE_X)", "min(ceildiv(nx, BLOCK_Y * ROWS), 65535)"]
block = ["TILE_X", "BLOCK_Y"]
args = ["dst", "src", "nx:i64", "ny:i64", "alpha:f32"]
*/
constexpr int kTileY = BLOCK_Y * ROWS;

__global__ __launch_bounds__(TILE_X * BLOCK_Y) void stencil_2d(elem_t* __restrict__ dst,
                                                               const elem_t* __restrict__ src,
                                                               long long nx, long long ny,
                                                               float alpha) {
    // Cell (r, c) of the tile is at [r + 1][c + 1].
    __shared__ elem_t tile[kTileY + 2][TILE_X + 2];
    const int c = threadIdx.x;
    const long long j = static_cast<long long>(blockIdx.x) * TILE_X + c;
    // A loop, because the grid's second axis is too short for a very tall array.
    for (long long top = static_cast<long long>(blockIdx.y) * kTileY; top < nx;
         top += static_cast<long long>(gridDim.y) * kTileY) {
        // Everything is asked for before anything is waited for.
        elem_t cell[ROWS + 1];
#pragma unroll
        for (int s = 0; s < ROWS + 1; ++s) {
            const int r = threadIdx.y + s * BLOCK_Y;
            const long long i = top - 1 + r;
            const bool in = r < kTileY + 2 && i >= 0 && i < nx && j < ny;
            cell[s] = in ? __ldg(src + i * ny + j) : elem_t(0);
        }
        for (int t = threadIdx.y * TILE_X + c; t < 2 * (kTileY + 2); t += TILE_X * BLOCK_Y) {
            const int r = t / 2;
            const int side = t % 2 == 0 ? 0 : TILE_X + 1;
            const long long i = top - 1 + r;
            const long long at = j - c + side - 1;
            const bool in = i >= 0 && i < nx && at >= 0 && at < ny;
            tile[r][side] = in ? __ldg(src + i * ny + at) : elem_t(0);
        }
#pragma unroll
        for (int s = 0; s < ROWS + 1; ++s) {
            const int r = threadIdx.y + s * BLOCK_Y;
            if (r < kTileY + 2) tile[r][c + 1] = cell[s];
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < ROWS; ++s) {
            const int r = threadIdx.y + s * BLOCK_Y + 1;
            const long long i = top - 1 + r;
            if (i < nx && j < ny) {
                elem_t v = tile[r][c + 1];
                if (i > 0 && i < nx - 1 && j > 0 && j < ny - 1) {
                    const elem_t sides = tile[r][c] + tile[r][c + 2];
                    const elem_t ends = tile[r - 1][c + 1] + tile[r + 1][c + 1];
                    v = fmaf(alpha, ends + sides - 4.0f * v, v);
                }
                __stcs(dst + i * ny + j, v);
            }
        }
        __syncthreads();
    }
}
