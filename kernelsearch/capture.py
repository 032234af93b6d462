"""Record the shapes a running program calls a function with, to tune for them afterwards.

    @record_shapes("rms_norm", "shapes.jsonl")
    def my_norm(x, weight, bias): ...

``kernelsearch tune rms_norm --shapes shapes.jsonl`` then tunes for what was seen, weighted by how
often each came.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kernelsearch.errors import ArgumentError, StorageError
from kernelsearch.operator import Operator
from kernelsearch.operators_io import load_operator

# A program that runs for days must not fill the disk: what came this often is known well enough.
MAX_CALLS = 100_000
_Function = TypeVar("_Function", bound=Callable[..., Any])


def record_shapes(
    operator: str | Path | Operator, path: str | Path
) -> Callable[[_Function], _Function]:
    """Return a decorator that appends one line of JSON to ``path`` for each call.

    Positional arguments are the operator's input tensors in order; tensors by name are recorded
    too, other arguments are not. Anything with a ``shape`` will do.

    Args:
        operator: whose inputs the function takes.
        path: file to append to.

    Raises:
        ArgumentError: a call has more positional arguments than the operator has inputs.
        StorageError: the file cannot be written.
    """
    contract = operator if isinstance(operator, Operator) else load_operator(operator)
    names = [t.name for t in contract.inputs]
    file = Path(path)
    lock = threading.Lock()
    calls = 0

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def recorded(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            with lock:
                if calls < MAX_CALLS:
                    calls += 1
                    _append(file, _shapes(contract.name, names, arguments, named))
            return function(*arguments, **named)

        return recorded  # type: ignore[return-value]

    return decorate


def _shapes(
    operator: str, names: list[str], arguments: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, list[int]]:
    if len(arguments) > len(names):
        raise ArgumentError(
            f"record_shapes: {operator} has {len(names)} inputs ({', '.join(names)}); the function "
            f"was called with {len(arguments)} positional arguments: pass the others by name"
        )
    values = dict(zip(names, arguments, strict=False))
    values.update({k: v for k, v in named.items() if k in names})
    return {k: [int(n) for n in v.shape] for k, v in values.items() if hasattr(v, "shape")}


def _append(file: Path, shapes: dict[str, list[int]]) -> None:
    try:
        with open(file, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(shapes) + "\n")
    except OSError as error:
        raise StorageError(f"cannot record shapes in {file} ({error.strerror})") from error
