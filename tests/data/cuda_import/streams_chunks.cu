#include <cuda_runtime.h>
#define NSTREAMS 4
__global__ void sigmoid(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = 1.0f / (1.0f + __expf(-x[i])); }
extern "C" void sigmoid_streams(float* x, int n) {
  cudaStream_t s[NSTREAMS];
  const int chunk = n / NSTREAMS;
  for (int i = 0; i < NSTREAMS; ++i) {
    cudaStreamCreate(&s[i]);
    sigmoid<<<(chunk + 255) / 256, 256, 0, s[i]>>>(x + i * chunk, chunk);
  }
  for (int i = 0; i < NSTREAMS; ++i) { cudaStreamSynchronize(s[i]); cudaStreamDestroy(s[i]); }
}
