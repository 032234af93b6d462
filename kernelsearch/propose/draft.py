"""A variant file taken apart for change, and what a rule is: metadata as data, the rest as text."""

from __future__ import annotations

import ast
import copy
import json
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernelsearch.expressions import Expression
from kernelsearch.operator import Operator, Tensor
from kernelsearch.propose.source import CudaSource
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import ParamValue
from kernelsearch.variant import CUDA_BLOCK, Variant, metadata_text

MAX_DOC = 240
_KEY_ORDER = ("format", "operator", "doc", "dtypes", "requires")
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass
class Draft:
    """A variant file in two halves: ``meta`` (the TOML block) and ``body`` (everything else)."""

    language: str
    meta: dict[str, Any]
    body: str

    @staticmethod
    def of(variant: Variant) -> Draft:
        """Take a parsed variant apart."""
        block, _ = metadata_text(variant.source, variant.language, variant.path)
        meta = tomllib.loads(block)
        if variant.language == "cuda":
            return Draft("cuda", meta, CUDA_BLOCK.sub("", variant.source, count=1).lstrip("\n"))
        tree = ast.parse(variant.source)
        return Draft("cpu", meta, ast.unparse(ast.Module(tree.body[1:], [])))

    def copy(self) -> Draft:
        return Draft(self.language, copy.deepcopy(self.meta), self.body)

    def render(self) -> str:
        """Return the text of the whole variant file."""
        block = render_metadata(self.meta)
        if self.language == "cuda":
            return f"/* kernelsearch\n{block}*/\n{self.body}"
        # The block becomes a Python string literal: what is special there is escaped.
        escaped = block.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        return f'"""kernelsearch\n{escaped}"""\n\n{self.body}\n'

    @property
    def tunables(self) -> dict[str, list[ParamValue]]:
        tunables: dict[str, list[ParamValue]] = self.meta.setdefault("tunables", {})
        return tunables

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [s for s in self.meta["launch"] if "kernel" in s]

    def constrain(self, name: str, expression: str) -> None:
        """Add a constraint unless the same one is there."""
        _add(self.meta.setdefault("constraints", {}), name, expression)

    def restrict(self, name: str, expression: str) -> None:
        """Add a condition to the domain unless the same one is there."""
        _add(self.meta.setdefault("domain", {}), name, expression)

    def note(self, text: str) -> None:
        """Append what changed to the variant's one-line description."""
        self.meta["doc"] = f"{self.meta.get('doc', '')}; {text}".removeprefix("; ")[:MAX_DOC]


def _add(table: dict[str, str], name: str, expression: str) -> None:
    if expression in table.values():
        return
    fresh, number = name, 2
    while fresh in table:
        fresh, number = f"{name}{number}", number + 1
    table[fresh] = expression


def render_metadata(meta: Mapping[str, Any]) -> str:
    """Return TOML text for a variant's metadata (ends with a newline)."""
    lines = []
    plain = [k for k in _KEY_ORDER if k in meta]
    tables = [k for k in meta if k not in plain and k != "launch" and meta[k]]
    for key in plain:
        lines.append(f"{key} = {_value(meta[key])}")
    for key in tables:
        lines.append(f"[{key}]")
        lines += [f"{_key(k)} = {_value(v)}" for k, v in meta[key].items()]
    for step in meta.get("launch", []):
        lines.append("[[launch]]")
        lines += [f"{_key(k)} = {_value(v)}" for k, v in step.items()]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if _BARE.match(key) else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    # JSON's strings, numbers and booleans are written as TOML writes them.
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Change:
    """A changed draft and what the rule has to say about it."""

    draft: Draft
    rationale: str
    suggested: Mapping[str, ParamValue] = field(default_factory=dict)
    gain: float | None = None


class Site:
    """What a rule looks at: the request, and the parent taken apart (lazily, once)."""

    def __init__(self, request: ProposalRequest) -> None:
        self.request = request
        self.operator: Operator = request.operator
        self.draft = Draft.of(request.parent)
        self.random = random.Random(request.seed)
        self._cuda: CudaSource | None = None

    @property
    def cuda(self) -> CudaSource:
        """The parent's body as CUDA tokens."""
        if self._cuda is None:
            self._cuda = CudaSource(self.draft.body)
        return self._cuda

    @property
    def best(self) -> dict[str, ParamValue]:
        """The parent's best params, or {}."""
        return self.request.best.candidate.values if self.request.best is not None else {}

    def fresh(self, base: str, also: Iterable[str] = ()) -> str:
        """Return ``base``, or ``base2`` ..., such that nothing of that name exists yet.

        ``also`` holds names that the same change has given out already.
        """
        if self.draft.language == "cuda":
            taken = self.cuda.identifiers()
        else:
            taken = set(re.findall(r"[A-Za-z_]\w*", self.draft.body))
        taken |= set(self.draft.tunables) | set(self.operator.symbols)
        taken |= {a.name for a in self.operator.arguments} | set(
            self.draft.meta.get("workspace", {})
        )
        taken |= set(also)
        name, number = base, 2
        while name in taken:
            name, number = f"{base}{number}", number + 1
        return name

    def tensor(self, name: str) -> Tensor | None:
        """Return the operator's tensor of that name, or None."""
        return next((t for t in self.operator.tensors if t.name == name), None)


RuleFunction = Callable[[Site], list[Change]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A source mutation.

    Args:
        name: short name, recorded as the proposal's ``mutation``.
        language: ``cuda``, ``cpu``, or ``any``.
        apply: returns the possible changes; [] where the precondition does not hold.
        suits: bottleneck labels that this helps against.
        gain: parent time / child time to expect where it suits, before anything is measured.
    """

    name: str
    language: str
    apply: RuleFunction
    suits: frozenset[str]
    gain: float = 1.05


def is_integer(text: str | int) -> bool:
    """Return whether a plan expression is a plain integer."""
    return re.fullmatch(r"\d+", str(text).strip()) is not None


def plan_names(text: str | int) -> frozenset[str]:
    """Return the names that a plan expression uses."""
    return Expression.parse(text).names


def extend_range(site: Site) -> list[Change]:
    """Offer the next power of two where the best params lie at the end of a tunable's list."""
    changes = []
    for name, choices in site.draft.tunables.items():
        numbers = [c for c in choices if isinstance(c, int)]
        powers = all(n > 0 and n & (n - 1) == 0 for n in numbers)
        best = site.best.get(name)
        if len(numbers) != len(choices) or len(numbers) < 2 or not powers or best not in numbers:
            continue
        low, high = min(numbers), max(numbers)
        if best == high:
            added = [high * 2, high * 4]
        elif best == low and low > 1:
            added = [low // 2]
        else:
            continue
        draft = site.draft.copy()
        draft.tunables[name] = sorted([*numbers, *added])
        draft.note(
            f"{name} up to {max(*numbers, *added)}" if best == high else f"{name} from {low // 2}"
        )
        changes.append(Change(
            draft,
            f"The best params have {name} = {best}, an end of its list {numbers}: the optimum may "
            f"lie beyond it, at {', '.join(map(str, added))}.",
            {name: added[0]},
        ))  # fmt: skip
    return changes
