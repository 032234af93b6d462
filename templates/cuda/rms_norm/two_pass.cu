/* kernelsearch
format = 1
operator = "rms_norm"
doc = "one block a row of any length and alignment: the second pass finds the row in cache"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [256, 128, 512, 1024]
VEC = [4, 8, 2]
UNROLL = [2, 1, 4]
[constraints]
block = "THREADS <= max_threads_per_block"
widest = "VEC * elem_bytes <= 16"
[domain]
grid = "rows <= 2147483647"
[[launch]]
kernel = "rms_norm"
grid = ["rows"]
block = ["THREADS"]
args = ["y", "x", "weight", "bias", "cols:i64", "eps:f32"]
*/
#include "pack.cuh"
#include "reduce.cuh"

// `cols` counts whole packs of N, each thread taking every THREADS-th.
template <int N>
__device__ __forceinline__ float squares(const elem_t* __restrict__ in, long long cols) {
    float sum[UNROLL] = {};
    long long j = static_cast<long long>(threadIdx.x) * N;
    constexpr long long step = static_cast<long long>(THREADS) * N;
    for (; j + (UNROLL - 1) * step < cols; j += UNROLL * step) {
        Pack<N> p[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) p[u] = load_shared_use<N>(in + j + u * step);
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float v[N];
            p[u].unpack(v);
#pragma unroll
            for (int k = 0; k < N; ++k) sum[u] = fmaf(v[k], v[k], sum[u]);
        }
    }
    for (; j < cols; j += step) {
        float v[N];
        load_shared_use<N>(in + j).unpack(v);
#pragma unroll
        for (int k = 0; k < N; ++k) sum[0] = fmaf(v[k], v[k], sum[0]);
    }
#pragma unroll
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
    return sum[0];
}

template <int N>
__device__ __forceinline__ void apply(elem_t* __restrict__ out, const elem_t* __restrict__ in,
                                      const elem_t* __restrict__ weight,
                                      const elem_t* __restrict__ bias, long long cols,
                                      float scale) {
#pragma unroll UNROLL
    for (long long j = static_cast<long long>(threadIdx.x) * N; j < cols;
         j += static_cast<long long>(THREADS) * N) {
        float v[N], w[N], b[N];
        load_once<N>(in + j).unpack(v);
        load_shared_use<N>(weight + j).unpack(w);
        load_shared_use<N>(bias + j).unpack(b);
#pragma unroll
        for (int k = 0; k < N; ++k) v[k] = fmaf(v[k] * scale, w[k], b[k]);
        Pack<N> r;
        r.pack(v);
        store_once<N>(out + j, r);
    }
}

__global__ __launch_bounds__(THREADS) void rms_norm(
    elem_t* __restrict__ y, const elem_t* __restrict__ x, const elem_t* __restrict__ weight,
    const elem_t* __restrict__ bias, long long cols, float eps) {
    __shared__ float scratch[THREADS / 32];
    const elem_t* in = x + blockIdx.x * cols;
    elem_t* out = y + blockIdx.x * cols;
    const bool packs = cols % VEC == 0 && packs_aligned<VEC>(y, x, weight, bias);

    float sum = packs ? squares<VEC>(in, cols) : squares<1>(in, cols);
    sum = block_sum<THREADS>(sum, scratch);
    const float scale = 1.0f / sqrtf(sum / static_cast<float>(cols) + eps);
    if (packs) {
        apply<VEC>(out, in, weight, bias, cols, scale);
    } else {
        apply<1>(out, in, weight, bias, cols, scale);
    }
}
