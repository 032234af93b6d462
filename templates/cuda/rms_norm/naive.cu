/* kernelsearch
format = 1
operator = "rms_norm"
doc = "one block a row, one element at a time, a tree in shared memory; the row is read twice"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [256]
[domain]
grid = "rows <= 2147483647"
[[launch]]
kernel = "rms_norm"
grid = ["rows"]
block = ["THREADS"]
args = ["y", "x", "weight", "bias", "cols:i64", "eps:f32"]
*/
__global__ void rms_norm(elem_t* y, const elem_t* x, const elem_t* weight, const elem_t* bias,
                         long long cols, float eps) {
    __shared__ float partial[THREADS];
    const elem_t* in = x + blockIdx.x * cols;
    elem_t* out = y + blockIdx.x * cols;

    float sum = 0.0f;
    for (long long j = threadIdx.x; j < cols; j += THREADS) {
        const float v = static_cast<float>(in[j]);
        sum += v * v;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    const float scale = 1.0f / sqrtf(partial[0] / static_cast<float>(cols) + eps);
    for (long long j = threadIdx.x; j < cols; j += THREADS) {
        const float v = static_cast<float>(in[j]) * scale * static_cast<float>(weight[j]);
        out[j] = static_cast<elem_t>(v + static_cast<float>(bias[j]));
    }
}
