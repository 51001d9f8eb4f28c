"""A store of shards in a folder, for tests of the cache: files of random bytes and their manifest entries."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from datapipe.loader.cache.cache import ShardCache
from datapipe.records.checksum import bytes_checksum
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage.root import Root
from tests.support.cli_processes import wait_until
from tests.support.packed_shards import RemoteRoot

SIZE = 5000


class Store:
    """Files in a folder that is only reached as a bucket is, and what was asked of it."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.folder, self.cached = folder / "store", folder / "cached"
        self.root: Root = RemoteRoot(str(self.folder))
        self.folder.mkdir()
        rng = np.random.default_rng(len(sizes))
        self.contents = [rng.bytes(size) for size in sizes]
        self.entries = [entry(number, content) for number, content in enumerate(self.contents)]
        for shard, content in zip(self.entries, self.contents):
            (self.folder / shard.path).write_bytes(content)

    def path(self, number: int) -> Path:
        return self.folder / self.entries[number].path

    @contextmanager
    def cache(self, budget_bytes: int = 1 << 30, **options) -> Iterator[ShardCache]:
        cache = ShardCache(self.root, self.entries, self.cached, budget_bytes, **options)
        try:
            yield cache
        finally:
            cache.close()

    def held(self) -> set[int]:
        """Numbers of the shards in the folder; everything in it must be whole and right. (Whoever looks for room has an empty
        part for a moment, which may be gone before it is read.)"""
        contents = {path.read_bytes() for path in self.cached.iterdir() if path.suffix != ".part"}
        for path in self.cached.glob("*.part"):
            with suppress(FileNotFoundError):
                assert path.stat().st_size == 0
        assert contents <= set(self.contents)
        return {self.contents.index(content) for content in contents}


def entry(number: int, content: bytes) -> ShardEntry:
    counts = dict.fromkeys(("sequences", "tokens", "documents"), 1)
    file = {"path": f"part-{number:05d}.arrow", "bytes": len(content), "checksum": bytes_checksum(content)}
    return ShardEntry(source="web", split="train", **counts, **file)


def wait_for(cache: ShardCache, *shards: int) -> None:
    wait_until(lambda: all(cache.path_of(shard) for shard in shards), f"shards {shards}")
