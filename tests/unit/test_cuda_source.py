import pytest

from kernelsearch.errors import RejectedError
from kernelsearch.records import CompileJob
from kernelsearch.targets.cuda_elf import GlobalVariable
from kernelsearch.targets.cuda_source import (
    check_source,
    full_source,
    mutable_globals,
    prelude,
    without_comments,
)


@pytest.mark.parametrize(
    "source",
    [
        "#include <cuda_bf16.h>\n",
        "  #  include <cuda/std/cstdint>  // why\n",
        "#include <cub/block/block_reduce.cuh>",
        "#include <cooperative_groups/reduce.h>",
        "// #include </etc/passwd>\n",
        "/* #include </etc/passwd> */",
        'const char* s = "\\n#include </etc/passwd>";',
        "namespace cg = cooperative_groups;",
        "#define TWICE(x) \\\n  (2 * (x))\n",
        "using namespace cooperative_groups;",
        "#pragma unroll\n",
    ],
)
def test_honest_source_passes(source):
    check_source(source)


@pytest.mark.parametrize(
    "source",
    [
        "#include </etc/passwd>\n",
        "#include <../../etc/passwd>\n",
        "#include <cub/../../x.h>\n",
        '#include "x.h"\n',
        "#include HEADER\n",
        "# include <stdio.h>\n",
        "%: include </etc/passwd>\n",
        "#inc\\\nlude </etc/passwd>\n",
        "#inc/* */lude <x>\n#include /* */ </etc/passwd>\n",
        "/* */ #include </etc/passwd>\n",
        "#embed </etc/passwd>\n",
        "#import <x>\n",
        "#include_next <cuda_fp16.h>\n",
        "#if __has_include(</etc/passwd>)\n#endif\n",
        "int t = sizeof(__TIME__);",
        'R"x(\n)x"\n#include </etc/shadow>\n',
        "namespace cuda { namespace std { int x; } }",
        "namespace cuda::std { __device__ int x; }",
        "namespace  cub\n{ }",
    ],
)
def test_what_reads_the_host_is_refused(source):
    with pytest.raises(RejectedError):
        check_source(source)


def test_message_says_line_and_remedy():
    with pytest.raises(RejectedError, match=r"line 3: .*<stdio.h>.*allowed"):
        check_source("int a;\nint b;\n#include <stdio.h>\n")


def test_comments_go_and_lines_stay():
    text = without_comments('a /* x\ny */ b // c\n"// no"', keep_strings=True)
    assert text.count("\n") == 2
    assert '"// no"' in text
    assert "c" not in text.split("\n")[1].replace("b", "")


def test_prelude_defines_type_and_tunables():
    text = prelude("bfloat16", (("VEC", 4), ("MODE", "fast")))
    assert "typedef __nv_bfloat16 elem_t;" in text
    assert "#define ELEM_BFLOAT16 1" in text
    assert "#define VEC 4" in text
    assert "#define MODE fast" in text
    with pytest.raises(RejectedError, match="int7"):
        prelude("int7")


def test_source_keeps_its_own_lines():
    job = CompileJob("cuda", "body", ("k",), "sm_90a", 'od"d\n.cu')
    assert full_source(job).endswith('#line 1 "od_d_.cu"\nbody')


@pytest.mark.parametrize(
    ("symbol", "source", "mutable"),
    [
        ("counter", "__device__ int counter;", True),
        ("_ZZ1kPfE4seen", "__global__ void k(float* y) { static int seen; }", True),
        ("_ZZ1kPfE4seen", "__global__ void k() { static const int seen[2] = {1}; }", False),
        ("table", "__device__ const float table[4] = {1, 2, 3, 4};", False),
        ("kB", "constexpr int kA = 4, kB = 2 * kA;", False),
        ("_ZN4TileILi64ELi8EE4kRowE", "struct Tile { static constexpr int kRow = A; };",
         False),
        ("_ZN4cuda3std3__417integral_constantIbLb0EE5valueE", "", False),
        ("$str", "", False),
        ("counter", "// const int counter\n__device__ int counter;", True),
        ("counter", "__device__ int a = (const int)counter;", True),
        ("seen", "__device__ int seen; __device__ void f() { const int seen = 3; }", True),
        ("seen", "__device__ void f(const int seen); __device__ int seen;", True),
        ("kBk", "constexpr int kBk = 4; __device__ float f(int kBk) { return kBk; }", False),
        ("t", "__device__ const float u[2] = {1, 2}, t[2][2] = {{3, 4}, {5, 6}};", False),
        ("table", "__device__ float (*const table[2])(float) = {a, b};", False),
        ("_ZN4cudaX", 'extern "C" { __device__ int _ZN4cudaX; }', True),
        ("_ZTVmine", 'extern "C" { __device__ int _ZTVmine; }', True),
        ("my__func__", "__device__ int my__func__;", True),
        ("_ZZ1kPfE8__func__", "__global__ void k(float* y) { y[0] = __func__[0]; }", False),
        ("$str$2", "", False),
    ],
)  # fmt: skip
def test_mutable_globals(symbol, source, mutable):
    found = mutable_globals([GlobalVariable(symbol, 4, False)], source)
    assert bool(found) == mutable
