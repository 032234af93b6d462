#include <stdio.h>
#define N (1024*1024)
#define THREADS_PER_BLOCK 256
float a[N], b[N], c[N];
float *dev_a, *dev_b, *dev_c;
__global__ void add(float *a, float *b, float *c) {
  int tid = threadIdx.x + blockIdx.x * blockDim.x;
  while (tid < N) { c[tid] = a[tid] + b[tid]; tid += blockDim.x * gridDim.x; }
}
void setup() { cudaMalloc((void**)&dev_a, N * sizeof(float)); cudaMalloc((void**)&dev_b, N * sizeof(float)); cudaMalloc((void**)&dev_c, N * sizeof(float)); }
int main(void) {
  setup();
  for (int i=0; i<N; i++) { a[i] = -i; b[i] = i * i; }
  cudaMemcpy(dev_a, a, N * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(dev_b, b, N * sizeof(float), cudaMemcpyHostToDevice);
  add<<<128,THREADS_PER_BLOCK>>>(dev_a, dev_b, dev_c);
  cudaMemcpy(c, dev_c, N * sizeof(float), cudaMemcpyDeviceToHost);
  cudaFree(dev_a);
  return 0;
}
