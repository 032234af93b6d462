#include <cuda_runtime.h>
#include <math.h>
// scores = q k^T / sqrt(d); one thread an element, then a softmax a row, then scores v
__global__ void qk(const float* q, const float* k, float* s, int T, int D, float scale) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y, h = blockIdx.z;
  if (i >= T || j >= T) return;
  if (j > i) { s[(h * T + i) * T + j] = -INFINITY; return; }
  float acc = 0.f;
  for (int d = 0; d < D; ++d) acc += q[(h * T + i) * D + d] * k[(h * T + j) * D + d];
  s[(h * T + i) * T + j] = acc * scale;
}
__global__ void row_softmax(float* s, int T) {
  int row = blockIdx.x;
  float* r = s + (size_t)row * T;
  if (threadIdx.x == 0) {
    float m = -INFINITY, sum = 0.f;
    for (int j = 0; j < T; ++j) m = fmaxf(m, r[j]);
    for (int j = 0; j < T; ++j) { r[j] = expf(r[j] - m); sum += r[j]; }
    for (int j = 0; j < T; ++j) r[j] /= sum;
  }
}
__global__ void sv(const float* s, const float* v, float* o, int T, int D) {
  int d = threadIdx.x, i = blockIdx.x, h = blockIdx.y;
  float acc = 0.f;
  for (int j = 0; j < T; ++j) acc += s[(h * T + i) * T + j] * v[(h * T + j) * D + d];
  o[(h * T + i) * D + d] = acc;
}
void attention(const float* q, const float* k, const float* v, float* o, int H, int T, int D) {
  float* s;
  cudaMalloc(&s, sizeof(float) * H * T * T);
  float scale = 1.0f / sqrtf((float)D);
  dim3 b(16, 16), g((T + 15) / 16, (T + 15) / 16, H);
  qk<<<g, b>>>(q, k, s, T, D, scale);
  row_softmax<<<H * T, 32>>>(s, T);
  sv<<<dim3(T, H), D>>>(s, v, o, T, D);
  cudaFree(s);
}
