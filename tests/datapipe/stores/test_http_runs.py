"""Runs over files of web servers: what a local run writes, patterns refused, changes and outages told, no credentials kept."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from datapipe.engine.history import read_history
from datapipe.errors import DatapipeError, UserError
from datapipe.inputs.discovery import discover
from datapipe.inputs.planned_input import ChangedInputError, PlannedInput
from datapipe.outages import OutageError
from datapipe.stage import InputFile
from datapipe.storage import Root, open_input
from datapipe.stores import http
from stages.read.jsonl import Jsonl
from tests.support import corpora, runs
from tests.support.web_server import WebServer, web_server

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: none\n"


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as web:
        yield web


def _mixture(folder: Path, source: str, name: str) -> Path:
    return runs.write_mixture(folder, f"  web:\n{source}", "stages: [filter.length: {min_words: 3}]", _TAIL, name)


def _write_corpus(folder: Path, server: WebServer) -> None:
    """Files of four formats and a list of them, in a folder and on the server."""
    for number, ending in enumerate(("jsonl", "jsonl.gz", "jsonl.zst")):
        corpora.write_jsonl(folder / f"web/part-{number}.{ending}", corpora.documents(number, 40))
    corpora.write_parquet(folder / "web/rows.parquet", corpora.documents(9, 40))
    names = sorted(path.name for path in (folder / "web").iterdir())
    (folder / "web/files.paths").write_text("# the corpus\n" + "\n".join(names))
    server.files = {f"/web/{path.name}": path.read_bytes() for path in (folder / "web").iterdir()}


@pytest.mark.medium
def test_http_run_by_a_list_writes_what_a_local_run_writes(
    tmp_path: Path, server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_SECRET", "Zq81Secret")
    _write_corpus(tmp_path, server)
    server.password = base64.b64encode(b"me:Zq81Secret").decode()
    list_url = server.url("/web/files.paths").replace("http://", "http://me:Zq81Secret@")
    written_url = list_url.replace("Zq81Secret", "${WEB_SECRET}")
    remote = _mixture(tmp_path, f"    path: '@{written_url}'", "remote.yaml")
    local = _mixture(tmp_path, f"    path: '{tmp_path}/web/*[lzt]'", "local.yaml")
    over_web = runs.run_mixture(remote, output=tmp_path / "remote", make_engine=runs.InProcess)
    on_disk = runs.run_mixture(local, output=tmp_path / "local", make_engine=runs.InProcess)
    assert over_web.snapshot.files == on_disk.snapshot.files
    again = runs.run_mixture(remote, output=tmp_path / "remote", make_engine=runs.InProcess)
    assert again.watcher.records == []
    written = [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert [path for path in written if b"Zq81Secret" in path.read_bytes()] == []
    urls = {file.url for _, file, _ in read_history(Root(str(tmp_path / "remote"))).files.values()}
    names = ("part-0.jsonl", "part-1.jsonl.gz", "part-2.jsonl.zst", "rows.parquet")
    assert urls == {list_url.replace("files.paths", name) for name in names}


def test_http_pattern_is_refused_with_the_way_out(server: WebServer) -> None:
    for pattern in ("/web/*.jsonl", "/web/part-[0-9].jsonl", "/**"):
        with pytest.raises(UserError, match=r"@files\.txt"):
            discover("web", [server.url(pattern)], lambda path: Jsonl(), "stat", "here")


@pytest.mark.parametrize(("path", "status"), [("/none.jsonl", 404), ("/closed.jsonl", 403)])
def test_http_file_that_cannot_be_read_is_told_when_planning(server: WebServer, path: str, status: int) -> None:
    server.fail("status", path="closed", status=403)
    with pytest.raises(UserError, match=f"^here: .*{path}: HTTP {status}"):
        discover("web", [server.url(path)], lambda path: Jsonl(), "stat", "here")


def test_http_output_is_refused(tmp_path: Path, server: WebServer) -> None:
    _write_corpus(tmp_path, server)
    with pytest.raises(UserError, match="web servers"):
        runs.run_mixture(_mixture(tmp_path, f"    path: {tmp_path}/web/*.jsonl", "a.yaml"), output=server.url("/out"))


def _planned(server: WebServer, path: str) -> InputFile:
    [(file, _)] = discover("web", [server.url(path)], lambda path: Jsonl(), "stat", "here")
    return file


@pytest.mark.parametrize("change", ["etag", "etag without a time", "modified", "size", "gone"])
def test_http_file_that_changes_while_it_is_read_is_told(server: WebServer, change: str) -> None:
    server.files = {"/a.jsonl": b'{"text": "one"}\n'}
    if change == "etag without a time":
        server.modified = None
    file = _planned(server, "/a.jsonl")

    def edit() -> None:
        if change.startswith("etag"):
            server.etag = '"two"'
        elif change == "modified":
            server.modified = "Thu, 22 Oct 2026 07:28:00 GMT"
        else:
            server.files = {"/a.jsonl": b"{}\n"} if change == "size" else {}

    def read_and_edit() -> None:
        with PlannedInput(file) as planned:
            planned.open(file.url).read()
            edit()

    with pytest.raises(ChangedInputError, match=r"changed|cannot be opened"):
        read_and_edit()
    if change != "etag":  # the time is the same, and the ETag of a file with a time is not stored with the plan
        with pytest.raises(ChangedInputError), PlannedInput(file) as planned:
            planned.open(file.url)


def test_http_server_that_stays_busy_is_waited_for_by_the_run(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "sleep", lambda pause_s: None)
    server.files = {"/a.jsonl": b'{"text": "one"}\n'}
    file = _planned(server, "/a.jsonl")
    server.fail("status", status=503, times=None)
    with pytest.raises(OutageError, match="HTTP 503"), PlannedInput(file) as planned:
        planned.open(file.url)


def test_http_credentials_of_a_masked_url_are_asked_for() -> None:
    with pytest.raises(DatapipeError, match="credentials"):
        open_input("https://***@host/a.jsonl")
