__global__ void square(float* a, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i < n) a[i] *= a[i]; }
void launchMyKernel(float* array, int arrayCount) {
  int blockSize, minGridSize, gridSize;
  cudaOccupancyMaxPotentialBlockSize(&minGridSize, &blockSize, (void*)square, 0, arrayCount);
  gridSize = (arrayCount + blockSize - 1) / blockSize;
  square<<<gridSize, blockSize>>>(array, arrayCount);
  cudaDeviceSynchronize();
}
