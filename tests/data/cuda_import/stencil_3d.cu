#include <cuda_runtime.h>
#define IDX(i,j,k) ((size_t)(k)*ny*nx + (size_t)(j)*nx + (i))
template <typename T>
__global__ void heat3d(T* __restrict__ out, const T* __restrict__ in, int nx, int ny, int nz, T c0, T c1) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int j = blockIdx.y * blockDim.y + threadIdx.y;
  int k = blockIdx.z * blockDim.z + threadIdx.z;
  if (i >= nx || j >= ny || k >= nz) return;
  if (i == 0 || j == 0 || k == 0 || i == nx - 1 || j == ny - 1 || k == nz - 1) { out[IDX(i,j,k)] = in[IDX(i,j,k)]; return; }
  out[IDX(i,j,k)] = c0 * in[IDX(i,j,k)] + c1 * (in[IDX(i-1,j,k)] + in[IDX(i+1,j,k)] + in[IDX(i,j-1,k)] + in[IDX(i,j+1,k)]
                  + in[IDX(i,j,k-1)] + in[IDX(i,j,k+1)]);
}
void step(double* out, const double* in, int nx, int ny, int nz, double c0, double c1) {
  dim3 b(32, 4, 2), g((nx + b.x - 1) / b.x, (ny + b.y - 1) / b.y, (nz + b.z - 1) / b.z);
  heat3d<double><<<g, b>>>(out, in, nx, ny, nz, c0, c1);
}
