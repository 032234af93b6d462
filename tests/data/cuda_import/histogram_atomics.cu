#define NBINS 256
__global__ void hist_kernel(const unsigned char* data, unsigned int* bins, int n) {
  __shared__ unsigned int local[NBINS];
  for (int i = threadIdx.x; i < NBINS; i += blockDim.x) local[i] = 0;
  __syncthreads();
  int stride = blockDim.x * gridDim.x;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) atomicAdd(&local[data[i]], 1u);
  __syncthreads();
  for (int i = threadIdx.x; i < NBINS; i += blockDim.x) atomicAdd(&bins[i], local[i]);
}
extern "C" void histogram(const unsigned char* data, unsigned int* bins, int n) {
  cudaMemset(bins, 0, NBINS * sizeof(unsigned int));
  hist_kernel<<<120, 256>>>(data, bins, n);
}
