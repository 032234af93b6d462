__global__ void spmv_csr(int rows, const int* __restrict__ ptr, const int* __restrict__ idx,
                         const double* __restrict__ val, const double* __restrict__ x, double* __restrict__ y) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  double s = 0;
  int start = ptr[r], end = ptr[r + 1];
  for (int j = start; j < end; j++) s += val[j] * x[idx[j]];
  y[r] = s;
}
void spmv(int rows, int cols, int nnz, const int* ptr, const int* idx, const double* val, const double* x, double* y) {
  const int threads = 128;
  spmv_csr<<<(rows + threads - 1) / threads, threads>>>(rows, ptr, idx, val, x, y);
}
