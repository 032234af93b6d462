__global__ void coo(const int* row, const int* col, const float* val, const float* x, float* y, int nnz) {
  int k = blockIdx.x * blockDim.x + threadIdx.x;
  if (k < nnz) atomicAdd(&y[row[k]], val[k] * x[col[k]]);
}
void coo_spmv(const int* row, const int* col, const float* val, const float* x, float* y, int nnz, int m, int n) {
  cudaMemset(y, 0, m * sizeof(float));
  coo<<<(nnz + 127) / 128, 128>>>(row, col, val, x, y, nnz);
}
