"""Stores by URL: local folders, S3 that is slow or loses answers, and data sets of the Hugging Face Hub."""

import errno
import io
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from time import sleep
from typing import ClassVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.exceptions import GenericError

from datapipe.credentials import masked
from datapipe.errors import UserError
from datapipe.inputs.discovery import discover
from datapipe.records.checksum import bytes_checksum, file_checksum
from datapipe.shards.manifest import read_snapshot
from datapipe.storage import root as storage_root
from datapipe.storage import store_options
from datapipe.storage.large_pages import LARGE_PAGE_BYTES
from datapipe.storage.local import local_files
from datapipe.storage.object_store import os_errors
from datapipe.storage.outages import StoreRefusedError, StoreSilentError, outage_of, refusal_of
from datapipe.storage.root import Root, current_state, open_input
from stages.read.text import Text
from tests.support.cli_processes import run as run_process
from tests.support.fake_hub import FakeHub, fake_hub
from tests.support.object_store import object_store, put_public
from tests.support.unreliable_store import UnreliableStore, unreliable


def of_object_store(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.medium(pytest.mark.filterwarnings("ignore::DeprecationWarning")(test))


def _write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * len(path))


@pytest.mark.medium
def test_local_files_of_many_folders_are_all_there_once(tmp_path: Path) -> None:
    paths = [f"step-{number % 3}/attempt-{number}/{name}" for number in range(700) for name in ("a", "deep/er/b")]
    _write(tmp_path, *paths, "top")

    found = sorted(local_files(tmp_path, "work/", recursive=True))

    assert found == sorted((f"work/{path}", len(path)) for path in [*paths, "top"])


@pytest.mark.parametrize(("folder", "expected"), [("", [("a", 1)]), ("not there", []), ("a", [])])
def test_local_files_directly_in_a_folder(tmp_path: Path, folder: str, expected: list[tuple[str, int]]) -> None:
    _write(tmp_path, "a", "below/b")
    assert list(local_files(tmp_path / folder, "", recursive=False)) == expected


def test_list_files_leaves_out_what_is_no_file_and_sorts_by_path(tmp_path: Path) -> None:
    _write(tmp_path, "b/2", "b/10", "a")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "gone")

    assert Root(str(tmp_path)).list_files("") == [("a", 1), ("b/10", 4), ("b/2", 3)]


def test_file_that_is_written_has_its_checksum_and_size(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    with root.open_output("a/b") as stream:
        stream.write(b"one ")
        stream.write(memoryview(b"two"))
        assert stream.tell() == 7
    assert (stream.num_bytes, stream.checksum) == (7, bytes_checksum(b"one two"))
    assert root.checksum("a/b") == (stream.checksum, 7)


@pytest.mark.parametrize(
    "sizes", [(0,), (5, 0, 7), (LARGE_PAGE_BYTES,), (3, 2 * LARGE_PAGE_BYTES, 1), (LARGE_PAGE_BYTES - 1, 1)]
)
def test_file_to_map_has_the_bytes_that_were_written(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    content = np.random.default_rng(0).bytes(sum(sizes))
    borders = np.cumsum([0, *sizes]).tolist()
    with Root(str(tmp_path)).open_output("file", is_mapped=True) as stream:
        for start, stop in pairwise(borders):
            stream.write(content[start:stop])
    assert (tmp_path / "file").read_bytes() == content
    assert (stream.num_bytes, stream.checksum) == (len(content), bytes_checksum(content))


@pytest.mark.parametrize("content", [b"content", bytes(LARGE_PAGE_BYTES + 1)])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_full_disk_is_reported_as_what_it_is(is_mapped: bool, content: bytes) -> None:
    devices = Root("/dev")
    with pytest.raises(OSError, match="No space left") as raised, devices.open_output("full", is_mapped=is_mapped) as stream:
        stream.write(content)
    assert raised.value.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(raised.value)


@of_object_store
def test_written_object_whose_answers_are_all_lost_is_looked_up(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/small{store.query}&max_attempts=2")
    failing = store.fail("lost", method="PUT", path="object", times=None)
    root.write_atomic("object", b"content")
    assert failing.hits >= 2
    assert root.read_bytes("object") == b"content"


@of_object_store
def test_uploaded_object_whose_end_is_lost_and_not_found_again_is_looked_up(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/large{store.query}")
    store.fail("lost", method="POST", path="uploadId")
    refused = store.fail("status", method="POST", path="uploadId", status=404, code="NoSuchUpload", times=None)
    with root.open_output("object") as stream:
        for _ in range(20):
            stream.write(bytes(1 << 20))
    assert refused.hits > 0
    assert root.checksum("object") == (stream.checksum, 20 << 20)


@of_object_store
def test_write_that_did_not_reach_the_store_is_an_error(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/none{store.query}&max_attempts=2")
    root.write_atomic("object", b"content before")
    store.fail("status", method="PUT", path="object", times=None)
    with pytest.raises(StoreSilentError, match="PUT"):
        root.write_atomic("object", b"content later.")
    assert root.read_bytes("object") == b"content before"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The query of a store with public/a.txt and public/b.txt."""
    with object_store("public") as query:
        for name in ("a.txt", "b.txt"):
            put_public(query, f"public/{name}", name.encode() * 1000)
        yield query


@pytest.fixture
def public(bucket: str) -> Iterator[UnreliableStore]:
    with unreliable(bucket) as proxy:
        yield proxy


@pytest.mark.medium
@pytest.mark.parametrize("has_credentials", [True, False])
def test_s3_anonymous_requests_are_not_signed(
    public: UnreliableStore, monkeypatch: pytest.MonkeyPatch, has_credentials: bool
) -> None:
    if not has_credentials:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
    url = f"s3://anonymous@public/a.txt{public.query}"
    with open_input(url) as stream:
        assert stream.read() == b"a.txt" * 1000
    assert current_state(url).num_bytes == 5000
    found = discover([f"s3://anonymous@public/*.txt{public.query}"], lambda path: Text(), "stat", "here")
    assert [(file.path, file.url) for file, _ in found] == [
        (name, f"s3://anonymous@public/{name}{public.query}") for name in ("a.txt", "b.txt")
    ]
    assert public.authorizations == {None}


@pytest.mark.medium
def test_s3_requests_with_credentials_are_signed(public: UnreliableStore) -> None:
    with open_input(f"s3://public/a.txt{public.query}") as stream:
        assert stream.read() == b"a.txt" * 1000
    assert None not in public.authorizations


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_s3_store_that_asks_to_slow_down_is_asked_again(public: UnreliableStore, method: str) -> None:
    fault = public.fail("status", status=503, times=3, method=method)
    with open_input(f"s3://anonymous@public/a.txt{public.query}") as stream:
        assert stream.read() == b"a.txt" * 1000
    assert fault.hits == 3


@pytest.mark.medium
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_s3_store_that_stays_busy_is_an_outage_and_not_a_missing_file(public: UnreliableStore, method: str) -> None:
    public.fail("status", status=503, times=None, method=method)
    url = f"s3://anonymous@public/a.txt{public.query}&max_attempts=2"
    with pytest.raises(StoreSilentError, match="503") as raised, open_input(url) as stream:
        stream.read()
    assert outage_of(raised.value, url) is not None


@pytest.mark.medium
@pytest.mark.parametrize(("num_bytes", "num_requests"), [(0, 0), (1, 1), (3_000_000, 1), (20_000_000, 3)])
def test_object_is_read_by_few_large_requests(public: UnreliableStore, num_bytes: int, num_requests: int) -> None:
    content = random.Random(num_bytes).randbytes(num_bytes)
    Root(f"s3://public/large{public.query}").write_atomic(f"of-{num_bytes}", content)
    root = Root(f"s3://public/large{public.query}")
    assert root.read_bytes(f"of-{num_bytes}") == content
    assert len(public.gets) <= max(1, num_requests)
    public.gets.clear()
    assert file_checksum(root, f"of-{num_bytes}") == (bytes_checksum(content), num_bytes)
    assert len(public.gets) <= num_requests + 1


_ODD = ("a b", "a%41", "a+b", "a#b", "a?b=c", "100%", "ü/ä", "a*b")


@pytest.mark.medium
def test_keys_with_any_signs_are_listed_and_read(public: UnreliableStore) -> None:
    root = Root(f"s3://public/odd{public.query}")
    for name in _ODD:
        root.write_atomic(name, name.encode())
    assert [path for path, _ in root.list_files("")] == sorted(_ODD)
    found = discover([f"s3://public/odd/**{public.query}"], lambda path: Text(), "stat", "here")
    contents = []
    for file, _ in found:
        with open_input(file.url) as stream:
            contents.append(stream.read().decode())
    assert sorted(contents) == sorted(_ODD)
    root.delete_folder("")
    assert root.list_files("") == root.list_files("none") == []


@pytest.mark.medium
def test_empty_object_that_stands_for_a_folder_is_no_file(public: UnreliableStore) -> None:
    for key in ("marked/", "marked/below/", "marked/empty", "marked/below/a"):
        put_public(public.query, f"public/{key}", b"a" if key.endswith("a") else b"")
    root = Root(f"s3://public/marked{public.query}")
    assert root.list_files("") == [("below/a", 1), ("empty", 0)]
    assert root.list_files("", recursive=False) == [("empty", 0)]
    assert root.folders() == ["below"]
    assert root.within("below").folders() == []


@pytest.mark.medium
def test_object_of_a_known_size_is_read_without_a_head(public: UnreliableStore) -> None:
    public.fail("status", status=500, times=None, method="HEAD")
    with open_input(f"s3://public/a.txt{public.query}", 5000) as stream:
        assert stream.read_at(5, 10) == b"a.txt"
        assert stream.size() == 5000
    assert len(public.gets) == 1


@pytest.mark.medium
def test_bytes_of_an_object_are_aligned_for_columns(public: UnreliableStore) -> None:
    with open_input(f"s3://public/a.txt{public.query}") as stream:
        assert {stream.read_buffer(num_bytes).address % 8 for num_bytes in (1, 3, 100, 1000)} == {0}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "AccessDenied", "AccessDenied: so it is"),
        (400, "ExpiredToken", "ExpiredToken"),
        (400, "", "Renew the credentials"),
        (400, "AuthorizationHeaderMalformed", "AuthorizationHeaderMalformed"),
        (400, "InvalidBucketName", "InvalidBucketName"),
        (405, "MethodNotAllowed", "MethodNotAllowed"),
        (301, "PermanentRedirect", "in another region"),
        (404, "NoSuchBucket", "has no bucket public. Correct its name, create it"),
        (404, "ContainerNotFound", "has no bucket public. Correct its name, create it"),
    ],
)
def test_refusal_of_a_store_is_told_with_its_code(public: UnreliableStore, status: int, code: str, said: str) -> None:
    public.fail("status", status=status, code=code, times=None)
    url = f"s3://public{public.query}"
    with pytest.raises(StoreRefusedError, match=said) as raised:
        Root(url).read_bytes("a.txt")
    assert outage_of(raised.value, url) is None
    assert "s3://public/a.txt" in str(refusal_of(raised.value))


@pytest.mark.medium
def test_process_that_was_forked_after_a_store_was_used_is_refused(public: UnreliableStore) -> None:
    root = Root(f"s3://public{public.query}")
    assert root.read_bytes("a.txt")
    child = os.fork()
    if child == 0:
        try:
            root.read_bytes("a.txt")
        except UserError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.medium
def test_object_whose_name_looks_like_a_status_is_not_cut_short_by_a_busy_store(public: UnreliableStore) -> None:
    root = Root(f"s3://public{public.query}&max_attempts=2")
    root.write_atomic("batch-416 a.txt", b"content")
    with root.open_input("batch-416 a.txt") as stream:
        public.fail("status", status=503, times=None)
        with pytest.raises(StoreSilentError, match="503"):
            stream.read()


@pytest.mark.medium
def test_status_of_a_condition_outside_of_one_is_told_without_the_words_of_the_client(public: UnreliableStore) -> None:
    for status, code, kind in (
        (409, "", StoreSilentError),
        (412, "", StoreRefusedError),
        (404, "NoSuchUpload", StoreSilentError),
    ):
        public.fail("status", status=status, code=code, times=1)
        with pytest.raises(kind, match=f"GET: {status} [^\\n]*$"):
            Root(f"s3://public{public.query}").read_bytes("a.txt")
    for code, kind in (("AccessDenied", StoreRefusedError), ("InternalError", StoreSilentError)):
        error = GenericError(f"Generic S3 error: DeleteObjects request failed for key a/b: no (code: {code})")
        with pytest.raises(kind), os_errors("s3://public", "a"):
            raise error


def _write_and_fail(root: Root, num_bytes: int) -> None:
    with root.open_output("part") as stream:
        stream.write(b"x" * num_bytes)
        raise ZeroDivisionError


@pytest.mark.medium
def test_object_of_a_writer_that_fails_never_appears(public: UnreliableStore, tmp_path: Path) -> None:
    root = Root(f"s3://public/failed{public.query}")
    for num_bytes in (10, 40 << 20):
        with pytest.raises(ZeroDivisionError):
            _write_and_fail(root, num_bytes)
    (tmp_path / "source").write_bytes(b"x" * 100)
    copy = storage_root._copy
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage_root, "_copy", lambda source, target: (copy(source, target), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            root.take(Root(str(tmp_path)), "source", "part", "staging")
    assert root.list_files("") == []


@pytest.mark.medium
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://no bucket/a?region=r&endpoint_override=http://127.0.0.1:9", "names no bucket"),
        ("s3://KEYKEYKEY:SEC/RET@bucket/a?region=r&endpoint_override=http://127.0.0.1:9", "names no bucket"),
        ("s3://bucket/a?region=r&endpoint_override=ht!tp://127.0.0.1:9", "endpoint"),
        ("s3://bucket/a?region=r&endpoint_override=127.0.0.1 9", "endpoint"),
    ],
)
def test_url_that_the_client_cannot_take_is_refused(url: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        Root(url).read_bytes("b")
    assert "SEC" not in masked(str(raised.value))


@pytest.mark.medium
def test_place_before_the_object_and_a_name_with_a_line_break_are_errors_of_the_system(public: UnreliableStore) -> None:
    root = Root(f"s3://public{public.query}")
    with root.open_input("a.txt") as stream, pytest.raises(OSError, match="Invalid argument"):
        stream.seek(-1)
    with pytest.raises(StoreRefusedError, match="Could not parse path"):
        root.write_atomic("a\nb", b"")


@pytest.mark.medium
def test_memory_that_is_used_again_after_a_write_does_not_change_the_object(public: UnreliableStore) -> None:
    root = Root(f"s3://public{public.query}")
    memory = bytearray(b"a" * 100)
    with root.open_output("reused") as stream:
        stream.write(memory)
        memory[:] = b"b" * 100
        stream.write(memory)
    assert root.read_bytes("reused") == b"a" * 100 + b"b" * 100
    assert root.checksum("reused") == (stream.checksum, 200)


@pytest.mark.slow
def test_list_whose_answer_ends_early_goes_on_where_it_was(public: UnreliableStore) -> None:
    expected = [(f"{number:04}", 1) for number in range(1001)]
    for name, _ in expected:
        put_public(public.query, f"public/long/{name}", b"a")
    root = Root(f"s3://anonymous@public/long{public.query}&max_attempts=2")
    for path in ("list-type", "continuation-token"):
        fault = public.fail("cut", path=path, after=100, times=1)
        assert root.list_files("") == expected
        assert fault.hits == 1
    for listed in (lambda: root.list_files("", recursive=False), root.folders, lambda: root.bucket.is_folder("long")):
        fault = public.fail("reset", path="list-type", after=100, times=1)
        assert listed() in (expected, [], True)
        assert fault.hits == 1
    public.fail("cut", path="list-type", after=100, times=None)
    with pytest.raises(StoreSilentError, match="list response body"):
        root.list_files("")


class _GoogleCloud(BaseHTTPRequestHandler):
    """Its list has "a/gone", which is not there, and its token is none."""

    kept: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        names = ("a/b", "a/gone", "a/z")
        item = "<Contents><Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>e</ETag></Contents>"
        self._send(200, f"<ListBucketResult>{''.join(item.format(name) for name in names)}</ListBucketResult>".encode())

    def do_DELETE(self) -> None:
        name = unquote(self.path).removeprefix("/bucket/")
        was_there = name in self.kept
        self.kept.discard(name)  # before the answer, which ends the client's wait
        self._send(204 if was_there else 404)

    def _send(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.medium
def test_folder_of_google_cloud_is_deleted_also_where_one_object_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    _GoogleCloud.kept = {"a/b", "a/z"}
    server = ThreadingHTTPServer(("127.0.0.1", 0), _GoogleCloud)
    threading.Thread(target=server.serve_forever, args=(0.02,)).start()
    try:
        Root(f"gs://bucket/a?endpoint_override=http://127.0.0.1:{server.server_port}").delete_folder("")
    finally:
        server.shutdown()
        server.server_close()
    assert not _GoogleCloud.kept


_PROFILE = "[default]\naws_access_key_id = {0}\naws_secret_access_key = {0}\naws_session_token = {0}\n"


@pytest.mark.medium
def test_key_of_the_url_goes_without_the_token_of_the_environment(
    public: UnreliableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "OfEnvironment")
    assert Root(f"s3://OWN:OWN@public{public.query}").read_bytes("a.txt")
    assert Root(f"s3://public{public.query}").read_bytes("a.txt")
    tokens = {str(each).partition("Credential=")[2][:3]: "security-token" in str(each) for each in public.authorizations}
    assert tokens == {"OWN": False, "tes": True}


@pytest.mark.medium
def test_credentials_of_a_file_that_is_renewed_are_read_again(
    public: UnreliableStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr(store_options, "_KEPT", timedelta(seconds=1))
    root = Root(f"s3://public{public.query}")
    for key in ("First", "Second"):
        (tmp_path / "credentials").write_text(_PROFILE.format(key))
        assert root.read_bytes("a.txt")
        sleep(0.2)  # obstore keeps what it was given for 0.1 s
    assert {str(each).partition("Credential=")[2].partition("/")[0] for each in public.authorizations} == {"First", "Second"}


_TOKEN = "hf_" + "Secret" * 5


def of_hub(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.slow(pytest.mark.needs("huggingface_hub")(test))


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as started:
        yield started


def _parquet(texts: list[str]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), out)
    return out.getvalue()


def _lines(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def _run(hub: FakeHub, folder: Path, source: str, status: int = 0, **environment: str) -> str:
    mixture = folder / "mixture.yaml"
    mixture.write_text(
        f"name: hub\nseed: 1\noutput: {folder}/out\nsources:\n  web: {source}\nstages: []\ntokenizer: none\n"
        "documents: {format: parquet}\n"
    )
    ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), **environment}
    done = run_process(["run", str(mixture)], cwd=folder, env={**os.environ, **ours})
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def _texts(folder: Path) -> list[str]:
    paths = [folder / "out" / shard.path for shard in read_snapshot(Root(str(folder / "out"))).shards]
    return sorted(text for path in paths for text in pq.read_table(path).column("text").to_pylist())


@of_hub
def test_hub_files_of_a_branch_are_read_at_one_commit(hub: FakeHub, tmp_path: Path) -> None:
    files = {"train/a.parquet": _parquet(["a1", "a2"]), "train/b.jsonl": _lines(["b"]), "train/no.parquet": _parquet(["no"])}
    commit = hub.commit(files)
    exclude = "exclude: 'hf://datasets/me/data@main/train/no*'"
    source = f"{{path: 'hf://datasets/me/data/train/*', {exclude}}}"
    _run(hub, tmp_path, source)
    assert _texts(tmp_path) == ["a1", "a2", "b"]
    read = [request for request in hub.requests if "/resolve/" in request]
    assert read
    assert all(f"/resolve/{commit}/" in request for request in read)


@of_hub
def test_hub_branch_that_moves_is_read_again_and_a_commit_is_not(hub: FakeHub, tmp_path: Path) -> None:
    first = hub.commit({"a.jsonl": _lines(["old"])})
    _run(hub, tmp_path, "{path: 'hf://datasets/me/data@main/a.jsonl'}")
    assert _texts(tmp_path) == ["old"]
    hub.commit({"a.jsonl": _lines(["new"])})  # of the same size
    _run(hub, tmp_path, "{path: 'hf://datasets/me/data@main/a.jsonl'}")
    assert "new" in _texts(tmp_path)
    pinned = tmp_path / "pinned"
    pinned.mkdir()
    _run(hub, pinned, f"{{path: 'hf://datasets/me/data@{first}/*.jsonl'}}")
    assert _texts(pinned) == ["old"]


@of_hub
def test_hub_token_is_sent_and_never_printed_or_written(hub: FakeHub, tmp_path: Path) -> None:
    hub.token = _TOKEN
    hub.commit({"a.jsonl": _lines(["private"])})
    _run(hub, tmp_path, "{path: 'hf://datasets/me/data/*.jsonl'}", HF_TOKEN=_TOKEN)
    assert _texts(tmp_path) == ["private"]
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and _TOKEN.encode() in path.read_bytes()]
    wrong = _TOKEN[::-1]
    refused = tmp_path / "refused"
    refused.mkdir()
    printed = _run(hub, refused, "{path: 'hf://datasets/me/data/*.jsonl'}", 2, HF_TOKEN=wrong)
    assert wrong not in printed
    assert printed.count("\n") == 1
    assert "hf://datasets/me/data" in printed


@of_hub
@pytest.mark.parametrize(
    ("url", "environment", "said"),
    [
        ("hf://datasets/me/none/*.jsonl", {}, "hf://datasets/me/none"),
        ("hf://datasets/me/data@nobranch/*.jsonl", {}, "hf://datasets/me/data@nobranch"),
        ("hf://datasets/me/data/*.jsonl", {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE"),
    ],
)
def test_hub_that_has_no_answer_is_reported_on_one_line(
    hub: FakeHub, tmp_path: Path, url: str, environment: dict[str, str], said: str
) -> None:
    hub.commit({"a.jsonl": _lines(["a"])})
    printed = _run(hub, tmp_path, f"{{path: '{url}'}}", 2, **environment)
    assert printed.count("\n") == 1
    assert said in printed
    assert not environment or hub.requests == []
