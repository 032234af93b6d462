"""Call a verified CPU kernel in the user's own process, on the user's own arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.records import Binary, LaunchPlan
from kernelsearch.shm import numpy_dtype
from kernelsearch.targets.cpu_load import LoadedBinary
from kernelsearch.targets.cpu_run import bind_step


class CpuCaller:
    """One loaded binary; ``call`` runs a plan on NumPy arrays."""

    def __init__(self, binary: Binary) -> None:
        self._loaded = LoadedBinary(binary)

    def call(self, plan: LaunchPlan, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Run all steps; outputs are written in place."""
        buffers = dict(arrays)
        for workspace in plan.workspaces:
            buffers[workspace.name] = np.empty(workspace.shape, numpy_dtype(workspace.dtype))
        for step in plan.steps:
            function, arguments = bind_step(step, buffers, self._loaded.kernels)
            function(*arguments)
