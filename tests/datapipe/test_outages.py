"""Which failures may pass, which need somebody to change something, and what is said about them."""

from __future__ import annotations

import errno
import os
import pickle
import resource

import pytest

from datapipe.outages import Outage, OutageError, free_bytes, outage_of, refusal_of


def _error(number: int, filename: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), filename) if filename else OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_names_the_folder_and_its_free_bytes(tmp_path, number):
    outage = outage_of(_error(number, str(tmp_path / "not/yet/there.arrow")), "s3://bucket/out")
    assert outage is not None
    assert outage.where == str(tmp_path / "not/yet")
    assert outage.free_bytes is not None
    assert str(outage).startswith(f"{tmp_path}/not/yet: the disk ")


def test_full_disk_without_a_file_name_is_that_of_the_output_or_of_temporary_files(tmp_path, monkeypatch):
    outage = outage_of(_error(errno.ENOSPC), str(tmp_path))
    assert outage is not None
    assert outage.free_bytes == pytest.approx(free_bytes(outage.where), rel=0.5)

    def no_folder():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", no_folder)
    assert "the disk is full" in str(outage_of(_error(errno.ENOSPC), "s3://bucket/out"))


@pytest.mark.parametrize(
    "error",
    [
        OSError("When reading 'a' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7"),
        OSError("AWS Error SLOW_DOWN during PutObject operation: please reduce your request rate"),
        _error(errno.ESTALE, "/mnt/corpus/a.jsonl"),
        ConnectionResetError("reset by peer"),
        TimeoutError("timed out"),
    ],
)
def test_store_that_does_not_answer_is_an_outage(error):
    outage = outage_of(error, "s3://KEY:secret@bucket/out")
    assert outage is not None
    assert outage.free_bytes is None
    assert "no answer" in str(outage)
    assert "secret" not in str(outage)


def test_hub_that_does_not_answer_is_an_outage_at_the_address_that_was_asked():
    httpx = pytest.importorskip("httpx2")
    error = httpx.ConnectError("refused", request=httpx.Request("GET", "https://user:secret@hub.example/api/models"))
    assert str(outage_of(error, "")) == "https://***@hub.example/api/models: no answer: ConnectError: refused"
    assert str(outage_of(httpx.ConnectError("refused"), "")) == "no answer: ConnectError: refused"


_BAD_REQUEST = "AWS Error UNKNOWN (HTTP status 400) during HeadObject operation: No response body."


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (OSError("AWS Error ACCESS_DENIED during PutObject operation: no"), "ACCESS_DENIED"),
        (OSError("AWS Error UNKNOWN (HTTP status 400) during GetObject operation: ExpiredToken"), "ExpiredToken"),
        (OSError(f"When reading information for key 'a' in bucket 'b': {_BAD_REQUEST}"), "Renew the credentials"),
        (OSError("AWS Error NO_SUCH_BUCKET during ListObjectsV2 operation: none"), "NO_SUCH_BUCKET"),
        (_error(errno.EACCES, "/data/out/work"), "/data/out/work"),
        (_error(errno.EROFS), "/data/out: Read-only file system"),  # fsync and write raise errors without a name
        (_error(errno.EMFILE), f"now {resource.getrlimit(resource.RLIMIT_NOFILE)[1]} (`ulimit -n`)"),
    ],
)
def test_refusal_is_no_outage_and_says_what_to_change(error, fact):
    assert outage_of(error, "/data/out") is None
    assert fact in str(refusal_of(error, "/data/out"))


def test_url_that_the_hub_cannot_have_is_a_refusal_that_shows_a_right_one():
    utils = pytest.importorskip("huggingface_hub.utils")
    error = utils.HFValidationError("Repo id must be 'namespace/name', got 'me'.")
    assert outage_of(error, "") is None
    assert "hf://datasets/OWNER/NAME" in str(refusal_of(error))


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), MemoryError(), FileNotFoundError(errno.ENOENT, "gone", "/a"), BrokenPipeError(errno.EPIPE, "pipe")],
)
def test_other_failures_are_neither(error):
    assert outage_of(error, "/data/out") is None
    assert refusal_of(error) is None


def test_outage_error_travels_between_processes():
    error = OutageError(Outage(where="/data/out", cause="the disk is full", free_bytes=12))
    copy = pickle.loads(pickle.dumps(error))
    assert copy.outage == error.outage
    assert str(copy) == "/data/out: the disk is full, 12 B free"
