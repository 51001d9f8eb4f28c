"""Stores by URL: local folders, S3 that is slow or loses answers, and data sets of the Hugging Face Hub."""

from __future__ import annotations

import errno
import io
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from datapipe.errors import UserError
from datapipe.inputs.discovery import discover
from datapipe.records.checksum import bytes_checksum, file_checksum
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.local import local_files
from datapipe.storage.outages import outage_of
from datapipe.storage.root import Root, current_state, open_input, resolve
from stages.read.text import Text
from tests.support.cli_processes import run as run_process
from tests.support.fake_hub import FakeHub, fake_hub
from tests.support.object_store import object_store
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


def test_full_disk_is_reported_as_what_it_is() -> None:
    with pytest.raises(OSError, match="No space left") as raised, Root("/dev").open_output("full") as stream:
        stream.write(b"content")
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
        for _ in range(12):
            stream.write(bytes(1 << 20))
    assert refused.hits > 0
    assert root.checksum("object") == (stream.checksum, 12 << 20)


@of_object_store
def test_write_that_did_not_reach_the_store_is_an_error(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/none{store.query}&max_attempts=2")
    root.write_atomic("object", b"content before")
    store.fail("status", method="PUT", path="object", times=None)
    with pytest.raises(OSError, match="PutObject"):
        root.write_atomic("object", b"content later.")
    assert root.read_bytes("object") == b"content before"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The query of a store with public/a.txt and public/b.txt."""
    with object_store("public") as query:
        store = pafs.FileSystem.from_uri(f"s3://public{query}")[0]
        for name in ("a.txt", "b.txt"):
            with store.open_output_stream(f"public/{name}") as stream:
                stream.write(name.encode() * 1000)
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


@pytest.mark.medium
def test_s3_anonymous_has_the_limits_of_the_url() -> None:
    filesystem, path = resolve("s3://anonymous@public/a?region=us-east-1&request_timeout=7")
    (options,) = filesystem.__reduce__()[1]
    assert (path, options["anonymous"], options["request_timeout"], options["access_key"]) == ("public/a", True, 7, None)
    with pytest.raises(UserError, match="exclude anonymous access"):
        resolve("s3://anonymous@public/a?region=us-east-1&tls_verify_certificates=0")


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
    with pytest.raises(OSError, match="AWS Error") as raised, open_input(url) as stream:
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
