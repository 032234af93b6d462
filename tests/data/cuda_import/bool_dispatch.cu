#include <cuda_runtime.h>
template<bool Transpose> __global__ void copyk(const float* a, float* b, int m, int n) { int i=blockIdx.y*blockDim.y+threadIdx.y,j=blockIdx.x*blockDim.x+threadIdx.x; if(i<m&&j<n){ if (Transpose) b[j*m+i]=a[i*n+j]; else b[i*n+j]=a[i*n+j]; } }
cudaError_t mat_copy(const float* a, float* b, int m, int n, bool transpose, cudaStream_t s) {
  if (a == nullptr || b == nullptr) return cudaErrorInvalidValue;
  if (m <= 0 || n <= 0) return cudaSuccess;
  dim3 block(32, 8); dim3 grid((n+31)/32, (m+7)/8);
  if (transpose) copyk<true><<<grid, block, 0, s>>>(a, b, m, n);
  else copyk<false><<<grid, block, 0, s>>>(a, b, m, n);
  return cudaPeekAtLastError();
}
