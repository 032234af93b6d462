// ünïcode
#include <cstdio>
#include <cuda_runtime.h>
#define BLOCK 256
#define CHECK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s\n", cudaGetErrorString(e)); exit(1);} } while (0)
#define CEIL(a,b) (((a)+(b)-1)/(b))
template <typename T, int B>
__global__ void __launch_bounds__(B) saxpy(T* __restrict__ y, const T *x, const float a, int n) {
  __shared__ float s[BLOCK];
  extern __shared__ float dyn[];
  #pragma unroll
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x)
    y[i] = a * x[i] + y[i];
}
extern "C" void run(float* y, const float* x, float a, int n) {
  float *dy, *dx; 
  size_t bytes = n * sizeof(float);
  CHECK(cudaMalloc((void**)&dy, bytes));
  cudaMalloc(&dx, bytes);
  cudaMemcpy(dx, x, bytes, cudaMemcpyHostToDevice);
  dim3 grid(CEIL(n, BLOCK)), block(BLOCK, 1);
  saxpy<float, BLOCK><<<grid, block, 0, 0>>>(dy, dx, a, n);
  auto k = saxpy<float, BLOCK>;
  CHECK(cudaDeviceSynchronize());
  for (int s = 0; s < 3; ++s) { std::swap(dx, dy); }
}
