#include <cuda_runtime.h>
#include <float.h>
#include <math.h>
constexpr int WARPS = 4;
__device__ __forceinline__ float warp_max(float v) {
  for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
  for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
  return v;
}
__global__ void softmax_kernel(float* __restrict__ y, const float* __restrict__ x, int rows, int cols) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = blockIdx.x * WARPS + warp;
  if (row >= rows) return;
  const float* in = x + (size_t)row * cols;
  float* out = y + (size_t)row * cols;
  float m = -FLT_MAX;
  for (int j = lane; j < cols; j += 32) m = fmaxf(m, in[j]);
  m = warp_max(m);
  float s = 0.f;
  for (int j = lane; j < cols; j += 32) s += expf(in[j] - m);
  s = warp_sum(s);
  for (int j = lane; j < cols; j += 32) out[j] = expf(in[j] - m) / s;
}
cudaError_t softmax(float* y, const float* x, int rows, int cols, cudaStream_t stream = 0) {
  const dim3 grid((rows + WARPS - 1) / WARPS);
  softmax_kernel<<<grid, WARPS * 32, 0, stream>>>(y, x, rows, cols);
  return cudaPeekAtLastError();
}
