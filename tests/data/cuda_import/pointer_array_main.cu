#include <math.h>
__global__ void blackScholes(float* call, float* put, const float* S, const float* X, const float* T, float R, float V, int n) {
  int i = blockIdx.x*blockDim.x+threadIdx.x; int stride = blockDim.x*gridDim.x;
  for (; i < n; i += stride) { float d1 = (logf(S[i]/X[i])+(R+.5f*V*V)*T[i])/(V*sqrtf(T[i])); float c = normcdff(d1); call[i] = S[i]*c; put[i] = X[i]*(1-c); }
}
int main() {
  const int OPT_N = 4000000; const int OPT_SZ = OPT_N * sizeof(float);
  float *d[5];
  float *h_S = (float*)malloc(OPT_SZ), *h_call = (float*)malloc(OPT_SZ);
  for (int i = 0; i < 5; i++) cudaMalloc((void**)&d[i], OPT_SZ);
  cudaMemcpy(d[2], h_S, OPT_SZ, cudaMemcpyHostToDevice);
  cudaMemcpy(d[3], h_S, OPT_SZ, cudaMemcpyHostToDevice);
  cudaMemcpy(d[4], h_S, OPT_SZ, cudaMemcpyHostToDevice);
  blackScholes<<<480, 128>>>(d[0], d[1], d[2], d[3], d[4], 0.02f, 0.30f, OPT_N);
  cudaMemcpy(h_call, d[0], OPT_SZ, cudaMemcpyDeviceToHost);
}
