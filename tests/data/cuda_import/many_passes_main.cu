struct Grid { int nx, ny; float dx; };
struct Fields { float *u; float *un; };
__global__ void diffuse(const float* __restrict__ un, float* __restrict__ u, int nx, int ny, float k) {
  int i = blockIdx.x*blockDim.x+threadIdx.x, j = blockIdx.y*blockDim.y+threadIdx.y;
  if (i < 1 || j < 1 || i >= nx-1 || j >= ny-1) return;
  u[j*nx+i] = un[j*nx+i] + k*(un[j*nx+i+1]+un[j*nx+i-1]+un[(j+1)*nx+i]+un[(j-1)*nx+i]-4.f*un[j*nx+i]);
}
int main() {
  Grid g = {1000, 500, 0.1f};
  Fields f;
  size_t bytes = g.nx*g.ny*sizeof(float);
  cudaMalloc(&f.u, bytes); cudaMalloc(&f.un, bytes);
  float* h = new float[g.nx*g.ny];
  cudaMemcpy(f.u, h, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(f.un, h, bytes, cudaMemcpyHostToDevice);
  dim3 b(16,16), gr((g.nx+b.x-1)/b.x, (g.ny+b.y-1)/b.y);
  for (int it = 0; it < 100; ++it) { diffuse<<<gr, b>>>(f.un, f.u, g.nx, g.ny, 0.1f); std::swap(f.u, f.un); }
  cudaMemcpy(h, f.un, bytes, cudaMemcpyDeviceToHost);
}
