"""The Anthropic Messages API: the only file that talks to a model.

The key comes from the environment or the SDK's own chain; it is read by the SDK alone, and no
message of an error repeats what a server or a header said of it.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Mapping
from typing import Any

from kernelsearch.errors import MissingExtraError, ModelError
from kernelsearch.propose.exchange import Prompt, Reply, Usage

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 30.0
# Between two pieces of a stream; a server that thinks sends pings.
SILENCE_S = 60.0
_STOPS = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "refusal"}
_PASSING = frozenset({408, 409, 425, 429})
_SECRETS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")


class AnthropicModel:
    """Answers from any server that speaks the Messages API.

    Args:
        base_url: of another server than the SDK's own choice.
        first_wait_s: before the second attempt; it doubles, with jitter.

    Raises:
        MissingExtraError: the SDK is not installed. ModelError: no key is to be found.
    """

    def __init__(self, base_url: str | None = None, first_wait_s: float = FIRST_WAIT_S) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise MissingExtraError("the proposer 'llm'", "llm", "anthropic") from error
        self._sdk = anthropic
        self._first_wait_s = first_wait_s
        self._closing = threading.Event()
        try:
            # Attempts are ours: the SDK's own know no total deadline and no cut streams.
            self._client = anthropic.Anthropic(base_url=base_url, max_retries=0)
        except anthropic.AnthropicError as error:
            raise ModelError(_no_key(error), fatal=True) from error

    def answer(self, prompt: Prompt, deadline_s: float) -> Reply:
        """Return the reply to a prompt; see ``Model``.

        Raises:
            ModelError: none within the deadline, or none to be had.
        """
        begun = time.monotonic()
        end = begun + deadline_s
        charged = Usage()
        attempt = 0
        while True:
            attempt += 1
            try:
                reply, why, wait_s = self._attempt(prompt, end)
            except self._sdk.AnthropicError as error:
                reply, (why, wait_s) = None, self._judged(error)
            except TypeError as error:
                # What the SDK raises where no way to authenticate is found.
                raise ModelError(_no_key(error), fatal=True) from error
            if isinstance(reply, Reply):
                return Reply(
                    reply.text, reply.data, reply.stop, reply.usage + charged, reply.model,
                    time.monotonic() - begun, attempt,
                )  # fmt: skip
            if isinstance(reply, Usage):
                charged = charged + reply
            step = min(LONGEST_WAIT_S, self._first_wait_s * 2 ** (attempt - 1))
            pause = max(wait_s, step * random.uniform(0.5, 1.0))
            if time.monotonic() + pause >= end:
                raise ModelError(
                    f"the model {prompt.model} did not answer within {deadline_s:.0f} s and "
                    f"{attempt} attempts ({why})"
                )
            if self._closing.wait(pause):
                raise ModelError("the run ended before the model answered")

    def close(self) -> None:
        """Close the connections."""
        self._closing.set()
        self._client.close()

    def _attempt(self, prompt: Prompt, end: float) -> tuple[Reply | Usage, str, float]:
        """Return a reply, or the tokens that a cut one cost, and why it was cut."""
        usage = Usage()
        left = max(0.1, end - time.monotonic())
        seen: Any = None
        with self._client.messages.stream(
            **_request(prompt), timeout=min(SILENCE_S, left)
        ) as stream:
            try:
                for event in stream:
                    if event.type in ("message_start", "message_delta"):
                        seen = stream.current_message_snapshot
                        usage = _usage(seen.usage)
                    if time.monotonic() > end:
                        return usage, "it was still writing", 0.0
                message = stream.get_final_message()
            except (self._sdk.APIStatusError, AssertionError, ValueError) as error:
                if isinstance(error, self._sdk.APIStatusError):
                    why, wait_s = self._judged(error)
                    return usage, why, wait_s
                return usage, "its stream could not be read", 0.0
            except self._transport_errors() as error:
                return usage, f"the stream was cut ({type(error).__name__})", 0.0
        if message.stop_reason is None:
            return usage, "the stream was cut", 0.0
        texts = [b.text for b in message.content if b.type == "text"]
        calls = [b.input for b in message.content if b.type == "tool_use"]
        data = calls[0] if calls and isinstance(calls[0], Mapping) else None
        return Reply(
            "\n".join(texts), dict(data) if data is not None else None,
            _STOPS.get(message.stop_reason, "end"), _usage(message.usage), message.model,
        ), "", 0.0  # fmt: skip

    def _transport_errors(self) -> tuple[type[BaseException], ...]:
        """Return what the SDK lets through of its HTTP library while a stream is read."""
        import importlib

        found: list[type[BaseException]] = [self._sdk.APIConnectionError]
        for name in ("httpx2", "httpx"):
            try:
                found.append(importlib.import_module(name).HTTPError)
            except ImportError:
                continue
        return tuple(found)

    def _judged(self, error: Any) -> tuple[str, float]:
        """Return what happened and how long the server asks to wait.

        Raises:
            ModelError: another attempt would end in the same way.
        """
        status = getattr(error, "status_code", None)
        if status is None:
            return type(error).__name__, 0.0
        if status in _PASSING or status >= 500 or status == 200:
            return f"HTTP {status}", _retry_after(error.response.headers)
        raise ModelError(
            f"the server refuses the call with HTTP {status}: {_said(error)}; {_remedy(status)}",
            fatal=True,
        ) from None


def _request(prompt: Prompt) -> dict[str, Any]:
    system: list[dict[str, Any]] = [{"type": "text", "text": t} for t in prompt.stable]
    if system:
        system[-1]["cache_control"] = {"type": "ephemeral"}
    value: dict[str, Any] = {
        "model": prompt.model, "max_tokens": prompt.max_tokens, "system": system,
        "messages": [{"role": t.speaker, "content": t.text} for t in prompt.turns],
    }  # fmt: skip
    if prompt.tool is not None:
        # Not forced: models that think refuse that, and an answer as text is read as well.
        value["tools"] = [{
            "name": prompt.tool.name, "description": prompt.tool.description,
            "input_schema": dict(prompt.tool.schema),
        }]  # fmt: skip
    return value


def _usage(usage: Any) -> Usage:
    return Usage(
        usage.input_tokens or 0, usage.output_tokens or 0, usage.cache_read_input_tokens or 0,
        usage.cache_creation_input_tokens or 0,
    )  # fmt: skip


def _retry_after(headers: Any) -> float:
    try:
        return max(0.0, float(headers.get("retry-after", 0)))
    except ValueError:
        return 0.0  # a date: our own waiting does


def _said(error: Any) -> str:
    body = error.body
    inner = body.get("error") if isinstance(body, Mapping) else None
    text = str(inner.get("message", "")) if isinstance(inner, Mapping) else ""
    for name in _SECRETS:
        secret = os.environ.get(name)
        if secret:
            text = text.replace(secret, "***")
    return " ".join(text.split())[:300] or "no reason given"


def _remedy(status: int) -> str:
    match status:
        case 401 | 403:
            return "set ANTHROPIC_API_KEY to a key that may use this model"
        case 404:
            return "check --model and --base-url"
    return "check --model, and that the prompt fits it"


def _no_key(error: BaseException) -> str:
    return (
        f"no way to sign in to the Messages API was found ({type(error).__name__}); "
        "set ANTHROPIC_API_KEY"
    )
