#include <stdio.h>
#include <stdlib.h>
#include <cuda_runtime.h>
#define CUDA_CALL(call) do { cudaError_t err = call; if (err != cudaSuccess) { fprintf(stderr, "error %d\n", (int)err); exit(1); } } while (0)
__global__ void spmv_ell(const int num_rows, const int num_cols_per_row, const int* __restrict__ indices, const float* __restrict__ data, const float* __restrict__ x, float* __restrict__ y) {
  int row = blockDim.x * blockIdx.x + threadIdx.x;
  if (row < num_rows) {
    float dot = 0;
    for (int n = 0; n < num_cols_per_row; n++) {
      int col = indices[num_rows * n + row];
      float val = data[num_rows * n + row];
      if (val != 0) dot += val * x[col];
    }
    y[row] = dot;
  }
}
int main() {
  const int rows = 16384, width = 27;
  int* h_idx = new int[rows * width]; float* h_val = new float[rows * width]; float* h_x = new float[rows]; float* h_y = new float[rows];
  for (int i = 0; i < rows * width; ++i) { h_idx[i] = rand() % rows; h_val[i] = 1.0f; }
  int* idx; float *val, *x, *y;
  CUDA_CALL(cudaMalloc(&idx, sizeof(int) * rows * width));
  CUDA_CALL(cudaMalloc(&val, sizeof(float) * rows * width));
  CUDA_CALL(cudaMalloc(&x, sizeof(float) * rows));
  CUDA_CALL(cudaMalloc(&y, sizeof(float) * rows));
  CUDA_CALL(cudaMemcpy(idx, h_idx, sizeof(int) * rows * width, cudaMemcpyHostToDevice));
  CUDA_CALL(cudaMemcpy(val, h_val, sizeof(float) * rows * width, cudaMemcpyHostToDevice));
  CUDA_CALL(cudaMemcpy(x, h_x, sizeof(float) * rows, cudaMemcpyHostToDevice));
  spmv_ell<<<(rows + 511) / 512, 512>>>(rows, width, idx, val, x, y);
  CUDA_CALL(cudaGetLastError());
  CUDA_CALL(cudaMemcpy(h_y, y, sizeof(float) * rows, cudaMemcpyDeviceToHost));
  delete[] h_idx; delete[] h_val;
}
