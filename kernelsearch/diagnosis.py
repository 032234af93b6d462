"""A diagnosis: the named bottleneck of a candidate, the evidence, and what it may be worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "unknown"
FORMAT = 1
MAX_EVIDENCE = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that holds.

    Args:
        label / group: the bottleneck in two levels (``dram``, ``memory-bandwidth``).
        strength: in [0, 1], how much of the time this explains; the strongest is the primary.
        headroom: old time / new time if this alone were removed; None: cannot be said.
        says: one sentence for people.
        evidence: at most six metrics and their values.
        directions: what to try, best first.
    """

    label: str
    group: str
    strength: float
    headroom: float | None
    says: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    directions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is known of why a candidate is not faster.

    Args:
        findings: strongest first; none: unknown.
        source: ``counters``, ``code+time``, ``code``, ``time`` or ``none``.
        confidence: in [0, 1], of the primary label.
        headroom: old time / new time at the speed of light (None: not known).
        reason: why it is unknown, or what was missing.
        workload: key of the workload that was judged.
    """

    findings: tuple[Finding, ...] = ()
    source: str = "none"
    confidence: float = 0.0
    headroom: float | None = None
    reason: str = ""
    workload: str = ""

    @property
    def label(self) -> str:
        return self.findings[0].label if self.findings else UNKNOWN

    @property
    def group(self) -> str:
        return self.findings[0].group if self.findings else UNKNOWN

    @property
    def directions(self) -> tuple[str, ...]:
        """What to try, the primary's first, each once."""
        return tuple(dict.fromkeys(d for f in self.findings for d in f.directions))

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels and groups, the primary's first, each once."""
        words = [w for f in self.findings for w in (f.label, f.group)]
        words += ["occupancy" for w in words if w.startswith("occupancy-")]
        return tuple(dict.fromkeys(words))

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored, shown and handed to proposers."""
        first = self.findings[0] if self.findings else None
        return {
            "format": FORMAT, "label": self.label, "group": self.group,
            "labels": list(self.labels), "source": self.source,
            "confidence": self.confidence, "headroom": self.headroom,
            "says": first.says if first else "", "reason": self.reason,
            "workload": self.workload,
            "evidence": dict(first.evidence) if first else {},
            "directions": list(self.directions),
            "findings": [
                {"label": f.label, "group": f.group, "strength": f.strength,
                 "headroom": f.headroom, "says": f.says, "evidence": dict(f.evidence),
                 "directions": list(f.directions)}
                for f in self.findings
            ],
        }  # fmt: skip

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Diagnosis:
        """Build a diagnosis from its stored form; what is damaged becomes an unknown one."""
        try:
            findings = tuple(
                Finding(
                    str(f["label"]), str(f["group"]), float(f["strength"]),
                    None if f["headroom"] is None else float(f["headroom"]), str(f["says"]),
                    {str(k): float(v) for k, v in f["evidence"].items()},
                    tuple(str(d) for d in f["directions"]),
                )
                for f in value["findings"]
            )  # fmt: skip
            headroom = value["headroom"]
            return Diagnosis(
                findings, str(value["source"]), float(value["confidence"]),
                None if headroom is None else float(headroom), str(value["reason"]),
                str(value.get("workload", "")),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return Diagnosis(reason=f"the stored diagnosis is damaged ({error!r})")


def unknown(reason: str, workload: str = "") -> Diagnosis:
    """Return the diagnosis of what cannot be judged."""
    return Diagnosis(reason=reason, workload=workload)
