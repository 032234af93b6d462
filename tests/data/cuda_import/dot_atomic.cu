#include <cuda_runtime.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void dot_kernel(const float* a, const float* b, float* result, int n) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<32>(block);
  float v = 0.f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += a[i] * b[i];
  for (int o = tile.size() / 2; o > 0; o /= 2) v += tile.shfl_down(v, o);
  if (tile.thread_rank() == 0) atomicAdd(result, v);
}
float dot(const float* h_a, const float* h_b, int n) {
  float *a, *b, *r, result = 0.f;
  size_t bytes = sizeof(float) * (size_t)n;
  cudaMalloc((void**)&a, bytes); cudaMalloc((void**)&b, bytes); cudaMalloc((void**)&r, sizeof(float));
  cudaMemcpy(a, h_a, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(b, h_b, bytes, cudaMemcpyHostToDevice);
  cudaMemset(r, 0, sizeof(float));
  dot_kernel<<<min(1024, (n + 255) / 256), 256>>>(a, b, r, n);
  cudaMemcpy(&result, r, sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(a); cudaFree(b); cudaFree(r);
  return result;
}
