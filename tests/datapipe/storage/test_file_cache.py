"""Files at URLs in the cache of the machine: fetched once, seen when they change, whole after a kill, unused ones deleted."""

import hashlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from datapipe.errors import CorruptionError
from datapipe.machine.cache import UNUSED_S
from datapipe.storage import file_cache
from datapipe.storage.file_cache import cache, cached_file, digest_of, fetched
from datapipe.storage.root import Root
from tests.support.web_server import WebServer, web_server

pytestmark = pytest.mark.usefixtures("home")

CONTENT = b"a model" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/models/edu.bin"] = CONTENT
        yield server


def _whole_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("files/*/*") if path.name != ".lock"}


def test_file_of_a_web_server_has_its_name_and_content_and_is_not_fetched_again(web: WebServer) -> None:
    first = fetched(web.url("/models/edu.bin"))
    assert (first.path.name, first.path.read_bytes(), first.digest) == ("edu.bin", CONTENT, DIGEST)
    web.files["/models/edu.bin"] = CONTENT[::-1]  # with the same size, time and ETag, as only a test can do
    assert fetched(web.url("/models/edu.bin")) == first


@pytest.mark.parametrize(
    ("etag", "modified"), [('"two"', None), (None, "Thu, 22 Oct 2026 07:28:00 GMT"), (None, None)], ids=["etag", "time", "none"]
)
def test_file_that_changes_at_its_url_is_fetched_again(web: WebServer, etag: str | None, modified: str | None) -> None:
    web.etag, web.modified = ('"one"' if etag else None), None
    first = fetched(web.url("/models/edu.bin"))
    web.files["/models/edu.bin"], web.etag, web.modified = CONTENT[::-1], etag, modified
    second = fetched(web.url("/models/edu.bin"))
    assert second.path.read_bytes() == CONTENT[::-1] and second.digest != first.digest
    assert first.path.read_bytes() == CONTENT  # what runs on this machine go on with


def test_damaged_file_of_the_cache_is_fetched_again(web: WebServer) -> None:
    first = fetched(web.url("/models/edu.bin"))
    first.path.chmod(0o644)
    first.path.write_bytes(b"b" + CONTENT[1:])
    assert fetched(web.url("/models/edu.bin")).path.read_bytes() == CONTENT


def test_file_of_a_store_is_fetched_and_seen_when_it_changes(query: str) -> None:
    root = Root(f"s3://outputs/lists{query}")
    root.write_atomic("bad words.txt", b"one")
    first = fetched(root.child_url("bad%20words.txt"))
    assert (first.path.name, first.path.read_bytes()) == ("bad_words.txt", b"one")
    root.write_atomic("bad words.txt", b"two")
    assert fetched(root.child_url("bad%20words.txt")).path.read_bytes() == b"two"


def test_credentials_of_a_url_are_in_no_name_and_no_note(web: WebServer, home: Path) -> None:
    url = web.url("/models/edu.bin").replace("://", "://me:Zq81Secret@") + "?token=Zq81Secret"
    assert fetched(url).path.read_bytes() == CONTENT
    for path in home.rglob("*"):
        assert "Zq81" not in path.name and (path.is_dir() or b"Zq81" not in path.read_bytes())


def test_processes_that_want_a_file_at_once_copy_it_once(home: Path) -> None:
    sources = iter([io.BytesIO(CONTENT)])  # there is one
    with ThreadPoolExecutor(8) as pool:
        wanted = [pool.submit(cache, DIGEST, "edu.bin", len(CONTENT), lambda: next(sources)) for _ in range(8)]
    assert {each.result().read_bytes() for each in wanted} == {CONTENT}
    assert _whole_files(home) == {"edu.bin"}


class _Broken(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise ConnectionResetError("gone")
        return super().read(100)


def test_copy_that_breaks_off_or_has_another_content_leaves_nothing(home: Path) -> None:
    with pytest.raises(ConnectionResetError):
        cache(DIGEST, "edu.bin", len(CONTENT), lambda: _Broken(CONTENT))
    with pytest.raises(CorruptionError, match="expected"):
        cache(DIGEST, "edu.bin", len(CONTENT), lambda: io.BytesIO(b"other"))
    assert _whole_files(home) == set()
    assert cache(DIGEST, "edu.bin", len(CONTENT), lambda: io.BytesIO(CONTENT)).read_bytes() == CONTENT


_KILLED = """
import hashlib, os, signal, sys
from pathlib import Path
from datapipe.storage import file_cache
file_cache.cache_home = lambda: Path(sys.argv[1])

class Source:
    left = 2
    def read(self, size):
        Source.left -= 1
        if Source.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"part"
    def __enter__(self): return self
    def __exit__(self, *error): pass

file_cache.cache(sys.argv[2], "edu.bin", 7000, Source)
"""


def test_process_that_is_killed_while_it_copies_leaves_no_file_and_no_lock(home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(home), DIGEST], check=False, timeout=60)
    assert done.returncode < 0
    assert cached_file(DIGEST, "edu.bin", len(CONTENT)) is None
    assert cache(DIGEST, "edu.bin", len(CONTENT), lambda: io.BytesIO(CONTENT)).read_bytes() == CONTENT


def test_files_that_were_not_used_for_two_weeks_are_deleted(home: Path) -> None:
    ages = {"unused": UNUSED_S + 60, "used": UNUSED_S + 60, "new": 0.0}
    for name, age_s in ages.items():
        path = home / "files" / hashlib.sha256(name.encode()).hexdigest() / "edu.bin"
        path.parent.mkdir(parents=True)
        path.write_bytes(CONTENT)
        os.utime(path, times=(time.time() - age_s,) * 2)
    left_over = home / "files/.edu.bin.0123.tmp"
    left_over.write_bytes(b"")
    os.utime(left_over, times=(0, 0))
    assert cached_file(hashlib.sha256(b"used").hexdigest(), "edu.bin", len(CONTENT)) is not None
    cache(DIGEST, "edu.bin", len(CONTENT), lambda: io.BytesIO(CONTENT))
    left = {path.name for path in (home / "files").iterdir()}
    assert left == {DIGEST, *(hashlib.sha256(name).hexdigest() for name in (b"used", b"new"))}


def test_cache_that_cannot_be_written_is_replaced_by_a_temporary_folder(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "cache_home", lambda: Path("/dev/null/datapipe"))
    assert fetched(web.url("/models/edu.bin")).path.read_bytes() == CONTENT


def test_digest_follows_the_content_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "edu.bin"
    path.write_bytes(CONTENT)
    assert digest_of(path) == DIGEST
    path.write_bytes(CONTENT[::-1])
    assert digest_of(path) == hashlib.sha256(CONTENT[::-1]).hexdigest()
