__global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k)
{
    int row, col, p;
    float sum;
    row = blockIdx.y * blockDim.y + threadIdx.y;
    col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || col >= n) return;
    sum = 0.0f;
    for (p = 0; p < k; p++) sum += a[row * k + p] * b[p * n + col];
    c[row * n + col] = sum;
}
void matmul_gpu(const float *a, const float *b, float *c, int m, int n, int k)
{
    dim3 threads(16, 16), blocks((n + 15) / 16, (m + 15) / 16);
    matmul<<<blocks, threads>>>(a, b, c, m, n, k);
}
