import pickle
import subprocess
from pathlib import Path

import pytest

from kernelsearch import wire
from kernelsearch.errors import (
    CompileError,
    MissingExtraError,
    RejectedError,
    ResourceLimitError,
    SpecError,
    TargetUnavailableError,
)
from kernelsearch.records import CompileJob
from kernelsearch.targets.cuda_elf import Cubin

pytest.importorskip("cuda.core", reason="the cuda extra is not installed")

from kernelsearch.targets import cuda_device
from kernelsearch.targets.cuda import CudaTarget
from kernelsearch.targets.cuda_compile import compile_cuda
from kernelsearch.targets.cuda_device import (
    arch_name,
    architecture_device,
    datasheet_ceilings,
    probe_device,
)
from kernelsearch.worker import ChildProcess

pytestmark = pytest.mark.nvrtc

GOOD = """
template <int N> __global__ void k(elem_t* y, const elem_t* x, long long n, float f) {
    __shared__ float s[N];
    s[threadIdx.x] = (float)x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = (elem_t)(s[N - 1 - threadIdx.x] * f + n);
}
"""


def job(source, *kernels, dtype="float32", arch="sm_90a", **defines):
    options = (("defines", tuple(sorted(defines.items()))), ("dtype", dtype))
    return CompileJob("cuda", source, kernels or ("k",), arch, "mine.cu", options)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_facts_without_a_device(dtype, arch):
    binary = compile_cuda(job(GOOD, "k<64>", dtype=dtype, arch=arch))
    (facts,) = binary.facts
    assert facts.name == "k<64>"
    assert facts.registers > 0
    assert facts.static_shared_bytes >= 256
    assert facts.spill_store_bytes == 0
    assert facts.barriers == 1
    assert facts.param_bytes == (8, 8, 8, 4)
    assert binary.symbols["k<64>"].startswith("_Z1k")
    assert Cubin(binary.image).section(f".text.{binary.symbols['k<64>']}") is not None


def test_a_confined_compiler_compiles_with_library_headers(tmp_path):
    source = "#include <cub/block/block_reduce.cuh>\n" + GOOD
    plain = compile_cuda(job(source, "k<64>"))
    child = ChildProcess(CudaTarget(arch="sm_90a", cache_folder=tmp_path), opens_device=False)
    try:
        made = wire.binary(child.call("compile", job(source, "k<64>"), 120.0), job(source, "k<64>"))
        assert {"memory", "driver_calls"} <= set(child.confinement)
    finally:
        child.kill()
    assert made.code_hash == plain.code_hash
    assert any(tmp_path.iterdir())


def test_spills_are_reported():
    source = """
    __global__ __launch_bounds__(1024, 2) void k(float* y, const float* x) {
        float a[64];
        #pragma unroll
        for (int i = 0; i < 64; ++i) a[i] = x[threadIdx.x + 1024 * i];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 64; ++i) y[threadIdx.x + 1024 * i] = a[i] * a[63 - i];
    }"""
    facts = compile_cuda(job(source)).facts[0]
    assert facts.spill_store_bytes > 0
    assert facts.stack_bytes > 0


def test_errors_carry_the_variants_own_lines():
    with pytest.raises(CompileError, match=r'mine.cu\(2\): error: identifier "b"') as caught:
        compile_cuda(job("__global__ void k(int* a) {\n  a[0] = b;\n}"))
    assert "1 error detected" in caught.value.evidence["log"]


def test_missing_kernel_is_a_compile_error():
    with pytest.raises(CompileError):
        compile_cuda(job("__global__ void other(int* a) {}"))


def test_too_much_static_shared_memory():
    source = "__global__ void k(int* a) { __shared__ int s[60000]; s[threadIdx.x] = 1; " \
             "__syncthreads(); a[0] = s[3]; }"  # fmt: skip
    with pytest.raises(ResourceLimitError) as caught:
        compile_cuda(job(source))
    assert caught.value.evidence["static_shared_bytes"] == 240000


@pytest.mark.parametrize(
    "declaration",
    ["__device__ int n;", "__device__ int n = 3;", "static __device__ float n[2];",
     "namespace { __device__ int n; }"],
)  # fmt: skip
def test_mutable_globals_are_refused(declaration):
    with pytest.raises(RejectedError, match="mutable global") as caught:
        compile_cuda(job(declaration + "__global__ void k(float* y) { y[0] = ++*(int*)&n; }"))
    assert caught.value.evidence["module_globals"] == ["n"]


def test_static_local_is_refused():
    with pytest.raises(RejectedError, match="calls"):
        compile_cuda(job("__global__ void k(float* y) { static int calls; y[0] = ++calls; }"))


def test_constants_and_strings_are_fine():
    source = """
    __constant__ float c[2] = {1, 2};
    __device__ const float d[2] = {1, 2};
    constexpr int e[2] = {1, 2};
    extern "C" __device__ int printf(const char*, ...);
    __global__ void k(float* y, int i) {
        static const float f[3] = {1, 2, 3};
        __shared__ float s[4];
        s[i] = c[i] + d[i] + f[i];
        __syncthreads();
        y[i] = s[3 - i] + e[1];
        if (i > 100) printf("text %d", i);
    }"""
    assert compile_cuda(job(source)).facts[0].name == "k"


@pytest.mark.slow
@pytest.mark.parametrize(
    "headers", ["cooperative_groups.h cooperative_groups/reduce.h", "cub/block/block_reduce.cuh",
                "cuda/barrier cuda/pipeline cuda/std/array cuda/std/limits"],
)  # fmt: skip
def test_constants_of_the_cuda_headers_are_fine(headers):
    includes = "".join(f"#include <{h}>\n" for h in headers.split())
    source = (
        includes + "__global__ void k(float* y) { y[0] = sinf(y[1]) + pow((double)y[2], 1.5); }"
    )
    assert compile_cuda(job(source)).facts
    with pytest.raises(RejectedError, match="mutable"):
        compile_cuda(job(includes + "namespace { __device__ int n; }"
                         "__global__ void k(float* y) { y[0] = ++n; }"))  # fmt: skip


def test_code_hash_ignores_names_and_spaces_only():
    plain = compile_cuda(job(GOOD, "k<64>"))
    renamed = GOOD.replace("y[", "out [").replace("* y", "* out").replace(" k(", " kernel_2(")
    other = compile_cuda(job("// a comment\n" + renamed, "kernel_2<64>"))
    changed = compile_cuda(job(GOOD.replace("* f", "- f"), "k<64>"))
    wider = compile_cuda(job(GOOD, "k<128>"))
    assert plain.code_hash == other.code_hash
    assert len({plain.code_hash, changed.code_hash, wider.code_hash}) == 3


def test_cache_gives_the_same_binary(tmp_path):
    first = compile_cuda(job(GOOD, "k<64>"), str(tmp_path))
    second = compile_cuda(job(GOOD, "k<64>"), str(tmp_path))
    assert second.image == first.image
    assert second.facts == first.facts
    assert second.symbols == first.symbols
    assert any(tmp_path.rglob("*"))
    assert compile_cuda(job(GOOD, "k<64>", dtype="bfloat16"), str(tmp_path)).image != first.image


def test_tunables_reach_the_source():
    source = "__global__ void k(float* y) { static_assert(VEC == 4); y[0] = VEC; }"
    assert compile_cuda(job(source, VEC=4)).facts
    with pytest.raises(CompileError):
        compile_cuda(job(source, VEC=2))


def test_strict_by_default_fast_on_request():
    source = "__global__ void k(float* y) { y[0] = y[1] / y[2]; }"
    strict = compile_cuda(job(source))
    options = (*job(source).options, ("precision", "fast"))
    fast = compile_cuda(CompileJob("cuda", source, ("k",), "sm_90a", "mine.cu", options))
    assert fast.code_hash != strict.code_hash


def test_target_without_a_device():
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a device here")
    with pytest.raises(TargetUnavailableError, match="looked for"):
        probe_device()
    target = pickle.loads(pickle.dumps(CudaTarget(arch="sm_90a")))
    assert target.compile(job(GOOD, "k<64>")).facts
    with pytest.raises(TargetUnavailableError, match="only compiles"):
        target.open()
    with pytest.raises(TargetUnavailableError):
        CudaTarget()
    with pytest.raises(SpecError, match="sm_12"):
        CudaTarget(arch="sm_12")
    with pytest.raises(RejectedError):
        target.compile(CompileJob("cpu", "", ("k",), ""))


def test_missing_packages_are_named(monkeypatch):
    probe_device.cache_clear()
    monkeypatch.setattr(cuda_device, "_bindings_installed", lambda: False)
    with pytest.raises(MissingExtraError, match=r"cuda-core.*kernelsearch\[cuda\]"):
        CudaTarget(arch="sm_90a")


@pytest.mark.parametrize(
    ("code", "message"),
    [("import time; time.sleep(60)", "did not answer within"),
     ("raise SystemExit(3)", "exit code 3"),
     ('print("noise"); print(\'{"error": "broken"}\')', "broken"), ("print('{')", "exit code 0")],
)  # fmt: skip
def test_a_driver_that_misbehaves(monkeypatch, code, message):
    probe_device.cache_clear()
    run = subprocess.run
    monkeypatch.setattr(
        cuda_device.subprocess, "run", lambda args, **k: run([args[0], "-c", code], **k)
    )
    with pytest.raises(TargetUnavailableError, match=message):
        probe_device(0, 2.0)


def test_device_tables():
    assert arch_name(8, 0) == "sm_80"
    assert arch_name(9, 0) == "sm_90a"
    assert architecture_device("sm_90a").facts["sm_count"] == 132
    assert datasheet_ceilings("NVIDIA H200")["dram_gbps"] == 4800
    assert datasheet_ceilings("unheard of") == {}


@pytest.mark.parametrize("image", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + b"\xff" * 60])
def test_damaged_cubin(image):
    with pytest.raises(ValueError, match="ELF"):
        Cubin(image)


@pytest.mark.parametrize("body", ["int* p = (int*)malloc(16); y[0] = p[0]; free(p);",
                                  "int* p = new int[4]; y[0] = p[0]; p[0] = 3;"])  # fmt: skip
def test_the_heap_of_the_device_is_refused(body):
    with pytest.raises(RejectedError, match="heap keeps its contents"):
        compile_cuda(job(f"__global__ void k(float* y) {{ {body} }}"))


def test_variables_are_found_in_the_binary():
    source = """
    __constant__ float t[4] = {1, 2, 3, 4};
    __device__ const int kept[2] = {5, 6};
    __global__ void k(float* y, int i) { y[0] = t[i] + kept[i]; }"""
    found = {v.name: v for v in Cubin(compile_cuda(job(source)).image).variables()}
    assert (found["t"].section, found["t"].size, found["t"].constant) == (".nv.constant3", 16, True)
    assert (found["kept"].section, found["kept"].size) == (".nv.global.init", 8)
