"""The CUDA executable on a device made of host memory: everything but the hardware."""

import ctypes

import numpy as np
import pytest

from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateTimeoutError,
    LaunchError,
    ResourceLimitError,
    WorkerError,
)
from kernelsearch.records import (
    BufferSpec,
    Contender,
    FillStep,
    KernelStep,
    LaunchPlan,
    RunRequest,
    ScalarArg,
    TensorMapSpec,
    TimeRequest,
    TimingSettings,
    WorkspaceSpec,
)
from kernelsearch.shm import SharedBlock
from kernelsearch.targets import cuda_crowd, cuda_replicas, cuda_run, cuda_transfer
from tests.support.cuda_host import Host, HostError, Kernel, binary, executable, view

N = 1000


def scale(config, y, x, n, f):
    view(y, np.float32, n.value)[...] = f.value * view(x, np.float32, n.value)


@pytest.fixture
def host():
    host = Host()
    host.kernels["scale"] = Kernel("scale", scale, (8, 8, 8, 4), 5.0)
    host.kernels["slow"] = Kernel("slow", scale, (8, 8, 8, 4), 9.0)
    return host


@pytest.fixture
def gpu(host, monkeypatch):
    made = executable(host, monkeypatch)
    yield made
    made.close()
    # Every block that is left belongs to the context itself (tables, sweep, pinned pieces).
    assert len(host.blocks) <= 3 + cuda_transfer.THREADS


@pytest.fixture
def block():
    with SharedBlock(1 << 16) as block:
        yield block


def buffers(block, n=N, seed=0, role="in", misalign=0):
    x = block.array("float32", (n,))
    x[...] = np.random.default_rng(seed).standard_normal(n)
    y = block.array("float32", (n,), 32768)
    y[...] = 0
    return (
        BufferSpec("y", "float32", (n,), "out", None, block.ref(32768, 4 * n), misalign),
        BufferSpec("x", "float32", (n,), role, block.ref(0, 4 * n), None, misalign),
    )


def plan(kernel="scale", n=N, factor=2.0, **more):
    args = ("y", "x", ScalarArg("i64", n), ScalarArg("f32", factor))
    return LaunchPlan((KernelStep(kernel, args, (4, 1, 1), (256, 1, 1), **more),))


def load(gpu, *kernels):
    made = binary(*kernels)
    gpu.load(made)
    return made.key


def run(gpu, block, launch_plan, *kernels, poison=0xFF, **more):
    key = load(gpu, *(kernels or ("scale",)))
    return gpu.run(RunRequest(key, launch_plan, buffers(block, **more), poison))


@pytest.mark.parametrize("misalign", [0, 4])
@pytest.mark.parametrize("large", [False, True])
def test_run(gpu, block, monkeypatch, misalign, large):
    if large:
        monkeypatch.setattr(cuda_run, "RESIDENT_BYTES", 1)
    for factor in (2.0, 3.0):
        report = run(gpu, block, plan(factor=factor), misalign=misalign)
        x, y = block.array("float32", (N,)), block.array("float32", (N,), 32768)
        np.testing.assert_array_equal(y, np.float32(factor) * x)
        assert report.corrupted_guards == ()
        assert report.modified_inputs == ()


def test_large_blocks_go_through_threads(gpu, block, monkeypatch):
    monkeypatch.setattr("kernelsearch.targets.cuda_context.LEAST_BYTES", 1)
    monkeypatch.setattr(cuda_transfer, "PIECE_BYTES", 256)
    run(gpu, block, plan())
    np.testing.assert_array_equal(
        block.array("float32", (N,), 32768), 2 * block.array("float32", (N,))
    )


@pytest.mark.parametrize("large", [False, True])
def test_what_a_kernel_must_not_touch(gpu, host, block, monkeypatch, large):
    if large:
        monkeypatch.setattr(cuda_run, "RESIDENT_BYTES", 1)

    def bad(config, y, x):
        view(y - 4, np.float32, 1)[0] = 1
        view(x, np.float32, 1)[0] = 7
        view(x + 4 * N + 100, np.uint8, 1)[0] = 1

    host.kernels["bad"] = Kernel("bad", bad, (8, 8))
    steps = LaunchPlan((KernelStep("bad", ("y", "x")),))
    for _ in range(2):
        report = run(gpu, block, steps, "bad")
        assert report.corrupted_guards == ("x", "y")
        assert report.modified_inputs == ("x",)
    assert run(gpu, block, plan()).modified_inputs == ()


def test_poison_stays_where_nothing_is_written(gpu, host, block):
    host.kernels["nop"] = Kernel("nop", lambda config, y: None, (8,))
    run(gpu, block, LaunchPlan((KernelStep("nop", ("y",)),)), "nop", poison=0x7E)
    assert (block.array("uint8", (4 * N,), 32768) == 0x7E).all()


def count_plan(kernel="count"):
    return LaunchPlan(
        (FillStep("w", 0), KernelStep(kernel, ("w", "y"))), (WorkspaceSpec("w", "int32", (3,)),)
    )


def count(config, w, y):
    view(w, np.int32, 3)[...] += 1
    view(y, np.float32, N)[...] = view(w, np.int32, 3)[0]


def test_workspace_and_fill(gpu, host, block):
    host.kernels["count"] = Kernel("count", count, (8, 8))
    for _ in range(2):
        report = run(gpu, block, count_plan(), "count")
        assert (block.array("float32", (N,), 32768) == 1).all()
        assert report.corrupted_guards == ()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("y", "x", ScalarArg("i32", 4), ScalarArg("f32", 1.0)), r"argument 2 .*8 bytes.*got 4"),
        (("y", "x"), "takes 4 arguments"),
        (("y", "z", ScalarArg("i64", 4), ScalarArg("f32", 1.0)), "no buffer"),
        (("y", "x", ScalarArg("u64", -1), ScalarArg("f32", 1.0)), "must fit u64"),
    ],
)
def test_arguments_are_checked(gpu, block, args, message):
    with pytest.raises(LaunchError, match=message):
        run(gpu, block, LaunchPlan((KernelStep("scale", args),)))


@pytest.mark.parametrize(
    ("kind", "more", "message"),
    [
        (ResourceLimitError, {"shared": 1 << 20}, "shared memory"),
        (ResourceLimitError, {"block": (2048, 1, 1)}, "threads a block"),
        (ResourceLimitError, {"block": (1, 1, 128)}, "along z"),
        (ResourceLimitError, {"grid": (1, 1 << 20, 1)}, "grid size along y"),
        (ResourceLimitError, {"grid": (1000, 1, 1), "cooperative": True}, "cooperative"),
        (ResourceLimitError, {"cluster": (32, 1, 1)}, "blocks a cluster"),
        (LaunchError, {"grid": (3, 1, 1), "cluster": (2, 1, 1)}, "multiple of the cluster"),
        (LaunchError, {"block": (0, 1, 1)}, "at least 1"),
    ],
)
def test_limits(gpu, block, kind, more, message):
    step = KernelStep("scale", plan().steps[0].args, **more)
    with pytest.raises(kind, match=message) as caught:
        run(gpu, block, LaunchPlan((step,)))
    assert caught.value.evidence["kernel"] == "scale"


def test_a_cluster_that_fits_nowhere(gpu, host, block):
    host.kernels["scale"].occupancy.max_active_clusters = lambda config, stream: 0
    with pytest.raises(ResourceLimitError, match="no cluster"):
        run(gpu, block, plan(cluster=(2, 1, 1)))


def test_shared_memory_and_clusters_are_asked_for(gpu, host, block):
    run(gpu, block, plan(shared=100_000, cluster=(2, 1, 1)))
    kernel = host.kernels["scale"]
    assert kernel.attributes["MAX_DYNAMIC_SHARED_SIZE_BYTES"] == 100_000
    config = next(c for name, c in host.launched if name == "scale")
    assert config.grid == (2, 1, 1)  # in clusters


def test_workspace_limit(gpu, block):
    huge = LaunchPlan(plan().steps, (WorkspaceSpec("w", "float32", (1 << 28,)),))
    with pytest.raises(ResourceLimitError, match="workspace") as caught:
        run(gpu, block, huge)
    assert caught.value.evidence["limit_bytes"] == 1 << 28


def test_a_lost_device_is_lost(gpu, host, block):
    def crash(config, *args):
        host.lost = "CUDA_ERROR_ILLEGAL_ADDRESS"

    host.kernels["crash"] = Kernel("crash", crash, (8,))
    with pytest.raises(CandidateCrashedError, match=r"step 1 \(crash\)") as caught:
        run(gpu, block, LaunchPlan((KernelStep("crash", ("y",)),)), "crash")
    assert caught.value.evidence["sticky"] is True
    for again in (lambda: run(gpu, block, plan()), gpu.ceilings):
        with pytest.raises(WorkerError, match="restart"):
            again()
    host.lost = ""


@pytest.mark.parametrize(
    ("name", "kind"),
    [("CUDA_ERROR_INVALID_VALUE", LaunchError),
     ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", ResourceLimitError)],
)  # fmt: skip
def test_a_refused_launch_is_not_the_end(gpu, host, block, name, kind):
    def refuse(config, *args):
        raise HostError(f"{name}: no")

    host.kernels["refused"] = Kernel("refused", refuse, (8,))
    with pytest.raises(kind, match=name):
        run(gpu, block, LaunchPlan((KernelStep("refused", ("y",)),)), "refused")
    run(gpu, block, plan())


def test_plan_and_binary_must_fit(gpu, block):
    with pytest.raises(LaunchError, match="names kernel 'other'"):
        run(gpu, block, plan("other"))


def test_unknown_and_foreign_binaries(gpu, block):
    with pytest.raises(WorkerError, match="not loaded"):
        gpu.run(RunRequest("nope", plan(), buffers(block)))
    with pytest.raises(LaunchError, match="sm_80"):
        gpu.load(binary("scale", arch="sm_80"))
    key = load(gpu, "scale")
    gpu.unload(key)
    with pytest.raises(WorkerError):
        gpu.run(RunRequest(key, plan(), buffers(block)))


def test_shared_memory_that_is_gone(gpu):
    with SharedBlock(1 << 16) as block:
        specs = buffers(block)
    with pytest.raises(WorkerError, match="owner is gone"):
        gpu.run(RunRequest(load(gpu, "scale"), plan(), specs))


@pytest.mark.parametrize(
    ("shape", "box", "misalign", "message"),
    [
        ((10, 3), (1, 3), 0, "stride must be a multiple of 16 bytes .got 12"),
        ((10, 4), (1,), 0, "box must have 2 sizes"),
        ((10, 4), (1, 512), 0, "1 to 256"),
        ((0, 4), (1, 4), 0, "must not be empty"),
        ((10, 4), (1, 4), 4, "start must be a multiple of 16"),
    ],
)
def test_tensor_maps_that_cannot_be(gpu, block, shape, box, misalign, message):
    n = shape[0] * shape[1]
    y, x = buffers(block, n, misalign=misalign)
    x = BufferSpec("x", "float32", shape, "in", x.source, None, misalign)
    maps = (TensorMapSpec("m", "x", box),)
    step = KernelStep("scale", ("y", "m", ScalarArg("i64", n), ScalarArg("f32", 1.0)))
    with pytest.raises(LaunchError, match=message) as caught:
        gpu.run(RunRequest(load(gpu, "scale"), LaunchPlan((step,), (), maps), (y, x)))
    assert caught.value.evidence["tensormap"] == "m"


# --- timing -------------------------------------------------------------------------------------


@pytest.fixture
def sets():
    blocks = [SharedBlock(1 << 16) for _ in range(2)]
    captures = [SharedBlock(1 << 16) for _ in range(2)]
    yield (
        tuple(buffers(b, seed=i) for i, b in enumerate(blocks)),
        tuple(buffers(b)[:1] for b in captures),
        [b.array("float32", (N,)) for b in blocks],
        [b.array("float32", (N,), 32768) for b in captures],
    )
    for block in blocks + captures:
        block.close()


def time_it(gpu, sets, *contenders, **settings):
    request = TimeRequest(
        tuple(Contender(load(gpu, k), p) for k, p in contenders), sets[0], sets[1],
        TimingSettings(**settings), seed=1,
    )  # fmt: skip
    return gpu.time(request)


@pytest.mark.parametrize("cache", ["cold", "hot"])
def test_times_are_those_of_the_kernels(gpu, host, sets, cache):
    report = time_it(gpu, sets, ("scale", plan()), ("slow", plan("slow")), cache=cache)
    assert report.samples_us[0] == pytest.approx([5.0] * len(report.samples_us[0]))
    assert report.samples_us[1] == pytest.approx([9.0] * len(report.samples_us[1]))
    assert len(report.end_to_end_us) == 2
    assert report.corrupted_guards == report.modified_inputs == ()
    assert report.cache == cache
    for which, got in zip(report.captured_sets, sets[3], strict=True):
        np.testing.assert_array_equal(got, 2 * sets[2][which])
    assert report.conditions["before"] == {"nvml": "there is no NVML here"}
    assert any(name == ("sweep" if cache == "cold" else "delay") for name, _ in host.launched)
    assert max(host.graphs) <= cuda_replicas.MAX_REPLICAS


def test_replicas_are_kept_between_candidates(gpu, host, sets):
    time_it(gpu, sets, ("scale", plan()))
    before = len(host.blocks)
    time_it(gpu, sets, ("slow", plan("slow", factor=3.0)))
    assert len(host.blocks) == before
    for got, which in zip(sets[3], (0, 1), strict=True):
        assert any(np.array_equal(got, 3 * x) for x in sets[2]), which


def test_each_call_is_poisoned_first(gpu, host, sets):
    seen = []

    def lazy(config, y, x, n, f):
        seen.append(view(y, np.uint32, N)[0] == 0xFFF5FFF5)
        scale(config, y, x, n, f)

    host.kernels["lazy"] = Kernel("lazy", lazy, (8, 8, 8, 4), 5.0)
    time_it(gpu, sets, ("lazy", plan("lazy")))
    assert len(seen) > 50
    assert all(seen)


def lazy_kernel(host, space):
    """Make a kernel that works only where its result is not there already; say how often it did."""
    skipped = []

    def lazy(config, y, x, n, f, *more):
        kept = view(more[0] if space else y, np.float32, 1)
        if kept[0] == f.value * view(x, np.float32, 1)[0]:
            skipped.append(1)
            host.clock -= 4.0
            return
        scale(config, y, x, n, f)
        kept[0] = view(y, np.float32, 1)[0]

    host.kernels["lazy"] = Kernel("lazy", lazy, (8, 8, 8, 4, *((8,) if space else ())), 5.0)
    return skipped


@pytest.mark.parametrize("cache", ["cold", "hot"])
@pytest.mark.parametrize("space", [False, True])
def test_no_call_finds_its_result_already_there(gpu, host, sets, cache, space):
    """Neither in its output nor in a workspace, also where hot calls share their inputs."""
    skipped = lazy_kernel(host, space)
    args = (*plan().steps[0].args, *(("w",) if space else ()))
    spaces = (WorkspaceSpec("w", "float32", (1,)),) if space else ()
    lazy = LaunchPlan((KernelStep("lazy", args),), spaces)
    report = time_it(gpu, sets, ("lazy", lazy), ("scale", plan()), cache=cache)
    assert report.conditions["graph_calls"] > 1
    # The calls that only warm the cache may skip what they like: they are not timed.
    assert bool(skipped) is (cache == "hot")
    assert report.samples_us[0] == pytest.approx([5.0] * len(report.samples_us[0]))


def test_hot_calls_read_the_same_inputs_and_write_apart(gpu, host, sets):
    inputs, outputs, launches = set(), [], []

    def noted(config, y, x, n, f):
        inputs.add(x)
        outputs.append(y)
        launches.append(host.clock)
        scale(config, y, x, n, f)

    host.kernels["noted"] = Kernel("noted", noted, (8, 8, 8, 4), 5.0)
    report = time_it(gpu, sets, ("noted", plan("noted")), cache="hot")
    calls = report.conditions["graph_calls"]
    assert len(inputs) == 2  # one for each input set
    assert len(set(outputs)) == calls > 2
    # Inputs of both sets and the outputs of all calls fit in half of the cache, here of 64 KiB.
    assert 2 * 4 * N + calls * 4 * N <= 1 << 15


def test_a_hot_call_that_fills_the_cache_is_alone_in_its_replay(host, sets, monkeypatch):
    gpu = executable(host, monkeypatch, l2_bytes=1 << 13)
    report = time_it(gpu, sets, ("scale", plan()), cache="hot")
    assert report.conditions["graph_calls"] == 1
    assert report.samples_us[0] == pytest.approx([5.0] * len(report.samples_us[0]))
    gpu.close()


def test_samples_at_a_slow_clock_are_dropped(gpu, host, sets, monkeypatch):
    """The device's clock falls to half for a while, and the kernels take twice as long."""
    slow = [False]

    def throttled(config, y, x, n, f):
        host.clock += 5.0 * slow[0]
        scale(config, y, x, n, f)

    def sm_mhz(self):
        at = sm_mhz.reads = sm_mhz.reads + 1
        was = slow[0]
        slow[0] = 4 <= at < 7
        return 900.0 if was else 1800.0

    sm_mhz.reads = 0
    monkeypatch.setattr("kernelsearch.targets.cuda_nvml.DeviceMonitor.sm_mhz", sm_mhz)
    host.kernels["throttled"] = Kernel("throttled", throttled, (8, 8, 8, 4), 5.0)
    report = time_it(gpu, sets, ("throttled", plan("throttled")), ("scale", plan()))
    assert report.samples_us[0] == pytest.approx([5.0] * len(report.samples_us[0]))
    assert report.conditions["dropped"] > 0
    assert report.conditions["sm_mhz"] == 1800.0
    assert report.conditions["disturbed"] is False


def test_first_calls_only_is_seen_in_the_captures(gpu, host, sets):
    calls = []

    def tired(config, y, x, n, f):
        calls.append(1)
        if len(calls) < 5:
            scale(config, y, x, n, f)

    host.kernels["tired"] = Kernel("tired", tired, (8, 8, 8, 4), 5.0)
    time_it(gpu, sets, ("tired", plan("tired")))
    assert all(np.isnan(got).any() for got in sets[3])


def test_timing_sees_damage(gpu, host, sets):
    def bad(config, y, x, n, f):
        scale(config, y, x, n, f)
        view(y + 4 * N + 8, np.uint8, 1)[0] = 1
        view(x, np.float32, 1)[0] = 1e9

    host.kernels["bad"] = Kernel("bad", bad, (8, 8, 8, 4), 5.0)
    report = time_it(gpu, sets, ("bad", plan("bad")))
    assert report.corrupted_guards == ("y",)
    assert report.modified_inputs == ("x",)
    assert time_it(gpu, sets, ("scale", plan())).modified_inputs == ()


def test_timing_with_workspaces(gpu, host, sets):
    host.kernels["count"] = Kernel("count", count, (8, 8), 5.0)
    report = time_it(gpu, sets, ("count", count_plan()))
    assert all((got == 1).all() for got in sets[3])
    assert report.corrupted_guards == ()

    def outside(config, w, y):
        count(config, w, y)
        view(w + 16, np.uint8, 1)[0] = 0

    host.kernels["outside"] = Kernel("outside", outside, (8, 8), 5.0)
    assert time_it(gpu, sets, ("outside", count_plan("outside"))).corrupted_guards == ("w",)


def test_inout_is_restored_before_each_call(gpu, host, sets):
    def add(config, x):
        view(x, np.float32, N)[...] += 1

    host.kernels["add"] = Kernel("add", add, (8,), 5.0)
    inout = []
    for specs in sets[0]:
        x = specs[1]
        inout.append((BufferSpec("x", "float32", (N,), "inout", x.source),))
    captures = tuple((BufferSpec("x", "float32", (N,), "inout", None, c[0].sink),) for c in sets[1])
    for cache in ("cold", "hot"):
        report = time_it(
            gpu, (tuple(inout), captures), ("add", LaunchPlan((KernelStep("add", ("x",)),))),
            cache=cache,
        )  # fmt: skip
        assert report.modified_inputs == ()
        for which, got in zip(report.captured_sets, sets[3], strict=True):
            np.testing.assert_array_equal(got, sets[2][which] + np.float32(1))


def test_shared_large_inputs(gpu, sets, monkeypatch):
    monkeypatch.setattr(cuda_replicas, "SHARED_BYTES", 1)
    report = time_it(gpu, sets, ("scale", plan()))
    for which, got in zip(report.captured_sets, sets[3], strict=True):
        np.testing.assert_array_equal(got, 2 * sets[2][which])
    assert report.modified_inputs == ()


def test_long_kernels_get_few_calls(gpu, host, sets):
    host.kernels["long"] = Kernel("long", scale, (8, 8, 8, 4), 5000.0)
    report = time_it(gpu, sets, ("long", plan("long")))
    assert report.conditions["graph_calls"] == 2
    assert report.samples_us[0][0] == pytest.approx(5000.0)


def test_room_is_made_when_memory_runs_out(gpu, host, sets, block):
    time_it(gpu, sets, ("scale", plan()))
    free = host.driver.cuMemGetInfo()[1]
    host.memory -= free - 1000
    run(gpu, block, plan())
    np.testing.assert_array_equal(
        block.array("float32", (N,), 32768), 2 * block.array("float32", (N,))
    )


def test_memory_that_is_not_there(gpu, host, block):
    host.memory = sum(ctypes.sizeof(b) for b in host.blocks.values()) + 10
    with pytest.raises(ResourceLimitError, match=r"no .* bytes of memory left"):
        run(gpu, block, plan())
    host.memory = 1 << 30


def test_ceilings(gpu):
    rates = gpu.ceilings()
    assert rates["launch_us"] == pytest.approx(0.5)
    assert rates["l2_gbps"] >= rates["dram_gbps"] > 0
    assert rates["host_launch_us"] > 0


def test_the_probe_sees_memory_that_does_not_keep_what_is_written(gpu, host, monkeypatch):
    gpu.probe()
    monkeypatch.setattr(gpu._context, "broken", lambda regions: np.zeros(1, bool))
    with pytest.raises(WorkerError, match="does not read back"):
        gpu.probe()


def test_exact_buffers_end_where_they_should(host, gpu, block):
    specs = buffers(block, n=100)
    key = load(gpu, "scale")
    before = set(host.blocks)
    sizes = []

    def note(config, y, x, n, f):
        sizes.extend(len(b) - 256 for p, b in host.blocks.items() if p not in before)
        scale(config, y, x, n, f)

    host.kernels["scale"].work = note
    report = gpu.run(RunRequest(key, plan(n=100), specs, 0xFF, bounds_checked=True))
    assert report.corrupted_guards == ()
    assert sorted(sizes) == [400, 400]
    np.testing.assert_array_equal(
        block.array("float32", (100,), 32768), 2 * block.array("float32", (100,))
    )
    assert set(host.blocks) == before


def test_shared_memory_is_poisoned_before_each_kernel(host, gpu, block):
    key = load(gpu, "scale")
    gpu.run(RunRequest(key, plan(), buffers(block), 0xFF))
    names = [name for name, _ in host.launched]
    assert names[names.index("scale") - 1] == "poison_shared"


@pytest.mark.parametrize(("schedule", "held"), [("one_sm", 131), ("half_device", 66)])
def test_a_crowd_holds_multiprocessors(host, gpu, block, schedule, held):
    key = load(gpu, "scale")
    gpu.run(RunRequest(key, plan(), buffers(block), 0xFF, schedule=schedule))
    names = [name for name, _ in host.launched]
    # Once alone, then beside the holders.
    assert names.count("scale") == 2
    assert names.index("occupy") > names.index("scale")
    assert host.launched[names.index("occupy")][1].grid[0] == held
    np.testing.assert_array_equal(
        block.array("float32", (N,), 32768), 2 * block.array("float32", (N,))
    )


def test_a_kernel_that_does_not_end_beside_a_crowd(host, gpu, block, monkeypatch):
    monkeypatch.setattr(cuda_crowd, "LEAST_LIMIT_S", 0.05)
    monkeypatch.setattr(cuda_crowd, "LEAVE_LIMIT_S", 0.05)
    key = load(gpu, "scale")
    runs = []

    def stick(config, *args):
        runs.append(1)
        host.stuck = len(runs) == 2

    host.kernels["scale"].work = stick
    with pytest.raises(CandidateTimeoutError, match="1 of 132 multiprocessors"):
        gpu.run(RunRequest(key, plan(), buffers(block), 0xFF, schedule="one_sm"))


def test_a_crowd_that_does_not_come(host, gpu, block, monkeypatch):
    monkeypatch.setattr(cuda_crowd, "ARRIVAL_LIMIT_S", 0.05)
    key = load(gpu, "scale")
    monkeypatch.setattr(host.kernels["occupy"], "work", lambda *a: None)
    with pytest.raises(WorkerError, match="only 0 of 66 multiprocessors"):
        gpu.run(RunRequest(key, plan(), buffers(block), 0xFF, schedule="half_device"))


def test_unknown_schedules(gpu, block):
    key = load(gpu, "scale")
    with pytest.raises(WorkerError, match="no schedule 'upside_down'"):
        gpu.run(RunRequest(key, plan(), buffers(block), 0xFF, schedule="upside_down"))
