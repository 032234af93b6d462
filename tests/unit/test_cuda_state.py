"""What a CUDA kernel keeps in its module's variables is seen, on a device of host memory."""

import ctypes
from types import SimpleNamespace

import numpy as np
import pytest

from kernelsearch.errors import CheatedError, LaunchError, NondeterministicError
from kernelsearch.records import (
    BufferSpec,
    Contender,
    KernelStep,
    LaunchPlan,
    RunRequest,
    TimeRequest,
    TimingSettings,
)
from kernelsearch.shm import SharedBlock
from kernelsearch.targets import cuda_state
from kernelsearch.targets.cuda_elf import GlobalVariable
from tests.support.cuda_host import Host, Kernel, binary, executable, view

N = 64
TABLE, COUNT = GlobalVariable("t", 16, True, ".nv.constant3", 0), GlobalVariable("n", 4, False)


@pytest.fixture
def host(monkeypatch):
    host = Host()
    memory = np.zeros(64, np.uint8)
    host.memory_of_module = memory
    host.globals = {
        b"t": (memory.ctypes.data, 16), b"n": (memory.ctypes.data + 32, 4)
    }  # fmt: skip
    found = SimpleNamespace(variables=lambda: [TABLE, COUNT])
    monkeypatch.setattr(cuda_state, "Cubin", lambda image: found)
    return host


@pytest.fixture
def gpu(host, monkeypatch):
    made = executable(host, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def block():
    with SharedBlock(1 << 14) as block:
        yield block


def kernel(host, work):
    def run(config, y, x):
        view(y, np.float32, N)[:] = 2 * view(x, np.float32, N)
        work(host.memory_of_module)

    host.kernels["k"] = Kernel("k", run, (8, 8), 5.0)


def request(gpu, block):
    made = binary("k", image=b"elf")
    gpu.load(made)
    specs = (
        BufferSpec("y", "float32", (N,), "out", None, block.ref(8192, 4 * N)),
        BufferSpec("x", "float32", (N,), "in", block.ref(0, 4 * N)),
    )
    return made.key, LaunchPlan((KernelStep("k", ("y", "x")),)), specs


def run(gpu, block):
    key, plan, specs = request(gpu, block)
    return gpu.run(RunRequest(key, plan, specs, 0xFF))


def timed(gpu, block, sample_us=20.0):
    key, plan, specs = request(gpu, block)
    settings = TimingSettings(min_samples=2, max_samples=4, budget_s=0.1, min_sample_us=sample_us)
    return gpu.time(TimeRequest((Contender(key, plan),), (specs, specs), (specs,), settings, 0))


def test_variables_that_are_only_read_do_no_harm(gpu, host, block):
    host.memory_of_module[:16] = 7
    kernel(host, lambda memory: None)
    assert run(gpu, block).corrupted_guards == ()
    assert timed(gpu, block).samples_us[0]


@pytest.mark.parametrize(("at", "name"), [(0, ".nv.constant3"), (33, ".nv.global")])
def test_a_write_in_a_verified_run(gpu, host, block, at, name):
    def work(memory):
        memory[at] += 1

    kernel(host, work)
    with pytest.raises(CheatedError, match="variables of its module") as caught:
        run(gpu, block)
    assert caught.value.evidence["module_state"] == [name]


def test_a_write_in_timed_calls_only(gpu, host, block):
    kernel(host, lambda memory: None)
    run(gpu, block)

    def count(memory):
        memory[32] += 1

    kernel(host, count)
    with pytest.raises(CheatedError, match="in a timed call"):
        timed(gpu, block)


def test_what_is_put_back_by_the_end_of_a_replay(gpu, host, block):
    # Keeps something in every odd call and takes it away in every even one.
    def toggle(memory):
        memory[3] ^= 1

    kernel(host, toggle)
    with pytest.raises(CheatedError):
        timed(gpu, block)


def test_each_load_begins_anew(gpu, host, block):
    kernel(host, lambda memory: None)
    for value in (1, 2):
        host.memory_of_module[:] = value
        run(gpu, block)


def test_a_variable_that_cannot_be_found(gpu, host, block):
    kernel(host, lambda memory: None)
    del host.globals[b"n"]
    with pytest.raises(LaunchError, match="does not say where") as caught:
        run(gpu, block)
    assert caught.value.evidence["variables"] == ["n"]


def test_library_constants_that_are_not_loaded(gpu, host, block, monkeypatch):
    mine = [GlobalVariable("_ZN4cuda3std3__41aE", 1, False, ".nv.global", 0), TABLE]
    monkeypatch.setattr(cuda_state, "Cubin", lambda image: SimpleNamespace(variables=lambda: mine))
    kernel(host, lambda memory: None)
    assert run(gpu, block).corrupted_guards == ()


def test_variables_that_lie_apart_are_watched_one_by_one(gpu, host, block, monkeypatch):
    apart = [TABLE, GlobalVariable("u", 4, True, ".nv.constant3", 100), COUNT]
    monkeypatch.setattr(cuda_state, "Cubin", lambda image: SimpleNamespace(variables=lambda: apart))
    host.globals[b"u"] = (host.memory_of_module.ctypes.data + 48, 4)

    def work(memory):
        ctypes.memset(memory.ctypes.data + 50, 9, 1)

    kernel(host, work)
    with pytest.raises(CheatedError) as caught:
        run(gpu, block)
    assert caught.value.evidence["module_state"] == ["u"]


class Remembering(Kernel):
    """A kernel that finds in shared memory what an earlier call left there."""

    def __init__(self, host, dear, cheap):
        self.host, self.dear, self.cheap = host, dear, cheap
        super().__init__("k", self.run, (8, 8))

    @property
    def cost_us(self):
        before = [name for name, _ in self.host.launched][:-1]
        last = next((n for n in reversed(before) if n in ("k", "poison_shared")), "")
        return self.cheap if last == "k" else self.dear

    @cost_us.setter
    def cost_us(self, value):
        pass

    def run(self, config, y, x):
        view(y, np.float32, N)[:] = 2 * view(x, np.float32, N)


def test_a_call_that_is_slow_by_itself(gpu, host, block):
    host.kernels["k"] = Remembering(host, 200.0, 2.0)
    with pytest.raises(CheatedError, match="by itself") as caught:
        timed(gpu, block, sample_us=500.0)
    assert caught.value.evidence["alone_us"] == 200.0


@pytest.mark.parametrize(("dear", "cheap"), [(20.0, 2.0), (130.0, 60.0)])
def test_a_call_that_is_somewhat_slow_by_itself(gpu, host, block, dear, cheap):
    host.kernels["k"] = Remembering(host, dear, cheap)
    assert timed(gpu, block, sample_us=500.0).conditions["alone_us"] == dear


def skipping(host, every):
    """Make a kernel that does nothing in every n-th call, once it is timed."""
    calls = []

    def run(config, y, x):
        calls.append(1)
        if len(calls) < 4 or len(calls) % every:
            view(y, np.float32, N)[:] = 2 * view(x, np.float32, N)

    host.kernels["k"] = Kernel("k", run, (8, 8), 5.0)


def asked(gpu, block, *, deterministic):
    key, plan, specs = request(gpu, block)
    settings = TimingSettings(min_samples=4, max_samples=8, budget_s=0.1, min_sample_us=100.0)
    contenders = (Contender(key, plan),)
    return TimeRequest(contenders, (specs, specs), (specs,), settings, 0, deterministic)


def test_calls_that_are_skipped_now_and_then(gpu, host, block):
    skipping(host, 17)
    with pytest.raises(NondeterministicError, match="not the same after all timed calls") as caught:
        gpu.time(asked(gpu, block, deterministic=True))
    assert caught.value.evidence["output"] == "y"


def test_where_results_may_differ_they_are_not_compared(gpu, host, block):
    skipping(host, 17)
    assert gpu.time(asked(gpu, block, deterministic=False)).samples_us[0]


def test_equal_results_pass(gpu, host, block):
    kernel(host, lambda memory: None)
    report = gpu.time(asked(gpu, block, deterministic=True))
    assert report.captured_sets


def blocks_holding(host, values):
    raw = values.tobytes()
    return [pointer for pointer, block in host.blocks.items() if raw in bytes(block)]


def test_no_result_is_left_on_the_device(gpu, host, block):
    kernel(host, lambda memory: None)
    x = block.array("float32", (N,))
    x[...] = np.random.default_rng(0).standard_normal(N)
    run(gpu, block)
    gpu.time(asked(gpu, block, deterministic=True))
    assert not blocks_holding(host, 2 * x)
