"""Find what a model was asked and what it answered, for each variant that came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelsearch.errors import AnswerError, StorageError
from kernelsearch.propose.answer import Answer, read_data, read_text
from kernelsearch.records import VariantRecord
from kernelsearch.store import Event, Ledger


@dataclass(frozen=True, slots=True)
class Exchange:
    """One prompt and its reply.

    Args:
        stable: the parts of the prompt that are the same from call to call.
        turns: (speaker, text) of the conversation.
        reply: as text; a call of a tool as JSON.
        tokens_in / tokens_out: that were charged for; ``usd``: what they cost.
    """

    model: str
    role: str
    stable: tuple[str, ...]
    turns: tuple[tuple[str, str], ...]
    reply: str
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float


def stored_exchanges(ledger: Ledger, variants: Sequence[VariantRecord]) -> dict[str, Exchange]:
    """Return the exchange that each variant of a model came of, by the variant's hash.

    The ledger does not say which reply became which variant: a reply belongs to the first variant
    after it that has its mutation, rationale and prediction.
    """
    events = [e for e in ledger.events()[0] if e.kind == "exchange"]
    wanted = [v for v in variants if v.proposer == "llm"]
    found: dict[str, Exchange] = {}
    if not events or not wanted:
        return found
    for event in events:
        try:
            prompt = json.loads(ledger.get_blob(str(event.data["prompt"])))
            reply = json.loads(ledger.get_blob(str(event.data["reply"])))
            answer = _answer(reply)
        except (StorageError, AnswerError, KeyError, ValueError):
            continue  # lost, or of no use: no variant came of it
        said = (answer.mutation, answer.rationale, answer.gain)
        for record in wanted:
            same = (record.mutation, record.rationale, record.predicted_gain) == said
            if same and record.hash not in found and record.created >= event.created:
                found[record.hash] = _exchange(event, prompt, reply)
                break
    return found


def _answer(reply: Mapping[str, Any]) -> Answer:
    data = reply.get("data")
    return read_data(data) if isinstance(data, dict) else read_text(str(reply.get("text", "")))


def _exchange(event: Event, prompt: Mapping[str, Any], reply: Mapping[str, Any]) -> Exchange:
    data, usage = event.data, event.data["usage"]
    text = str(reply.get("text", ""))
    if reply.get("data") is not None:
        text = f"{text}\n{json.dumps(reply['data'], indent=1)}".strip()
    return Exchange(
        model=str(data["model"]), role=str(data["role"]),
        stable=tuple(str(s) for s in prompt.get("stable", ())),
        turns=tuple((str(t["speaker"]), str(t["text"])) for t in prompt.get("turns", ())),
        reply=text,
        tokens_in=usage["input_tokens"] + usage["cache_read_tokens"] + usage["cache_write_tokens"],
        tokens_out=usage["output_tokens"], usd=float(data["usd"]),
        seconds=float(data.get("seconds", 0.0)),
    )  # fmt: skip
