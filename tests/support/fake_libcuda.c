/* A CUDA driver without a device: answers what a launcher asks and writes every launch, fill and
 * attribute to the file FAKE_CUDA_LOG. The architecture is FAKE_CUDA_ARCH (90), the name
 * FAKE_CUDA_NAME. A module is its image; a function knows its name by FAKE_CUDA_SIZES (a file of
 * "symbol count size size ..." lines), so that arguments can be read at their own sizes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct CUfunc_st { char name[512]; int count; int sizes[64]; };
static FILE* out(void) {
  static FILE* file = NULL;
  if (file == NULL) { const char* path = getenv("FAKE_CUDA_LOG"); file = path ? fopen(path, "a") : stderr; }
  return file;
}
static int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}
/* A line of the test's own. */
void fake_note(const char* text) { fprintf(out(), "note %s\n", text); fflush(out()); }
#undef cuMemAllocAsync
#undef cuMemFreeAsync
#undef cuMemsetD8Async
#undef cuLaunchKernelEx
#undef cuCtxGetDevice
CUresult cuInit(unsigned int f) { (void)f; return number("FAKE_CUDA_INIT", 0); }
CUresult cuGetErrorName(CUresult e, const char** s) { (void)e; *s = "CUDA_ERROR_FAKE"; return 0; }
CUresult cuCtxGetCurrent(CUcontext* c) { *c = getenv("FAKE_CUDA_NO_CONTEXT") ? NULL : (CUcontext)0x1000; return 0; }
CUresult cuCtxGetDevice(CUdevice* d) { *d = 0; return 0; }
CUresult cuCtxGetId(CUcontext c, unsigned long long* id) { (void)c; *id = 7; return 0; }
CUresult cuDeviceGetName(char* n, int l, CUdevice d) {
  (void)d; const char* name = getenv("FAKE_CUDA_NAME"); snprintf(n, l, "%s", name ? name : "Fake GPU"); return 0;
}
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) {
  (void)d;
  const int arch = number("FAKE_CUDA_ARCH", 90);
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *v = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *v = number("FAKE_CUDA_SHARED", 227 << 10); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *v = number("FAKE_CUDA_SHARED", 227 << 10) + 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *v = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *v = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *v = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *v = 32; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *v = 60 << 20; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *v = arch / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *v = arch % 10; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *v = 1; break;
    default: fprintf(stderr, "fake cuda: attribute %d\n", (int)a); return 1;
  }
  return 0;
}
CUresult cuModuleLoadData(CUmodule* m, const void* image) {
  *m = (CUmodule)image;
  fprintf(out(), "load %s\n", memcmp(image, "\177ELF", 4) == 0 ? "cubin" : "ptx");
  return 0;
}
CUresult cuModuleUnload(CUmodule m) { (void)m; return 0; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  (void)m;
  struct CUfunc_st* made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  FILE* file = fopen(getenv("FAKE_CUDA_SIZES"), "r");
  char symbol[512];
  int count;
  while (file && fscanf(file, "%511s %d", symbol, &count) == 2) {
    for (int i = 0; i < count; ++i) {
      int size;
      if (fscanf(file, "%d", &size) == 1 && strcmp(symbol, name) == 0) made->sizes[i] = size;
    }
    if (strcmp(symbol, name) == 0) made->count = count;
  }
  if (file) fclose(file);
  *f = made;
  return made->count ? 0 : 500;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) {
  (void)f; *v = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0; return 0;
}
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) {
  fprintf(out(), "set %s %d %d\n", f->name, (int)a, v); return 0;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction f, int t, size_t s) {
  (void)f; (void)t; (void)s; *n = 2; return 0;
}
CUresult cuMemAllocAsync(CUdeviceptr* p, size_t n, CUstream s) {
  (void)s; *p = 0x700000000000ull; fprintf(out(), "allocate %zu\n", n); return 0;
}
CUresult cuMemFreeAsync(CUdeviceptr p, CUstream s) { (void)p; (void)s; fprintf(out(), "free\n"); return 0; }
CUresult cuMemsetD8Async(CUdeviceptr p, unsigned char v, size_t n, CUstream s) {
  (void)s; fprintf(out(), "fill %llx %d %zu\n", p, v, n); return 0;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* m, CUtensorMapDataType type, cuuint32_t rank, void* at,
    const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
    CUtensorMapInterleave il, CUtensorMapSwizzle sw, CUtensorMapL2promotion l2, CUtensorMapFloatOOBfill oob) {
  fprintf(out(), "map %llx %d %d", (unsigned long long)(uintptr_t)at, (int)type, (int)rank);
  for (unsigned i = 0; i < rank; ++i) fprintf(out(), " %llu", (unsigned long long)dims[i]);
  for (unsigned i = 0; i + 1 < rank; ++i) fprintf(out(), " %llu", (unsigned long long)strides[i]);
  for (unsigned i = 0; i < rank; ++i) fprintf(out(), " %u %u", box[i], steps[i]);
  fprintf(out(), " %d %d %d %d\n", (int)il, (int)sw, (int)l2, (int)oob);
  memset(m, 0, sizeof *m);
  m->opaque[0] = (uintptr_t)at;
  return 0;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** a, void** extra) {
  (void)extra;
  if (getenv("FAKE_CUDA_QUIET")) return 0;
  unsigned cluster[3] = {0, 0, 0};
  int cooperative = 0;
  for (unsigned i = 0; i < c->numAttrs; ++i) {
    if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      cluster[0] = c->attrs[i].value.clusterDim.x; cluster[1] = c->attrs[i].value.clusterDim.y;
      cluster[2] = c->attrs[i].value.clusterDim.z;
    } else if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) cooperative = c->attrs[i].value.cooperative;
    else return 1;
  }
  fprintf(out(), "launch %s grid %u %u %u block %u %u %u shared %u cluster %u %u %u cooperative %d args",
          f->name, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
          c->sharedMemBytes, cluster[0], cluster[1], cluster[2], cooperative);
  for (int i = 0; i < f->count; ++i) {
    fprintf(out(), " ");
    const unsigned char* bytes = a[i];
    const int shown = f->sizes[i] < 8 ? f->sizes[i] : 8;
    for (int k = 0; k < shown; ++k) fprintf(out(), "%02x", bytes[k]);
  }
  fprintf(out(), "\n");
  fflush(out());
  return 0;
}
