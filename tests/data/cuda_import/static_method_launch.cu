namespace gpu { struct Gemm { static constexpr int TM = 32; static void launch(const float* A, const float* B, float* C, int M, int N, int K); };
__global__ void gemm(const float* A, const float* B, float* C, int M, int N, int K) { int r = blockIdx.y*32+threadIdx.y, c = blockIdx.x*32+threadIdx.x; if (r<M && c<N) { float s=0; for (int k=0;k<K;k++) s=fmaf(A[r*K+k],B[k*N+c],s); C[r*N+c]=s; } }
void Gemm::launch(const float* A, const float* B, float* C, int M, int N, int K) { dim3 t(TM,TM), g((N+TM-1)/TM,(M+TM-1)/TM); gemm<<<g,t>>>(A,B,C,M,N,K); } }
