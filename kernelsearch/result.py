"""What a study found: the confirmed winner, by how much it wins, and what was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kernelsearch.errors import StudyError
from kernelsearch.records import ParamValue


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """The winner on one workload; times are medians in microseconds."""

    workload: str
    time_us: float
    baseline_us: float
    speedup: float
    low: float
    high: float
    sol_fraction: float | None = None
    end_to_end_us: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a study so far.

    ``speedup`` is the objective over the workloads against ``baseline`` (``naive``), measured
    interleaved in a fresh process, with its 95 % bootstrap interval ``low`` to ``high``.
    ``examined`` names the examinations of elites that the winner passed, ``not_examined`` those
    that could not be held, with the reason.
    """

    operator: str
    target: str
    dtype: str
    device: str
    variant: str
    variant_name: str
    params: Mapping[str, ParamValue]
    speedup: float
    low: float
    high: float
    workloads: tuple[WorkloadResult, ...]
    baseline: str = "naive"
    cache: str = "cold"
    sol_fraction: float | None = None
    candidates: int = 0
    statuses: Mapping[str, int] = field(default_factory=dict)
    verified: tuple[str, ...] = ()
    examined: tuple[str, ...] = ()
    not_examined: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    folder: str = ""
    finished: bool = False
    settings: str = ""
    created: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        """Return what Jupyter shows."""
        from kernelsearch.report.notebook import result_html

        return result_html(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Result:
        """Read what ``to_json`` wrote.

        Raises:
            StudyError: it is something else.
        """
        try:
            fields = dict(value)
            fields["workloads"] = tuple(WorkloadResult(**w) for w in fields["workloads"])
            for name in ("verified", "examined"):
                fields[name] = tuple(fields.get(name, ()))
            return Result(**fields)
        except (KeyError, TypeError) as error:
            raise StudyError(f"the stored result is malformed ({error})") from error
