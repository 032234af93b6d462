#include <utility>
__global__ void jacobi(float* dst, const float* src, int nx, int ny) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i > 0 && i < nx - 1 && j > 0 && j < ny - 1)
    dst[j * nx + i] = 0.25f * (src[j * nx + i - 1] + src[j * nx + i + 1] + src[(j - 1) * nx + i] + src[(j + 1) * nx + i]);
}
void solve(float* a, float* b, int nx, int ny, int iterations) {
  dim3 block(16, 16), grid((nx + 15) / 16, (ny + 15) / 16);
  for (int it = 0; it < iterations; ++it) { jacobi<<<grid, block>>>(b, a, nx, ny); std::swap(a, b); }
}
