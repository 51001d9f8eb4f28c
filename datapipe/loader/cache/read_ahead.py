"""Tells the cache of a remote snapshot which shards an iteration reads next.

    step ─▶ current and next windows of each source ─▶ cache.expect(shards by first use)
                                                └────▶ shards of finished windows are closed

Until a shard is in the cache, its rows are read from the store block by block, so no batch waits for a whole shard.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Lock

from datapipe.loader.cache.cache import ShardCache
from datapipe.loader.cache.folder import default_folder
from datapipe.loader.order.batch_order import BatchOrder
from datapipe.loader.reading import RowReader

CACHE_BYTES = 16 << 30
"""The default size of the cache, unless that is more than half of the free disk space."""


class ReadAhead:
    """Announces the shards of an iteration to the cache.

    Args:
        cache: of the shards of the layout.
        reader: of the same shards.
    """

    def __init__(self, cache: ShardCache, reader: RowReader) -> None:
        self._cache, self._reader = cache, reader
        self._lock = Lock()
        self._expected: list[int] = []

    def announce(self, batch_order: BatchOrder, step: int) -> None:
        """Announces the shards that are read from `step` on. Thread-safe, and cheap while they do not change."""
        shards = batch_order.sample_order.windows_ahead(batch_order.steps.samples(step)[0])
        with self._lock:
            if shards == self._expected:
                return
            used_up, self._expected = set(self._expected) - set(shards), shards
            self._cache.expect(shards)
        for shard in used_up:
            self._reader.forget(shard)


def plan_budget(cache_bytes: int | None, folder: Path | None) -> tuple[int, Path]:
    """The bytes and the folder of a cache: the given ones, or the defaults."""
    folder = default_folder() if folder is None else folder
    if cache_bytes is not None:
        return cache_bytes, folder
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return min(CACHE_BYTES, shutil.disk_usage(existing).free // 2), folder
