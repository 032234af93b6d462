"""Shapes recorded from a running program become workloads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernelsearch.capture import record_shapes
from kernelsearch.cli.parsing import read_shapes
from kernelsearch.errors import ArgumentError, StorageError
from kernelsearch.operators_io import load_operator


def test_recorded_calls_become_weighted_workloads(tmp_path: Path) -> None:
    file = tmp_path / "shapes.jsonl"

    @record_shapes("rms_norm", file)
    def norm(x: object, weight: object, bias: object = None, flag: bool = True) -> str:
        return "done"

    for rows in (4, 4, 8):
        x, w = np.zeros((rows, 32)), np.zeros(32)
        assert norm(x, w, bias=w, flag=False) == "done"
    workloads = read_shapes(load_operator("rms_norm"), file)
    assert {(w.key, w.weight) for w in workloads} == {
        ("rows=4,cols=32", 2.0), ("rows=8,cols=32", 1.0),
    }  # fmt: skip


def test_mistakes_are_told(tmp_path: Path) -> None:
    norm = record_shapes("rms_norm", tmp_path / "s.jsonl")(lambda *a: None)
    with pytest.raises(ArgumentError, match="4 positional"):
        norm(*[np.zeros(2)] * 4)
    broken = record_shapes("rms_norm", tmp_path)(lambda *a: None)
    with pytest.raises(StorageError, match="cannot record shapes"):
        broken(np.zeros((2, 2)))
