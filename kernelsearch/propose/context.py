"""What a request for a kernel holds, under a budget of tokens: the most useful parts first.

The same parts make the Markdown request for a person and the prompt for a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernelsearch.propose import sections, texts
from kernelsearch.propose.exchange import estimated_tokens
from kernelsearch.protocols import ProposalRequest

PROMPT_TOKENS = 8000


@dataclass(frozen=True, slots=True)
class Part:
    """A declared part of a context.

    Args:
        name: for people and tests.
        text: of the request; "" where there is nothing to say.
        stable: the same for every request of a study.
        rank: the lower, the sooner it is taken; 0: always.
    """

    name: str
    text: Callable[[ProposalRequest], str]
    stable: bool
    rank: int


def _rules(request: ProposalRequest) -> str:
    return "\n".join([texts.prompt_text("system"),
                      texts.prompt_text(f"format_{request.parent.language}")])  # fmt: skip


def _guide(request: ProposalRequest) -> str:
    names = texts.guide_names(request.parent.language, request.device.arch)
    return "\n".join(texts.prompt_text(n) for n in names)


def _answer(request: ProposalRequest) -> str:
    del request
    return texts.prompt_text("answer")


# In the order in which they are read; stable ones first, so that a provider can cache them.
PARTS: tuple[Part, ...] = (
    Part("rules", _rules, True, 0),
    Part("answer", _answer, True, 0),
    Part("guide", _guide, True, 4),
    Part("contract", sections.contract, True, 0),
    Part("device", sections.device, True, 1),
    Part("headers", sections.headers, False, 5),
    Part("parent", sections.parent, False, 0),
    Part("measurements", sections.measurements, False, 1),
    Part("diagnosis", sections.diagnosis, False, 1),
    Part("failures", sections.failures, False, 1),
    Part("tried", sections.tried, False, 2),
    Part("siblings", sections.siblings, False, 3),
    Part("best_sibling", sections.best_sibling, False, 6),
)


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that were taken.

    Args:
        stable: (name, text) of the parts that do not change within a study.
        changing: (name, text) of the others.
        left_out: names of parts that the budget had no room for.
    """

    stable: tuple[tuple[str, str], ...]
    changing: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(estimated_tokens(t) for _, t in (*self.stable, *self.changing))


def context(
    request: ProposalRequest, budget_tokens: int = PROMPT_TOKENS, without: Sequence[str] = ()
) -> Context:
    """Return what is told of a request.

    Args:
        request: what is known.
        budget_tokens: estimated tokens of all parts; rules, contract and parent come in any case.
        without: names of parts to leave out.
    """
    written = {
        p.name: text for p in PARTS if p.name not in without and (text := p.text(request).strip())
    }
    taken: set[str] = set()
    used = 0
    for part in sorted(PARTS, key=lambda p: p.rank):
        if part.name not in written:
            continue
        size = estimated_tokens(written[part.name])
        if part.rank == 0 or used + size <= budget_tokens:
            taken.add(part.name)
            used += size
    return Context(
        stable=tuple((p.name, written[p.name]) for p in PARTS if p.stable and p.name in taken),
        changing=tuple(
            (p.name, written[p.name]) for p in PARTS if not p.stable and p.name in taken
        ),
        left_out=tuple(p.name for p in PARTS if p.name in written and p.name not in taken),
    )
