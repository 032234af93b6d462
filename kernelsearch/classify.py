"""Name the bottleneck: judge the rules of ``bottlenecks.toml`` on the numbers that are known."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernelsearch.diagnosis import MAX_EVIDENCE, Diagnosis, Finding, unknown
from kernelsearch.errors import ExpressionError, SpecError
from kernelsearch.expressions import Expression

TABLE_FILE = Path(__file__).with_name("bottlenecks.toml")
SOURCES = ("counters", "code+time", "code", "time", "cpu")
# Where the second label is as strong as the first, the first is little more than a guess.
CLEAR_LEAD = 0.2
MAX_FINDINGS = 6


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table; see its first lines for what the fields mean."""

    label: str
    group: str
    sources: tuple[str, ...]
    when: Expression
    strength: Expression
    headroom: Expression
    says: str
    evidence: tuple[str, ...]
    directions: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return self.when.names | self.strength.names | self.headroom.names


@dataclass(frozen=True, slots=True)
class Table:
    """Rules, thresholds, how sure each source can be, and what the directions mean."""

    rules: tuple[Rule, ...]
    thresholds: Mapping[str, float]
    confidence: Mapping[str, float]
    directions: Mapping[str, str]


def classify(
    facts: Mapping[str, float], source: str, workload: str = "", table: Table | None = None
) -> Diagnosis:
    """Return the diagnosis that the facts allow.

    Args:
        facts: numbers by the names of docs/diagnosis.md; what is not finite is left out.
        source: ``counters``, ``code+time``, ``code``, ``time`` (CUDA), or ``cpu``.
        workload: key of the workload that was timed.
        table: other rules than the shipped ones.
    """
    table = table or shipped_table()
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)} (got {source!r})")
    known = {k: float(v) for k, v in facts.items() if _usable(v)}
    dropped = sorted(set(facts) - set(known))
    if not known:
        return unknown(_nothing(dropped), workload)
    findings, missing = _judged(known, source, table)
    if not findings:
        return unknown(_undecided(source, missing, dropped), workload)
    lead = findings[0].strength - (findings[1].strength if len(findings) > 1 else 0.0)
    sure = table.confidence.get("code+time" if source == "cpu" else source, 0.4)
    limit = _total_headroom(known)
    return Diagnosis(
        findings=tuple(_capped(f, limit) for f in findings[:MAX_FINDINGS]), source=source,
        confidence=round(sure * (0.6 + 0.4 * min(1.0, lead / CLEAR_LEAD)), 3), headroom=limit,
        reason=f"not usable: {', '.join(dropped)}" if dropped else "", workload=workload,
    )  # fmt: skip


def _judged(
    known: Mapping[str, float], source: str, table: Table
) -> tuple[list[Finding], set[str]]:
    names = {**table.thresholds, **known}
    found: dict[str, Finding] = {}
    missing: set[str] = set()
    for rule in table.rules:
        if source not in rule.sources:
            continue
        absent = rule.names - set(names)
        if absent:
            missing |= absent
            continue
        try:
            if not rule.when.truth(names):
                continue
            strength = float(rule.strength.evaluate(names))
            headroom = float(rule.headroom.evaluate(names))
        except ExpressionError:
            continue  # a division by zero, a number out of hand: this rule says nothing
        finding = Finding(
            rule.label, rule.group, round(min(1.0, max(0.0, strength)), 4),
            round(max(1.0, headroom), 3) if math.isfinite(headroom) else None, rule.says,
            {n: round(known[n], 5) for n in rule.evidence if n in known}, rule.directions,
        )  # fmt: skip
        old = found.get(rule.label)
        if old is None or finding.strength > old.strength:
            found[rule.label] = finding
    return sorted(found.values(), key=lambda f: -f.strength), missing


def _total_headroom(known: Mapping[str, float]) -> float | None:
    """Return how far the whole is from the nearest ceiling, by the best that is known."""
    share = known.get("sol_share") or known.get("useful")
    return None if not share else round(max(1.0, 1.0 / max(0.01, share)), 3)


def _capped(finding: Finding, limit: float | None) -> Finding:
    """Return the finding with no more headroom than the device has."""
    if limit is None or finding.headroom is None or finding.headroom <= limit:
        return finding
    return Finding(finding.label, finding.group, finding.strength, limit, finding.says,
                   finding.evidence, finding.directions)  # fmt: skip


def _usable(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool)
        and abs(value) < 1e24 and math.isfinite(value)
    )  # fmt: skip


def _nothing(dropped: list[str]) -> str:
    if dropped:
        return f"no number can be used ({', '.join(dropped[:6])} are not finite)"
    return "nothing was measured, and no kernel was profiled"


def _undecided(source: str, missing: set[str], dropped: list[str]) -> str:
    why = f"no rule for {source} holds"
    if missing:
        why += f"; not known: {', '.join(sorted(missing)[:8])}"
    return why + (f"; not usable: {', '.join(dropped)}" if dropped else "")


@cache
def shipped_table() -> Table:
    """Return the table that comes with the package."""
    return read_table(TABLE_FILE)


def read_table(path: Path) -> Table:
    """Read a table of rules.

    Raises:
        SpecError: the file is not such a table; the message says which rule and field.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: cannot be read as a table of bottlenecks ({error})") from error
    if document.get("format") != 1:
        raise SpecError(f"{path}: format must be 1 (got {document.get('format')!r})")
    thresholds = {str(k): float(v) for k, v in document.get("thresholds", {}).items()}
    rules = tuple(
        _rule(path, number, row, thresholds) for number, row in enumerate(document.get("rule", []))
    )
    confidence = {str(k): float(v) for k, v in document.get("confidence", {}).items()}
    words = {str(k): str(v) for k, v in document.get("directions", {}).items()}
    unsaid = sorted({d for r in rules for d in r.directions} - set(words))
    if unsaid:
        raise SpecError(f"{path}: [directions] must say what {unsaid[0]!r} means")
    return Table(rules, thresholds, confidence, words)


def _rule(
    path: Path, number: int, row: Mapping[str, object], thresholds: Mapping[str, float]
) -> Rule:
    where = f"{path}: rule {number + 1} ({row.get('label', 'without a label')})"
    fields = ("label", "group", "sources", "when", "strength", "headroom", "says", "evidence",
              "directions")  # fmt: skip
    wrong = sorted(set(fields) ^ set(row))
    if wrong:
        raise SpecError(f"{where}: must have exactly the fields {', '.join(fields)} ({wrong[0]!r})")
    lists: dict[str, tuple[str, ...]] = {}
    for name in ("sources", "evidence", "directions"):
        value = row[name]
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise SpecError(f"{where}: {name} must be a list of words (got {value!r})")
        lists[name] = tuple(value)
    odd = [s for s in lists["sources"] if s not in SOURCES]
    if odd or not lists["sources"]:
        raise SpecError(f"{where}: sources must be among {', '.join(SOURCES)} (got {odd})")
    if len(lists["evidence"]) > MAX_EVIDENCE or set(lists["evidence"]) & set(thresholds):
        raise SpecError(f"{where}: evidence must be at most {MAX_EVIDENCE} facts, no thresholds")
    return Rule(
        str(row["label"]), str(row["group"]), lists["sources"],
        Expression.parse(str(row["when"])), Expression.parse(str(row["strength"])),
        Expression.parse(str(row["headroom"])), str(row["says"]), lists["evidence"],
        lists["directions"],
    )  # fmt: skip
