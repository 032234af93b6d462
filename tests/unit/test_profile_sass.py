"""Facts from CUDA machine code: real kernels compiled here, and listings that are no such thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsearch.profile import sass
from kernelsearch.profile.strides import conflict_degree, sector_excess
from kernelsearch.records import CompileJob
from kernelsearch.targets.cuda_compile import compile_cuda

SOURCE = r"""
extern "C" __global__ void stream(float4* y, const float4* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { float4 v = x[i]; v.x += 1; v.y += 1; v.z += 1; v.w += 1; y[i] = v; }
}
extern "C" __global__ void columns(float* y, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float s = 0;
    for (int j = 0; j < n; ++j) s += x[i * n + j];
    y[i] = s;
}
extern "C" __global__ void every_second(float* y, const float* x, int n) {
    int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = 2 * x[i];
}
extern "C" __global__ void conflicts(float* y, const float* x, int n) {
    __shared__ float s[32 * 32];
    unsigned t = threadIdx.x;
    s[(t * 32) % 1024] = x[blockIdx.x * blockDim.x + t];
    __syncthreads();
    y[blockIdx.x * blockDim.x + t] = s[(t * 32 + 1) % 1024];
}
extern "C" __global__ void tally(float* total, const float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(total, x[i] * x[i] + 1.0f);
}
extern "C" __global__ void doubles(double* y, const double* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    double v = x[i];
    for (int j = 0; j < n; ++j) v = v * 1.0000001 + 0.5;
    y[i] = v;
}
"""
NAMES = ("stream", "columns", "every_second", "conflicts", "tally", "doubles")


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, float]]:
    binary = compile_cuda(CompileJob("cuda", SOURCE, NAMES, "sm_90a"))
    found, why = sass.with_code(binary)
    assert why == ""
    return {f.name: dict(f.code) for f in found}


@pytest.mark.nvrtc
@pytest.mark.skipif(sass.find_nvdisasm() is None, reason=sass.NO_TOOL)
class TestRealKernels:
    def test_vector_loads_are_seen(self, facts: dict[str, dict[str, float]]) -> None:
        assert facts["stream"]["global_load_bytes"] == 16
        assert facts["stream"]["global_excess"] == 1
        assert facts["columns"]["global_load_bytes"] == 4

    def test_a_row_a_thread_is_a_run_time_stride(self, facts: dict[str, dict[str, float]]) -> None:
        assert facts["columns"]["global_runtime_stride"] > 0.9
        assert facts["columns"]["global_excess"] > 4
        assert facts["columns"]["loops"] >= 1

    def test_every_second_element_wastes_half(self, facts: dict[str, dict[str, float]]) -> None:
        assert facts["every_second"]["global_excess"] == 2
        assert facts["every_second"]["global_runtime_stride"] == 0

    def test_a_column_of_shared_memory_meets_in_one_bank(
        self, facts: dict[str, dict[str, float]]
    ) -> None:
        assert facts["conflicts"]["shared_conflict"] > 16

    def test_atomics_on_one_address(self, facts: dict[str, dict[str, float]]) -> None:
        assert facts["tally"]["n_atomic"] >= 1

    def test_arithmetic_on_doubles_is_what_fills_the_loop(
        self, facts: dict[str, dict[str, float]]
    ) -> None:
        code = facts["doubles"]
        assert code["cycles_fp64"] == 1.0
        assert code["w_fp64"] > 0.5


def test_an_image_that_is_no_cubin_is_a_reason_and_no_facts() -> None:
    if sass.find_nvdisasm() is None:
        pytest.skip(sass.NO_TOOL)
    from kernelsearch.records import Binary, KernelFacts

    job = CompileJob("cuda", "", ("k",), "sm_90a")
    binary = Binary("key", job, b"not a cubin", "", {"k": "k"}, (KernelFacts("k"),))
    found, why = sass.with_code(binary)
    assert found == (KernelFacts("k"),)
    assert why.startswith("nvdisasm failed")


def test_no_tool_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelsearch.records import Binary, KernelFacts

    monkeypatch.setattr(sass, "find_nvdisasm", lambda: None)
    job = CompileJob("cuda", "", ("k",), "sm_90a")
    binary = Binary("key", job, b"", "", {"k": "k"}, (KernelFacts("k"),))
    assert sass.with_code(binary) == (binary.facts, sass.NO_TOOL)


@given(st.text(max_size=300))
def test_any_text_is_a_listing_without_kernels_or_with_odd_ones(text: str) -> None:
    for listing in sass.parse('\t.section\t.text.k,"ax"\n' + text).values():
        assert len(listing.depths) == len(listing.instructions)


OPCODES = ["IMAD", "IADD3", "LEA", "LDG.E.128", "STS", "LOP3.LUT", "SHF.R.U32.HI", "S2R", "BRA",
           "MOV", "SHFL.BFLY", "RED.E.ADD", "LDS.64"]  # fmt: skip
OPERANDS = ["R0", "R2.reuse", "-R4", "RZ", "UR4", "P0", "!PT", "0x10", "-0x4", "c[0x0][0x210]",
            "SR_TID.X", "[R2.64+0x10]", "desc[UR4][R2.64]", "[R2+UR4]", "`(.L_x_1)", "PT", "0xc0",
            "", "[", "R", "0x"]  # fmt: skip


ARGUMENTS = st.lists(st.sampled_from(OPERANDS), max_size=6)


@given(st.lists(st.tuples(st.sampled_from(OPCODES), ARGUMENTS), max_size=30))
def test_odd_code_gives_finite_numbers(lines: list[tuple[str, list[str]]]) -> None:
    text = '\t.section\t.text.k,"ax"\n.L_x_1:\n' + "\n".join(
        f"        /*{16 * n:04x}*/  {op} {', '.join(args)} ;" for n, (op, args) in enumerate(lines)
    )
    facts = sass.code_facts(sass.parse(text)["k"])
    assert all(0 <= v < 1e9 for v in facts.values()), facts


@pytest.mark.parametrize(
    ("stride", "width", "excess"),
    [(4, 4, 1.0), (16, 16, 1.0), (8, 4, 2.0), (128, 4, 8.0), (0, 4, 1.0), (float("inf"), 4, 8.0),
     (2, 2, 1.0), (float("inf"), 16, 2.0)],
)  # fmt: skip
def test_sectors_a_warp_touches(stride: float, width: int, excess: float) -> None:
    assert sector_excess(stride, width) == excess


@pytest.mark.parametrize(
    ("stride", "width", "degree"),
    [(4, 4, 1.0), (8, 4, 2.0), (128, 4, 32.0), (132, 4, 1.0), (32, 4, 8.0), (0, 4, 1.0),
     (16, 16, 1.0), (8, 8, 1.0)],
)  # fmt: skip
def test_passes_of_a_shared_access(stride: float, width: int, degree: float) -> None:
    assert conflict_degree(stride, width) == degree
