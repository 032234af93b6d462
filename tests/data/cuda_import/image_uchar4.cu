#include <cuda_runtime.h>
__global__ void rgba_to_grey(const uchar4* const rgba, unsigned char* const grey, int rows, int cols) {
  int x = threadIdx.x + blockIdx.x * blockDim.x;
  int y = threadIdx.y + blockIdx.y * blockDim.y;
  if (x >= cols || y >= rows) return;
  uchar4 p = rgba[y * cols + x];
  grey[y * cols + x] = (unsigned char)(.299f * p.x + .587f * p.y + .114f * p.z);
}
void your_rgba_to_greyscale(const uchar4* const h_rgba, uchar4* const d_rgba, unsigned char* const d_grey, size_t numRows, size_t numCols) {
  const dim3 blockSize(32, 16, 1);
  const dim3 gridSize(numCols / 32 + 1, numRows / 16 + 1, 1);
  rgba_to_grey<<<gridSize, blockSize>>>(d_rgba, d_grey, numRows, numCols);
  cudaDeviceSynchronize();
}
