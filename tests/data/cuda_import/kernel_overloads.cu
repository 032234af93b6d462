__global__ void fill(float* p, float v, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i<n) p[i]=v; }
__global__ void fill(int* p, int v, int n) { int i = blockIdx.x*blockDim.x+threadIdx.x; if (i<n) p[i]=v; }
static inline int divup(int a, int b) { return a / b + (a % b != 0); }
void init(float* rho, int* flag, int n, float r0 = 1.0f) {
   fill<<<divup(n, 256), 256>>>(rho, r0, n);
   fill<<<divup(n, 256), 256>>>(flag, 0, n);
}
