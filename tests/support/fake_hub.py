"""A Hugging Face Hub on loopback, as far as reading and committing the files of one data set needs it."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.http_servers import Handler, serving

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
        is_private: what the client that created the data set asked for; None before.
        large: contents that were uploaded by their SHA-256, which is how data files travel.
        on_request: called with each request before it is answered.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    token: str = ""
    requests: list[str] = field(default_factory=list)
    url: str = ""
    is_private: bool | None = None
    large: dict[str, bytes] = field(default_factory=dict)
    on_request: Callable[[str], None] = lambda request: None

    @property
    def files(self) -> dict[str, bytes]:
        """The files of the branch main."""
        return self.commits[self.branches["main"]] if self.branches else {}

    def commit(self, files: dict[str, bytes]) -> str:
        """Adds a commit to the branch main."""
        name = sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[name], self.branches["main"] = files, name
        return name


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    hub = FakeHub()

    class HubHandler(Handler):
        def answer(self) -> None:
            content, kind = self.body(), self.headers.get("Content-Type", "")
            hub.requests.append(f"{self.command} {unquote(urlsplit(self.path).path)}")
            hub.on_request(hub.requests[-1])
            if self.command == "PUT":
                self._upload(content)
            elif self.command != "POST":
                self._answer({})
            elif "ndjson" in kind:
                self._answer({"lines": [json.loads(line) for line in content.decode().splitlines()]})
            else:
                self._answer(json.loads(content) if "json" in kind else parse_qs(content.decode()))

        def _upload(self, content: bytes) -> None:
            is_whole = self.path == f"/upload/{sha256(content).hexdigest()}"  # a killed client sends less
            hub.large |= {self.path.rpartition("/")[2]: content} if is_whole else {}
            self.send(200 if is_whole else 400, {})

        def _answer(self, given: dict[str, Any]) -> None:
            path = unquote(urlsplit(self.path).path)
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self.send(401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Invalid username or password."}')
            elif path == "/api/repos/create":
                if hub.is_private is None:
                    hub.is_private = given.get("visibility") == "private" or given.get("private")
                if not hub.branches:
                    hub.commit({".gitattributes": b""})
                self._json({"url": f"{hub.url}/datasets/{REPOSITORY}", "id": REPOSITORY})
            elif path == "/api/validate-yaml":
                self._json({"errors": [], "warnings": []})
            elif path.startswith(f"{_API}/preupload/"):
                self._json({"files": [_mode(file) for file in given["files"]]})
            elif path == f"/datasets/{REPOSITORY}.git/info/lfs/objects/batch":
                self._json({"transfer": "basic", "objects": [_lfs(hub, entry) for entry in given["objects"]]})
            elif path.startswith(f"{_API}/commit/"):
                name = hub.commit(_changed(hub, given["lines"]))
                self._json({"success": True, "commitOid": name, "commitUrl": f"{hub.url}/datasets/{REPOSITORY}/commit/{name}"})
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
                self.send(404, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}')
            else:
                self._file(path)

        def _file(self, path: str) -> None:
            found = re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.*)", path)
            name = _commit(hub, found[1]) if found else None
            content = hub.commits[name].get(found[2]) if found and name else None
            if content is None:
                self.send(404, {"X-Error-Code": "EntryNotFound"}, b"{}")
                return
            start, stop = 0, len(content)
            if asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
                start, stop = int(asked[1]), min(stop, int(asked[2]) + 1)
            headers = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": str(name)}
            self.send(206 if asked else 200, headers, content[start:stop])

        def _json(self, value: Any) -> None:
            if value is None:
                self.send(404, {"X-Error-Code": "RevisionNotFound"}, b'{"error": "Revision not found"}')
            else:
                self.send(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    with serving(hub, HubHandler) as server:
        hub.url = f"http://127.0.0.1:{server.port}"
        yield hub


def _commit(hub: FakeHub, revision: str) -> str | None:
    return revision if revision in hub.commits else hub.branches.get(revision)


def _mode(file: dict[str, Any]) -> dict[str, Any]:
    is_large = file["path"].endswith((".parquet", ".zst", ".arrow"))
    return {"path": file["path"], "uploadMode": "lfs" if is_large else "regular", "shouldIgnore": False, "oid": None}


def _lfs(hub: FakeHub, entry: dict[str, Any]) -> dict[str, Any]:
    """Where a content goes; nowhere, if it is there."""
    upload = {"href": f"{hub.url}/upload/{entry['oid']}", "header": {}}
    return entry if entry["oid"] in hub.large else {**entry, "actions": {"upload": upload}}


def _changed(hub: FakeHub, lines: list[dict[str, Any]]) -> dict[str, bytes]:
    """The files after a commit. A large content that was not uploaded raises KeyError."""
    files = dict(hub.files)
    for line in lines:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = hub.large[value["oid"]]
        elif line["key"] == "deletedFile":
            del files[value["path"]]
    return files


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
        entries[path] = {
            "type": "file",
            "oid": sha1(b"blob %d\0" % len(content) + content).hexdigest(),
            "size": len(content),
            "path": path,
        }
        if sha256(content).hexdigest() in hub.large:
            entries[path]["lfs"] = {"oid": sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    found = [entry for path, entry in sorted(entries.items()) if is_recursive or "/" not in path[len(prefix) :]]
    return found if found or not folder else None
