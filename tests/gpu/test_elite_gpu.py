"""What elites meet on a real device: poisoned shared memory, a crowd, compute-sanitizer."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kernelsearch.errors import CandidateError, CandidateTimeoutError, TargetUnavailableError
from kernelsearch.records import RunRequest, ScalarArg
from kernelsearch.targets.cuda import CudaTarget
from kernelsearch.targets.cuda_crowd import SCHEDULES
from kernelsearch.targets.cuda_sanitize import sanitizers
from kernelsearch.worker import IsolatedRunner
from tests.gpu.cuda_support import SCALE, Bench, buffers, job, one_step, scale_plan

pytestmark = pytest.mark.gpu
N = 4096
OUT = {"y": ("float32", (N,))}


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


@pytest.fixture(scope="module")
def data():
    return np.random.default_rng(0).standard_normal(N).astype(np.float32)


@pytest.mark.parametrize("poison", [0xFF, 0x7E])
@pytest.mark.parametrize("shared", [1024, 200 << 10])
def test_shared_memory_that_nobody_wrote_holds_poison(bench, poison, shared):
    source = """
    extern __shared__ float s[];
    __global__ void peek(float* y, int last) {
        y[blockIdx.x * 32 + threadIdx.x] = s[last - threadIdx.x];
    }
    """
    binary = bench.load(source, "peek")
    plan = one_step("peek", "y", ScalarArg("i32", shared // 4 - 1), grid=N // 32, shared=shared)
    got, _ = bench.run(binary, plan, {}, OUT, poison)
    assert (got["y"].view(np.uint8) == poison).all()


def crowded(bench, binary, plan, inputs, schedule):
    specs, views = buffers(inputs, OUT)
    request = RunRequest(binary.key, plan, tuple(specs), 0xFF, schedule=schedule)
    started = time.perf_counter()
    bench.executable.run(request)
    return views["y"], time.perf_counter() - started


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_honest_kernel_gets_on_beside_a_crowd(bench, data, schedule):
    binary = bench.load(SCALE, "scale")
    for _ in range(3):
        y, _ = crowded(bench, binary, scale_plan(N, grid=400), {"x": data}, schedule)
        np.testing.assert_array_equal(y, 2 * data)


# Block 0 waits for the last one, which is resident only where the device has room for all.
WAITING = """
__global__ void __launch_bounds__(1024) wait(volatile float* y) {
    if (threadIdx.x == 0) {
        if (blockIdx.x == gridDim.x - 1) { y[0] = 1.f; __threadfence(); }
        else while (y[0] != 1.f) {}
    }
    __syncthreads();
    if (blockIdx.x > 0 && threadIdx.x < 32) y[blockIdx.x * 31 + threadIdx.x % 31] = 1.f;
}
"""


def test_blocks_that_wait_for_others_are_found_out(target):
    # Of its own: the device may be left in disorder.
    bench = Bench(target)
    try:
        binary = bench.load(WAITING, "wait")
        with pytest.raises(CandidateTimeoutError, match="not resident"):
            crowded(bench, binary, one_step("wait", "y", grid=132, block=1024), {}, "one_sm")
    finally:
        bench.executable.close()


BESIDE = SCALE.replace("y[i] = (elem_t)((float)x[i] * f);", "y[i + (i == n - 1)] = x[i] * f;")
RACE = """
__global__ void scale(float* y, const float* x, long long n, float f) {
    __shared__ float s[256];
    long long i = blockIdx.x * 256ll + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0.f;
    float neighbour = s[(threadIdx.x + 32) % 256];
    if (i < n) y[i] = neighbour * f;
}
"""
UNWRITTEN = SCALE.replace("= (elem_t)((float)x[i] * f)", "+= x[i] * f")
DIVERGED = """
__global__ void scale(float* y, const float* x, long long n, float f) {
    __shared__ float s[256];
    long long i = blockIdx.x * 256ll + threadIdx.x;
    s[threadIdx.x] = x[i];
    if (threadIdx.x < 40) __syncthreads();
    y[i] = s[threadIdx.x] * f;
}
"""
FOUND_BY = {"memcheck": BESIDE, "racecheck": RACE, "initcheck": UNWRITTEN, "synccheck": DIVERGED}


def watched(target, data, tool, source):
    """Return what a tool says of a kernel; raises what it found."""
    watching = next(t for t in sanitizers(target) if t.tool == tool)
    binary = target.compile(job(source, "scale", arch=target.device.arch))
    specs, views = buffers({"x": data}, OUT)
    runner = IsolatedRunner(watching)
    plan = scale_plan(N)
    try:
        runner.load(binary, 120)
        runner.run(RunRequest(binary.key, plan, tuple(specs), bounds_checked=True), 120)
    except CandidateError as error:
        print("the run itself ended in", error)
    finally:
        runner.close()
    return watching.judge(), views["y"]


@pytest.fixture(scope="module")
def tools(target):
    try:
        sanitizers(target)
    except TargetUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("tool", FOUND_BY)
def test_sanitizers_pass_an_honest_kernel(target, tools, data, tool):
    said, y = watched(target, data, tool, SCALE)
    assert said == ""
    np.testing.assert_array_equal(y, 2 * data)


@pytest.mark.parametrize("tool", FOUND_BY)
def test_sanitizers_find_what_results_do_not_show(target, tools, data, tool):
    with pytest.raises(CandidateError, match=f"{tool} found") as caught:
        print(watched(target, data, tool, FOUND_BY[tool]))
    assert caught.value.evidence["count"] > 0
    print(caught.value, caught.value.evidence["report"])
