#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
template <typename T>
__global__ void transpose_tiled(T* __restrict__ odata, const T* __restrict__ idata, const int width, const int height)
{
  __shared__ T tile[32][33];
  int x = blockIdx.x * 32 + threadIdx.x;
  int y = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < width && (y + j) < height) tile[threadIdx.y + j][threadIdx.x] = idata[(y + j) * width + x];
  __syncthreads();
  x = blockIdx.y * 32 + threadIdx.x;
  y = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    if (x < height && (y + j) < width) odata[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
int main(int argc, char** argv) {
  const int repeat = argc > 1 ? atoi(argv[1]) : 100;
  const int width = 4096, height = 2048;
  float *in, *out;
  cudaMalloc(&in, sizeof(float) * width * height);
  cudaMalloc(&out, sizeof(float) * width * height);
  dim3 block(32, 8);
  dim3 grid((width + 31) / 32, (height + 31) / 32);
  for (int i = 0; i < 10; i++) transpose_tiled<<<grid, block>>>(out, in, width, height);
  cudaDeviceSynchronize();
  auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeat; i++) transpose_tiled<<<grid, block>>>(out, in, width, height);
  cudaDeviceSynchronize();
  auto end = std::chrono::steady_clock::now();
  printf("%f\n", std::chrono::duration<double>(end - start).count());
  cudaFree(in); cudaFree(out);
}
