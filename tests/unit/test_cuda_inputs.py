import numpy as np

from kernelsearch.shm import SharedBlock
from kernelsearch.targets.cuda_inputs import identity
from kernelsearch.targets.cuda_nvml import DeviceMonitor


def test_identity_changes_with_contents_and_block():
    with SharedBlock(1 << 16) as block, SharedBlock(1 << 16) as other:
        ref = block.ref(4096, 8192)
        before = identity(ref)
        assert identity(ref) == before
        block.array("uint8", (8192,), 4096)[17] = 1
        assert identity(ref) != before
        assert identity(block.ref(4096, 4096)) != identity(block.ref(0, 4096))
        assert identity(other.ref(0, 4096)) != identity(block.ref(0, 4096))


def test_identity_of_a_large_block_sees_new_random_data():
    n = 1 << 20
    with SharedBlock(4 * n) as block:
        view = block.array("float32", (n,))
        view[...] = np.random.default_rng(0).standard_normal(n)
        before = identity(block.ref(0, 4 * n))
        view[...] = np.random.default_rng(1).standard_normal(n)
        assert identity(block.ref(0, 4 * n)) != before
        del view


def test_identity_of_nothing():
    with SharedBlock(1) as block:
        assert identity(block.ref(0, 0)) == identity(block.ref(0, 0))


def test_missing_nvml_is_a_sentence():
    monitor = DeviceMonitor("0000:ff:ff.0")
    state = monitor.snapshot()
    assert "sm_mhz" in state or state["nvml"].strip()
    assert isinstance(monitor.other_processes(), dict)
