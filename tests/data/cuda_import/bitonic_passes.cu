#include <cuda_runtime.h>
__global__ void bitonic_step(float* values, int j, int k) {
  unsigned i = threadIdx.x + blockDim.x * blockIdx.x;
  unsigned ixj = i ^ j;
  if (ixj > i) {
    bool up = (i & k) == 0;
    if (up == (values[i] > values[ixj])) { float t = values[i]; values[i] = values[ixj]; values[ixj] = t; }
  }
}
void bitonic_sort(float* values, int n) {
  for (int k = 2; k <= n; k <<= 1)
    for (int j = k >> 1; j > 0; j >>= 1) bitonic_step<<<n / 256, 256>>>(values, j, k);
}
