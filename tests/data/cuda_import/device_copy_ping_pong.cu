#include <cuda_runtime.h>
__global__ void relax(const double* u, double* v, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) v[i] = i == 0 || i == n - 1 ? u[i] : 0.5 * (u[i - 1] + u[i + 1]);
}
void relax_once(double* u, int n) {
  double* v;
  cudaMalloc(&v, sizeof(double) * n);
  relax<<<(n + 255) / 256, 256>>>(u, v, n);
  cudaMemcpy(u, v, sizeof(double) * n, cudaMemcpyDeviceToDevice);
  cudaFree(v);
}
