"""A local server that speaks the Anthropic Messages API: streams what a script says, or fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Step:
    """What the server does with one request.

    ``cut`` ends the connection after so many events; ``drip_s`` waits before each event (and sees
    ``over``, so that no test waits for it).
    """

    status: int = 200
    text: str = ""
    data: Any = None
    raw_data: str | None = None
    stop: str = "end_turn"
    body: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    drip_s: float = 0.0
    reset: bool = False


@dataclass
class Server:
    url: str
    requests: list[dict[str, Any]]
    headers: list[dict[str, str]]
    over: threading.Event


@contextmanager
def messages_server(steps: Sequence[Step]) -> Iterator[Server]:
    """Serve one step a request; the last is repeated."""
    over, lock, left = threading.Event(), threading.Lock(), list(steps)
    requests: list[dict[str, Any]] = []
    headers: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            del args

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            with lock:
                requests.append(json.loads(self.rfile.read(size)))
                headers.append(dict(self.headers))
                step = left.pop(0) if len(left) > 1 else left[0]
            if step.reset:
                self.connection.close()
                return
            self.send_response(step.status)
            if step.status != 200 or step.body is not None:
                body = step.body or json.dumps({"type": "error", "error": {
                    "type": "some_error", "message": step.text}})  # fmt: skip
                kind = "text/event-stream" if step.status == 200 else "application/json"
                for name, value in {"content-type": kind, **step.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())
                return
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            for number, (name, event) in enumerate(_events(step)):
                if number == step.cut or (step.drip_s and over.wait(step.drip_s)):
                    return
                text = f"event: {name}\ndata: {json.dumps({'type': name, **event})}\n\n"
                try:
                    self.wfile.write(text.encode())
                    self.wfile.flush()
                except OSError:
                    return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield Server(f"http://127.0.0.1:{server.server_port}", requests, headers, over)
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _events(step: Step) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "message_start", {"message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test",
        "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": 2000,
                  "cache_creation_input_tokens": 30},
    }}  # fmt: skip
    index = 0
    if step.text:
        yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
        for at in range(0, len(step.text), 200):
            piece = {"type": "text_delta", "text": step.text[at : at + 200]}
            yield "content_block_delta", {"index": 0, "delta": piece}
        yield "content_block_stop", {"index": 0}
        index = 1
    if step.data is not None or step.raw_data is not None:
        call = {"type": "tool_use", "id": "toolu_1", "name": "submit_kernel", "input": {}}
        yield "content_block_start", {"index": index, "content_block": call}
        text = step.raw_data if step.raw_data is not None else json.dumps(step.data)
        delta = {"type": "input_json_delta", "partial_json": text}
        yield "content_block_delta", {"index": index, "delta": delta}
        yield "content_block_stop", {"index": index}
    yield "message_delta", {"delta": {"stop_reason": step.stop, "stop_sequence": None},
                            "usage": {"output_tokens": 50}}  # fmt: skip
    yield "message_stop", {}
