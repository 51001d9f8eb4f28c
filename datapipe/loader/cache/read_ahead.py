"""Tells the cache of a remote snapshot which shards are read next.

    step ─▶ current and next windows of each source ─▶ cache.expect(shards by first use)
                                                └────▶ shards of finished windows are closed

Until a shard is in the cache, its rows are read from the store block by block, so no batch waits for a whole shard.
"""

from __future__ import annotations

import shutil
from itertools import zip_longest
from pathlib import Path
from threading import Lock

from datapipe.loader.cache.cache import ShardCache
from datapipe.loader.cache.folder import default_folder
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.reading import RowReader

CACHE_BYTES = 16 << 30
"""The default size of the cache, unless that is more than half of the free disk space."""


class ReadAhead:
    """Announces the shards that iterations read next to the cache: of a loader one, of a server those of all its streams.

    Args:
        cache: of the shards of the layout.
        reader: of the same shards.
    """

    def __init__(self, cache: ShardCache, reader: RowReader) -> None:
        self._cache, self._reader, self._lock = cache, reader, Lock()
        self._by_stream: dict[object, list[int]] = {}
        self._expected: list[int] = []

    def announce(self, batch_order: BatchOrder, step: int, stream: object = None) -> None:
        """Announces the shards that a stream reads from `step` on. Thread-safe, and cheap while they do not change."""
        shards = batch_order.sample_order.windows_ahead(batch_order.steps.samples(step)[0])
        with self._lock:
            if self._by_stream.get(stream) != shards:
                self._by_stream[stream] = shards
                self._expect()

    def leave(self, stream: object) -> None:
        """Forgets a stream that has ended."""
        with self._lock:
            if self._by_stream.pop(stream, None) is not None:
                self._expect()

    def _expect(self) -> None:
        """Expects the first shard of every stream, then the second, and so on."""
        in_turn = [shard for row in zip_longest(*self._by_stream.values()) for shard in row if shard is not None]
        if not in_turn:  # what was expected last stays in the cache while nobody reads
            return
        before, self._expected = self._expected, list(dict.fromkeys(in_turn))
        self._cache.expect(self._expected)
        for shard in set(before) - set(self._expected):
            self._reader.forget(shard)


def plan_budget(cache_bytes: int | None, folder: Path | None) -> tuple[int, Path]:
    """The bytes and the folder of a cache: the given ones, or the defaults."""
    folder = default_folder() if folder is None else folder
    if cache_bytes is not None:
        return cache_bytes, folder
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return min(CACHE_BYTES, shutil.disk_usage(existing).free // 2), folder
