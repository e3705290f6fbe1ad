"""A Messages API on loopback that answers from a script: the same answers in every run.

    python3 stub_anthropic.py SCRIPT.json [--log FILE]

The first line on stdout is its port. It ends when its stdin does; nothing but Python is needed.

It keeps no state: the turn that it plays is the number of the assistant's messages in the
request, so a request that is sent again gets the same answer. Requests without tools, for a
title or to see whether anybody is there, get a fixed text. A script is a list of turns:

    {"content": [BLOCK, ...]} a BLOCK is {"text": TEXT} or {"tool": NAME, "input": {...}}
    {"status": 529}           an error in place of an answer

and a turn may have, in addition:

    "cut": "inside"           the connection breaks, in a stream, in the midst of the last block
    "cut": "after"            ... when the last block is complete, but not the message
    "again": true             ... and so does the next one, if no stream is asked for
    "announce": FIFO          the request has come: a line is written there
    "hold": FIFO              nothing is answered until a line comes from there

After the last turn it answers that the script is over.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]
ERRORS = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
OVER: Json = {"content": [{"text": "(the script is over)"}]}
PIECE = 40  #: characters of a delta


class Stub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, script: list[Json], log: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self._log = log
        self._lock = threading.Lock()

    def record(self, what: Json) -> None:
        if self._log is not None:
            with self._lock, self._log.open("a") as file:
                file.write(json.dumps(what) + "\n")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Stub

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base's name
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self.server.record({"head": self.path})
        self._send({})

    def do_GET(self) -> None:
        self.server.record({"get": self.path})
        self._send(_error(404), 404)

    def do_POST(self) -> None:
        request = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        if path == "/v1/messages":
            self._answer(request)
        elif path.endswith("/count_tokens"):
            self._send({"input_tokens": 42})
        else:
            self.server.record({"post": path})
            self._send(_error(404), 404)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        data = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _answer(self, request: Json) -> None:
        messages = request.get("messages", [])
        step = sum(message.get("role") == "assistant" for message in messages)
        turn: Json = {"content": [{"text": "stub"}]}
        if request.get("tools"):
            turn = self.server.script[step] if step < len(self.server.script) else OVER
            self.server.record({"step": step, "results": list(_results(messages))})
            if "announce" in turn:
                Path(turn["announce"]).write_text("here\n")
            if "hold" in turn:
                Path(turn["hold"]).read_text()
        if "status" in turn:
            self._send(_error(turn["status"]), turn["status"])
            return
        message, cut = _message(turn["content"], step, str(request.get("model"))), turn.get("cut")
        if request.get("stream"):
            self._stream(message, cut)
        elif not turn.get("again"):
            self._send(message)
            return
        if cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, value: Json, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, message: Json, cut: str | None) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in _events(message, cut):
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        if not cut:
            self.wfile.write(b"0\r\n\r\n")


def _error(status: int) -> Json:
    kind = ERRORS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"stub {status}"}}


def _results(messages: list[Json]) -> Iterator[Json]:
    """What the tools answered, of the whole conversation."""
    for message in messages:
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") == "tool_result":
                yield {"is_error": block.get("is_error"), "content": str(block.get("content"))}


def _message(blocks: list[Json], step: int, model: str) -> Json:
    content = [
        {"type": "text", "text": block["text"]}
        if "text" in block
        else {
            "type": "tool_use",
            "id": f"toolu_stub_{step}_{index}",
            "name": block["tool"],
            "input": block["input"],
        }
        for index, block in enumerate(blocks)
    ]
    return {
        "id": f"msg_stub_{step}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "tool_use" if content[-1]["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 100 + step, "output_tokens": 10 + step},
    }


def _events(message: Json, cut: str | None) -> Iterator[Json]:
    start = {**message, "content": [], "stop_reason": None}
    yield {"type": "message_start", "message": start}
    last = len(message["content"]) - 1
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            text, kind, key = block["text"], "text_delta", "text"
            begun: Json = {**block, "text": ""}
        else:
            text, kind, key = json.dumps(block["input"]), "input_json_delta", "partial_json"
            begun = {**block, "input": {}}
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        pieces = [text[at : at + PIECE] for at in range(0, len(text), PIECE)]
        is_inside = cut == "inside" and index == last
        for piece in pieces[:1] if is_inside else pieces:
            delta = {"type": kind, key: piece}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        if is_inside:
            return
        yield {"type": "content_block_stop", "index": index}
    if cut:
        return
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 10}}
    yield {"type": "message_stop"}


def raise_loopback() -> None:
    """In a network namespace that was just made it is down, and ours to raise."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        found = fcntl.ioctl(sock, get_flags, struct.pack("16sh22x", b"lo", 0))
        _, flags = struct.unpack("16sh22x", found)
        if not flags & up:
            fcntl.ioctl(sock, set_flags, struct.pack("16sh22x", b"lo", flags | up))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--log", type=Path, help="where each request leaves a line")
    args = parser.parse_args()
    if sys.platform == "linux":
        raise_loopback()
    stub = Stub(json.loads(args.script.read_text()), args.log)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    print(stub.server_port, flush=True)
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
