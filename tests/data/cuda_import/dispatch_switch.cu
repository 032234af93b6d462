template <unsigned int blockSize>
__global__ void reduce(const float* in, float* out, unsigned int n) {
  extern __shared__ float s[];
  unsigned int tid = threadIdx.x;
  unsigned int i = blockIdx.x * blockSize * 2 + tid;
  unsigned int gridSize = blockSize * 2 * gridDim.x;
  s[tid] = 0;
  while (i < n) { s[tid] += in[i]; if (i + blockSize < n) s[tid] += in[i + blockSize]; i += gridSize; }
  __syncthreads();
  if (blockSize >= 512) { if (tid < 256) s[tid] += s[tid + 256]; __syncthreads(); }
  if (blockSize >= 256) { if (tid < 128) s[tid] += s[tid + 128]; __syncthreads(); }
  if (blockSize >= 128) { if (tid < 64) s[tid] += s[tid + 64]; __syncthreads(); }
  for (unsigned k = (blockSize >= 64 ? 32 : blockSize / 2); k > 0; k >>= 1) { if (tid < k) s[tid] += s[tid + k]; __syncthreads(); }
  if (tid == 0) out[blockIdx.x] = s[0];
}
void reduce_blocks(const float* in, float* out, unsigned int n, int threads, int blocks) {
  int smem = threads * sizeof(float);
  switch (threads) {
    case 512: reduce<512><<<blocks, threads, smem>>>(in, out, n); break;
    case 256: reduce<256><<<blocks, threads, smem>>>(in, out, n); break;
    case 128: reduce<128><<<blocks, threads, smem>>>(in, out, n); break;
  }
}
