"""Tells the cache of a remote snapshot what comes next, as an iteration goes on.

    step ─▶ windows of each source that are read now, and the next ones ─▶ cache.expect(shards by first use)
                                                                    └────▶ shards that are used up are let go

Shards that are not here yet are read block by block from the store meanwhile, so nothing waits for a whole shard.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Lock

from datapipe.loader.cache.cache import ShardCache
from datapipe.loader.cache.folder import default_folder
from datapipe.loader.order.batch_order import Course
from datapipe.loader.reading import RowReader

CACHE_BYTES = 16 << 30
"""Of the cache unless the user says otherwise; less where it would take more than half of what the disk has free."""


class Lookahead:
    """Follows an iteration over a course.

    Args:
        cache: of the shards of the course's layout.
        reader: that reads them.
    """

    def __init__(self, cache: ShardCache, reader: RowReader) -> None:
        self._cache, self._reader = cache, reader
        self._lock = Lock()
        self._expected: list[int] = []

    def follow(self, course: Course, step: int) -> None:
        """Says what is read from `step` on. For any thread; cheap where that did not change."""
        shards = course.order.windows_ahead(course.steps.samples(step)[0])
        with self._lock:
            if shards == self._expected:
                return
            used_up, self._expected = set(self._expected) - set(shards), shards
            self._cache.expect(shards)
        for shard in used_up:
            self._reader.forget(shard)


def plan_budget(cache_bytes: int | None, folder: Path | None) -> tuple[int, Path]:
    """The bytes and the folder of a cache: what was asked for, or the defaults."""
    folder = default_folder() if folder is None else folder
    if cache_bytes is not None:
        return cache_bytes, folder
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    return min(CACHE_BYTES, shutil.disk_usage(there).free // 2), folder
