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
    """Starts a process that makes a cache of the store's shards and then does what `lines` say."""
    program = PROGRAM + "\n".join(lines)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, str(store.folder), str(store.cached)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).resolve().parents[4]), *sys.path])}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def run_program(store: Store, *lines: str) -> None:
    with start_program(store, *lines) as process:
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


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


@pytest.mark.parametrize("wanted", [0, pytest.param(1, marks=pytest.mark.slow)])
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
        assert cache.counts().resident_bytes <= 3_000_000
    assert store.held() == {wanted}
