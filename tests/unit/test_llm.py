"""The Messages API against a local server: streams, tool calls, passing and lasting failures."""

from __future__ import annotations

import sys

import pytest

from kernelsearch.errors import MissingExtraError, ModelError
from kernelsearch.propose.exchange import Prompt, ReplayModel, Reply, Tool, Turn, Usage
from tests.support.messages_server import Step, messages_server

pytest.importorskip("anthropic")
from kernelsearch.propose.llm import AnthropicModel

KEY = "sk-secret-of-the-tests"
TOOL = Tool("submit_kernel", "hand in", {"type": "object", "properties": {}})
PROMPT = Prompt("coder", "claude-test", ("rules", "contract"), (Turn("user", "go"),), TOOL, 500)
ONCE = Usage(100, 50, 2000, 30)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)


def answer(*steps: Step, deadline_s: float = 20.0) -> tuple[Reply, int]:
    with messages_server(steps) as server:
        model = AnthropicModel(server.url, first_wait_s=0.01)
        try:
            return model.answer(PROMPT, deadline_s), len(server.requests)
        finally:
            model.close()


def test_text_is_streamed_and_counted() -> None:
    reply, calls = answer(Step(text="word " * 300))
    assert reply.text == "word " * 300
    assert (reply.stop, reply.data, reply.attempts, calls) == ("end", None, 1, 1)
    assert reply.usage == ONCE


def test_a_tool_call_is_data_and_the_prefix_is_marked_for_the_cache() -> None:
    with messages_server([Step(data={"mutation": "m", "edits": []}, stop="tool_use")]) as server:
        model = AnthropicModel(server.url)
        reply = model.answer(PROMPT, 20.0)
        model.close()
    assert reply.data == {"mutation": "m", "edits": []}
    (sent,) = server.requests
    assert [b["text"] for b in sent["system"]] == ["rules", "contract"]
    assert [b.get("cache_control") for b in sent["system"]] == [None, {"type": "ephemeral"}]
    assert sent["stream"] is True
    assert sent["max_tokens"] == 500


@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_what_passes_is_tried_again(status: int) -> None:
    reply, calls = answer(Step(status, headers={"retry-after": "0"}), Step(text="yes"))
    assert (reply.text, reply.attempts, calls) == ("yes", 2, 2)


def test_a_cut_stream_is_tried_again_and_what_it_cost_is_counted() -> None:
    reply, calls = answer(Step(text="half " * 200, cut=3), Step(text="whole"))
    assert (reply.text, calls) == ("whole", 2)
    assert reply.usage.input_tokens == 200
    assert reply.usage.cache_read_tokens == 4000


def test_a_reset_connection_and_an_error_within_a_stream_are_tried_again() -> None:
    late = (
        'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"x"}}\n\n'
    )
    reply, calls = answer(Step(reset=True), Step(body=late), Step(text="yes"))
    assert (reply.text, calls) == ("yes", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_what_will_not_pass_is_fatal_and_says_no_key(status: int) -> None:
    with pytest.raises(ModelError, match=f"HTTP {status}") as caught:
        answer(Step(status, text=f"no {KEY} here"))
    assert caught.value.fatal
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("step", [Step(429), Step(text="slow " * 400, drip_s=0.2),
                                  Step(text="x" * 900, cut=2)])  # fmt: skip
def test_the_deadline_is_for_everything(step: Step) -> None:
    with pytest.raises(ModelError, match="did not answer within 1 s") as caught:
        answer(step, deadline_s=0.6)
    assert not caught.value.fatal


@pytest.mark.parametrize(("stop", "ours"), [("max_tokens", "length"), ("refusal", "refusal")])
def test_why_it_stopped_is_kept(stop: str, ours: str) -> None:
    assert answer(Step(text="cut", stop=stop))[0].stop == ours


def test_a_tool_call_that_is_no_json_is_tried_again() -> None:
    reply, _ = answer(Step(raw_data='{"mutation": ]', stop="tool_use"), Step(text="yes"))
    assert reply.text == "yes"


def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY"):
        answer(Step(text="never"))


def test_without_the_sdk_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(MissingExtraError, match=r"kernelsearch\[llm\]"):
        AnthropicModel()


def test_replay_answers_what_was_recorded_and_nothing_else() -> None:
    reply = Reply("text", {"a": 1}, usage=ONCE)
    assert Reply.from_json(reply.to_json()) == reply
    replay = ReplayModel({PROMPT.key: reply})
    assert replay.answer(PROMPT, 1.0) == reply
    other = Prompt("coder", "claude-test", ("other",), PROMPT.turns, TOOL, 500)
    with pytest.raises(ModelError, match="no recorded reply"):
        replay.answer(other, 1.0)
