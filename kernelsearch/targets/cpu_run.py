"""Run a plan once on fresh, poisoned buffers between guard pages."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from numpy.typing import NDArray

from kernelsearch.errors import (
    CandidateCrashedError,
    CandidateError,
    LaunchError,
    ResourceLimitError,
)
from kernelsearch.records import (
    BufferSpec,
    FillStep,
    KernelStep,
    LaunchPlan,
    RunReport,
    RunRequest,
    ScalarArg,
)
from kernelsearch.targets.cpu_guard import last_words
from kernelsearch.targets.cpu_load import Kernel
from kernelsearch.targets.cpu_memory import GuardedBuffer, copy_out

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def run_plan(request: RunRequest, kernels: Mapping[str, Kernel]) -> RunReport:
    """Run ``request`` once.

    Odd poison bytes put the buffers against the wall after their last element, even ones against
    the wall before their first. Inputs cannot be written: whoever tries dies.

    Raises:
        CandidateCrashedError: an index is out of bounds (bounds-checked kernels).
        LaunchError: a kernel raised. ResourceLimitError: it ran out of memory.
    """
    plan = request.plan
    at_end = bool(request.poison & 1)
    with contextlib.ExitStack() as stack:
        buffers: dict[str, GuardedBuffer] = {}
        for spec in (*request.buffers, *workspace_specs(plan)):
            buffer = GuardedBuffer(spec, request.poison, at_end=at_end)
            stack.callback(buffer.close)
            buffers[spec.name] = buffer
        arrays = {name: b.array for name, b in buffers.items()}
        shapes = describe(request.buffers)
        elapsed = 0.0
        for step in plan.steps:
            function, arguments = bind_step(step, arrays, kernels)
            last_words(f"was running {step_name(step)} with {shapes}")
            started = time.perf_counter()
            with translated(step, shapes):
                function(*arguments)
            elapsed += time.perf_counter() - started
            del arguments
        arrays.clear()
        corrupted = tuple(name for name, b in buffers.items() if not b.intact())
        for buffer in buffers.values():
            if buffer.spec.sink is not None:
                copy_out(buffer.data, buffer.spec.sink)
        last_words("")
    return RunReport(corrupted_guards=corrupted, modified_inputs=(), elapsed_s=elapsed)


def workspace_specs(plan: LaunchPlan) -> tuple[BufferSpec, ...]:
    """Return the plan's scratch buffers as arguments."""
    return tuple(BufferSpec(w.name, w.dtype, w.shape, "workspace") for w in plan.workspaces)


def bind_step(
    step: KernelStep | FillStep,
    arrays: Mapping[str, NDArray[Any]],
    kernels: Mapping[str, Kernel],
) -> Call:
    """Return a step as a callable and its arguments.

    Raises:
        LaunchError: the plan names a kernel or buffer that does not exist.
    """
    try:
        if isinstance(step, FillStep):
            array = arrays[step.buffer]
            flat = array.reshape(-1).view("uint8") if array.size else array.reshape(-1)
            return flat.fill, (step.value,)
        arguments = tuple(a.value if isinstance(a, ScalarArg) else arrays[a] for a in step.args)
        return kernels[step.kernel], arguments
    except KeyError as error:
        raise LaunchError(
            f"the plan names {error.args[0]!r}, which the binary or the request does not have",
            {"step": step_name(step)},
        ) from None


def step_name(step: KernelStep | FillStep) -> str:
    """Return how a step is called in messages."""
    return f"fill of {step.buffer}" if isinstance(step, FillStep) else f"kernel {step.kernel}"


def describe(specs: tuple[BufferSpec, ...]) -> str:
    """Return buffers as text: ``y float32 (4, 5), x float32 (4, 5)``."""
    return ", ".join(f"{s.name} {s.dtype} {s.shape}" for s in specs)


@contextlib.contextmanager
def translated(step: KernelStep | FillStep, shapes: str) -> Iterator[None]:
    """Turn what compiled code can raise into the candidate's failure."""
    evidence: dict[str, object] = {"step": step_name(step), "buffers": shapes}
    failure: CandidateError
    try:
        yield
    except IndexError as error:
        evidence["bounds"] = str(error)
        failure = CandidateCrashedError(f"{step_name(step)}: {error}", evidence)
    except MemoryError as error:
        failure = ResourceLimitError(f"{step_name(step)} ran out of memory ({error})", evidence)
    except (ArithmeticError, AssertionError, SystemError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        failure = LaunchError(f"{step_name(step)} raised {text}", {**evidence, "error": text})
    else:
        return
    raise failure from None
