#include <stdio.h>
#define N 512
#define T 16
__global__ void MatAdd(float A[N][N], float B[N][N], float C[N][N]) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int j = blockIdx.y * blockDim.y + threadIdx.y;
  if (i < N && j < N) C[i][j] = A[i][j] + B[i][j];
}
__global__ void saxpy_fixed(float *x, float *y, float a) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) y[i] = a * x[i] + y[i];
}
int main() {
  float x[N], y[N];
  float *d_x, *d_y;
  cudaMalloc((void **)&d_x, N * sizeof(float)); cudaMalloc((void **)&d_y, N * sizeof(float));
  cudaMemcpy(d_x, x, N * sizeof(float), cudaMemcpyHostToDevice);
  cudaMemcpy(d_y, y, N * sizeof(float), cudaMemcpyHostToDevice);
  saxpy_fixed<<<(N + 127) / 128, 128>>>(d_x, d_y, 2.0f);
  cudaMemcpy(y, d_y, N * sizeof(float), cudaMemcpyDeviceToHost);
  return 0;
}
