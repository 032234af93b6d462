__global__ void broken(float* x, int n) {
  int i = threadIdx.x;
  if (i < n) x[i] = 0;
