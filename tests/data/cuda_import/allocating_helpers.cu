#include <cstddef>
template <typename T> T* device_alloc(std::size_t n) { T* p = nullptr; cudaMalloc(&p, n * sizeof(T)); return p; }
template <typename T> void to_device(T* d, const T* h, std::size_t n) { cudaMemcpy(d, h, n * sizeof(T), cudaMemcpyHostToDevice); }
__global__ void hist(const unsigned char* data, unsigned int* bins, size_t n) { for (size_t i = blockIdx.x*blockDim.x+threadIdx.x; i < n; i += gridDim.x*blockDim.x) atomicAdd(bins + data[i], 1u); }
void histogram(const unsigned char* h, unsigned int* h_bins, size_t n) {
  auto* d = device_alloc<unsigned char>(n);
  auto bins = device_alloc<unsigned int>(256);
  to_device(d, h, n);
  cudaMemset(bins, 0, 256*sizeof(unsigned int));
  hist<<<240, 256>>>(d, bins, n);
  cudaMemcpy(h_bins, bins, 256*sizeof(unsigned int), cudaMemcpyDeviceToHost);
}
