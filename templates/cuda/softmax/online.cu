/* kernelsearch
format = 1
operator = "softmax"
doc = "one block a row of any length and alignment: running maximum and sum in one pass, the second pass finds the row in cache"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [512, 128, 256, 1024]
VEC = [4, 8, 2]
UNROLL = [2, 1, 4]
[constraints]
block = "THREADS <= max_threads_per_block"
widest = "VEC * elem_bytes <= 16"
[domain]
grid = "rows <= 2147483647"
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["THREADS"]
args = ["y", "x", "cols:i64"]
*/
#include "pack.cuh"
#include "reduce.cuh"

template <int N, int COUNT>
__device__ __forceinline__ void absorb(TopSum& run, const elem_t* __restrict__ in,
                                       long long step) {
    Pack<N> p[COUNT];
    float v[COUNT][N];
    float top = run.top;
#pragma unroll
    for (int u = 0; u < COUNT; ++u) p[u] = load_shared_use<N>(in + u * step);
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
        p[u].unpack(v[u]);
#pragma unroll
        for (int k = 0; k < N; ++k) top = fmaxf(top, v[u][k]);
    }
    // One rescale for the whole batch, not one for each element.
    run.sum *= expf(run.top - top);
    run.top = top;
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
#pragma unroll
        for (int k = 0; k < N; ++k) run.sum += expf(v[u][k] - top);
    }
}

template <int N>
__device__ __forceinline__ TopSum scan(const elem_t* __restrict__ in, long long cols) {
    TopSum run{lowest(), 0.0f};
    constexpr long long step = static_cast<long long>(THREADS) * N;
    long long j = static_cast<long long>(threadIdx.x) * N;
    for (; j + (UNROLL - 1) * step < cols; j += UNROLL * step) {
        absorb<N, UNROLL>(run, in + j, step);
    }
    for (; j < cols; j += step) absorb<N, 1>(run, in + j, step);
    return run;
}

template <int N>
__device__ __forceinline__ void emit(elem_t* __restrict__ out, const elem_t* __restrict__ in,
                                     long long cols, TopSum whole) {
    const float scale = 1.0f / whole.sum;
#pragma unroll UNROLL
    for (long long j = static_cast<long long>(threadIdx.x) * N; j < cols;
         j += static_cast<long long>(THREADS) * N) {
        float v[N];
        load_once<N>(in + j).unpack(v);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = expf(v[k] - whole.top) * scale;
        Pack<N> r;
        r.pack(v);
        store_once<N>(out + j, r);
    }
}

__global__ __launch_bounds__(THREADS) void softmax(elem_t* __restrict__ y,
                                                   const elem_t* __restrict__ x, long long cols) {
    __shared__ TopSum scratch[THREADS / 32];
    const elem_t* in = x + blockIdx.x * cols;
    elem_t* out = y + blockIdx.x * cols;
    if (cols % VEC == 0 && packs_aligned<VEC>(y, x)) {
        emit<VEC>(out, in, cols, block_merge<THREADS>(scan<VEC>(in, cols), scratch));
    } else {
        emit<1>(out, in, cols, block_merge<THREADS>(scan<1>(in, cols), scratch));
    }
}
