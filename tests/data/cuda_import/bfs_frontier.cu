#include <stdio.h>
__global__ void bfs_step(const int* offsets, const int* edges, const int* level_in, int* level_out, int current, int nodes) {
  int v = blockIdx.x * blockDim.x + threadIdx.x;
  if (v >= nodes) return;
  int mine = level_in[v];
  if (mine < 0) {
    for (int e = offsets[v]; e < offsets[v + 1]; ++e) {
      int u = edges[e];
      if (level_in[u] == current) { mine = current + 1; break; }
    }
  }
  level_out[v] = mine;
}
void bfs(const int* offsets, const int* edges, const int* level_in, int* level_out, int current, int nodes) {
  bfs_step<<<(nodes + 255) / 256, 256>>>(offsets, edges, level_in, level_out, current, nodes);
}
