#include <cstdio>
#include <stdexcept>
namespace heat {
__global__ void relax(const double* u, double* v, const double* rhs, int nx, int ny, int nz, double h2) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  int j = blockIdx.y * blockDim.y + threadIdx.y;
  int k = blockIdx.z * blockDim.z + threadIdx.z;
  if (i > 0 && i < nx - 1 && j > 0 && j < ny - 1 && k > 0 && k < nz - 1) {
    int c = (k * ny + j) * nx + i;
    v[c] = (u[c-1] + u[c+1] + u[c-nx] + u[c+nx] + u[c-nx*ny] + u[c+nx*ny] - h2 * rhs[c]) / 6.0;
  }
}
class Solver {
 public:
  Solver(int nx, int ny, int nz) : nx_(nx), ny_(ny), nz_(nz) {
    cudaMalloc(&u_, bytes()); cudaMalloc(&v_, bytes()); cudaMalloc(&rhs_, bytes());
  }
  ~Solver() { cudaFree(u_); cudaFree(v_); cudaFree(rhs_); }
  void step(double h2) {
    dim3 block(32, 4, 2);
    dim3 grid((nx_ + block.x - 1) / block.x, (ny_ + block.y - 1) / block.y, (nz_ + block.z - 1) / block.z);
    relax<<<grid, block>>>(u_, v_, rhs_, nx_, ny_, nz_, h2);
    std::swap(u_, v_);
  }
 private:
  size_t bytes() const { return sizeof(double) * nx_ * ny_ * nz_; }
  int nx_, ny_, nz_;
  double *u_ = nullptr, *v_ = nullptr, *rhs_ = nullptr;
};
}
