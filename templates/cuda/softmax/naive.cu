/* kernelsearch
format = 1
operator = "softmax"
doc = "one block a row, one element at a time, trees in shared memory; the row is read three times"
dtypes = ["float32", "bfloat16"]
requires = {arch = "sm_80"}
[tunables]
THREADS = [256]
[domain]
grid = "rows <= 2147483647"
[[launch]]
kernel = "softmax"
grid = ["rows"]
block = ["THREADS"]
args = ["y", "x", "cols:i64"]
*/
__global__ void softmax(elem_t* y, const elem_t* x, long long cols) {
    __shared__ float partial[THREADS];
    const elem_t* in = x + blockIdx.x * cols;
    elem_t* out = y + blockIdx.x * cols;

    float top = -3.402823466e+38f;
    for (long long j = threadIdx.x; j < cols; j += THREADS) {
        top = fmaxf(top, static_cast<float>(in[j]));
    }
    partial[threadIdx.x] = top;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
        }
        __syncthreads();
    }
    top = partial[0];
    __syncthreads();

    float sum = 0.0f;
    for (long long j = threadIdx.x; j < cols; j += THREADS) {
        sum += expf(static_cast<float>(in[j]) - top);
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    sum = partial[0];
    for (long long j = threadIdx.x; j < cols; j += THREADS) {
        out[j] = static_cast<elem_t>(expf(static_cast<float>(in[j]) - top) / sum);
    }
}
