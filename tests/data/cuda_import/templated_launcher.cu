#include <cuda_runtime.h>
#include <cstddef>
namespace detail {
template <typename T, int BS, bool FMA>
__global__ void triad(T* __restrict__ a, const T* __restrict__ b, const T* __restrict__ c, T s, std::size_t n) {
  for (std::size_t i = blockIdx.x * std::size_t(BS) + threadIdx.x; i < n; i += std::size_t(BS) * gridDim.x)
    a[i] = FMA ? fma(s, c[i], b[i]) : b[i] + s * c[i];
}
template <typename T, int BS = 256>
void launch_triad(T* a, const T* b, const T* c, T s, std::size_t n, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((n + BS - 1) / BS);
  triad<T, BS, true><<<blocks, BS, 0, stream>>>(a, b, c, s, n);
}
}  // namespace detail
extern "C" cudaError_t stream_triad_f64(double* a, const double* b, const double* c, double s, size_t n, cudaStream_t stream) {
  detail::launch_triad<double>(a, b, c, s, n, stream);
  return cudaGetLastError();
}
