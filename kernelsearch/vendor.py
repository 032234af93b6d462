"""Time an operator's vendor call in a process of its own, on the same inputs, cold or hot.

Vendor libraries bring their own context and allocator; they are run apart so that neither they nor
a candidate can disturb the other. Their outputs are checked against the reference too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelsearch.cases import Case
from kernelsearch.errors import StudyError, WorkerError
from kernelsearch.home import lock_path
from kernelsearch.locks import DeviceLock
from kernelsearch.operator import Operator, Workload
from kernelsearch.operators_io import load_operator
from kernelsearch.records import Device
from kernelsearch.verify import error_ratio

DEADLINE_S = 300.0
SAMPLES = 15
MIN_SAMPLE_S = 2e-4
MAX_SETS = 64


@dataclass(frozen=True, slots=True)
class VendorTiming:
    """The vendor's time: samples in microseconds a call, and its largest error / bound."""

    name: str
    samples_us: tuple[float, ...]
    max_ratio: float
    flags: str = ""


def time_vendor(
    operator: Operator, path: str, workload: Workload, dtype: str, device: Device
) -> VendorTiming | None:
    """Time the vendor call in a child process; None where the operator has none.

    Args:
        operator: the contract.
        path: how the child loads it (name or file).
        workload: its sizes and distribution.
        dtype: element type.
        device: where; its lock is held while the call is timed.

    Raises:
        WorkerError: the child failed (a missing library, no device).
    """
    if device.target not in operator.vendor:
        return None
    request = {
        "operator": path, "sizes": dict(workload.sizes), "distribution": workload.distribution,
        "dtype": dtype, "target": device.target, "l2_bytes": device.facts["l2_bytes"],
        "lock": str(lock_path(device.key)),
    }  # fmt: skip
    root = str(Path(__file__).resolve().parent.parent)
    code = (
        f"import sys; sys.path.insert(0, {root!r}); from kernelsearch import vendor; vendor.main()"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], input=json.dumps(request), capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise WorkerError(
            f"the vendor call of {operator.name} did not finish within {DEADLINE_S:.0f} s"
        ) from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        tail = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise WorkerError(f"the vendor call of {operator.name} failed: {tail[0]}")
    answer = json.loads(lines[-1])
    return VendorTiming(
        answer["name"], tuple(answer["samples_us"]), answer["max_ratio"], answer["flags"]
    )


def main() -> None:
    """Child: read a request from standard input, answer with one line of JSON."""
    request = json.loads(sys.stdin.read())
    operator = load_operator(request["operator"])
    workload = Workload(request["sizes"], request["distribution"])
    target = request["target"]
    name, function = operator.vendor[target]
    case = Case(operator, workload, request["dtype"], 0)
    scalars = operator.scalar_values()
    timer = _time_cuda if target == "cuda" else _time_cpu
    lock = DeviceLock(Path(request["lock"]))
    samples, outputs, flags = timer(case, function, scalars, request["l2_bytes"], lock)
    worst = error_ratio(case, outputs)
    sys.stdout.write(json.dumps({
        "name": name, "samples_us": samples, "max_ratio": worst, "flags": flags
    }) + "\n")  # fmt: skip


Vendor = Callable[[Mapping[str, Any], Mapping[str, float]], dict[str, Any]]


def _time_cpu(
    case: Case, function: Vendor, scalars: Mapping[str, float], l2_bytes: int, lock: DeviceLock
) -> tuple[list[float], dict[str, NDArray[Any]], str]:
    arrays = {k: np.array(v) for k, v in case.inputs.items()}
    sweep = np.ones(max(1, 2 * l2_bytes // 8))
    outputs = function(arrays, scalars)
    samples = []
    with lock.exclusive():
        for _ in range(SAMPLES):
            sweep += 1.0
            started = time.perf_counter()
            function(arrays, scalars)
            samples.append(1e6 * (time.perf_counter() - started))
    return samples, {k: np.asarray(v) for k, v in outputs.items()}, "cold"


def _time_cuda(
    case: Case, function: Vendor, scalars: Mapping[str, float], l2_bytes: int, lock: DeviceLock
) -> tuple[list[float], dict[str, NDArray[Any]], str]:
    try:
        import torch
    except ImportError as error:
        raise StudyError("vendor calls on CUDA need torch, which is not installed") from error
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False

    def upload() -> dict[str, Any]:
        return {k: _to_torch(torch, v) for k, v in case.inputs.items()}

    traffic = sum(v.nbytes for v in case.inputs.values())
    count = int(min(MAX_SETS, max(2, -(-3 * l2_bytes // max(1, traffic)))))
    sets = [upload() for _ in range(count)]
    outputs = {k: _to_numpy(torch, v) for k, v in function(sets[0], scalars).items()}
    for arrays in sets:
        function(arrays, scalars)
    torch.cuda.synchronize()
    flush = torch.empty(max(1, 3 * l2_bytes // 4), dtype=torch.float32, device="cuda")
    samples = []
    with lock.exclusive():
        for _ in range(SAMPLES):
            flush.add_(1.0)
            torch.cuda.synchronize()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # Hold the queue until all calls are in it, so that launches are not what is timed.
            torch.cuda._sleep(2_000_000)
            begin.record()
            for arrays in sets:
                function(arrays, scalars)
            end.record()
            torch.cuda.synchronize()
            samples.append(1e3 * begin.elapsed_time(end) / len(sets))
    flags = f"torch {torch.__version__}, tf32 off, {len(sets)} rotating sets"
    return samples, outputs, flags


def _to_torch(torch: Any, array: NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":
        raw = torch.from_numpy(np.array(array).view(np.int16))
        return raw.cuda().view(torch.bfloat16)
    return torch.from_numpy(np.array(array)).cuda()


def _to_numpy(torch: Any, tensor: Any) -> NDArray[Any]:
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        raw: NDArray[Any] = tensor.view(torch.int16).cpu().numpy()
        return raw.view(ml_dtypes.bfloat16)
    result: NDArray[Any] = tensor.cpu().numpy()
    return result
