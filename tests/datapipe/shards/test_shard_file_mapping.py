"""Shards that are cut short while they are open: every read is right, or an error that names the file. No process ends."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.storage.root import Root
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the handler of Linux")

NUM_STEPS = 10
OPTIONS: dict[str, Any] = {"global_batch_size": 12, "seed": 5, "fields": ("input_ids", "labels", "document_keys")}


@pytest.fixture(scope="module", params=["arrow", "parquet"])
def sound(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """60 rows of 2,048 tokens in three shards of several pages each."""
    folder = tmp_path_factory.mktemp("sound")
    return make_snapshot(folder, {"web": 60}, sequence_length=2048, rows_per_shard=20, shard_format=request.param)


@pytest.fixture
def output(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "copy")
    return tmp_path / "copy"


def shards(output: Path) -> list[Path]:
    return sorted((output / "shards/web").iterdir())


def cut(path: Path, left: Any) -> None:
    size = path.stat().st_size
    os.truncate(path, min({"half": size // 2, "all but 1": size - 1}.get(left, left), size - 1))


def check(loader: Loader, sound: Path, name: str) -> int:
    """Every batch is the right one, or an error that names the file. Returns the number of errors."""
    expected, errors = Loader(sound, prefetch=0, **OPTIONS), list[str]()
    for step in range(NUM_STEPS):
        try:
            batch = loader.batch(step)
        except CorruptionError as error:
            errors.append(str(error))
            continue
        assert all(np.array_equal(batch[field], expected.batch(step)[field]) for field in OPTIONS["fields"])
    assert all(name in error for error in errors)
    return len(errors)


@pytest.mark.parametrize("left", [0, 1, 4096, 5000, "half", "all but 1"])
def test_shard_cut_short_after_its_rows_were_read_is_named(output: Path, sound: Path, left: Any) -> None:
    loader, path = Loader(output, **OPTIONS), shards(output)[1]
    assert check(loader, sound, "") == 0
    cut(path, left)
    if path.suffix == ".arrow":  # blocks of Parquet were copied out of the file
        assert check(loader, sound, path.name) == NUM_STEPS
    loader.close()
    assert check(loader, sound, path.name) == NUM_STEPS


@pytest.mark.parametrize("left", [0, "half", "all but 1"])
def test_open_shard_cut_short_before_its_rows_are_read_is_named(output: Path, left: Any) -> None:
    root, path = Root(str(output)), shards(output)[1]
    snapshot = read_snapshot(root)
    entry = next(entry for entry in snapshot.shards if entry.path.endswith(path.name))
    reader = ShardReader(root, entry, snapshot.form)
    assert reader.rows_per_block > 0  # opens the file
    cut(path, left)
    with pytest.raises(CorruptionError, match=path.name):
        reader.read(np.arange(20))


@pytest.mark.parametrize("sound", ["arrow"], indirect=True)  # blocks of Parquet are copied out of the file
def test_shard_cut_short_is_reported_in_an_iteration_that_goes_on_when_it_is_restored(output: Path, sound: Path) -> None:
    loader, path = Loader(output, **OPTIONS), shards(output)[1]
    expected = [batch["input_ids"] for _, batch in zip(range(NUM_STEPS), Loader(sound, **OPTIONS))]
    found = [next(loader)["input_ids"], next(loader)["input_ids"]]
    os.truncate(path, 100)
    with pytest.raises(CorruptionError, match=path.name):
        found.extend(batch["input_ids"] for batch in islice(loader, NUM_STEPS))  # those that were built before come first
    shutil.copy(shards(sound)[1], path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)
    while len(found) < NUM_STEPS:
        found.append(next(loader)["input_ids"])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("sound", ["arrow"], indirect=True)
def test_shard_cut_short_is_replaced_where_damaged_rows_are(output: Path) -> None:
    loader, path = Loader(output, on_corrupt="replace", **OPTIONS), shards(output)[1]
    before = [loader.batch(step)["input_ids"] for step in range(3)]
    os.truncate(path, 0)
    with pytest.warns(UserWarning, match=path.name):
        after = [loader.batch(step)["input_ids"] for step in range(3)]
    assert not np.array_equal(before, after)
    assert all(batch.shape == (12, 2048) and batch.any(axis=1).all() for batch in after)


def test_shard_cut_short_while_threads_read_it_never_gives_wrong_rows(output: Path, sound: Path) -> None:
    loader, path, errors = Loader(output, **OPTIONS), shards(output)[2], []
    begun = threading.Barrier(4)

    def read() -> None:
        begun.wait()
        errors.append(sum(check(loader, sound, path.name) for _ in range(3)))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    begun.wait()
    for left in range(path.stat().st_size, 0, -20_000):
        os.truncate(path, left)
    os.truncate(path, 0)
    for thread in threads:
        thread.join()
    assert len(errors) == 3


PROGRAM = """
import faulthandler, os, sys
import pyarrow as pa
from datapipe.loader import Loader
faulthandler.enable()
loader = Loader(sys.argv[1], global_batch_size=12)
loader.batch(0)
with open(sys.argv[2], "wb") as file:
    file.write(bytes([1]) * 100_000)
foreign = pa.memory_map(sys.argv[2]).read_buffer()
os.truncate(sys.argv[2], 0)
print(foreign[50_000])
"""


@pytest.mark.slow
@pytest.mark.parametrize("sound", ["arrow"], indirect=True)
def test_bus_error_of_another_file_ends_the_process_as_it_did(sound: Path, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[3]), *sys.path])
    arguments = [sys.executable, "-c", PROGRAM, str(sound), str(tmp_path / "foreign")]
    done = subprocess.run(
        arguments, check=False, timeout=120, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr  # the handler that was there before
    assert done.stdout == ""
