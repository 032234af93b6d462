// Windows file, é
__global__ void relu(float *x,
    int n)
{
  int i = threadIdx.x + blockIdx.x * blockDim.x; /* id */
  if (i < n) { if (x[i] < 0.0f) x[i] = 0.0f; }
}
void relu_host(float *x, int n) { relu<<<(n+255)/256, 256>>>(x, n); }
