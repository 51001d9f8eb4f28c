"""Files of web servers, whole and by ranges, through redirects and failures, and runs over them."""

import base64
import errno
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from datapipe.engine.history import read_history
from datapipe.errors import DatapipeError, UserError
from datapipe.inputs.discovery import discover
from datapipe.inputs.planned_input import ChangedInputError, PlannedInput
from datapipe.stage import InputFile
from datapipe.storage import http
from datapipe.storage.outages import outage_of, refusal_of
from datapipe.storage.root import Root, current_state, open_input
from stages.read.jsonl import Jsonl
from tests.support import corpora, runs
from tests.support.web_server import WebServer, web_server

pytestmark = pytest.mark.medium

CONTENT = random.Random(3).randbytes(3_000_000)
MODIFIED_NS = 1_792_567_680_000_000_000


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as web:
        web.files = {"/a.bin": CONTENT, "/empty": b"", "/one": b"1"}
        yield web


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is made."""
    asked: list[float] = []
    monkeypatch.setattr(http, "sleep", asked.append)
    return asked


def _read(url: str, piece_bytes: int = 400_000) -> bytes:
    pieces = []
    with open_input(url) as stream:
        while piece := stream.read(piece_bytes):
            pieces.append(piece)
    return b"".join(pieces)


def _ranges(server: WebServer) -> list[str | None]:
    return [request.byte_range for request in server.requests]


def test_http_file_read_in_order_takes_three_requests(server: WebServer) -> None:
    assert _read(server.url("/a.bin")) == CONTENT
    assert _ranges(server) == ["bytes=0-0", "bytes=0-399999", "bytes=400000-"]


def test_http_file_read_anywhere_takes_a_request_of_these_bytes_each(server: WebServer) -> None:
    with open_input(server.url("/a.bin")) as stream:
        for start, stop in ((2_999_990, 3_000_000), (0, 5), (1_000, 2_000_000), (7, 8)):
            assert stream.read_at(stop - start, start) == CONTENT[start:stop]
        assert stream.read_at(100, len(CONTENT) - 3) == CONTENT[-3:]
        assert stream.read_at(1, len(CONTENT)) == b""
    assert _ranges(server)[1:] == [
        "bytes=2999990-2999999",
        "bytes=0-4",
        "bytes=1000-1999999",
        "bytes=7-7",
        "bytes=2999997-2999999",
    ]


@pytest.mark.parametrize("gives_ranges", [True, False])
def test_http_empty_file_is_empty(server: WebServer, gives_ranges: bool) -> None:
    server.gives_ranges = gives_ranges
    with open_input(server.url("/empty")) as stream:
        assert (stream.size(), stream.read()) == (0, b"")


def test_http_state_is_size_time_and_etag(server: WebServer) -> None:
    state = current_state(server.url("/a.bin"))
    assert (state.num_bytes, state.mtime_ns, state.etag) == (len(CONTENT), MODIFIED_NS, '"one"')
    server.etag = server.modified = None
    state = current_state(server.url("/a.bin"))
    assert (state.num_bytes, state.mtime_ns, state.etag) == (len(CONTENT), None, None)


def test_http_redirects_are_followed(server: WebServer) -> None:
    server.redirects = {"/old": "/older", "/older": server.url("/one")}
    assert _read(server.url("/old")) == b"1"


@pytest.mark.parametrize(("target", "number"), [("/round", errno.ELOOP), ("file:///etc/passwd", None)])
def test_http_redirects_without_end_or_to_another_kind_of_url_are_refused(
    server: WebServer, target: str, number: int | None
) -> None:
    server.redirects = {"/round": target}
    with pytest.raises(OSError, match="redirects") as raised:
        _read(server.url("/round"))
    assert number in (None, raised.value.errno)


def test_http_credentials_go_to_their_host_alone(server: WebServer) -> None:
    server.password = base64.b64encode(b"me:s3cr@t").decode()
    url = server.url("/one").replace("http://", "http://me:s3cr%40t@")
    assert _read(url) == b"1"
    with web_server() as other:
        other.files = {"/one": b"2"}
        server.redirects = {"/moved": other.url("/one")}
        assert _read(url.replace("/one", "/moved")) == b"2"
        assert {request.authorization for request in other.requests} == {None}


@pytest.mark.parametrize("path", ["/none", "/one"])
def test_http_errors_hold_no_credentials(server: WebServer, pauses: list[float], path: str) -> None:
    server.fail("status", path="/one", times=None)
    url = server.url(f"{path}?X-Amz-Signature=abcdef123456").replace("http://", "http://me:secret-word@")
    with pytest.raises(OSError, match="HTTP") as raised:
        _read(url)
    shown = f"{raised.value!r} {raised.value} {raised.value.filename} {outage_of(raised.value, url)}"
    assert "secret-word" not in shown
    assert "abcdef123456" not in shown


@pytest.mark.parametrize(
    ("status", "error"), [(404, FileNotFoundError), (410, FileNotFoundError), (401, PermissionError), (403, PermissionError)]
)
def test_http_file_that_is_missing_or_refused_is_reported_at_once(
    server: WebServer, pauses: list[float], status: int, error: type[OSError]
) -> None:
    server.fail("status", status=status)
    with pytest.raises(error, match=f"HTTP {status}") as raised:
        _read(server.url("/one"))
    assert bool(refusal_of(raised.value)) == (error is PermissionError)
    assert pauses == []


@pytest.mark.parametrize(
    ("gives_ranges", "gives_size", "error"),
    [(False, True, "no byte ranges"), (False, False, "no byte ranges, and sends no size"), (True, False, "sends no size")],
)
def test_http_server_without_ranges_or_size_is_reported(
    server: WebServer, gives_ranges: bool, gives_size: bool, error: str
) -> None:
    server.gives_ranges, server.gives_size = gives_ranges, gives_size
    with pytest.raises(OSError, match=error):
        _read(server.url("/a.bin"))


_GROWING = [0.5, 1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("status", "times", "retry_after", "asked"),
    [
        *((status, 7, "", _GROWING) for status in (429, 500, 502, 503, 504)),
        (429, 1, "3", [3]),
        (429, 1, "0", [0]),
        (429, 1, "86400", [60]),
        (429, 1, "Fri, 01 Jan 1999 00:00:00 GMT", [0]),
        (429, 1, "soon", [0.5]),
    ],
)
def test_http_busy_server_is_asked_again_with_growing_pauses_or_when_it_declares(
    server: WebServer, pauses: list[float], status: int, times: int, retry_after: str, asked: list[float]
) -> None:
    server.fail("status", status=status, headers={"Retry-After": retry_after} if retry_after else {}, times=times)
    assert _read(server.url("/one")) == b"1"
    assert pauses == asked


def test_http_dropped_connection_goes_on_where_it_was(server: WebServer, pauses: list[float]) -> None:
    server.fail("refuse")
    server.fail("cut", after=0)
    assert _read(server.url("/one")) == b"1"
    server.requests.clear()
    with open_input(server.url("/a.bin")) as stream:
        first = stream.read(10)
        server.fail("cut", after=1_500_000, times=2)
        assert first + stream.read() == CONTENT
    starts = [int(request.byte_range.split("=")[1].split("-")[0]) for request in server.requests if request.byte_range]
    assert starts[:3] == [0, 0, 10]
    assert starts == sorted(starts)
    assert starts[3] > 1_000_000


@pytest.mark.parametrize(
    ("kind", "headers", "asked"),
    [("refuse", {}, [0.5, 1, 2]), ("status", {}, _GROWING), ("status", {"Retry-After": "3600"}, [60, 60, 30])],
)
def test_http_server_that_never_answers_is_an_outage(
    server: WebServer, pauses: list[float], kind: Literal["refuse", "status"], headers: dict[str, str], asked: list[float]
) -> None:
    server.fail(kind, headers=headers, times=None)
    with pytest.raises(ConnectionError) as raised:
        _read(server.url("/one"))
    assert (len(server.requests), pauses) == (len(asked) + 1, asked)
    assert outage_of(raised.value, "") is not None


def test_http_stall_is_noticed_and_goes_on(server: WebServer, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "READ_TIMEOUT_S", 0.1)
    with open_input(server.url("/a.bin")) as stream:
        server.fail("stall", after=2_000_000)
        assert stream.read() == CONTENT
    server.fail("stall", times=None)
    with pytest.raises(TimeoutError) as raised:
        _read(server.url("/one"))
    assert outage_of(raised.value, "") is not None


def test_http_other_version_is_never_mixed_with_the_one_that_was_opened(server: WebServer) -> None:
    with open_input(server.url("/a.bin")) as stream:
        assert stream.read(10) == CONTENT[:10]
        server.fail("other version")
        with pytest.raises(OSError, match="another version of the file"):
            stream.read(10)
        server.files["/a.bin"] = CONTENT[:100]
        with pytest.raises(OSError, match=r"HTTP 416|another version"):
            stream.read_at(10, 2_000)


_TAIL = "tokenizer: none\n"


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
            discover([server.url(pattern)], lambda path: Jsonl(), "stat", "here")


def test_http_output_is_refused(tmp_path: Path, server: WebServer) -> None:
    _write_corpus(tmp_path, server)
    with pytest.raises(UserError, match="web servers"):
        runs.run_mixture(_mixture(tmp_path, f"    path: {tmp_path}/web/*.jsonl", "a.yaml"), output=server.url("/out"))


def _planned(server: WebServer, path: str) -> InputFile:
    [(file, _)] = discover([server.url(path)], lambda path: Jsonl(), "stat", "here")
    return file


@pytest.mark.parametrize("change", ["etag", "etag without a time", "modified", "size", "gone"])
def test_http_file_that_changes_while_it_is_read_is_reported(server: WebServer, change: str) -> None:
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


def test_http_credentials_of_a_masked_url_are_asked_for() -> None:
    with pytest.raises(DatapipeError, match="credentials"):
        open_input("https://***@host/a.jsonl")
