#include <cuda_bf16.h>
namespace my { namespace ops {
constexpr int kVec = 4;
template <int VEC = kVec>
__global__ void __launch_bounds__(256, 2) rope(const __nv_bfloat16* __restrict__ x, const float* __restrict__ cosv, const float* __restrict__ sinv, __nv_bfloat16* __restrict__ y, int T, int H, int D) {
  int t = blockIdx.x, h = blockIdx.y;
  for (int d = threadIdx.x; d < D/2; d += blockDim.x) {
    float a = __bfloat162float(x[(t*H+h)*D+d]), b = __bfloat162float(x[(t*H+h)*D+d+D/2]);
    float c = cosv[t*(D/2)+d], s = sinv[t*(D/2)+d];
    y[(t*H+h)*D+d] = __float2bfloat16(a*c-b*s); y[(t*H+h)*D+d+D/2] = __float2bfloat16(a*s+b*c);
  }
}
}}
void rope_forward(void* y, const void* x, const float* c, const float* s, int T, int H, int D) {
  my::ops::rope<><<<dim3(T, H), 64>>>((const __nv_bfloat16*)x, c, s, static_cast<__nv_bfloat16*>(y), T, H, D);
}
