"""What a study is asked to do: settings, stored once and compared on resume, and study files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelsearch.errors import StudyError, UnknownNameError
from kernelsearch.operator import Workload
from kernelsearch.records import TimingSettings, digest

FORMAT = 1
TARGETS = ("auto", "cpu", "cuda")
OBJECTIVES = ("geometric_mean", "weighted_mean", "minimum")
PROPOSERS = ("rules", "crossover", "inbox", "llm")


@dataclass(frozen=True, slots=True)
class StudySettings:
    """Everything that decides what a study's results mean.

    Args:
        operator: a shipped operator's name, or the absolute path of an operator file.
        target: ``cpu`` or ``cuda`` (``auto`` is resolved before a study is made).
        dtype: element type.
        workload_set: the named set the workloads came from, for people.
        workloads: the workloads to tune for.
        data: a file the inputs come from (``.npz``, ``.mtx``), absolute, or "".
        variants: extra variant files, absolute paths.
        templates: start from the shipped variants too.
        selector / proposers: by name.
        objective: how the speed-ups over the workloads become one number.
        seed: of every random choice.
        timing: how carefully to time.
    """

    operator: str
    target: str
    dtype: str
    workloads: tuple[Workload, ...]
    workload_set: str = ""
    data: str = ""
    variants: tuple[str, ...] = ()
    templates: bool = True
    selector: str = "epsilon_greedy"
    proposers: tuple[str, ...] = ("rules", "crossover")
    objective: str = "geometric_mean"
    seed: int = 0
    timing: TimingSettings = field(default_factory=TimingSettings)

    def __post_init__(self) -> None:
        if not self.workloads:
            raise StudyError("a study needs at least one workload (got none)")
        if self.objective not in OBJECTIVES:
            raise UnknownNameError("objective", self.objective, OBJECTIVES)
        for proposer in self.proposers:
            if proposer not in PROPOSERS:
                raise UnknownNameError("proposer", proposer, PROPOSERS)

    def key(self, contract: str, device_key: str) -> str:
        """Identity of the study: same key, same meaning of every result in it."""
        value = self.to_json()
        for workload in value["workloads"]:
            del workload["symbols"]
        return digest(value, contract, device_key)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        value["workloads"] = [
            # A ledger sorts names; a workload's key, which its timings carry, is in this order.
            {
                "sizes": dict(w.sizes),
                "symbols": list(w.sizes),
                "distribution": w.distribution,
                "weight": w.weight,
            }
            for w in self.workloads
        ]
        return {"format": FORMAT, **value}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StudySettings:
        """Read what ``to_json`` wrote.

        Raises:
            StudyError: unknown format, or fields missing or unknown.
        """
        if value.get("format") != FORMAT:
            raise StudyError(
                f"the study was written in format {value.get('format')!r}; this version reads "
                f"format {FORMAT}"
            )
        fields = {k: v for k, v in value.items() if k != "format"}
        try:
            fields["workloads"] = tuple(
                Workload(
                    {s: w["sizes"][s] for s in w.get("symbols", w["sizes"])},
                    w["distribution"],
                    w["weight"],
                )
                for w in fields["workloads"]
            )
            fields["timing"] = TimingSettings(**fields["timing"])
            fields["variants"] = tuple(fields["variants"])
            fields["proposers"] = tuple(fields["proposers"])
            return StudySettings(**fields)
        except (KeyError, TypeError) as error:
            raise StudyError(f"the stored study settings are malformed ({error})") from error


@dataclass(frozen=True, slots=True)
class StudyFile:
    """A study file (``studies/*.toml``): what ``tune`` can be asked, as declarative text.

    Fields left out keep the defaults of ``tune``.
    """

    operator: str
    target: str = "auto"
    dtype: str | None = None
    workloads: str | tuple[Mapping[str, int], ...] | None = None
    budget: str | None = None
    data: str | None = None
    variants: tuple[str, ...] = ()
    templates: bool = True
    selector: str | None = None
    proposers: tuple[str, ...] | None = None
    objective: str | None = None
    seed: int = 0
    timing: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None


_FILE_TYPES: dict[str, tuple[type, ...]] = {
    "operator": (str,), "target": (str,), "dtype": (str,), "workloads": (str, list),
    "budget": (str, int), "data": (str,), "variants": (list,), "templates": (bool,),
    "selector": (str,), "proposers": (list,), "objective": (str,), "seed": (int,),
    "timing": (dict,), "format": (int,), "doc": (str,),
}  # fmt: skip


def load_study_file(path: Path) -> StudyFile:
    """Read a study file.

    Raises:
        StudyError: with file and key of what is wrong.
    """
    try:
        value = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # also an endless integer, or nested too deeply
        raise StudyError(
            f"{path}: is not TOML ({error}); docs/studies.md shows what it holds"
        ) from error
    for key, item in value.items():
        if key not in _FILE_TYPES:
            raise StudyError(f"{path}: unknown key {key!r}; known: {', '.join(_FILE_TYPES)}")
        if not isinstance(item, _FILE_TYPES[key]) or (
            isinstance(item, bool) and bool not in _FILE_TYPES[key]
        ):
            names = " or ".join(t.__name__ for t in _FILE_TYPES[key])
            raise StudyError(f"{path}: {key} must be {names} (got {item!r})")
    if "operator" not in value:
        raise StudyError(f"{path}: operator is missing; name a shipped operator or a file")
    if value.get("format", FORMAT) != FORMAT:
        raise StudyError(f"{path}: format must be {FORMAT} (got {value['format']!r})")
    known = {k: v for k, v in value.items() if k not in ("format", "doc")}
    for key in ("variants", "proposers"):
        if key in known:
            known[key] = tuple(str(v) for v in known[key])
    if isinstance(known.get("workloads"), list):
        known["workloads"] = tuple(known["workloads"])
    if "budget" in known:
        known["budget"] = str(known["budget"])
    return _absolute(StudyFile(**known, path=path))


def _absolute(file: StudyFile) -> StudyFile:
    """Resolve the file's relative paths against its own folder."""
    assert file.path is not None
    folder = file.path.resolve().parent
    operator = file.operator
    if operator.endswith(".py"):
        operator = str((folder / operator).resolve())
    data = str((folder / file.data).resolve()) if file.data else file.data
    variants = tuple(str((folder / v).resolve()) for v in file.variants)
    return replace(file, operator=operator, data=data, variants=variants)


def timing_settings(overrides: Mapping[str, Any], where: str) -> TimingSettings:
    """Return timing settings with ``overrides`` applied.

    Raises:
        StudyError: an unknown setting, or a value of the wrong kind.
    """
    defaults = asdict(TimingSettings())
    for key, value in overrides.items():
        if key not in defaults:
            raise StudyError(f"{where}: unknown timing setting {key!r}; known: "
                             f"{', '.join(defaults)}")  # fmt: skip
        wanted = (int, float) if isinstance(defaults[key], float) else (type(defaults[key]),)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise StudyError(f"{where}: timing.{key} must be like {defaults[key]!r} "
                             f"(got {value!r})")  # fmt: skip
    merged = {**defaults, **overrides}
    if merged["cache"] not in ("cold", "hot"):
        raise StudyError(f"{where}: timing.cache must be 'cold' or 'hot' (got {merged['cache']!r})")
    return TimingSettings(**merged)
