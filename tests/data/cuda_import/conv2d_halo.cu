#include <cuda_runtime.h>
#ifndef block_size_x
#define block_size_x 32
#endif
#ifndef block_size_y
#define block_size_y 8
#endif
#define filter_width 5
#define filter_height 5
#define image_pitch (width + filter_width - 1)
extern "C" __global__ void convolution(float *output, const float *input, const float *filter, int width, int height) {
  int x = blockIdx.x * block_size_x + threadIdx.x;
  int y = blockIdx.y * block_size_y + threadIdx.y;
  if (x >= width || y >= height) return;
  float sum = 0.0f;
  for (int j = 0; j < filter_height; j++)
    for (int i = 0; i < filter_width; i++)
      sum += input[(y + j) * image_pitch + x + i] * filter[j * filter_width + i];
  output[y * width + x] = sum;
}
extern "C" void convolve(float *output, const float *input, const float *filter, int width, int height) {
  dim3 threads(block_size_x, block_size_y);
  dim3 grid(int(ceilf(width / (float)block_size_x)), int(ceilf(height / (float)block_size_y)));
  convolution<<<grid, threads>>>(output, input, filter, width, height);
}
