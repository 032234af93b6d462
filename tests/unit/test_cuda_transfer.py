"""The threaded copies, on a driver that copies host memory."""

import ctypes

import numpy as np
import pytest

from kernelsearch.shm import SharedBlock
from kernelsearch.targets import cuda_transfer
from kernelsearch.targets.cuda_context import _pages
from kernelsearch.targets.cuda_transfer import Transfer


class FakeDriver:
    def __init__(self):
        self.kept = []
        self.refuse = False

    def cuMemAllocHost(self, nbytes):
        buffer = ctypes.create_string_buffer(nbytes)
        self.kept.append(buffer)
        return 0, ctypes.addressof(buffer)

    def cuCtxGetCurrent(self):
        return 0, "context"

    def cuCtxSetCurrent(self, context):
        assert context == "context"
        return (0,)

    def _copy(self, to, start, nbytes, stream):
        if self.refuse:
            return (700,)
        ctypes.memmove(to, start, nbytes)
        return (0,)

    cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = _copy


class FakeContext:
    def __init__(self):
        self.driver = FakeDriver()
        self.handle = self
        self.synced = 0

    def create_stream(self):
        return self

    def sync(self):
        self.synced += 1

    def check(self, answer):
        if answer[0]:
            raise RuntimeError(f"error {answer[0]}")
        return answer


@pytest.fixture
def transfer(monkeypatch):
    monkeypatch.setattr(cuda_transfer, "PIECE_BYTES", 1000)
    return Transfer(FakeContext())


@pytest.mark.parametrize("nbytes", [1, 999, 1000, 5999, 6000, 123_457])
def test_every_byte_arrives_once(transfer, nbytes):
    source = np.random.default_rng(0).integers(0, 256, nbytes, dtype=np.uint8)
    device = np.zeros(nbytes + 16, dtype=np.uint8)
    transfer.upload(device.ctypes.data + 8, source)
    np.testing.assert_array_equal(device[8:-8], source)
    assert not device[:8].any()
    assert not device[-8:].any()
    back = np.zeros(nbytes, dtype=np.uint8)
    transfer.download(back, device.ctypes.data + 8)
    np.testing.assert_array_equal(back, source)


def test_an_error_in_a_thread_is_raised(transfer):
    transfer._context.driver.refuse = True
    with pytest.raises(RuntimeError, match="700"):
        transfer.download(np.zeros(10_000, dtype=np.uint8), 0)


def test_pages_give_the_bytes_of_a_reference():
    with SharedBlock(1 << 16) as block:
        view = block.array("uint8", (100,), 4096 + 64)
        view[...] = np.arange(100)
        ref = block.ref(4096 + 64, 100)
        with _pages(ref, writable=False) as host:
            np.testing.assert_array_equal(host, np.arange(100))
        with _pages(ref, writable=True) as host:
            host[3] = 77
        assert view[3] == 77
        del view
