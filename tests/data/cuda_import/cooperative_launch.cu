#include <cooperative_groups.h>
using namespace cooperative_groups;
__global__ void smooth(float* a, float* b, int n, int steps) {
  grid_group g = this_grid();
  for (int s = 0; s < steps; ++s) {
    for (int i = g.thread_rank(); i < n; i += g.size()) b[i] = 0.5f * a[i] + 0.25f * (a[max(i - 1, 0)] + a[min(i + 1, n - 1)]);
    g.sync();
    for (int i = g.thread_rank(); i < n; i += g.size()) a[i] = b[i];
    g.sync();
  }
}
void run(float* a, float* b, int n, int steps) {
  void* args[] = {&a, &b, &n, &steps};
  cudaLaunchCooperativeKernel((void*)smooth, dim3(64), dim3(256), args, 0, 0);
}
