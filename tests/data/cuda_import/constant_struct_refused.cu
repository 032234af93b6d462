#include <stdint.h>
typedef struct { uint32_t n; float dt; float eps2; } SimParams;
__constant__ SimParams params;
__global__ void integrate(float3* __restrict__ pos, float3* __restrict__ vel) {
  uint32_t i = blockIdx.x*blockDim.x+threadIdx.x;
  if (i >= params.n) return;
  float3 p = pos[i], v = vel[i]; v.y -= 9.81f*params.dt; p.x += v.x*params.dt; p.y += v.y*params.dt; p.z += v.z*params.dt; pos[i]=p; vel[i]=v;
}
void integrateSystem(float3* pos, float3* vel, uint32_t n, float dt) {
  SimParams h; h.n = n; h.dt = dt; h.eps2 = 0.f;
  cudaMemcpyToSymbol(params, &h, sizeof(SimParams));
  integrate<<<(n+255)/256, 256>>>(pos, vel);
}
