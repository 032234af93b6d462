"""A CUDA device made of host memory and Python kernels, with a clock that only kernels advance.

It stands in for cuda.core and the driver's bindings, so that all of our own code between a request
and a launch runs where there is no GPU, with times that are exact.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np

from kernelsearch.records import Binary, CompileJob, Device
from kernelsearch.targets import cuda, cuda_context
from kernelsearch.targets.cuda_device import architecture_device
from kernelsearch.targets.cuda_nvml import DeviceMonitor


class HostError(Exception):
    """What cuda.core raises."""


def view(pointer, dtype, count):
    if not count:
        return np.zeros(0, dtype)
    raw = (ctypes.c_ubyte * (int(count) * np.dtype(dtype).itemsize)).from_address(int(pointer))
    return np.frombuffer(raw, dtype=dtype)


class Kernel:
    """``work(*args)`` is what it does, ``cost_us`` what that takes."""

    def __init__(self, name, work, sizes, cost_us=1.0, **attributes):
        self.name, self.work, self.cost_us = name, work, cost_us
        self.arguments_info = [SimpleNamespace(size=s) for s in sizes]
        self.attributes = {"MAX_THREADS_PER_BLOCK": 1024, "SHARED_SIZE_BYTES": 0, **attributes}
        self.handle = self
        self.occupancy = SimpleNamespace(
            max_active_blocks_per_multiprocessor=lambda threads, shared: 2,
            max_active_clusters=lambda config, stream: 1,
        )


class Stream:
    def __init__(self, host):
        self.host, self.handle = host, self

    def sync(self):
        self.host.raise_if_lost()

    def record(self, event):
        event.at = self.host.clock

    def run(self, action):
        action()


class Builder(Stream):
    """Records instead of running."""

    def __init__(self, host):
        super().__init__(host)
        self.stream, self.actions = self, []

    def begin_building(self):
        return self

    def end_building(self):
        return self

    def complete(self):
        self.host.graphs.append(len(self.actions))
        return Graph(self.host, list(self.actions))

    def close(self):
        pass

    def run(self, action):
        self.actions.append(action)


class Graph:
    def __init__(self, host, actions):
        self.host, self.actions = host, actions

    def upload(self, stream):
        pass

    def launch(self, stream):
        for action in self.actions:
            action()

    def close(self):
        pass


class Event:
    def __init__(self, host):
        self.host, self.at = host, 0.0

    def sync(self):
        self.host.raise_if_lost()

    def __sub__(self, other):
        return (self.at - other.at) / 1000.0


class Host:
    """The device: memory, clock, kernels by symbol."""

    def __init__(self, memory=1 << 30):
        self.memory, self.clock, self.lost, self.stuck = memory, 0.0, "", False
        self.blocks, self.kernels, self.graphs, self.launched = {}, dict(HELPERS), [], []
        self.core = SimpleNamespace(
            Device=lambda ordinal: self, LaunchConfig=lambda **k: SimpleNamespace(**k),
            ObjectCode=SimpleNamespace(
                from_cubin=lambda image, name: SimpleNamespace(
                    get_kernel=self.kernels.__getitem__, handle=image
                )
            ),
            launch=self.launch,
        )  # fmt: skip
        # Variables of modules: address and size by name.
        self.globals = {}
        self.driver = Driver(self)
        self.device_id, self.pci_bus_id = 0, "0000:ff:ff.0"

    def set_current(self):
        pass

    def create_stream(self):
        return Stream(self)

    def create_event(self, options):
        return Event(self)

    def create_graph_builder(self):
        return Builder(self)

    def raise_if_lost(self):
        if self.lost:
            raise HostError(f"{self.lost}: gone")

    def launch(self, stream, config, kernel, *args):
        def action():
            self.launched.append((kernel.name, config))
            self.clock += kernel.cost_us
            kernel.work(config, *args)

        stream.run(action)


class Names:
    def __getattr__(self, name):
        return name


class Driver:
    CUfunction_attribute = Names()
    CUresult = SimpleNamespace(CUDA_ERROR_OUT_OF_MEMORY=2, CUDA_ERROR_NOT_READY=600)
    CU_MEMHOSTALLOC_DEVICEMAP = 2
    CUdevice = int

    def __init__(self, host):
        self.host = host

    def cuMemGetInfo(self):
        used = sum(len(b) for b in self.host.blocks.values())
        return _status(), self.host.memory - used, self.host.memory

    def cuMemAlloc(self, nbytes):
        if self.cuMemGetInfo()[1] < nbytes:
            return _status(2, "CUDA_ERROR_OUT_OF_MEMORY"), 0
        block = (ctypes.c_ubyte * (nbytes + 256))()
        pointer = -(-ctypes.addressof(block) // 256) * 256
        self.host.blocks[pointer] = block
        return _status(), pointer

    def cuMemFree(self, pointer):
        if pointer not in self.host.blocks:
            return (_status(1, "CUDA_ERROR_INVALID_VALUE"),)
        del self.host.blocks[pointer]
        return (_status(),)

    def cuMemsetD8Async(self, pointer, value, nbytes, stream):
        stream.run(lambda: ctypes.memset(pointer, value, nbytes))
        return (_status(),)

    def cuMemsetD32Async(self, pointer, value, count, stream):
        stream.run(lambda: view(pointer, np.uint32, count).fill(value))
        return (_status(),)

    def _copy(self, to, start, nbytes, stream):
        ctypes.memmove(to, start, nbytes)
        return (_status(),)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = _copy

    def cuMemAllocHost(self, nbytes):
        return self.cuMemAlloc(nbytes)

    def cuMemHostAlloc(self, nbytes, flags):
        return self.cuMemAlloc(nbytes)

    def cuMemFreeHost(self, pointer):
        return self.cuMemFree(pointer)

    def cuStreamQuery(self, stream):
        if self.host.lost:
            return (_status(700, self.host.lost),)
        return (_status(600, "CUDA_ERROR_NOT_READY") if self.host.stuck else _status(),)

    def cuCtxGetCurrent(self):
        return _status(), self

    def cuCtxSetCurrent(self, context):
        return (_status(),)

    def cuCtxSynchronize(self):
        return (_status(700, self.host.lost) if self.host.lost else _status(),)

    def cuLibraryGetGlobal(self, library, name):
        if name not in self.host.globals:
            return _status(500, "CUDA_ERROR_NOT_FOUND"), 0, 0
        return _status(), *self.host.globals[name]

    def cuCtxResetPersistingL2Cache(self):
        return (_status(),)

    def cuKernelGetAttribute(self, kind, kernel, device):
        return _status(), kernel.attributes[kind.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def cuKernelSetAttribute(self, kind, value, kernel, device):
        kernel.attributes[kind.removeprefix("CU_FUNC_ATTRIBUTE_")] = value
        return (_status(),)


class _Status(int):
    name = "CUDA_SUCCESS"


def _status(value=0, name="CUDA_SUCCESS"):
    status = _Status(value)
    status.name = name
    return status


def _regions(pointer, config):
    table = view(pointer, np.uint64, 2 * config.grid[1]).reshape(-1, 2)
    return [view(start, np.uint8, size) for start, size in table.tolist()]


def _hash(config, table, seed, sums):
    for i, region in enumerate(_regions(table, config)):
        view(sums, np.uint64, config.grid[1])[i] = hash((region.tobytes(), seed.value)) & (
            2**64 - 1
        )


def _check(config, table, expected, broken):
    word = np.frombuffer(expected.value.to_bytes(8, "little"), np.uint8)
    starts = view(table, np.uint64, 2 * config.grid[1])[::2].tolist()
    for i, (region, start) in enumerate(zip(_regions(table, config), starts, strict=True)):
        phase = np.resize(np.roll(word, -(start % 8)), region.size)
        view(broken, np.uint32, config.grid[1])[i] = bool((region != phase).any())


def _copy(config, to, start, count):
    ctypes.memmove(to, start, 16 * count.value)


def _occupy(config, mail, limit):
    # Its blocks come at once; they go when the host says so, which nobody waits for here.
    view(mail.value, np.uint32, 1 + config.grid[0])[1:] = 1


HELPERS = {
    "hash_regions": Kernel("hash_regions", _hash, (8, 8, 8), 3.0),
    "check_regions": Kernel("check_regions", _check, (8, 8, 8), 3.0),
    "sweep": Kernel("sweep", lambda *a: None, (8, 8, 8), 30.0),
    "delay": Kernel("delay", lambda *a: None, (4,), 30.0),
    "copy": Kernel("copy", _copy, (8, 8, 8), 10.0),
    "poison_shared": Kernel("poison_shared", lambda *a: None, (4, 4), 2.0),
    "occupy": Kernel("occupy", _occupy, (8, 8), 1.0),
    "nothing": Kernel("nothing", lambda *a: None, (), 0.5),
}


def device() -> Device:
    return architecture_device("sm_90a")


def executable(host: Host, monkeypatch, **facts):
    """Return a CudaExecutable whose device is ``host``."""
    monkeypatch.setattr(cuda_context, "_api", lambda: (host.core, host.driver, HostError))
    monkeypatch.setattr(cuda_context, "compile_cuda", lambda job, folder: binary(*HELPERS))
    monkeypatch.setattr(DeviceMonitor, "__init__", _no_monitor)
    record = device()
    record = Device(record.target, record.name, record.arch, {**record.facts, "l2_bytes": 1 << 16,
                                                              **facts})  # fmt: skip
    return cuda.CudaExecutable(record)


def _no_monitor(self, pci_bus_id):
    self._handle = self._nvml = None
    self.missing = "there is no NVML here"


def binary(*kernels: str, arch: str = "sm_90a", image: bytes = b"") -> Binary:
    """Return a binary that names kernels of the host device."""
    job = CompileJob("cuda", " ".join(kernels), kernels, arch)
    return Binary(job.key, job, image, "hash", {k: k for k in kernels})
