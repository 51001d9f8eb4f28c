"""An OpenAI-compatible chat server on loopback, which answers by a rule and fails as servers do, as often as it is told.

    with chat_server() as server:
        server.answer = lambda message: f"Score: {len(message) % 6}"
        server.fail("status", status=429, headers={"Retry-After": "7"})
        url = server.url        # http://127.0.0.1:PORT/v1

Every response is written by hand to the socket, so that it can break off, lie about its length or be no HTTP at all. Threads
end with the `with`, those in a stall included.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["status", "raw", "body", "hang up", "cut", "stall", "trickle", "half close"]


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with requests whose message holds `text`.

    Attributes:
        body: of the answer, for "status" and "body"; the whole response, for "raw".
        left: requests still to be hit; None for all.
    """

    kind: Kind
    text: str
    status: int
    headers: Mapping[str, str]
    body: bytes
    left: int | None


@dataclass(kw_only=True)
class ChatRequest:
    """A request that has come.

    Attributes:
        at: what `ChatServer.clock` told then.
    """

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    at: float

    @property
    def message(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass
class ChatServer:
    """What a server answers, and what it was asked.

    Attributes:
        answer: the text of the answer to a message.
        finish_reason: of all answers.
        usage: whether answers count their tokens: 10 read, 5 written.
        most_at_once: requests that were under way at the same time, at most.
        gate: requests wait for it before they are answered, where one is set.
    """

    answer: Callable[[str], str] = lambda message: "Plain words.\nScore: 3"
    finish_reason: str = "stop"
    usage: bool = True
    api_key: str = ""
    clock: Callable[[], float] = lambda: 0.0
    requests: list[ChatRequest] = field(default_factory=list)
    most_at_once: int = 0
    gate: threading.Event | None = None
    port: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    _at_once: int = 0
    _faults: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def fail(
        self,
        kind: Kind,
        *,
        text: str = "",
        status: int = 500,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        times: int | None = 1,
    ) -> None:
        """From now on, until it has hit `times` requests."""
        self._faults.append(Fault(kind=kind, text=text, status=status, headers=headers or {}, body=body, left=times))

    def began(self, request: ChatRequest) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = next((fault for fault in self._faults if fault.text in request.message and fault.left != 0), None)
            if fault is not None and fault.left is not None:
                fault.left -= 1
            return fault

    def done(self) -> None:
        with self._lock:
            self._at_once -= 1


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = False
    block_on_close = True
    request_queue_size = 256

    def __init__(self, chat: ChatServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.chat = chat

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is none of the server's errors."""


class _Handler(socketserver.StreamRequestHandler):
    timeout = 0.2  # so that idle connections notice the end
    server: _Server

    def handle(self) -> None:
        chat = self.server.chat
        while not chat.ended.is_set():
            try:
                line = self.rfile.readline()
            except TimeoutError:
                continue
            if not line:
                return
            request = self._read(line.decode())
            fault = chat.began(request)
            if chat.gate is not None:
                chat.gate.wait(30)
            chat.done()
            if not self._respond(request, fault):
                return

    def _read(self, line: str) -> ChatRequest:
        headers: dict[str, str] = {}
        while header := self.rfile.readline().decode().strip():
            name, _, value = header.partition(":")
            headers[name.lower()] = value.strip()
        body = json.loads(self.rfile.read(int(headers.get("content-length", "0"))))
        return ChatRequest(path=line.split()[1], headers=headers, body=body, at=self.server.chat.clock())

    def _respond(self, request: ChatRequest, fault: Fault | None) -> bool:
        """Whether the connection stays open."""
        chat = self.server.chat
        completion = json.dumps(_completion(chat, request)).encode()
        if fault is None and chat.api_key and request.headers.get("authorization") != f"Bearer {chat.api_key}":
            return self._send(_response(401, b'{"error": {"message": "bad key"}}'))
        if fault is None:
            return self._send(_response(200, completion))
        if fault.kind == "status":
            return self._send(_response(fault.status, fault.body, fault.headers))
        if fault.kind == "body":
            return self._send(_response(200, fault.body, fault.headers))
        if fault.kind == "trickle":
            self._trickle(_response(200, completion))
        elif fault.kind == "half close":
            self._send(_response(200, completion)[:-10])
            self.connection.shutdown(socket.SHUT_WR)
            self.rfile.read(1)  # until the client closes its half, too
        elif fault.kind != "hang up":
            self._send({"raw": fault.body}.get(fault.kind, _response(200, completion)[:-10]))
            if fault.kind == "stall":
                chat.ended.wait(30)
        return False

    def _send(self, content: bytes) -> bool:
        self.wfile.write(content)
        return True

    def _trickle(self, content: bytes) -> None:
        """A byte now and then, and never the last."""
        for place in range(len(content) - 1):
            self._send(content[place : place + 1])
            if self.server.chat.ended.wait(0.01):
                return


def _response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))} | dict(headers or {})
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _completion(chat: ChatServer, request: ChatRequest) -> dict[str, Any]:
    message = {"role": "assistant", "content": chat.answer(request.message)}
    choice = {"index": 0, "message": message, "finish_reason": chat.finish_reason}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"object": "chat.completion", "choices": [choice]} | ({"usage": usage} if chat.usage else {})


@contextlib.contextmanager
def chat_server(port: int = 0) -> Iterator[ChatServer]:
    """A server for the time of a `with`, at any free port or a given one."""
    chat = ChatServer()
    server = _Server(chat, port)
    chat.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="chat-server")
    thread.start()
    try:
        yield chat
    finally:
        chat.ended.set()
        server.shutdown()
        server.server_close()  # waits for the threads of open connections
        thread.join()
