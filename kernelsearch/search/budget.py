"""How much a run may spend: candidates, seconds, and candidates without a better one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kernelsearch.errors import StudyError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)\Z")
_COUNT = re.compile(r"\d{1,15}\Z")
_PATIENCE = re.compile(r"patience=(\d{1,15})\Z")
_EXAMPLES = "write for example 200 (candidates), 90s, 5m, 200,10m or 5m,patience=50"


@dataclass
class Budget:
    """The limits of one run; it ends at the first one that is reached.

    Args:
        candidates: how many candidates this run may evaluate.
        seconds: wall-clock time of this run, from ``start`` on.
        patience: end after so many candidates in a row without a better one.
        clock: gives seconds; for tests.
    """

    candidates: int | None = None
    seconds: float | None = None
    patience: int | None = None
    clock: Callable[[], float] = field(default=time.monotonic, repr=False, compare=False)
    _before: int = field(default=0, init=False, repr=False, compare=False)
    _started: float | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("candidates", "seconds", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise StudyError(f"budget: {name} must be above 0 (got {value!r}); {_EXAMPLES}")

    def start(self, spent: int = 0) -> None:
        """Begin a run in a study that has ``spent`` candidates already."""
        self._before = spent
        self._started = self.clock()

    def candidates_left(self, spent: int) -> int | None:
        """Return how many more candidates may be started (None: no limit).

        Args:
            spent: candidates of the study so far, those under way included.
        """
        if self.candidates is None:
            return None
        return max(0, self.candidates - (spent - self._before))

    def seconds_left(self) -> float | None:
        """Return the time that is left (None: no limit)."""
        if self.seconds is None:
            return None
        used = 0.0 if self._started is None else self.clock() - self._started
        return max(0.0, self.seconds - used)

    def is_spent(self, spent: int, since_best: int = 0) -> bool:
        """Tell whether the run must end; see ``reason``."""
        return self.reason(spent, since_best) is not None

    def reason(self, spent: int, since_best: int = 0) -> str | None:
        """Return why the run must end, None while it need not.

        Args:
            spent: candidates of the study so far.
            since_best: candidates since the best one; those of earlier runs do not count.
        """
        if self.candidates_left(spent) == 0:
            return f"{self.candidates} candidates evaluated"
        if self.seconds_left() == 0.0:
            return f"{self.seconds:g} s used"
        waited = min(since_best, spent - self._before)
        if self.patience is not None and waited >= self.patience:
            return f"no better one among the last {waited} candidates"
        return None

    def left(self, spent: int) -> str:
        """Return what is left, for people: ``41 s, 120 candidates``; "" where nothing limits."""
        seconds, candidates = self.seconds_left(), self.candidates_left(spent)
        parts = [] if seconds is None else [f"{seconds:.0f} s"]
        if candidates is not None:
            parts.append(f"{candidates} candidates")
        if self.patience is not None:
            parts.append(f"ends after {self.patience} without a better one")
        return ", ".join(parts)

    def __str__(self) -> str:
        parts = []
        if self.candidates is not None:
            parts.append(str(self.candidates))
        if self.seconds is not None:
            parts.append(f"{self.seconds:g}s")
        if self.patience is not None:
            parts.append(f"patience={self.patience}")
        return ",".join(parts) or "unlimited"


def parse_budget(text: str | int) -> Budget:
    """Parse ``200``, ``90s``, ``5m``, ``1.5h``, ``200,10m`` or ``5m,patience=50``.

    Raises:
        StudyError: it is something else, names a limit twice, or allows nothing.
    """
    limits: dict[str, float] = {}
    for part in str(text).split(","):
        part = part.strip()
        if match := _TIME.match(part):
            name, value = "seconds", float(match[1]) * _UNITS[match[2]]
        elif _COUNT.match(part):
            name, value = "candidates", int(part)
        elif match := _PATIENCE.match(part):
            name, value = "patience", int(match[1])
        else:
            raise StudyError(
                f"budget must list candidates, a time or a patience (got {text!r}); {_EXAMPLES}"
            )
        if name in limits:
            raise StudyError(f"budget names {name} twice (got {text!r}); {_EXAMPLES}")
        limits[name] = value
    candidates, patience = limits.get("candidates"), limits.get("patience")
    return Budget(
        candidates=None if candidates is None else int(candidates),
        seconds=limits.get("seconds"),
        patience=None if patience is None else int(patience),
    )
