"""Listing local folders, and new files: their checksums, and writes whose answer is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from datapipe.shards.checksum import bytes_checksum
from datapipe.storage import Root
from datapipe.stores.local import local_files
from tests.support.unreliable_store import UnreliableStore


def _write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"x" * len(path))


def test_local_files_of_many_folders_are_all_there_once(tmp_path: Path) -> None:
    paths = [f"step-{number % 3}/attempt-{number}/{name}" for number in range(700) for name in ("a", "deep/er/b")]
    _write(tmp_path, *paths, "top")

    found = sorted(local_files(tmp_path, "work/", recursive=True))

    assert found == sorted((f"work/{path}", len(path)) for path in [*paths, "top"])


@pytest.mark.parametrize(("folder", "expected"), [("", [("a", 1)]), ("not there", []), ("a", [])])
def test_local_files_directly_in_a_folder(tmp_path: Path, folder: str, expected: list[tuple[str, int]]) -> None:
    _write(tmp_path, "a", "below/b")
    assert local_files(tmp_path / folder, "", recursive=False) == expected


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


def test_full_disk_is_told_as_what_it_is() -> None:
    with pytest.raises(OSError, match="No space left") as raised, Root("/dev").open_output("full") as stream:
        stream.write(b"content")
    assert raised.value.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(raised.value)


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_written_object_whose_answers_are_all_lost_is_looked_up(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/small{store.query}&max_attempts=2")
    failing = store.fail("lost", method="PUT", path="object", times=None)
    root.write_atomic("object", b"content")
    assert failing.hits >= 2
    assert root.read_bytes("object") == b"content"


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_uploaded_object_whose_end_is_lost_and_not_found_again_is_looked_up(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/large{store.query}")
    store.fail("lost", method="POST", path="uploadId")
    refused = store.fail("status", method="POST", path="uploadId", status=404, code="NoSuchUpload", times=None)
    with root.open_output("object") as stream:
        for _ in range(12):
            stream.write(bytes(1 << 20))
    assert refused.hits > 0
    assert root.checksum("object") == (stream.checksum, 12 << 20)


@pytest.mark.medium
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_write_that_did_not_reach_the_store_is_an_error(store: UnreliableStore) -> None:
    root = Root(f"s3://outputs/none{store.query}&max_attempts=2")
    root.write_atomic("object", b"content before")
    store.fail("status", method="PUT", path="object", times=None)
    with pytest.raises(OSError, match="PutObject"):
        root.write_atomic("object", b"content later.")
    assert root.read_bytes("object") == b"content before"
