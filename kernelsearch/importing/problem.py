"""What is said of a CUDA file that cannot be imported: where, why, and what would help."""

from __future__ import annotations

from kernelsearch.errors import SpecError


class CannotImportError(SpecError):
    """A CUDA file cannot be imported as it is.

    Args:
        path: the file.
        line: where in it, 1 for the first line; None where it is no single place.
        reason: what stands in the way.
        remedy: what the user can do.
    """

    def __init__(self, path: str, line: int | None, reason: str, remedy: str = "") -> None:
        place = f"{path}:{line}" if line is not None else path
        super().__init__(f"{place}: {reason}" + (f"; {remedy}" if remedy else ""))
        self.path = path
        self.line = line
        self.reason = reason
        self.remedy = remedy
