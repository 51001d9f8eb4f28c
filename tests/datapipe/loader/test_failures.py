"""What a store or a network may do to a shard, and how each of it ends: with the right batch, or with an error that names it.

A real S3 server on loopback, behind a proxy that fails on request. Every failure is tried in two ways: by a Loader that reads
blocks from the store, and by a ShardCache that fetches whole shards.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError, DatapipeError
from datapipe.loader import Loader
from datapipe.loader.cache.cache import ShardCache
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root
from tests.support.cli_processes import wait_until
from tests.support.object_store import object_store, upload
from tests.support.snapshots import make_snapshot
from tests.support.unreliable_store import UnreliableStore, unreliable

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

S = 16
PASSING = {
    "cut": {"kind": "cut", "after": 200},
    "reset": {"kind": "reset", "after": 200},
    "refused": {"kind": "reset", "after": 0},
    "500": {"kind": "status", "status": 500},
    "503": {"kind": "status", "status": 503},
    "stall": {"kind": "stall", "after": 200},
}
"""Temporary faults. A stall takes `request_timeout` to detect."""


@dataclass(frozen=True)
class StoredSnapshot:
    """One snapshot, on the local disk and behind the proxy."""

    local: Path
    store: UnreliableStore
    direct: Root

    def url(self, **limits: float) -> str:
        return f"s3://snapshots/out{self.store.query}" + "".join(f"&{name}={value}" for name, value in limits.items())

    @property
    def shards(self) -> tuple[ShardEntry, ...]:
        return read_snapshot(Root(str(self.local))).shards

    def put(self, shard: ShardEntry, content: bytes | None) -> None:
        """Replaces the content of a shard in the store, or removes it."""
        if content is None:
            self.direct.delete(shard.path)
        else:
            self.direct.write_atomic(shard.path, content)


@pytest.fixture(scope="module")
def shared_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredSnapshot]:
    local = make_snapshot(tmp_path_factory.mktemp("failures"), {"web": 60}, sequence_length=S, rows_per_shard=20)
    with object_store("snapshots") as query, unreliable(query) as store:
        upload(local, f"s3://snapshots/out{query}")
        yield StoredSnapshot(local, store, Root(f"s3://snapshots/out{query}"))


@pytest.fixture
def stored(shared_snapshot: StoredSnapshot) -> Iterator[StoredSnapshot]:
    yield shared_snapshot
    shared_snapshot.store.heal()


def batches(output: Any, steps: int = 5) -> list[np.ndarray]:
    """The first steps of a loader: 60 rows in shuffled order, from all three shards."""
    loader = Loader(output, global_batch_size=12, prefetch=0)
    try:
        return [loader.batch(step)["input_ids"] for step in range(steps)]
    finally:
        loader.close()


def error_of(output: Any) -> Exception:
    with pytest.raises((DatapipeError, OSError)) as caught:
        batches(output)
    return caught.value


def everything_said(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("fault", PASSING)
def test_failure_that_passes_gives_the_right_batches_and_shards(stored: StoredSnapshot, tmp_path: Path, fault: str) -> None:
    failing = stored.store.fail(path="/shards/", times=2, **PASSING[fault])
    np.testing.assert_array_equal(batches(stored.url(request_timeout=1)), batches(stored.local))
    assert failing.hits == 2
    failing = stored.store.fail(path="/shards/", times=2, **PASSING[fault])
    with cache_of(stored, tmp_path) as cache:
        cache.expect(range(3))
        wait_for(cache, 0, 1, 2)
        assert_whole(stored, cache)
        assert failing.hits == 2


@pytest.mark.parametrize("fault", PASSING)
def test_loader_failure_that_lasts_names_the_shard_and_passes_when_it_is_healed(stored: StoredSnapshot, fault: str) -> None:
    shard = stored.shards[1]
    stored.store.fail(path=shard.path, times=None, **PASSING[fault])
    url = stored.url(request_timeout=1, max_attempts=2)
    assert shard.path in everything_said(error_of(url))
    stored.store.heal()
    np.testing.assert_array_equal(batches(url), batches(stored.local))


def test_loader_bit_flipped_in_transit_gives_the_right_batch_or_names_the_shard(stored: StoredSnapshot) -> None:
    """Wherever the bit is flipped, a wrong token never reaches a batch."""
    expected = batches(stored.local)
    size = stored.shards[0].bytes
    for after in range(0, size, size // 12):
        stored.store.heal()
        failing = stored.store.fail("flip", path="/shards/", after=after)
        try:
            found = batches(stored.url())
        except (DatapipeError, OSError) as error:
            assert any(shard.path in everything_said(error) for shard in stored.shards)  # noqa: PT017 (or no error at all)
        else:
            np.testing.assert_array_equal(found, expected)
        assert failing.hits == 1


@pytest.mark.parametrize("kept", [None, 0, 7, 400, -1, "flipped"])
def test_shard_that_is_damaged_at_rest_is_an_error_that_names_it(stored: StoredSnapshot, tmp_path: Path, kept: Any) -> None:
    shard = stored.shards[0]
    whole = (stored.local / shard.path).read_bytes()
    token = whole.index((np.arange(3, dtype=np.uint32) + 1).tobytes())  # of the first row
    flipped = whole[:token] + bytes([whole[token] ^ 2]) + whole[token + 1 :]
    stored.put(shard, None if kept is None else flipped if kept == "flipped" else whole[:kept])
    try:
        error = error_of(stored.url())
        assert shard.path in everything_said(error)
        assert kept != "flipped" or isinstance(error, CorruptionError)
        with cache_of(stored, tmp_path) as cache:
            cache.expect(range(3))
            wait_for(cache, 1, 2)
            assert cache.path_of(0) is None
            wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the damaged one's room")
    finally:
        stored.put(shard, whole)


@contextlib.contextmanager
def cache_of(stored: StoredSnapshot, folder: Path, most_s: float = 60.0) -> Iterator[ShardCache]:
    """A cache over the proxy."""
    root = Root(stored.url(request_timeout=1))
    cache = ShardCache(root, stored.shards, folder, 1 << 30, most_s=most_s)
    try:
        yield cache
    finally:
        cache.close()


def wait_for(cache: ShardCache, *shards: int) -> None:
    wait_until(lambda: all(cache.path_of(shard) for shard in shards), f"shards {shards}")


def assert_whole(stored: StoredSnapshot, cache: ShardCache) -> None:
    for number, shard in enumerate(stored.shards):
        path = cache.path_of(number)
        assert path is not None
        assert path.read_bytes() == (stored.local / shard.path).read_bytes()


@pytest.mark.parametrize("fault", PASSING)
def test_cache_failure_that_lasts_is_reported_and_tried_again(stored: StoredSnapshot, tmp_path: Path, fault: str) -> None:
    shard = stored.shards[1]
    stored.store.fail(path=shard.path, times=None, **PASSING[fault])
    with cache_of(stored, tmp_path, most_s=0.5) as cache:
        cache.expect(range(3))
        wait_for(cache, 0, 2)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the end of the attempt")
        assert cache.path_of(1) is None
        stored.store.heal()
        wait_for(cache, 1)
        assert_whole(stored, cache)


def test_cache_bit_flipped_in_transit_is_fetched_again(stored: StoredSnapshot, tmp_path: Path) -> None:
    failing = stored.store.fail("flip", path=stored.shards[0].path, after=300)
    with cache_of(stored, tmp_path) as cache:
        cache.expect(range(3))
        wait_for(cache, 0, 1, 2)
        assert_whole(stored, cache)
        assert failing.hits == 1


@pytest.mark.parametrize("status", [403, 404])
def test_cache_object_without_access_is_an_error_at_once(stored: StoredSnapshot, tmp_path: Path, status: int) -> None:
    shard = stored.shards[0]
    stored.store.fail("status", path=shard.path, status=status, times=None)
    with cache_of(stored, tmp_path) as cache:
        cache.expect(range(3))
        wait_for(cache, 1, 2)
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "the error", deadline_s=30)
        assert cache.path_of(0) is None


def test_cache_closed_in_a_stall_returns_and_leaves_the_folder_to_the_next(stored: StoredSnapshot, tmp_path: Path) -> None:
    failing = stored.store.fail("stall", path=stored.shards[0].path, after=10, times=1)
    with cache_of(stored, tmp_path) as cache:
        cache.expect([0])
        wait_until(lambda: failing.hits == 1, "the stall")
    with cache_of(stored, tmp_path) as cache:
        cache.expect(range(3))
        wait_for(cache, 0, 1, 2)
        assert_whole(stored, cache)


PROGRAM = """
import sys
from pathlib import Path
from datapipe.loader.cache.cache import ShardCache
from datapipe.shards.manifest import read_snapshot
from datapipe.storage.root import Root
root = Root(sys.argv[1])
cache = ShardCache(root, read_snapshot(root).shards, Path(sys.argv[2]), 1 << 30)
cache.expect([0])
sys.stdin.read()
"""


def test_process_that_ends_in_a_stall_is_not_held_for_long(stored: StoredSnapshot, tmp_path: Path) -> None:
    failing = stored.store.fail("stall", path=stored.shards[0].path, after=10, times=None)
    command = [sys.executable, "-c", PROGRAM, stored.url(), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            wait_until(lambda: failing.hits == 1, "the stall")
            process.communicate(timeout=40)
        finally:
            process.kill()
    assert process.returncode == 0
