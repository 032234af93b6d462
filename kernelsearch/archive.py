"""Every variant of a study, its lineage, and the evaluations: what is best, and what came of what.

In memory only; rebuilt from the ledger. The lineage is a graph from parents to children; a niche is
all that descends from one root. The objective turns the times of an evaluation into one number: the
speed-up over the baseline's times.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelsearch.errors import UnknownNameError
from kernelsearch.protocols import Node
from kernelsearch.records import Candidate, Evaluation, Status, VariantRecord, geometric_mean

if TYPE_CHECKING:
    import networkx

OBJECTIVES = ("geometric_mean", "weighted_mean", "minimum")


class Archive:
    """Variants and evaluations of one study.

    Args:
        objective: ``geometric_mean`` of the speed-ups over the workloads; ``weighted_mean``: the
            same, each workload counted by its weight; ``minimum``: the worst of them.
        weights: the workloads that count, by key, and their weights. An evaluation that lacks one
            of them has no objective.
    """

    def __init__(self, objective: str, weights: Mapping[str, float]) -> None:
        import networkx

        if objective not in OBJECTIVES:
            raise UnknownNameError("objective", objective, OBJECTIVES)
        self._objective, self._weights = objective, dict(weights)
        self._baseline: dict[str, float] = {}
        self._records: dict[str, VariantRecord] = {}
        self._lineage: networkx.DiGraph = networkx.DiGraph()
        # By candidate key, in order of arrival; a revision keeps the place of its first.
        self._evaluations: dict[str, Evaluation] = {}
        self._of_variant: dict[str, dict[str, Evaluation]] = {}
        self._by_code: dict[str, str] = {}
        self._scores: dict[str, float | None] = {}
        self._best_of: dict[str, Evaluation | None] = {}
        self._since_best: int | None = None
        self._top: float | None = None
        self._exhausted: set[str] = set()

    # --- variants and their lineage ----------------------------------------------------------

    def add_variant(self, record: VariantRecord) -> bool:
        """Keep a variant; False if it is known already."""
        import networkx

        if record.hash in self._records:
            return False
        self._records[record.hash] = record
        graph = self._lineage
        graph.add_node(record.hash)
        for parent in dict.fromkeys((record.parent, record.second_parent)):
            # Lineage is only told to us: a circle would make paths endless.
            circle = parent in graph and networkx.has_path(graph, record.hash, parent)
            if parent and not circle:
                graph.add_edge(parent, record.hash)
        return True

    def variants(self) -> list[VariantRecord]:
        """Return all variants in order of arrival."""
        return list(self._records.values())

    def has_variant(self, hash_: str) -> bool:
        return hash_ in self._records

    def variant(self, hash_: str) -> VariantRecord:
        """Return a variant's record.

        Raises:
            UnknownNameError: there is no such variant.
        """
        if hash_ not in self._records:
            raise UnknownNameError("variant", hash_, self._records)
        return self._records[hash_]

    def children(self, hash_: str) -> list[VariantRecord]:
        """Return the variants that descend from one in one step, by either parent."""
        if hash_ not in self._lineage:
            return []
        return [self._records[c] for c in self._lineage.successors(hash_) if c in self._records]

    def path_to_root(self, hash_: str) -> list[VariantRecord]:
        """Return a variant and its (first) parents, the variant itself first."""
        path = [self.variant(hash_)]
        seen = {hash_}
        while (parent := path[-1].parent) in self._records and parent not in seen:
            seen.add(parent)
            path.append(self._records[parent])
        return path

    def diff_to_parent(self, hash_: str, context: int = 3) -> str:
        """Return a unified diff from the parent's source ("" for a root)."""
        child = self.variant(hash_)
        parent = self._records.get(child.parent)
        if parent is None:
            return ""
        lines = difflib.unified_diff(
            parent.source.splitlines(), child.source.splitlines(), parent.name, child.name,
            lineterm="", n=context,
        )  # fmt: skip
        return "\n".join(lines)

    def niches(self) -> dict[str, Evaluation]:
        """Return the best evaluation among the descendants of each root, by the root's hash."""
        best: dict[str, Evaluation] = {}
        for hash_ in self._records:
            candidate = self.best_of(hash_)
            if candidate is None:
                continue
            root = self.path_to_root(hash_)[-1].hash
            if root not in best or self._rank(candidate) > self._rank(best[root]):
                best[root] = candidate
        return best

    def mark_exhausted(self, hash_: str) -> None:
        """Note that no proposer has anything more to say about a variant."""
        self._exhausted.add(hash_)

    def nodes(self) -> list[Node]:
        """Return every variant as a selector sees it, in order of arrival."""
        found = []
        for hash_, record in self._records.items():
            best = self.best_of(hash_)
            found.append(Node(
                hash=hash_, parent=record.parent,
                speedup=None if best is None else self.objective(best),
                children=len(self.children(hash_)), depth=len(self.path_to_root(hash_)) - 1,
                exhausted=hash_ in self._exhausted,
            ))  # fmt: skip
        return found

    # --- evaluations -------------------------------------------------------------------------

    def add(self, evaluation: Evaluation) -> None:
        """Keep an evaluation; a later one of the same candidate replaces it."""
        key = evaluation.candidate.key
        variant = evaluation.candidate.variant
        known = self._evaluations.get(key)
        self._evaluations[key] = evaluation
        self._of_variant.setdefault(variant, {})[key] = evaluation
        if evaluation.code_hash:
            self._by_code.setdefault(evaluation.code_hash, key)
        self._scores.pop(key, None)
        self._best_of.pop(variant, None)
        if known is not None:
            self._since_best = None
        elif self._since_best is not None:
            self._advance(evaluation)

    def evaluations(self) -> list[Evaluation]:
        """Return the newest evaluation of every candidate, in order of first arrival."""
        return list(self._evaluations.values())

    def evaluations_of(self, hash_: str) -> list[Evaluation]:
        """Return the evaluations of a variant's candidates, in order of first arrival."""
        return list(self._of_variant.get(hash_, {}).values())

    def find(self, candidate: Candidate) -> Evaluation | None:
        return self._evaluations.get(candidate.key)

    def by_code_hash(self, code_hash: str) -> Evaluation | None:
        """Return the first evaluation of the same machine code and plans, None if it is new."""
        key = self._by_code.get(code_hash) if code_hash else None
        found = None if key is None else self._evaluations[key]
        return found if found is not None and found.code_hash == code_hash else None

    def count(self) -> int:
        """How many candidates have been evaluated."""
        return len(self._evaluations)

    def statuses(self) -> dict[str, int]:
        """Return how many evaluations have each status, in the order of ``Status``."""
        counts = dict.fromkeys(Status, 0)
        for evaluation in self._evaluations.values():
            counts[evaluation.status] += 1
        return {str(s): n for s, n in counts.items() if n}

    # --- what is best ------------------------------------------------------------------------

    def set_baseline(self, times_us: Mapping[str, float]) -> None:
        """Give the baseline's time of each workload; all objectives follow from it."""
        self._baseline = dict(times_us)
        self._scores.clear()
        self._best_of.clear()
        self._since_best = None

    def objective(self, evaluation: Evaluation) -> float | None:
        """Return the speed-up over the baseline: None for a failure, or without a baseline."""
        key = evaluation.candidate.key
        if self._evaluations.get(key) is not evaluation:
            return self._compute(evaluation)
        if key not in self._scores:
            self._scores[key] = self._compute(evaluation)
        return self._scores[key]

    def _compute(self, evaluation: Evaluation) -> float | None:
        if not evaluation.ok:
            return None
        times = evaluation.times_us()
        keys = list(self._weights) or list(self._baseline)
        if not keys or any(k not in times or k not in self._baseline for k in keys):
            return None
        ratios = {k: self._baseline[k] / times[k] for k in keys}
        if self._objective == "minimum":
            return min(ratios.values())
        if self._objective == "geometric_mean":
            return geometric_mean(list(ratios.values()))
        weights = {k: self._weights.get(k, 1.0) for k in keys}
        total = sum(weights.values())
        if total <= 0:
            return geometric_mean(list(ratios.values()))
        return math.exp(sum(weights[k] * math.log(r) for k, r in ratios.items()) / total)

    def _rank(self, evaluation: Evaluation) -> float:
        """Return what ok evaluations are ordered by, also while there is no baseline yet."""
        score = self.objective(evaluation)
        if score is not None:
            return math.log(score)
        # Below every evaluation that has an objective; among themselves the fastest first.
        return -1e6 - math.log(geometric_mean(list(evaluation.times_us().values())))

    def best_of(self, hash_: str) -> Evaluation | None:
        """Return a variant's best ok evaluation; of equals the one that came first."""
        if hash_ not in self._best_of:
            good = [e for e in self.evaluations_of(hash_) if e.ok]
            self._best_of[hash_] = max(good, key=self._rank, default=None)
        return self._best_of[hash_]

    def best(self) -> Evaluation | None:
        """Return the best ok evaluation of all."""
        return next(iter(self.elites(1)), None)

    def elites(self, count: int) -> list[Evaluation]:
        """Return the best evaluation of each of the ``count`` best variants, best first.

        Two variants that compile to the same machine code are one.
        """
        found = [e for h in self._of_variant if (e := self.best_of(h)) is not None]
        chosen: list[Evaluation] = []
        codes: set[str] = set()
        for evaluation in sorted(found, key=self._rank, reverse=True):
            if len(chosen) >= count:
                break
            if evaluation.code_hash and evaluation.code_hash in codes:
                continue
            codes.add(evaluation.code_hash)
            chosen.append(evaluation)
        return chosen

    def incumbents(self) -> list[Evaluation]:
        """Return the evaluations that were best when they came, in that order."""
        found: list[Evaluation] = []
        top = -math.inf
        for evaluation in self._evaluations.values():
            score = self.objective(evaluation)
            if score is not None and score > top:
                top = score
                found.append(evaluation)
        return found

    def since_best(self) -> int:
        """Return how many evaluations have come since the best one came."""
        if self._since_best is None:
            self._since_best, self._top = 0, None
            for evaluation in self._evaluations.values():
                self._advance(evaluation)
        return self._since_best

    def _advance(self, evaluation: Evaluation) -> None:
        score = self.objective(evaluation)
        if score is not None and (self._top is None or score > self._top):
            self._since_best, self._top = 0, score
        else:
            self._since_best = (self._since_best or 0) + 1
