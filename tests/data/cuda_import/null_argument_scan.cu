#define BS 512
__global__ void scan_block(const int* in, int* out, int* sums, int n) {
  __shared__ int t[BS];
  int g = blockIdx.x*BS+threadIdx.x;
  t[threadIdx.x] = g < n ? in[g] : 0;
  __syncthreads();
  for (int o = 1; o < BS; o *= 2) { int v = threadIdx.x >= o ? t[threadIdx.x-o] : 0; __syncthreads(); t[threadIdx.x] += v; __syncthreads(); }
  if (g < n) out[g] = t[threadIdx.x];
  if (sums && threadIdx.x == BS-1) sums[blockIdx.x] = t[BS-1];
}
__global__ void add_offsets(int* out, const int* sums, int n) {
  int g = blockIdx.x*BS+threadIdx.x;
  if (blockIdx.x > 0 && g < n) out[g] += sums[blockIdx.x-1];
}
void inclusive_scan(const int* d_in, int* d_out, int n) {
  int nb = (n+BS-1)/BS;
  int *sums, *sums_scanned;
  cudaMalloc(&sums, nb*sizeof(int));
  cudaMalloc(&sums_scanned, nb*sizeof(int));
  scan_block<<<nb, BS>>>(d_in, d_out, sums, n);
  scan_block<<<1, BS>>>(sums, sums_scanned, NULL, nb);
  add_offsets<<<nb, BS>>>(d_out, sums_scanned, n);
  cudaFree(sums); cudaFree(sums_scanned);
}
