#define SOFTENING 1e-9f
#define BLOCK_SIZE 256
__global__ void body_force(float4 *p, float4 *v, float dt, int n) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < n) {
    float Fx = 0.0f; float Fy = 0.0f; float Fz = 0.0f;
    for (int j = 0; j < n; j++) {
      float dx = p[j].x - p[i].x, dy = p[j].y - p[i].y, dz = p[j].z - p[i].z;
      float d = dx*dx + dy*dy + dz*dz + SOFTENING;
      float inv = rsqrtf(d), inv3 = inv * inv * inv;
      Fx += dx * inv3; Fy += dy * inv3; Fz += dz * inv3;
    }
    v[i].x += dt*Fx; v[i].y += dt*Fy; v[i].z += dt*Fz;
  }
}
int main(void) {
  int n = 30000;
  const float dt = 0.01f;
  int bytes = 2 * n * sizeof(float4);
  float *buf = (float*)malloc(bytes);
  float *d_p, *d_v;
  cudaMalloc(&d_p, n * sizeof(float4)); cudaMalloc(&d_v, n * sizeof(float4));
  cudaMemcpy(d_p, buf, n * sizeof(float4), cudaMemcpyHostToDevice);
  cudaMemcpy(d_v, buf, n * sizeof(float4), cudaMemcpyHostToDevice);
  body_force<<<(n + BLOCK_SIZE - 1) / BLOCK_SIZE, BLOCK_SIZE>>>((float4*)d_p, (float4*)d_v, dt, n);
  cudaMemcpy(buf, d_v, n * sizeof(float4), cudaMemcpyDeviceToHost);
}
