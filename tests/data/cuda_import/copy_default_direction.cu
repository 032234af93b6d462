#include <cuda.h>
#include <chrono>
#include <vector>
#define GPU_CHECK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { fprintf(stderr, "%s\n", cudaGetErrorString(e_)); exit(1);} } while (0)
template <typename T>
__global__ void axpby(const T* __restrict__ x, T* __restrict__ y, const T a, const T b, const size_t n) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
    y[i] = a * x[i] + b * y[i];
}
int main(int argc, char* argv[]) {
  const size_t n = argc > 1 ? atol(argv[1]) : 1 << 20;
  const int repeat = 100;
  std::vector<double> hx(n), hy(n);
  double *dx, *dy;
  GPU_CHECK(cudaMalloc(&dx, n * sizeof(double)));
  GPU_CHECK(cudaMalloc(&dy, n * sizeof(double)));
  GPU_CHECK(cudaMemcpy(dx, hx.data(), n * sizeof(double), cudaMemcpyDefault));
  GPU_CHECK(cudaMemcpy(dy, hy.data(), n * sizeof(double), cudaMemcpyDefault));
  const auto block = 256;
  const auto grid = (n + block - 1) / block;
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeat; i++)
    axpby<<<grid, block>>>(dx, dy, 2.0, 0.5, n);
  GPU_CHECK(cudaDeviceSynchronize());
  auto end = std::chrono::steady_clock::now();
  GPU_CHECK(cudaMemcpy(hy.data(), dy, n * sizeof(double), cudaMemcpyDefault));
  GPU_CHECK(cudaFree(dx));
  return 0;
}
