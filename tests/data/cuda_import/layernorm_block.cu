#include <cuda_runtime.h>
template <int THREADS>
__global__ void layernorm(const float* x, const float* gamma, const float* beta, float* y, int cols, float eps)
{
  __shared__ float red[THREADS];
  const float* row = x + blockIdx.x * cols;
  float s = 0;
  for (int i = threadIdx.x; i < cols; i += THREADS) s += row[i];
  red[threadIdx.x] = s; __syncthreads();
  for (int k = THREADS / 2; k > 0; k /= 2) { if (threadIdx.x < k) red[threadIdx.x] += red[threadIdx.x + k]; __syncthreads(); }
  float mean = red[0] / cols; __syncthreads();
  float v = 0;
  for (int i = threadIdx.x; i < cols; i += THREADS) { float d = row[i] - mean; v += d * d; }
  red[threadIdx.x] = v; __syncthreads();
  for (int k = THREADS / 2; k > 0; k /= 2) { if (threadIdx.x < k) red[threadIdx.x] += red[threadIdx.x + k]; __syncthreads(); }
  float inv = rsqrtf(red[0] / cols + eps);
  for (int i = threadIdx.x; i < cols; i += THREADS) y[blockIdx.x * cols + i] = (row[i] - mean) * inv * gamma[i] + beta[i];
}
void layernorm_forward(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols, float eps) {
  layernorm<256><<<rows, 256>>>(x, gamma, beta, y, cols, eps);
}
