"""A Hugging Face Hub on loopback, as far as reading the files of one data set needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REPOSITORY = "me/data"
_API = f"/api/datasets/{REPOSITORY}"


@dataclass
class FakeHub:
    """Commits and their files.

    Attributes:
        commits: files by path, by commit.
        branches: the commits of branches.
        token: what a request has to carry; empty for a public data set.
        requests: method and path of each request.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Adds a commit, to which the branch moves."""
        name = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name], self.branches[branch] = files, name
        return name


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Prints nothing."""

        def do_GET(self) -> None:
            self._answer({})

        def do_HEAD(self) -> None:
            self._answer({})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            is_json = "json" in self.headers.get("Content-Type", "")
            self._answer(json.loads(body) if is_json else parse_qs(body))

        def _answer(self, given: dict[str, Any]) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._send(401, b'{"error": "Invalid username or password."}', {"X-Error-Code": "RepoNotFound"})
            elif path.startswith(f"{_API}/tree/"):
                revision, _, folder = path.removeprefix(f"{_API}/tree/").partition("/")
                self._json(_tree(hub, revision, folder, "recursive=True" in self.path or "recursive=true" in self.path))
            elif path.startswith(f"{_API}/paths-info/"):
                revision = path.removeprefix(f"{_API}/paths-info/")
                self._json([entry for entry in _tree(hub, revision, "", True) or () if entry["path"] in given.get("paths", ())])
            elif path == _API or path.startswith(f"{_API}/revision/"):
                name = _commit(hub, path.removeprefix(f"{_API}/revision/") if path != _API else "main")
                self._json(name and {"_id": "1", "id": REPOSITORY, "sha": name, "siblings": [], "private": False, "tags": []})
            elif path.startswith("/api/datasets/"):
                self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
            else:
                self._file(path)

        def _file(self, path: str) -> None:
            found = re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.*)", path)
            name = _commit(hub, found[1]) if found else None
            content = hub.commits[name].get(found[2]) if found and name else None
            if content is None:
                self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                return
            start, stop = 0, len(content)
            if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                start, stop = int(asked[1]), min(stop, int(asked[2]) + 1)
            headers = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": str(name)}
            self._send(206 if asked else 200, content[start:stop], headers)

        def _json(self, value: Any) -> None:
            if value is None:
                self._send(404, b'{"error": "Revision not found"}', {"X-Error-Code": "RevisionNotFound"})
            else:
                self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _commit(hub: FakeHub, revision: str) -> str | None:
    return revision if revision in hub.commits else hub.branches.get(revision)


def _tree(hub: FakeHub, revision: str, folder: str, is_recursive: bool) -> list[dict[str, Any]] | None:
    """The files and folders below a folder of a revision; None where there is none."""
    name = _commit(hub, revision)
    if name is None:
        return None
    prefix = f"{folder}/" if folder else ""
    entries: dict[str, dict[str, Any]] = {}
    for path, content in hub.commits[name].items():
        if not path.startswith(prefix):
            continue
        parts = path[len(prefix) :].split("/")
        for depth in range(1, len(parts)):
            inner = prefix + "/".join(parts[:depth])
            entries[inner] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": inner}
        entries[path] = {"type": "file", "oid": sha1(content).hexdigest(), "size": len(content), "path": path}
    found = [entry for path, entry in sorted(entries.items()) if is_recursive or "/" not in path[len(prefix) :]]
    return found if found or not folder else None
