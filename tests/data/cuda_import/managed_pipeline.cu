#include <cuda_runtime.h>
__global__ void square(float* t, const float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) t[i] = x[i] * x[i]; }
__global__ void shift(float* y, const float* t, int n, float c) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = t[i] + c; }
void pipeline(const float* x, float* y, int n, bool shifted) {
  float* t;
  cudaMallocAsync(&t, n * sizeof(float), 0);
  int block = 256, grid = (n + block - 1) / block;
  square<<<grid, block>>>(t, x, n);
  if (n > 1024) shift<<<grid, block>>>(y, t, n, 1.0f);
  else shift<<<1, 1024>>>(y, t, n, 1.0f);
  cudaFreeAsync(t, 0);
}
