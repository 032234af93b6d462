#include <cuda_runtime.h>
#include <algorithm>
__global__ void axpy(double a, const double* x, double* y, long long n) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)blockDim.x * gridDim.x) y[i] += a * x[i];
}
void daxpy(double a, const double* x, double* y, long long n) {
  int device, sms;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  int blocks = std::min<long long>((n + 255) / 256, 32LL * sms);
  axpy<<<blocks, 256>>>(a, x, y, n);
}
