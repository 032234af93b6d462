// Normalises rows on the GPU with a bundle of rms_norm, and compares with the host.
#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "rms_norm.hpp"

namespace {

// Only what this program itself needs of the driver; a program with the CUDA runtime has it already.
template <typename Function>
Function driver(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  return library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

using Pointer = unsigned long long;

bool use_first_device() {
  const auto init = driver<int (*)(unsigned)>("cuInit");
  const auto retain = driver<int (*)(CUctx_st**, int)>("cuDevicePrimaryCtxRetain");
  const auto set = driver<int (*)(CUctx_st*)>("cuCtxSetCurrent");
  CUctx_st* context = nullptr;
  return init != nullptr && retain != nullptr && set != nullptr && init(0) == 0 &&
         retain(&context, 0) == 0 && set(context) == 0;
}

float* upload(const std::vector<float>& values) {
  Pointer place = 0;
  const std::size_t bytes = values.size() * sizeof(float);
  if (driver<int (*)(Pointer*, std::size_t)>("cuMemAlloc_v2")(&place, bytes) != 0) return nullptr;
  driver<int (*)(Pointer, const void*, std::size_t)>("cuMemcpyHtoD_v2")(place, values.data(), bytes);
  return reinterpret_cast<float*>(place);
}

}  // namespace

int main() {
  if (!use_first_device()) {
    std::fputs("no CUDA device answers\n", stderr);
    return 1;
  }
  const std::int64_t rows = 1000, cols = 4096;
  std::vector<float> x(rows * cols), weight(cols, 2.0f), bias(cols, 1.0f), y(rows * cols);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i % 1013));

  kernelsearch::rms_norm::float32_call call;
  call.y = upload(y);
  call.x = upload(x);
  call.weight = upload(weight);
  call.bias = upload(bias);
  call.rows = rows;
  call.cols = cols;
  const kernelsearch::Status status = kernelsearch::rms_norm::launch(call);
  if (!status) {
    std::fprintf(stderr, "rms_norm: %s\n", status.message().c_str());
    return 1;
  }
  driver<int (*)(void*, Pointer, std::size_t)>("cuMemcpyDtoH_v2")(
      y.data(), reinterpret_cast<Pointer>(call.y), y.size() * sizeof(float));

  double worst = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < cols; ++c) sum += double(x[r * cols + c]) * x[r * cols + c];
    const double scale = 1 / std::sqrt(sum / double(cols) + 1e-5);
    for (std::int64_t c = 0; c < cols; ++c) {
      worst = std::fmax(worst, std::fabs(x[r * cols + c] * scale * 2 + 1 - y[r * cols + c]));
    }
  }
  std::printf("largest error %.2e\n", worst);
  return worst < 1e-4 ? 0 : 1;
}
