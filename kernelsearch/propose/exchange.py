"""One exchange with a language model, whoever provides it: what is asked, what comes back.

Another provider is one class with the method of ``Model``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from kernelsearch.errors import ModelError
from kernelsearch.records import digest

# Source code has about this many characters a token; no provider's tokeniser is at hand here.
CHARACTERS_A_TOKEN = 3.2


def estimated_tokens(text: str) -> int:
    """Return roughly how many tokens a text has (an estimate: tokenisers differ)."""
    return math.ceil(len(text.encode()) / CHARACTERS_A_TOKEN)


@dataclass(frozen=True, slots=True)
class Tool:
    """A structured answer: the name and JSON schema of the one call that is wanted."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation."""

    speaker: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """All that a model is sent.

    Args:
        role: who it plays (``planner``, ``coder``, ``fixer``).
        model: the provider's name of the model.
        stable: texts that are the same from call to call, the most stable first: cached.
        turns: the conversation, a user's message first and last.
        tool: the form of the answer; None: plain text.
        max_tokens: most that the answer may have.
    """

    role: str
    model: str
    stable: tuple[str, ...]
    turns: tuple[Turn, ...]
    tool: Tool | None = None
    max_tokens: int = 8000

    @property
    def key(self) -> str:
        """Identity: equal prompts have equal keys, in any process."""
        return digest(asdict(self))

    @property
    def stable_tokens(self) -> int:
        """Estimated tokens of the part that is cached."""
        tool = estimated_tokens(str(dict(self.tool.schema))) if self.tool is not None else 0
        return tool + sum(map(estimated_tokens, self.stable))

    @property
    def tokens(self) -> int:
        """Estimated tokens of the whole prompt."""
        return self.stable_tokens + sum(estimated_tokens(t.text) for t in self.turns)

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens that were charged; ``input_tokens`` are those read from no cache and put in none."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )  # fmt: skip

    @property
    def total(self) -> int:
        return (
            self.input_tokens + self.output_tokens + self.cache_read_tokens
            + self.cache_write_tokens
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    Args:
        text: what was written outside of the tool call.
        data: the input of the tool call, None where there was none.
        stop: ``end``, ``length`` (cut at ``max_tokens``) or ``refusal``.
        usage: of all attempts together: one that was cut is charged too.
        model: that answered, as the provider says.
        seconds: wall-clock time, waiting between attempts included.
        attempts: how many requests it took.
    """

    text: str
    data: Mapping[str, Any] | None = None
    stop: str = "end"
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    seconds: float = 0.0
    attempts: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the form that is stored."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Reply:
        """Read what ``to_json`` wrote.

        Raises:
            ModelError: it is no stored reply.
        """
        try:
            data = value["data"]
            return Reply(
                str(value["text"]), dict(data) if data is not None else None, str(value["stop"]),
                Usage(**value["usage"]), str(value["model"]), float(value["seconds"]),
                int(value["attempts"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"a stored reply is damaged ({error!r})") from error


class Model(Protocol):
    """Something that answers prompts. Used from several threads at once."""

    def answer(self, prompt: Prompt, deadline_s: float) -> Reply:
        """Return the reply to a prompt.

        Args:
            prompt: what is asked.
            deadline_s: seconds for everything, repeated attempts included.

        Raises:
            ModelError: no reply within the deadline, or none to be had.
        """
        ...

    def close(self) -> None:
        """Free connections; calls under way may end with a ModelError."""
        ...


class ReplayModel:
    """Answers from recorded replies, without a network.

    Args:
        replies: by the key of the prompt.
    """

    def __init__(self, replies: Mapping[str, Reply]) -> None:
        self._replies = dict(replies)

    def answer(self, prompt: Prompt, deadline_s: float) -> Reply:
        """Return the recorded reply.

        Raises:
            ModelError: this prompt was never recorded.
        """
        del deadline_s
        if prompt.key not in self._replies:
            raise ModelError(
                f"replay: no recorded reply to this {prompt.role} prompt ({prompt.key}); the "
                "recording is of other templates, settings or measurements", fatal=True,
            )  # fmt: skip
        return self._replies[prompt.key]

    def close(self) -> None:
        """Do nothing: there is nothing to free."""
