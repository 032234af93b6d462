#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#define THREADS 256
#define gpuErrchk(ans) { gpuAssert((ans), __FILE__, __LINE__); }
inline void gpuAssert(cudaError_t code, const char *file, int line) {
  if (code != cudaSuccess) { fprintf(stderr, "GPUassert: %s %s %d\n", cudaGetErrorString(code), file, line); exit(code); }
}
__global__ void vecAdd(const float *a, const float *b, float *c, int n) {
  int id = blockIdx.x * blockDim.x + threadIdx.x;   // global id
  if (id < n) c[id] = a[id] + b[id];
}
int main(int argc, char *argv[]) {
  int n = 100000;
  if (argc > 1) n = atoi(argv[1]);
  size_t bytes = n * sizeof(float);
  float *h_a = (float *)malloc(bytes), *h_b = (float *)malloc(bytes), *h_c = (float *)malloc(bytes);
  for (int i = 0; i < n; i++) { h_a[i] = sinf(i) * sinf(i); h_b[i] = cosf(i) * cosf(i); }
  float *d_a, *d_b, *d_c;
  gpuErrchk(cudaMalloc(&d_a, bytes)); gpuErrchk(cudaMalloc(&d_b, bytes)); gpuErrchk(cudaMalloc(&d_c, bytes));
  cudaMemcpy(d_a, h_a, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(d_b, h_b, bytes, cudaMemcpyHostToDevice);
  int gridSize = (int)ceil((float)n / THREADS);
  cudaEvent_t start, stop; cudaEventCreate(&start); cudaEventCreate(&stop);
  cudaEventRecord(start);
  vecAdd<<<gridSize, THREADS>>>(d_a, d_b, d_c, n);
  cudaEventRecord(stop); cudaEventSynchronize(stop);
  cudaMemcpy(h_c, d_c, bytes, cudaMemcpyDeviceToHost);
  float sum = 0; for (int i = 0; i < n; i++) sum += h_c[i];
  printf("final result: %f\n", sum / n);
  cudaFree(d_a); cudaFree(d_b); cudaFree(d_c); free(h_a); free(h_b); free(h_c);
  return 0;
}
