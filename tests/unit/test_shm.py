"""Shared blocks: a child sees them by path, references are unique, nothing outlives the owner."""

from __future__ import annotations

import mmap
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kernelsearch import shm
from kernelsearch.errors import StorageError
from kernelsearch.records import ShmRef
from kernelsearch.shm import ALIGN, SharedBlock, attach, numpy_dtype

CHILD = """
import sys
from kernelsearch.records import ShmRef
from kernelsearch.shm import attach
ref = ShmRef(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
with attach(ref, writable=False) as memory:
    total = sum(memory[:ref.nbytes])
with attach(ref, writable=True) as memory:
    memory[0] = 99
print(total)
"""


def test_a_child_reads_and_writes_by_path() -> None:
    with SharedBlock(3 * ALIGN) as block:
        view = block.array("uint8", (100,), ALIGN)
        view[:] = np.arange(100)
        ref = block.ref(ALIGN, 100)
        told = subprocess.run(
            [sys.executable, "-c", CHILD, ref.path, str(ref.offset), str(ref.nbytes)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert int(told.stdout) == 4950
        assert view[0] == 99
        assert not block.array("uint8", (ALIGN,), 0).any()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16", "uint8"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (0,), (4, 0, 2)])
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    with SharedBlock(2 * ALIGN) as block:
        view = block.array(dtype, shape, ALIGN)
        assert view.shape == shape
        assert view.dtype == numpy_dtype(dtype)
        assert view.flags.writeable
        assert view.flags.c_contiguous
        view[...] = 1
        assert (block.array(dtype, shape, ALIGN) == 1).all()


def test_bfloat16() -> None:
    assert numpy_dtype("bfloat16") == np.dtype(ml_dtypes.bfloat16)


def test_a_block_is_zeroed_whole_pages() -> None:
    with SharedBlock(1) as block:
        assert block.nbytes == ALIGN
        assert not block.array("uint8", (ALIGN,)).any()
    with SharedBlock(0) as block:
        assert block.nbytes == ALIGN
    with SharedBlock(ALIGN + 1) as block:
        assert block.nbytes == 2 * ALIGN


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, ALIGN + 1), (ALIGN, 1), (0, -1)])
def test_references_lie_inside(offset: int, nbytes: int) -> None:
    with (
        SharedBlock(ALIGN) as block,
        pytest.raises(ValueError, match="not inside a block of 4096 bytes"),
    ):
        block.ref(offset, nbytes)


def test_references_are_unique_where_paths_are_not() -> None:
    first = SharedBlock(ALIGN)
    old = first.ref(0, 8)
    first.close()
    with SharedBlock(ALIGN) as second:
        new = second.ref(0, 8)
        # The system gives the descriptor's number again: caches must not take one for the other.
        assert new.path == old.path
        assert new != old
        assert second.ref(0, 8) == new


def test_read_only_means_it() -> None:
    with SharedBlock(ALIGN) as block, attach(block.ref(0, 8), writable=False) as memory:
        with pytest.raises(TypeError):
            memory[0] = 1
        assert isinstance(memory, mmap.mmap)


def test_an_empty_reference_can_be_attached() -> None:
    with SharedBlock(ALIGN) as block:
        attach(block.ref(0, 0), writable=True).close()


def test_closing_with_a_live_view_is_safe() -> None:
    block = SharedBlock(ALIGN)
    view = block.array("float32", (4,))
    view[:] = 3
    block.close()
    block.close()
    assert view.tolist() == [3, 3, 3, 3]
    with pytest.raises(OSError, match=r"No such file|Bad file"):
        attach(ShmRef(block.path, 0, 8), writable=False)


def test_no_memory_is_a_sentence() -> None:
    with pytest.raises((StorageError, OverflowError)):
        SharedBlock(1 << 62)


def test_no_memory_for_the_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shm.os, "ftruncate", refuse)
    with pytest.raises(StorageError, match="use smaller workloads or free memory"):
        SharedBlock(ALIGN)


def test_nothing_is_left_after_kill_9() -> None:
    code = """
import os, signal
from kernelsearch.shm import SharedBlock
block = SharedBlock(64 << 20)
block.array("uint8", (1 << 20,))[:] = 1
print(block.path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    before = {p for f in folders if f.is_dir() for p in f.glob("kernelsearch*")}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == -9
    assert not Path(told.stdout.strip()).exists()
    after = {p for f in folders if f.is_dir() for p in f.glob("kernelsearch*")}
    assert after <= before
