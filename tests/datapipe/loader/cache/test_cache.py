"""Expected shards are in the cache, have the right checksum and fit the budget, also in a shared folder.

A process with a cache may fork, end or be killed at any time.
"""

import fcntl
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import UserError
from datapipe.loader.cache import download
from datapipe.loader.cache import folder as cache_folder
from datapipe.loader.cache.cache import ShardCache
from datapipe.storage.root import Root
from tests.support.cached_shards import SIZE, Store, entry, wait_for
from tests.support.cli_processes import wait_until
from tests.support.packed_shards import RemoteRoot


def cache_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("datapipe-cache")]


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Iterator[None]:
    yield
    assert not cache_threads()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, [SIZE] * 6)


def test_expected_shards_are_complete_copies(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "RANGE_BYTES", 999)
    with store.cache() as cache:
        assert cache.path_of(3) is None
        assert not store.cached.exists()
        cache.expect([3, 1, 3])
        wait_for(cache, 3, 1)
        for shard in (3, 1):
            path = cache.path_of(shard)
            assert path is not None and path.read_bytes() == store.contents[shard] and path.suffix == ".arrow"
        assert cache.path_of(0) is None
    assert store.held() == {1, 3}


def test_budget_used_up_shards_go_first_and_soon_ones_stay(store: Store) -> None:
    with store.cache(3 * SIZE) as cache:
        cache.expect([0, 1, 2, 3])
        wait_for(cache, 0, 1, 2)
        assert store.held() == {0, 1, 2}  # shard 3 does not fit, and no shard that is needed earlier is deleted for it
        cache.expect([1, 2, 3, 0])
        wait_until(lambda: cache.path_of(3) is not None, "the shard that is needed before shard 0")
        assert store.held() == {1, 2, 3}
        cache.expect([4, 2])
        wait_for(cache, 4, 2)
        assert 2 in store.held()


def bytes_in(folder: Path) -> int:
    """Of all files, which may come and go meanwhile."""
    total = 0
    for file in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


@pytest.mark.slow
@pytest.mark.parametrize("num_threads", [1, 4])
def test_budget_holds_at_every_moment(tmp_path: Path, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of mixed sizes, expected in a moving window, by two caches of one folder."""
    monkeypatch.setattr(download, "RANGE_BYTES", 700)
    store = Store(tmp_path, np.random.default_rng(3).integers(500, 4000, 30).tolist())
    budget, most, ended = 12_000, [0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            most[0] = max(most[0], bytes_in(store.cached))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with store.cache(budget, num_threads=num_threads) as first, store.cache(budget, num_threads=num_threads) as second:
            for start in range(27):
                for cache in (first, second):
                    cache.expect(range(start, start + 3))
                for cache in (first, second):
                    wait_for(cache, start)
    finally:
        ended.set()
        watcher.join()
    # A file renamed or replaced while the folder is listed may be counted under both names.
    assert 0 < most[0] <= budget + 4000
    assert sum(len(store.contents[shard]) for shard in store.held()) <= budget


def test_shard_larger_than_the_budget_is_reported_once_and_others_go_on(tmp_path: Path) -> None:
    store = Store(tmp_path, [10_000, 100, 0])
    with store.cache(5000) as cache:
        cache.expect([0, 1, 2])
        with pytest.warns(RuntimeWarning, match=r"part-00000\.arrow"):
            wait_for(cache, 1, 2)
        cache.expect([0, 1])
        assert cache.path_of(0) is None


def test_copy_of_an_earlier_run_is_checked_and_used(store: Store) -> None:
    with store.cache() as cache:
        cache.expect([0, 1, 2])
        wait_for(cache, 0, 1, 2)
        damaged, cut = (cache.path_of(shard) for shard in (1, 2))
    assert damaged is not None and cut is not None
    damaged.write_bytes(store.contents[1][:-1] + bytes([store.contents[1][-1] ^ 1]))
    cut.write_bytes(store.contents[2][:-1])
    store.path(0).unlink()
    with store.cache() as cache:
        assert cache.path_of(0) is None  # not checked yet
        cache.expect([0, 1, 2])
        wait_for(cache, 0, 1, 2)
    assert store.held() == {0, 1, 2}


def test_copy_that_another_process_deleted_is_fetched_again(store: Store) -> None:
    with store.cache() as cache:
        cache.expect([0])
        wait_for(cache, 0)
        path = cache.path_of(0)
        assert path is not None
        with open(path, "rb") as held:
            path.unlink()
            assert cache.path_of(0) is None
            wait_for(cache, 0)
            assert held.read() == store.contents[0]


def test_two_snapshots_share_a_folder_by_content(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    store, other = Store(tmp_path, [SIZE] * 2), Store(tmp_path / "a", [SIZE] * 2)
    other.cached = store.cached
    changed = store.contents[1][::-1]
    other.contents[1], other.entries[1] = changed, entry(1, changed)
    other.path(1).write_bytes(changed)
    with store.cache() as cache, other.cache() as another:
        cache.expect([0, 1])
        wait_for(cache, 0, 1)
        another.expect([0, 1])
        wait_for(another, 0, 1)
        path = another.path_of(1)
        assert path is not None and path.read_bytes() == changed
        assert another.path_of(0) == cache.path_of(0)


def test_shard_that_another_process_is_fetching_is_waited_for(store: Store) -> None:
    store.cached.mkdir()
    store.path(0).unlink()  # only the other process has it
    final = store.cached / f"{store.entries[0].checksum.rpartition(':')[2]}.arrow"
    with store.cache() as cache:
        with open(final.with_suffix(".part"), "wb") as part:
            fcntl.flock(part, fcntl.LOCK_EX)
            cache.expect([0, 1])
            wait_for(cache, 1)
            assert cache.path_of(0) is None
            part.write(store.contents[0])
            part.flush()
            os.replace(part.name, final)
        wait_for(cache, 0)


def test_ranks_of_a_node_fetch_each_shard_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def open_input(root: Root, path: str) -> object:
        fetched.append(path)
        return Root.open_input(root, path)

    monkeypatch.setattr(RemoteRoot, "open_input", open_input)
    with store.cache() as first, store.cache() as second:
        for cache in (first, second):
            cache.expect(range(6))
        for cache in (first, second):
            wait_for(cache, *range(6))
    assert sorted(fetched) == [shard.path for shard in store.entries]


@pytest.mark.slow
def test_shard_that_another_process_expects_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, [SIZE, SIZE, 2 * SIZE])
    with store.cache(2 * SIZE) as first, store.cache(2 * SIZE) as second:
        first.expect([0, 1])
        wait_for(first, 0, 1)
        second.expect([2, 1])
        wait_for(second, 1)  # it is in the folder already and needs no room
        assert second.path_of(2) is None
        assert store.held() == {0, 1}
        monkeypatch.setattr(cache_folder, "CLAIM_S", 0.0)  # the stamps of the first cache have expired
        first.close()
        wait_for(second, 2)
        assert store.held() == {2}


def test_left_over_parts_are_deleted_and_held_ones_are_not(store: Store) -> None:
    store.cached.mkdir()
    left, held = (store.cached / f"{digit * 32}.part" for digit in "ab")
    foreign = store.cached / "notes.txt"
    for path in (left, held, foreign):
        path.write_bytes(b"x")
    with open(held, "rb") as stream, store.cache() as cache:
        fcntl.flock(stream, fcntl.LOCK_EX)
        cache.expect([0])
        wait_for(cache, 0)
        assert held.exists() and foreign.exists() and not left.exists()


@pytest.mark.medium
def test_shard_that_another_process_fetches_is_left_to_it_until_it_ends(store: Store) -> None:
    store.cached.mkdir()
    with store.cache() as cache:
        cache.expect([0])
        wait_for(cache, 0)
        path = cache.path_of(0)
    assert path is not None
    path.unlink()
    with open(path.with_suffix(".part"), "wb") as stream, store.cache() as cache:
        fcntl.flock(stream, fcntl.LOCK_EX)
        cache.expect([0, 1])
        wait_for(cache, 1)
        assert cache.path_of(0) is None
        fcntl.flock(stream, fcntl.LOCK_UN)
        wait_for(cache, 0)


@pytest.mark.parametrize("options", [{"budget_bytes": 0}, {"num_threads": 0}])
def test_cache_of_nothing_is_refused(store: Store, options: dict[str, int]) -> None:
    with pytest.raises(UserError), store.cache(**options):
        pass


@pytest.mark.medium
def test_close_cancels_downloads_and_expect_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "RANGE_BYTES", 10)
    store = Store(tmp_path, [200_000])
    cache = ShardCache(store.root, store.entries, store.cached, 1 << 30)
    cache.expect([0])
    wait_until(lambda: any(store.cached.glob("*.part")), "the download")
    cache.close()
    assert not cache_threads()
    assert store.held() <= {0}
    cache.expect([0])
    wait_for(cache, 0)
    cache.close()
    assert store.held() == {0}


def test_download_of_a_shard_no_longer_expected_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "RANGE_BYTES", 10)
    store = Store(tmp_path, [1_000_000, 50])
    with store.cache(1_000_010) as cache:
        cache.expect([0])
        wait_until(lambda: any(store.cached.glob("*.part")), "the download")
        cache.expect([1])
        wait_for(cache, 1)
        wait_until(lambda: store.held() == {1}, "the room of shard 0")


@pytest.mark.medium
def test_threads_end_with_the_last_reference_to_the_cache(store: Store) -> None:
    cache = ShardCache(store.root, store.entries, store.cached, 1 << 30)
    assert not cache_threads()
    cache.expect([0])
    assert cache_threads()
    del cache
    gc.collect()
    assert not cache_threads()


def test_damaged_missing_and_cut_shards_are_not_used(store: Store) -> None:
    damaged = store.contents[0][:-1] + bytes([store.contents[0][-1] ^ 1])
    store.path(0).write_bytes(damaged)
    store.path(1).unlink()
    store.path(2).write_bytes(store.contents[2][:-7])
    with store.cache() as cache:
        cache.expect(range(4))
        wait_for(cache, 3)
        wait_until(lambda: not any(store.cached.glob("*.part")), "the errors")
        assert [cache.path_of(shard) for shard in range(3)] == [None] * 3
    assert store.held() == {3}


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_full_disk_warns_once_and_cached_shards_stay_in_use(store: Store, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with store.cache() as cache:
        cache.expect([0])
        wait_for(cache, 0)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, full_disk)
            cache.expect([0, 1])
            with pytest.warns(RuntimeWarning, match=r"No space left on device") as told:
                wait_until(lambda: cache.path_of(1) is None and bool(told), "the warning")
        cache.expect([0, 1])
        assert cache.path_of(0) is not None and cache.path_of(1) is None
    assert store.held() == {0}


PROGRAM = """
import os, sys
from pathlib import Path
from datapipe.loader.cache import download
from datapipe.loader.cache.cache import ShardCache
from tests.support.cached_shards import entry, wait_for
from tests.support.packed_shards import RemoteRoot
folder, cached = Path(sys.argv[1]), Path(sys.argv[2])
entries = [entry(number, path.read_bytes()) for number, path in enumerate(sorted(folder.iterdir()))]
cache = ShardCache(RemoteRoot(str(folder)), entries, cached, 1 << 30)
"""


def start_program(store: Store, *lines: str) -> subprocess.Popen[str]:
    """Starts a process that makes a cache of the store's shards and then runs `lines`."""
    program = PROGRAM + "\n".join(lines)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(store.folder), str(store.cached)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)


FORK = """
from functools import cached_property
from datapipe.storage.root import current_state
from tests.support.packed_shards import LocalBucket
class Disk(LocalBucket):  # a store whose client survives a fork
    def state(self, key): return current_state(f"/{key}")
class DiskRoot(RemoteRoot):
    @cached_property
    def _target(self): return Disk("s3://disk"), os.path.abspath(self.url).removeprefix("/")
cache = ShardCache(DiskRoot(str(folder)), entries, cached, 1 << 30)
download.RANGE_BYTES = 1000
cache.expect([0])
while not (cached.is_dir() and any(cached.iterdir())): pass  # the partial file, or already the whole one
child = os.fork()
if child == 0:
    cache.expect([1, 0])
    wait_for(cache, 1, 0)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
wait_for(cache, 0)
"""


@pytest.mark.slow
def test_forked_child_starts_its_own_downloads_and_leaves_the_parents(tmp_path: Path) -> None:
    """The parent, whose cache is open, ends after its child."""
    store = Store(tmp_path, [200_000, SIZE])
    with start_program(store, FORK) as process:
        _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (0, "")
    assert store.held() == {0, 1}


@pytest.mark.parametrize("wanted", [pytest.param(0, marks=pytest.mark.medium), pytest.param(1, marks=pytest.mark.slow)])
def test_process_killed_during_a_download_leaves_a_usable_folder(tmp_path: Path, wanted: int) -> None:
    """The next process fetches the shard again, or deletes the partial file to fetch another shard, within the budget."""
    store = Store(tmp_path, [3_000_000, 2_999_000])
    with start_program(store, "download.RANGE_BYTES = 10", "cache.expect([0])", "wait_for(cache, 0)") as process:
        try:
            wait_until(lambda: store.cached.is_dir() and any(store.cached.glob("*.part")), "the download")
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert [path.suffix for path in store.cached.iterdir()] == [".part"]
    with store.cache(3_000_000) as cache:
        cache.expect([wanted])
        wait_for(cache, wanted)
        assert bytes_in(store.cached) <= 3_000_000
    assert store.held() == {wanted}
