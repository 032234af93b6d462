#include <stdint.h>
#include <assert.h>
__device__ static inline uint32_t lcg(uint32_t& s) { s = s * 1664525u + 1013904223u; return s; }
__global__ void pi_kernel(unsigned long long* hits, uint32_t seed, int per_thread) {
  uint32_t s = seed ^ (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;
  unsigned long long mine = 0;
  for (int i = 0; i < per_thread; ++i) {
    float x = lcg(s) * 2.3283064e-10f, y = lcg(s) * 2.3283064e-10f;
    mine += x * x + y * y < 1.f;
  }
  assert(mine <= (unsigned long long)per_thread);
  atomicAdd(hits, mine);
}
unsigned long long estimate(uint32_t seed, int per_thread) {
  unsigned long long *d, h = 0;
  cudaMalloc(&d, sizeof(*d));
  cudaMemset(d, 0, sizeof(unsigned long long));
  pi_kernel<<<256, 256>>>(d, seed, per_thread);
  cudaMemcpy(&h, d, sizeof(h), cudaMemcpyDeviceToHost);
  cudaFree(d);
  return h;
}
