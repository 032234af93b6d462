#include <cuda_runtime.h>
__global__ void partial_sums(const float* in, float* out, size_t n) {
  extern __shared__ float sdata[];
  unsigned tid = threadIdx.x;
  float s = 0;
  for (size_t i = blockIdx.x * (size_t)blockDim.x + tid; i < n; i += (size_t)blockDim.x * gridDim.x) s += in[i];
  sdata[tid] = s;
  __syncthreads();
  for (unsigned k = blockDim.x / 2; k > 0; k >>= 1) {
    if (tid < k) sdata[tid] += sdata[tid + k];
    __syncthreads();
  }
  if (tid == 0) out[blockIdx.x] = sdata[0];
}
void reduce(const float* in, float* out, size_t n) {
  float* scratch;
  const int threads = 256, blocks = 1024;
  cudaMalloc(&scratch, blocks * sizeof(float));
  partial_sums<<<blocks, threads, threads * sizeof(float)>>>(in, scratch, n);
  partial_sums<<<1, threads, threads * sizeof(float)>>>(scratch, out, blocks);
  cudaFree(scratch);
}
