"""What the CUDA executable does on a real device."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kernelsearch.errors import (
    CandidateCrashedError,
    LaunchError,
    ResourceLimitError,
    TargetUnavailableError,
    WorkerError,
)
from kernelsearch.records import (
    FillStep,
    KernelStep,
    LaunchPlan,
    ScalarArg,
    TensorMapSpec,
    WorkspaceSpec,
)
from kernelsearch.targets.cuda import CudaTarget
from tests.gpu.cuda_support import SCALE, Bench, one_step, scale_plan

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    try:
        return CudaTarget(cache_folder=tmp_path_factory.mktemp("programs"))
    except TargetUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def bench(target):
    bench = Bench(target)
    yield bench
    bench.executable.close()


def draw(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_device_record(target):
    facts = target.device.facts
    assert facts["sm_count"] > 0
    assert facts["max_shared_per_block"] >= 48 << 10
    assert "nvrtc" in target.device.driver


@pytest.mark.parametrize("n", [0, 1, 31, 1000, 1 << 20])
@pytest.mark.parametrize("misalign", [0, 4])
def test_run_gives_outputs(bench, n, misalign):
    x = draw(n)
    binary = bench.load(SCALE, "scale")
    got, report = bench.run(
        binary, scale_plan(n), {"x": x}, {"y": ("float32", (n,))}, 0xFF, misalign
    )
    np.testing.assert_array_equal(got["y"], 2 * x)
    assert report.corrupted_guards == ()
    assert report.modified_inputs == ()


def test_large_input_is_kept_and_checked(bench):
    n = 8 << 20
    x = draw(n)
    binary = bench.load(SCALE, "scale")
    for factor in (2.0, 3.0):
        got, report = bench.run(binary, scale_plan(n, factor), {"x": x}, {"y": ("float32", (n,))})
        np.testing.assert_array_equal(got["y"], np.float32(factor) * x)
        assert report.modified_inputs == ()


def test_unwritten_output_keeps_poison(bench):
    binary = bench.load("__global__ void nop(float* y) {}", "nop")
    got, _ = bench.run(binary, one_step("nop", "y"), {}, {"y": ("float32", (100,))}, 0x7E)
    assert (got["y"].view(np.uint8) == 0x7E).all()


@pytest.mark.parametrize("at", [-1, -1000, 100, 2000])
def test_write_outside_is_seen(bench, at):
    binary = bench.load("__global__ void out(float* y, int at) { y[at] = 1.f; }", "out")
    plan = one_step("out", "y", ScalarArg("i32", at), block=1)
    _, report = bench.run(binary, plan, {}, {"y": ("float32", (100,))})
    assert report.corrupted_guards == ("y",)


@pytest.mark.parametrize("n", [100, 8 << 20])
def test_changed_input_is_seen(bench, n):
    source = "__global__ void bad(float* y, float* x) { y[0] = x[7]; x[7] = -1.f; }"
    binary = bench.load(source, "bad")
    x = draw(n)
    plan = one_step("bad", "y", "x", block=1)
    for _ in range(2):
        got, report = bench.run(binary, plan, {"x": x}, {"y": ("float32", (1,))})
        assert report.modified_inputs == ("x",)
        assert got["y"][0] == x[7]


def test_argument_size_is_checked(bench):
    binary = bench.load(SCALE, "scale")
    step = KernelStep("scale", ("y", "x", ScalarArg("i32", 4), ScalarArg("f32", 2.0)))
    with pytest.raises(LaunchError, match=r"argument 2 .* 8 bytes as compiled \(got 4\)"):
        bench.run(binary, LaunchPlan((step,)), {"x": draw(4)}, {"y": ("float32", (4,))})
    step = KernelStep("scale", ("y", "x"))
    with pytest.raises(LaunchError, match="takes 4 arguments"):
        bench.run(binary, LaunchPlan((step,)), {"x": draw(4)}, {"y": ("float32", (4,))})
    with pytest.raises(LaunchError, match="must fit i32"):
        bench.run(
            bench.load("__global__ void k(int a) {}", "k"),
            one_step("k", ScalarArg("i32", 1 << 31)), {}, {"y": ("float32", (4,))},
        )  # fmt: skip


def test_limits_are_checked_before_the_launch(bench):
    binary = bench.load(SCALE, "scale")
    x, out = {"x": draw(4)}, {"y": ("float32", (4,))}
    args = ("y", "x", ScalarArg("i64", 4), ScalarArg("f32", 2.0))
    with pytest.raises(ResourceLimitError, match="shared memory") as caught:
        bench.run(binary, one_step("scale", *args, shared=1 << 20), x, out)
    assert caught.value.evidence["asked"] == 1 << 20
    with pytest.raises(ResourceLimitError, match="threads a block"):
        bench.run(binary, one_step("scale", *args, block=2048), x, out)
    huge = LaunchPlan(scale_plan(4).steps, (WorkspaceSpec("w", "float32", (1 << 40,)),))
    with pytest.raises(ResourceLimitError, match="workspace"):
        bench.run(binary, huge, x, out)
    # None of it harmed the device.
    got, _ = bench.run(binary, scale_plan(4), x, out)
    np.testing.assert_array_equal(got["y"], 2 * x["x"])


def test_much_dynamic_shared_memory(bench):
    source = """
    extern __shared__ float s[];
    __global__ void big(float* y, int n) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
        __syncthreads();
        if (threadIdx.x == 0) y[0] = s[n - 1];
    }"""
    n = bench.target.device.facts["max_shared_per_block"] // 4
    binary = bench.load(source, "big")
    plan = one_step("big", "y", ScalarArg("i32", n), shared=4 * n, block=256)
    got, _ = bench.run(binary, plan, {}, {"y": ("float32", (1,))})
    assert got["y"][0] == n - 1


def test_workspace_fill_and_several_steps(bench):
    source = """
    __global__ void count(int* w) { atomicAdd(w, 1); }
    __global__ void read(float* y, const int* w) { y[0] = *w; }"""
    binary = bench.load(source, "count", "read")
    plan = LaunchPlan(
        (FillStep("w", 0), KernelStep("count", ("w",), (3, 1, 1), (64, 1, 1)),
         KernelStep("read", ("y", "w"))),
        (WorkspaceSpec("w", "int32", (1,)),),
    )  # fmt: skip
    out = {"y": ("float32", (1,))}
    got, _ = bench.run(binary, plan, {}, out)
    assert got["y"][0] == 192
    report, captured = bench.time([(binary, plan)], [{"x": draw(1)}], out)
    assert [c["y"][0] for c in captured] == [192, 192]
    assert report.corrupted_guards == ()


def test_cooperative_launch(bench):
    source = """
    #include <cooperative_groups.h>
    __global__ void both(float* y, int* w) {
        if (threadIdx.x == 0) atomicAdd(w, 1);
        cooperative_groups::this_grid().sync();
        if (blockIdx.x == 0 && threadIdx.x == 0) y[0] = *(volatile int*)w;
    }"""
    binary = bench.load(source, "both")
    spaces = (WorkspaceSpec("w", "int32", (1,)),)
    step = KernelStep("both", ("y", "w"), (64, 1, 1), (64, 1, 1), cooperative=True)
    plan, out = LaunchPlan((FillStep("w", 0), step), spaces), {"y": ("float32", (1,))}
    got, _ = bench.run(binary, plan, {}, out)
    assert got["y"][0] == 64
    _, captured = bench.time([(binary, plan)], [{"x": draw(1)}], out)
    assert captured[0]["y"][0] == 64
    much = KernelStep("both", ("y", "w"), (1 << 20, 1, 1), (64, 1, 1), cooperative=True)
    with pytest.raises(ResourceLimitError, match="cooperative"):
        bench.run(binary, LaunchPlan((much,), spaces), {}, out)


def test_cluster_launch(bench):
    if bench.target.device.arch < "sm_90" or len(bench.target.device.arch) < 6:
        pytest.skip("clusters need compute capability 9.0")
    source = """
    __global__ void ranks(float* y) {
        unsigned rank;
        asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
        if (threadIdx.x == 0) y[blockIdx.x] = rank;
    }"""
    binary = bench.load(source, "ranks")
    out = {"y": ("float32", (32,))}
    for size in (4, 16):
        plan = one_step("ranks", "y", grid=32, cluster=(size, 1, 1))
        got, _ = bench.run(binary, plan, {}, out)
        np.testing.assert_array_equal(got["y"], np.arange(32) % size)
    _, captured = bench.time([(binary, plan)], [{"x": draw(1)}], out)
    np.testing.assert_array_equal(captured[0]["y"], np.arange(32) % 16)
    with pytest.raises(LaunchError, match="multiple of the cluster"):
        bench.run(binary, one_step("ranks", "y", grid=30, cluster=(4, 1, 1)), {}, out)
    with pytest.raises(ResourceLimitError, match="blocks a cluster"):
        bench.run(binary, one_step("ranks", "y", grid=32, cluster=(32, 1, 1)), {}, out)


TILE = """
__global__ void tile(float* y, const __grid_constant__ CUtensorMap map, int col, int row) {
    __shared__ alignas(128) float s[8][32];
    __shared__ alignas(8) unsigned long long arrived;
    const unsigned bar = (unsigned)__cvta_generic_to_shared(&arrived);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(bar));
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%0], [%1, {%2, %3}], [%4];" ::"r"((unsigned)__cvta_generic_to_shared(s)),
            "l"(&map), "r"(col), "r"(row), "r"(bar) : "memory");
    }
    __syncthreads();
    asm volatile("{.reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W;}"
                 ::"r"(bar) : "memory");
    y[threadIdx.x] = s[threadIdx.x / 32][threadIdx.x % 32];
}"""


def test_tensor_map(bench):
    if bench.target.device.arch < "sm_90" or len(bench.target.device.arch) < 6:
        pytest.skip("tensor maps need compute capability 9.0")
    binary = bench.load(TILE, "tile")
    x = draw(20 * 64).reshape(20, 64)
    maps = (TensorMapSpec("map", "x", (8, 32), "none", "128B"),)
    args = ("y", "map", ScalarArg("i32", 32), ScalarArg("i32", 16))
    plan = LaunchPlan((KernelStep("tile", args, (1, 1, 1), (256, 1, 1)),), (), maps)
    out = {"y": ("float32", (8, 32))}
    expected = np.zeros((8, 32), np.float32)
    expected[:4] = x[16:, 32:]
    got, _ = bench.run(binary, plan, {"x": x}, out)
    np.testing.assert_array_equal(got["y"], expected)
    _, captured = bench.time([(binary, plan)], [{"x": x}], out)
    np.testing.assert_array_equal(captured[0]["y"], expected)
    odd = {"x": draw(20 * 63).reshape(20, 63)}
    with pytest.raises(LaunchError, match="multiple of 16 bytes"):
        bench.run(binary, plan, odd, out)


def test_timing_is_stable_and_verified(bench):
    n = 1 << 20
    sets = [{"x": draw(n, s)} for s in range(3)]
    out = {"y": ("float32", (n,))}
    binary = bench.load(SCALE, "scale")
    slow = bench.load(SCALE.replace("* f", "* f + 0.f * sinf((float)x[i])"), "scale")
    medians = []
    for _ in range(3):
        report, captured = bench.time(
            [(binary, scale_plan(n)), (slow, scale_plan(n, grid=4))], sets, out
        )
        medians.append(np.median(report.samples_us[0]))
        assert report.corrupted_guards == ()
        assert report.modified_inputs == ()
        assert len(report.end_to_end_us) == 2
        for got, which in zip(captured, report.captured_sets, strict=True):
            np.testing.assert_array_equal(got["y"], 2 * sets[which]["x"])
    assert max(medians) / min(medians) < 1.1
    assert np.median(report.samples_us[1]) > 2 * medians[-1]
    hot, _ = bench.time([(binary, scale_plan(n))], sets, out, cache="hot")
    assert np.median(hot.samples_us[0]) < medians[-1]


def test_timing_sees_changed_inputs_and_guards(bench):
    n = 1000
    source = "__global__ void bad(float* y, float* x) { y[1000] = 1.f; x[3] = 0.f; }"
    binary = bench.load(source, "bad")
    sets, out = [{"x": draw(n)}], {"y": ("float32", (n,))}
    report, _ = bench.time([(binary, one_step("bad", "y", "x", block=1))], sets, out)
    assert report.corrupted_guards == ("y",)
    assert report.modified_inputs == ("x",)
    good = bench.load(SCALE, "scale")
    report, captured = bench.time([(good, scale_plan(n))], sets, out)
    assert report.modified_inputs == ()
    np.testing.assert_array_equal(captured[0]["y"], 2 * sets[0]["x"])


def test_skipping_work_already_done_shows(bench):
    # Skips when the output looks finished: poison before every call defeats it.
    source = """
    __global__ void lazy(float* y, const float* x) {
        const int i = threadIdx.x;
        if (y[i] == 2 * x[i]) return;
        for (int k = 0; k < 4000; ++k) __nanosleep(100);
        y[i] = 2 * x[i];
    }"""
    binary = bench.load(source, "lazy")
    sets, out = [{"x": draw(32)}], {"y": ("float32", (32,))}
    report, _ = bench.time([(binary, one_step("lazy", "y", "x"))], sets, out, budget_s=0.3)
    assert np.median(report.samples_us[0]) > 100


def test_paper_size_request_is_quick(bench):
    n = 1024
    sets = [{"x": draw(n, s)} for s in range(2)]
    out = {"y": ("float32", (n,))}
    binary = bench.load(SCALE, "scale")
    bench.time([(binary, scale_plan(n)), (binary, scale_plan(n))], sets, out)
    started = time.perf_counter()
    bench.time([(binary, scale_plan(n)), (binary, scale_plan(n))], sets, out)
    assert time.perf_counter() - started < 0.1


def test_conditions_are_recorded(bench):
    binary = bench.load(SCALE, "scale")
    report, _ = bench.time([(binary, scale_plan(64))], [{"x": draw(64)}], {"y": ("float32", (64,))})
    before = report.conditions["before"]
    assert "sm_mhz" in before or "nvml" in before


def test_ceilings(bench):
    rates = bench.executable.ceilings()
    assert rates["dram_gbps"] > 100
    assert rates["l2_gbps"] >= rates["dram_gbps"]
    assert 0 <= rates["launch_us"] < 20


# Last: these lose the device context, so each needs an executable of its own.
def test_illegal_address_ends_the_executable(target):
    import multiprocessing

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_crash, (target,)) == ["crashed", "sticky", "dead"]


def _crash(target):
    bench = Bench(target)
    binary = bench.load("__global__ void wild(float* y) { y[1ll << 40] = 1.f; }", "wild")
    seen = []
    try:
        bench.run(binary, one_step("wild", "y"), {}, {"y": ("float32", (4,))})
    except CandidateCrashedError as error:
        seen.append("crashed")
        if error.evidence.get("sticky") and "ILLEGAL_ADDRESS" in str(error):
            seen.append("sticky")
    try:
        bench.run(binary, one_step("wild", "y"), {}, {"y": ("float32", (4,))})
    except WorkerError:
        seen.append("dead")
    return seen
