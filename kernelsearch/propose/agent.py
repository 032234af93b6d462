"""The proposer that asks a language model: one call a proposal, sent back once if it is no use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelsearch.errors import AnswerError, ModelError, VariantError
from kernelsearch.propose.answer import Answer, applied, read_data, read_text
from kernelsearch.propose.context import PROMPT_TOKENS, context
from kernelsearch.propose.exchange import Model, Prompt, Reply, Tool, Turn
from kernelsearch.propose.fence import one_line
from kernelsearch.propose.purse import Price, Purse
from kernelsearch.propose.sections import shown_source
from kernelsearch.propose.texts import prompt_text
from kernelsearch.protocols import ProposalRequest
from kernelsearch.records import Proposal
from kernelsearch.variant import Variant, parse_variant

DEADLINE_S = 300.0
MAX_TOKENS = 8000
# Answers in a row that were no use, or calls that failed, before the model is asked no more.
PATIENCE = 4
TOOL = Tool("submit_kernel", "Hand in one new kernel: edits of the parent, or a whole file.", {
    "type": "object",
    "properties": {
        "mutation": {"type": "string", "description": "short name of the change"},
        "rationale": {"type": "string", "description": "which bottleneck it removes, and why"},
        "predicted_gain": {"type": "number", "description": "parent time / new time"},
        "edits": {"type": "array", "items": {
            "type": "object",
            "properties": {"search": {"type": "string"}, "replace": {"type": "string"}},
            "required": ["search", "replace"],
        }},
        "source": {"type": "string", "description": "whole variant file, instead of edits"},
    },
    "required": ["mutation", "rationale"],
})  # fmt: skip
Note = Callable[[str, Mapping[str, Any]], None]
Record = Callable[[Prompt, Reply, float], None]


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Which model is asked, and what it may cost. No part of a study's identity.

    Args:
        model: the provider's name of it.
        spend_usd: most that one run may spend, US dollars.
        base_url: of another server that speaks the Messages API.
    """

    model: str
    spend_usd: float = 1.0
    base_url: str | None = None


def coder_prompt(
    request: ProposalRequest, model: str, budget_tokens: int = PROMPT_TOKENS
) -> Prompt:
    """Return exactly what a model is sent for one proposal."""
    told = context(request, budget_tokens)
    changing = "\n\n".join([*(t for _, t in told.changing), prompt_text("coder").strip()])
    stable = tuple(text for _, text in told.stable)
    return Prompt("coder", model, stable, (Turn("user", changing),), TOOL, MAX_TOKENS)


class LlmProposer:
    """Asks a model for one variant at a time.

    Args:
        model: answers.
        name: the provider's name of the model.
        price: of its tokens.
        purse: pays; when it cannot, nothing more is asked.
        record: is given every reply at once, with its cost, before anything is made of it.
        note: is told of what went wrong.
    """

    name = "llm"

    def __init__(
        self, model: Model, name: str, price: Price, purse: Purse, record: Record, note: Note
    ) -> None:
        self._model, self._name, self._price, self._purse = model, name, price, purse
        self._record, self._note = record, note
        self._useless = 0
        self._answered = False
        self.stopped = ""

    def propose(self, request: ProposalRequest) -> Sequence[Proposal]:
        """Return one proposal, or none: the model failed, the money is spent, or it was no use.

        Raises:
            ModelError: the first call of all is refused (wrong key, unknown model).
        """
        if self.stopped or request.count < 1:
            return []
        prompt = coder_prompt(request, self._name)
        for _ in range(2):
            reply = self._ask(prompt)
            if reply is None:
                return []
            try:
                answer, variant = self._read(reply, request)
            except (AnswerError, VariantError) as error:
                said = reply.text or "(a call of submit_kernel)"
                prompt = Prompt(
                    prompt.role, prompt.model, prompt.stable,
                    (*prompt.turns, Turn("assistant", said), Turn("user", _sent_back(error))),
                    prompt.tool, prompt.max_tokens,
                )  # fmt: skip
                self._note("refused_answer", {"parent": request.parent.hash, "why": str(error)})
                continue
            self._useless = 0
            return [Proposal(
                source=variant.source, parent=request.parent.hash, proposer="llm",
                mutation=answer.mutation, rationale=answer.rationale, predicted_gain=answer.gain,
            )]  # fmt: skip
        self._failed(f"{PATIENCE} answers in a row were no use")
        return []

    def close(self) -> None:
        """Free the model's connections."""
        self._model.close()

    def _ask(self, prompt: Prompt) -> Reply | None:
        most = self._price.at_most(prompt)
        if not self._purse.reserve(most):
            self._stop(
                f"of {self._purse.limit_usd:.2f} US dollars {self._purse.spent_usd:.4f} are spent, "
                f"and one more call may cost {most:.4f}"
            )
            return None
        cost = most  # a call that failed may have been charged; nobody says how much
        try:
            reply = self._model.answer(prompt, DEADLINE_S)
            cost = self._price.cost(reply.usage)
            self._answered = True
        except ModelError as error:
            if error.fatal:
                cost = 0.0
                if not self._answered:
                    raise
                self._stop(str(error))
            else:
                self._note("model_failed", {"why": str(error)})
                self._failed(f"the model failed {PATIENCE} times in a row")
            return None
        finally:
            self._purse.settle(most, cost)
        self._record(prompt, reply, cost)
        return reply

    def _read(self, reply: Reply, request: ProposalRequest) -> tuple[Answer, Variant]:
        if reply.stop == "refusal":
            raise AnswerError("was refused; only a kernel is asked for")
        if reply.stop == "length":
            raise AnswerError("was cut off at the length limit; use short edit blocks")
        answer = read_data(reply.data) if reply.data is not None else read_text(reply.text)
        source = applied(answer, shown_source(request.parent))
        variant = parse_variant(source, request.parent.language, "your kernel")
        variant.check_against(request.operator)
        if request.dtype not in variant.dtypes:
            raise AnswerError(f"does not support {request.dtype}; keep it in dtypes")
        if variant.hash in request.known:
            raise AnswerError("is a kernel that the study has already; make another change")
        return answer, variant

    def _failed(self, why: str) -> None:
        self._useless += 1
        if self._useless >= PATIENCE:
            self._stop(why)

    def _stop(self, why: str) -> None:
        self.stopped = why
        self._note("model_stopped", {"why": why, "spent_usd": self._purse.spent_usd})


def _sent_back(error: Exception) -> str:
    return (
        f"That answer cannot be used: {one_line(str(error), 600)}. "
        "Give the whole answer again, corrected; edits refer to the parent as it was shown."
    )
