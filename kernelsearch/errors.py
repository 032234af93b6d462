"""The exception family: one class for each party that can be at fault.

``SpecError`` and its children mean that somebody wrote something wrong and nothing has run yet.
``TargetUnavailableError`` means that this machine cannot do it. ``StorageError`` means that results
cannot be kept. ``WorkerError`` means that our own helper process failed, ``ModelError`` that a
language model did not answer. ``CandidateError`` is the
only one that is an ordinary event of a search: ``evaluate`` turns it into an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from kernelsearch.records import Status


class KernelSearchError(Exception):
    """Base of every error this package raises on purpose. Picklable, whatever its signature."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuilt, (type(self), self.args, dict(self.__dict__)))


def _rebuilt(
    kind: type[KernelSearchError], arguments: tuple[object, ...], state: Mapping[str, object]
) -> KernelSearchError:
    """Unpickle an error without calling its constructor, which may want other arguments."""
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    error.__dict__.update(state)
    return error


class SpecError(KernelSearchError):
    """A file, option or argument is written wrongly; nothing has run."""


class UnknownNameError(SpecError):
    """A name is not among the known ones; the message lists the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str], remedy: str = "") -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=3, cutoff=0.5)
        if near:
            hint = f"did you mean {', '.join(repr(n) for n in near)}?"
        elif names:
            hint = f"known: {', '.join(names)}"
        else:
            hint = "there are none"
        super().__init__(f"unknown {kind} {name!r}; {hint}{' ' + remedy if remedy else ''}")
        self.name = name
        self.near = near


class ExpressionError(SpecError):
    """An expression of a launch plan cannot be parsed or evaluated."""

    def __init__(self, message: str, text: str, column: int | None = None) -> None:
        where = f" at column {column}" if column is not None else ""
        super().__init__(f"{message}{where} in expression {text!r}")
        self.text = text
        self.column = column


class VariantError(SpecError):
    """A variant file is malformed. Says file, line and column where they are known."""

    def __init__(
        self,
        message: str,
        path: str = "<variant>",
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        place = path
        if line is not None:
            place += f":{line}"
            if column is not None:
                place += f":{column}"
        super().__init__(f"{place}: {message}")
        self.path = path
        self.line = line
        self.column = column


class OperatorError(SpecError):
    """An operator file or definition breaks the contract."""


class WorkloadError(SpecError):
    """A workload does not fit its operator."""


class ArgumentError(SpecError):
    """A value passed to a tuned kernel or an API function has the wrong type, shape or dtype."""


class BundleError(SpecError):
    """A bundle is damaged, was changed, or has no kernel for the device."""


class StudyError(SpecError):
    """A study file or stored study does not fit what was asked of it."""


class AnswerError(SpecError):
    """An answer to a request for a kernel cannot be used; the message can be handed back."""


class MissingExtraError(SpecError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str, package: str) -> None:
        super().__init__(
            f"{feature} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'kernelsearch[{extra}]'"
        )
        self.extra = extra


class TargetUnavailableError(KernelSearchError):
    """This machine cannot run the target: no driver, no device, or one that does not answer."""


class SickDeviceError(TargetUnavailableError):
    """A device that worked before does not compute any more; nothing else may be sent there."""


class StorageError(KernelSearchError):
    """The study's storage is locked, read-only, full or damaged."""


class ModelError(KernelSearchError):
    """A language model did not answer. Never holds a key, a header or the text of a prompt.

    Args:
        message: what happened, for people.
        fatal: the next call would fail in the same way (wrong key, unknown model).
    """

    def __init__(self, message: str, *, fatal: bool = False) -> None:
        super().__init__(message)
        self.fatal = fatal


class WorkerError(KernelSearchError):
    """The worker process failed in a way that is no candidate's fault."""


class CandidateError(KernelSearchError):
    """A candidate failed. Only ``evaluate`` catches this; it becomes an evaluation's status.

    Args:
        message: what happened, for people.
        evidence: JSON-able facts that say so (compiler log, index, expected, got, bound ...).
    """

    status: Status = Status.LAUNCH_ERROR

    def __init__(self, message: str, evidence: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.evidence: dict[str, object] = dict(evidence or {})


class RejectedError(CandidateError):
    """The candidate was refused before anything ran (constraint, forbidden construct)."""

    status = Status.REJECTED


class CompileError(CandidateError):
    """The source does not compile; evidence holds ``log``."""

    status = Status.COMPILE_ERROR


class LaunchError(CandidateError):
    """A launch was refused or ended in a device error."""

    status = Status.LAUNCH_ERROR


class ResourceLimitError(CandidateError):
    """More shared memory, registers, workspace or launches than the device or our limits allow."""

    status = Status.RESOURCE_LIMIT


class CandidateCrashedError(CandidateError):
    """The process that ran the candidate died (signal, illegal address)."""

    status = Status.CRASHED


class CandidateTimeoutError(CandidateError):
    """The candidate did not finish before its deadline."""

    status = Status.TIMED_OUT


class WrongResultError(CandidateError):
    """An output is outside its bound; evidence holds workload, index, expected, got and bound."""

    status = Status.WRONG


class NondeterministicError(CandidateError):
    """Two runs on the same inputs differ where the operator does not allow it."""

    status = Status.NONDETERMINISTIC


class CheatedError(CandidateError):
    """The candidate did what no honest kernel does (touched guards or inputs, beat the floor)."""

    status = Status.CHEATED
