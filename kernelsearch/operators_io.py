"""Find and load operator files: by name among the shipped ones, or by path."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

from kernelsearch.errors import KernelSearchError, OperatorError, UnknownNameError
from kernelsearch.operator import Operator
from kernelsearch.records import digest
from kernelsearch.resources import operator_paths, resource_folder

# What a file may raise while Python runs it, besides our own errors; an operator file is somebody
# else's code, so its mistakes are reported with their place rather than as our traceback.
_FILE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, OSError,
    RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip


def find_operator(name_or_path: str | Path) -> Path:
    """Return the file of an operator given by name, or by a path that ends in ``.py``.

    Raises:
        UnknownNameError: no shipped operator has that name. OperatorError: no such file.
    """
    text = str(name_or_path)
    if text.endswith((".cu", ".cuh")):
        raise OperatorError(
            f"{text!r} is a kernel, and an operator is wanted here: what a kernel must compute. "
            f"`kernelsearch import {text}` makes one from it"
        )
    if isinstance(name_or_path, Path) or text.endswith(".py") or "/" in text or "\\" in text:
        path = Path(text)
        if not path.is_file():
            raise OperatorError(f"operator file {text!r} must exist; it does not (check the path)")
        return path.resolve()
    shipped = operator_paths()
    if text not in shipped:
        raise UnknownNameError(
            "operator", text, shipped, "(an operator of your own is given by its path, my_op.py)"
        )
    return shipped[text].resolve()


def is_shipped(path: Path) -> bool:
    """Return whether a file came with the package; any other one is code to be trusted first."""
    return resource_folder("operators").resolve() in path.resolve().parents


def load_operator(name_or_path: str | Path) -> Operator:
    """Load an operator. Runs its file: ask the user first unless ``is_shipped``.

    Raises:
        UnknownNameError: no shipped operator has that name.
        OperatorError: the file is missing, does not run or defines no operator (file and line).
    """
    path = find_operator(name_or_path)
    module = _run(path)
    found = getattr(module, "operator", None)
    if not isinstance(found, Operator):
        raise OperatorError(
            f"{path}: must assign operator = Operator(...) at its top level "
            f"(got {type(found).__name__}); `kernelsearch new` writes a file to start from"
        )
    return dataclasses.replace(found, path=path)


def _run(path: Path) -> ModuleType:
    name = f"kernelsearch_operator_{path.stem}_{digest(str(path))}"
    loader = SourceFileLoader(name, str(path))
    module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)  # so that it finds the files beside it
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the folder may be read-only, and is not ours
    try:
        loader.exec_module(module)
    except KernelSearchError as error:
        raise OperatorError(f"{_place(path, error)}: {error}") from error
    except _FILE_ERRORS as error:
        kind = type(error).__name__
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise OperatorError(
            f"{_place(path, error)}: operator file does not run: {kind}: {message}"
        ) from error
    finally:
        sys.dont_write_bytecode = writes
    return module


def _place(path: Path, error: BaseException) -> str:
    """Return ``file:line`` of the last line of the file itself that was running."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
