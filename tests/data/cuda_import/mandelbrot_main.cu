#include <iostream>
#include <vector>
#define MAX_ITER 256
__global__ void mandel(int* out, int w, int h, double x0, double y0, double scale) {
  int px = blockIdx.x * blockDim.x + threadIdx.x, py = blockIdx.y * blockDim.y + threadIdx.y;
  if (px >= w || py >= h) return;
  double cr = x0 + px * scale, ci = y0 + py * scale, zr = 0, zi = 0;
  int it = 0;
  while (it < MAX_ITER && zr * zr + zi * zi < 4.0) { double t = zr * zr - zi * zi + cr; zi = 2 * zr * zi + ci; zr = t; ++it; }
  out[py * w + px] = it;
}
int main() {
  const int w = 1920, h = 1080;
  std::vector<int> host(w * h);
  int* dev = nullptr;
  cudaMalloc(&dev, host.size() * sizeof(int));
  dim3 threads{16, 16};
  dim3 blocks{(unsigned)(w + threads.x - 1) / threads.x, (unsigned)(h + threads.y - 1) / threads.y};
  mandel<<<blocks, threads>>>(dev, w, h, -2.0, -1.0, 0.0015);
  cudaMemcpy(host.data(), dev, host.size() * sizeof(int), cudaMemcpyDeviceToHost);
  std::cout << host[0] << std::endl;
  cudaFree(dev);
}
