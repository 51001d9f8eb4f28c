"""The HTTP server against hostile clients: other hosts, guesses, slow and broken connections."""

import http.client
import json
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count

import pytest

from datapipe.explore.server import Answer, PageServer, Request
from datapipe.machine import http_server
from datapipe.machine.http_server import RequestError


class Endpoint:
    """Answers with the request; `stream` without end, until it is closed."""

    def __init__(self) -> None:
        self.closed, self.entered = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> Answer:
        if request.path == ("stream",):
            return self._lines()
        if request.path == ("refused",):
            raise RequestError(http_server.HTTPStatus.BAD_REQUEST, "Expected a number.")
        if request.path == ("hostile",):
            return {"text": "</script>\u202e\u2028\0<img onerror=x>"}
        return {"path": list(request.path), "query": dict(request.query), "body": request.body}

    def _lines(self) -> Generator[dict[str, int]]:
        try:
            yield from ({"line": number} for number in count())
        finally:
            self.closed.set()


@contextmanager
def serving(page: PageServer) -> Iterator[PageServer]:
    thread = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield page
    page.shutdown()
    thread.join()
    page.server_close()


@pytest.fixture
def served() -> Iterator[PageServer]:
    with serving(PageServer(0, Endpoint())) as page:
        yield page


def ask(page: PageServer, path: str, **options: object) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of an answer; `path` behind the token, or absolute with a leading slash."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=10)) as connection:
        target = path if path.startswith("/") else f"/{page.token}/{path}"
        connection.request(str(options.get("method", "GET")), target, options.get("body"), dict(options.get("headers", {})))  # type: ignore
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def raw(page: PageServer, content: bytes) -> bytes:
    """The beginning of the answer to some bytes; the server may close before all is sent."""
    with closing(socket.create_connection(("127.0.0.1", page.server_port), 10)) as client, suppress(ConnectionError):
        client.sendall(content)
        return client.recv(1000)
    return b""


def test_an_answer_has_strict_headers_and_is_ascii(served: PageServer) -> None:
    status, headers, body = ask(served, "api/hostile?a=1&b=%C3%A9")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert headers["Cache-Control"] == "no-store"
    assert body.isascii()
    assert not any(byte < 0x20 for byte in body)
    assert json.loads(body)["text"] == "</script>\u202e\u2028\0<img onerror=x>"
    assert json.loads(ask(served, "api/x/y%2Fz?q=%C3%A9")[2]) == {"path": ["x", "y/z"], "query": {"q": "é"}, "body": None}
    posted = ask(served, "api/x", method="POST", body=b'{"state": {}}')
    assert json.loads(posted[2])["body"] == {"state": {}}


def test_without_the_token_nothing_is_answered(served: PageServer) -> None:
    for path in ("/", "/api/output", f"/{'0' * 32}/api/output", f"/{served.token.upper()}x/", f"/{served.token}", "/é/api/x"):
        status, _, body = ask(served, path.replace("é", "%C3%A9"))
        assert status == 403, path
        assert served.token not in body.decode()


def test_no_path_leaves_the_static_files(served: PageServer) -> None:
    up = ("../server.py", "%2e%2e/server.py", "..%2fserver.py", "static/../../server.py")
    for path in (*up, "%2fetc/passwd", "a//etc/passwd", "a%00.html"):
        assert ask(served, path)[0] == 404, path


def test_what_is_too_large_or_no_request_is_refused_with_a_sentence(served: PageServer) -> None:
    length = {"Content-Length": str(http_server.MOST_BODY_BYTES + 1)}
    assert ask(served, "api/x", method="POST", headers=length)[0] == 413
    assert ask(served, "api/x", method="POST", headers={"Content-Length": "9" * 5_000})[0] == 413
    assert ask(served, "api/x", method="POST", body=b"{" * 100_000)[0] == 400
    assert ask(served, "api/x", method="POST", body=b"not json")[0] == 400
    assert ask(served, "api/x", method="DELETE")[0] == 501
    bad = f"GET http://[/ HTTP/1.1\r\nHost: 127.0.0.1:{served.server_port}\r\n\r\n"
    assert raw(served, bad.encode()).startswith(b"HTTP/1.1 403")
    for content in (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200, b"x" * 70_000 + b"\r\n", b"\0\xff\r\n\r\n", b"GET /\r\n\r\n"):
        assert b"Traceback" not in raw(served, content + b"\r\n")
    assert json.loads(ask(served, "api/refused")[2]) == {"error": "Expected a number."}
    assert ask(served, "api/output")[0] == 200


def test_a_stream_ends_when_its_client_goes_away(served: PageServer) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", served.server_port, timeout=10)) as connection:
        connection.request("GET", f"/{served.token}/api/stream")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        assert [json.loads(answer.readline()) for _ in range(3)] == [{"line": number} for number in range(3)]
        answer.close()
    assert served.endpoint.closed.wait(10)  # type: ignore[attr-defined]


@pytest.mark.medium
def test_connections_that_send_or_read_nothing_do_not_block_others_and_end(
    served: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server._Handler, "timeout", 0.2)
    address = ("127.0.0.1", served.server_port)
    held = [socket.create_connection(address, 10) for _ in range(20)]
    for number, client in enumerate(held):
        client.sendall(b"GET / HTTP/1.1\r\nHost: a"[: number + 1])
    unread = socket.create_connection(address, 10)
    unread.sendall(f"GET /{served.token}/api/stream HTTP/1.1\r\nHost: 127.0.0.1:{served.server_port}\r\n\r\n".encode())
    assert ask(served, "api/output")[0] == 200
    for client in held:
        while client.recv(1000):
            """An answer may say that the time is over; the end must come."""
        client.close()
    unread.close()
    assert served.endpoint.closed.wait(10)  # type: ignore[attr-defined]
