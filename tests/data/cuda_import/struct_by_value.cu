struct Params { const float* x; float* y; int n; float alpha; };
__global__ void scale(Params p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p.n) p.y[i] = p.alpha * p.x[i];
}
void run_scale(const float* x, float* y, int n, float alpha) {
  Params p; p.x = x; p.y = y; p.n = n; p.alpha = alpha;
  scale<<<(n + 127) / 128, 128>>>(p);
}
