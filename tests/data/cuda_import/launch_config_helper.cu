struct LaunchConfig { dim3 grid; dim3 block; size_t smem; };
static LaunchConfig make1d(size_t n, unsigned block = 256) { LaunchConfig c; c.block = dim3(block); c.grid = dim3((unsigned)((n + block - 1) / block)); c.smem = 0; return c; }
__global__ void gelu(const float* x, float* y, size_t n) { size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; if (i < n) y[i] = 0.5f*x[i]*(1.f+tanhf(0.79788456f*(x[i]+0.044715f*x[i]*x[i]*x[i]))); }
void gelu_forward(const float* x, float* y, size_t n, cudaStream_t stream = 0) { const LaunchConfig cfg = make1d(n); gelu<<<cfg.grid, cfg.block, cfg.smem, stream>>>(x, y, n); }
