// The few entry points of the CUDA driver that a launcher needs, found in libcuda.so.1 at run time:
// neither the toolkit's headers nor a driver are needed to compile or to link.
#ifndef KERNELSEARCH_DRIVER_HPP
#define KERNELSEARCH_DRIVER_HPP

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;

namespace kernelsearch {

using Stream = CUstream_st*;
using DevicePointer = unsigned long long;

// These have the layout of cuda.h's CUtensorMap, CUlaunchAttribute and CUlaunchConfig.
struct alignas(64) TensorMap {
  std::uint64_t opaque[16];
};

struct LaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned int cluster[3];
    int cooperative;
  } value;
};

struct LaunchConfig {
  unsigned int grid[3], block[3], shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned int attribute_count;
};

enum : int {
  kDeviceMaxThreadsPerBlock = 1,
  kDeviceWarpSize = 10,
  kDeviceMultiprocessors = 16,
  kDeviceL2Bytes = 38,
  kDeviceMaxThreadsPerMultiprocessor = 39,
  kDeviceMajor = 75,
  kDeviceMinor = 76,
  kDeviceSharedPerMultiprocessor = 81,
  kDeviceRegistersPerMultiprocessor = 82,
  kDeviceSharedPerBlockOptin = 97,
  kDeviceMemoryPools = 115,
  kFunctionMaxThreads = 0,
  kFunctionSharedBytes = 1,
  kFunctionMaxDynamicShared = 8,
  kFunctionNonPortableCluster = 14,
  kAttributeCooperative = 2,
  kAttributeCluster = 4,
};

struct Driver {
  int (*init)(unsigned int);
  int (*get_error_name)(int, const char**);
  int (*get_current)(CUctx_st**);
  int (*get_device)(int*);
  int (*device_name)(char*, int, int);
  int (*device_attribute)(int*, int, int);
  int (*module_load)(CUmod_st**, const void*);
  int (*module_unload)(CUmod_st*);
  int (*module_function)(CUfunc_st**, CUmod_st*, const char*);
  int (*function_get)(int*, int, CUfunc_st*);
  int (*function_set)(CUfunc_st*, int, int);
  int (*occupancy)(int*, CUfunc_st*, int, std::size_t);
  int (*launch)(const LaunchConfig*, CUfunc_st*, void**, void**);
  int (*fill)(DevicePointer, unsigned char, std::size_t, Stream);
  int (*allocate)(DevicePointer*, std::size_t, Stream);
  int (*release)(DevicePointer, Stream);
  int (*encode_tiled)(TensorMap*, int, std::uint32_t, void*, const std::uint64_t*,
                      const std::uint64_t*, const std::uint32_t*, const std::uint32_t*, int, int,
                      int, int);
  int (*context_id)(CUctx_st*, unsigned long long*);  // null before CUDA 12.0
  const char* missing;                               // what could not be found, or null

  // Loaded once in a process, by whichever thread is first.
  static const Driver& get() {
    static const Driver driver = load();
    return driver;
  }

 private:
  template <typename Function>
  static void find(void* library, const char* name, Function& function, const char*& missing) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && missing == nullptr) missing = name;
  }

  static Driver load() {
    Driver d{};
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      d.missing = "libcuda.so.1";
      return d;
    }
    find(library, "cuInit", d.init, d.missing);
    find(library, "cuGetErrorName", d.get_error_name, d.missing);
    find(library, "cuCtxGetCurrent", d.get_current, d.missing);
    find(library, "cuCtxGetDevice", d.get_device, d.missing);
    find(library, "cuDeviceGetName", d.device_name, d.missing);
    find(library, "cuDeviceGetAttribute", d.device_attribute, d.missing);
    find(library, "cuModuleLoadData", d.module_load, d.missing);
    find(library, "cuModuleUnload", d.module_unload, d.missing);
    find(library, "cuModuleGetFunction", d.module_function, d.missing);
    find(library, "cuFuncGetAttribute", d.function_get, d.missing);
    find(library, "cuFuncSetAttribute", d.function_set, d.missing);
    find(library, "cuOccupancyMaxActiveBlocksPerMultiprocessor", d.occupancy, d.missing);
    find(library, "cuLaunchKernelEx", d.launch, d.missing);
    find(library, "cuMemsetD8Async", d.fill, d.missing);
    find(library, "cuMemAllocAsync", d.allocate, d.missing);
    find(library, "cuMemFreeAsync", d.release, d.missing);
    const char* optional = nullptr;
    find(library, "cuTensorMapEncodeTiled", d.encode_tiled, optional);
    find(library, "cuCtxGetId", d.context_id, optional);
    if (d.missing == nullptr && d.init(0) != 0) d.missing = "a device (cuInit failed)";
    return d;
  }
};

}  // namespace kernelsearch

#endif
