#include <cuda_bf16.h>
#include <vector>
namespace ops {
__device__ inline float gelu(float v) { return 0.5f * v * (1.f + erff(v * 0.70710678f)); }
__global__ void gelu_kernel(const __nv_bfloat16* in, __nv_bfloat16* out, long n) {
  const long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16(gelu(__bfloat162float(in[i])));
}
void launch_gelu(const __nv_bfloat16* in, __nv_bfloat16* out, long n, cudaStream_t s) {
  gelu_kernel<<<(n + 255) / 256, 256, 0, s>>>(in, out, n);
}
}
