"""A process with a cache may fork, end or be killed at any time, and the folder serves the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cached_shards import SIZE, Store, wait_for
from tests.support.cli_processes import wait_until

pytestmark = pytest.mark.medium


def program(store: Store, *lines: str) -> list[str]:
    """A process that makes a cache of the store's shards and then does what `lines` say."""
    made = [
        "import os, sys",
        "from pathlib import Path",
        "from datapipe.loader.cache import download",
        "from datapipe.loader.cache.cache import ShardCache",
        "from tests.support.cached_shards import entry, wait_for",
        "from tests.support.packed_shards import RemoteRoot",
        f"folder, cached = Path({str(store.folder)!r}), Path({str(store.cached)!r})",
        "entries = [entry(number, path.read_bytes()) for number, path in enumerate(sorted(folder.iterdir()))]",
        "cache = ShardCache(RemoteRoot(str(folder)), entries, cached, 1 << 30)",
    ]
    return [sys.executable, "-W", "ignore::DeprecationWarning", "-c", "\n".join([*made, *lines])]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[4]), *sys.path])}


def run_program(store: Store, *lines: str) -> None:
    done = subprocess.run(program(store, *lines), check=False, timeout=120, capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_process_with_an_open_cache_exits(tmp_path: Path) -> None:
    store = Store(tmp_path, [SIZE] * 6)
    run_program(store, "cache.expect(range(6))", "wait_for(cache, 0)")
    assert 0 in store.held()


@pytest.mark.slow
def test_forked_child_starts_its_own_downloads_and_leaves_the_parents(tmp_path: Path) -> None:
    store = Store(tmp_path, [200_000, SIZE])
    run_program(
        store,
        "download.RANGE_BYTES = 100",
        "cache.expect([0])",
        "while not cache.counts().fetched_bytes: pass",
        "child = os.fork()",
        "if child == 0:",
        "    assert cache.counts().fetched_bytes == 0",
        "    cache.expect([1, 0])",
        "    wait_for(cache, 1, 0)",
        "    sys.exit(0)",
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0",
        "wait_for(cache, 0)",
        "assert cache.counts().files == 1",
    )
    assert store.held() == {0, 1}


@pytest.mark.parametrize("taken_over", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_process_killed_during_a_download_leaves_a_usable_folder(tmp_path: Path, taken_over: bool) -> None:
    """The next process fetches the shard again, or deletes the partial file to fetch another shard, within the budget."""
    store = Store(tmp_path, [3_000_000, 2_999_000])
    lines = ["download.RANGE_BYTES = 10", "cache.expect([0])", "wait_for(cache, 0)"]
    process = subprocess.Popen(program(store, *lines), env=environment(), start_new_session=True)
    try:
        wait_until(lambda: store.cached.is_dir() and any(store.cached.glob("*.part")), "the download")
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert [path.suffix for path in store.cached.iterdir()] == [".part"]
    wanted = 0 if taken_over else 1
    with store.cache(3_000_000) as cache:
        cache.expect([wanted])
        wait_for(cache, wanted)
        assert cache.counts().resident_bytes <= 3_000_000
    assert store.held() == {wanted}
