"""An OpenAI-compatible chat server on loopback, which answers by a rule and fails as servers do, as often as it is asked.

    with chat_server() as server:
        server.answer = lambda message: f"Score: {len(message) % 6}"
        server.fail("status", status=429, headers={"Retry-After": "7"})
        url = server.url        # http://127.0.0.1:PORT/v1

Every response is written by hand to the socket, so that it can break off, lie about its length or be no HTTP at all.
"""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_servers import Fault, Faulty, Handler, serving


@dataclass(kw_only=True)
class ChatRequest:
    """A request that has come. `at`: what `ChatServer.clock` gave then."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    at: float

    @property
    def message(self) -> str:
        return self.body["messages"][-1]["content"]


@dataclass
class ChatServer(Faulty):
    """What a server answers, and what it was asked. It fails by status, raw response, body, hang up, cut, stall, trickle, half
    close.

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

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def began(self, request: ChatRequest) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return self.hit(request.path, text=request.message)

    def done(self) -> None:
        with self.lock:
            self._at_once -= 1


class _Handler(Handler):
    def answer(self) -> None:
        chat: ChatServer = self.server.rules
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = ChatRequest(path=self.path, headers=headers, body=json.loads(self.body()), at=chat.clock())
        fault = chat.began(request)
        if chat.gate is not None:
            chat.gate.wait(30)
        chat.done()
        self._respond(chat, request, fault)

    def _respond(self, chat: ChatServer, request: ChatRequest, fault: Fault | None) -> None:
        completion = _response(200, json.dumps(_completion(chat, request)).encode())
        if fault is None:
            is_known = not chat.api_key or request.headers.get("authorization") == f"Bearer {chat.api_key}"
            self.wfile.write(completion if is_known else _response(401, b'{"error": {"message": "bad key"}}'))
            return
        if fault.kind in ("status", "body"):
            self.wfile.write(_response(fault.status if fault.kind == "status" else 200, fault.body, fault.headers))
            return
        self.close_connection = True
        if fault.kind == "trickle":
            self._trickle(completion)
        elif fault.kind != "hang up":
            self.wfile.write(fault.body if fault.kind == "raw" else completion[:-10])
        if fault.kind == "half close":
            self.connection.shutdown(socket.SHUT_WR)
            self.rfile.read(1)  # until the client closes its half, too
        elif fault.kind == "stall":
            self.server.ended.wait(30)

    def _trickle(self, content: bytes) -> None:
        """A byte now and then, and never the last."""
        for place in range(len(content) - 1):
            self.wfile.write(content[place : place + 1])
            if self.server.ended.wait(0.01):
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
    with serving(chat, _Handler, port) as server:
        chat.port, server.ended = server.port, chat.ended
        yield chat
