// exclusive scan of one block, the whole in three steps
#define B 512
__global__ void scan_block(const int* in, int* out, int* sums, int n) {
  __shared__ int tmp[B];
  int gid = blockIdx.x * B + threadIdx.x;
  int v = gid < n ? in[gid] : 0;
  tmp[threadIdx.x] = v;
  __syncthreads();
  for (int o = 1; o < B; o <<= 1) {
    int t = threadIdx.x >= o ? tmp[threadIdx.x - o] : 0;
    __syncthreads();
    tmp[threadIdx.x] += t;
    __syncthreads();
  }
  if (gid < n) out[gid] = tmp[threadIdx.x] - v;
  if (threadIdx.x == B - 1) sums[blockIdx.x] = tmp[B - 1];
}
__global__ void scan_sums(int* sums, int blocks) {
  if (threadIdx.x == 0 && blockIdx.x == 0) { int run = 0; for (int i = 0; i < blocks; ++i) { int t = sums[i]; sums[i] = run; run += t; } }
}
__global__ void add_sums(int* out, const int* sums, int n) {
  int gid = blockIdx.x * B + threadIdx.x;
  if (gid < n) out[gid] += sums[blockIdx.x];
}
void exclusive_scan(const int* in, int* out, int n) {
  int blocks = (n + B - 1) / B;
  int* sums = nullptr;
  cudaMalloc((void**)&sums, blocks * sizeof(int));
  scan_block<<<blocks, B>>>(in, out, sums, n);
  scan_sums<<<1, 1>>>(sums, blocks);
  add_sums<<<blocks, B>>>(out, sums, n);
  cudaDeviceSynchronize();
  cudaFree(sums);
}
