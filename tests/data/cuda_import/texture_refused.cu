__global__ void k(cudaTextureObject_t t, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = tex1Dfetch<float>(t, i); }
void run(float* y, int n) {
  cudaTextureObject_t t;
  cudaResourceDesc d{};
  cudaCreateTextureObject(&t, &d, nullptr, nullptr);
  k<<<1, 256>>>(t, y, n);
}
