"""The shards of other outputs in an output of their own: linked on one disk, copied by the store, or copied here.

    runs/2025/shards/web/part-00003-00000-<digest>.arrow                    ─▶  shards/old.web/part-00003-00000-<digest>.arrow
    runs/2025/additions/00002/shards/web/part-00000-00000-<digest>.arrow    ─▶  shards/old.web+2/part-00000-00000-….arrow

An output stays whole by itself: the other one may be cleaned, moved or deleted. On one disk a link takes no room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from time import monotonic

from datapipe.errors import CorruptionError
from datapipe.quantities import size
from datapipe.records.checksum import file_checksum
from datapipe.shards.document_files import files_with_hashes
from datapipe.shards.shard_table import ShardEntry
from datapipe.steps.request import TakenSource
from datapipe.storage.root import Root

_TELL_EVERY_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TakenShard:
    """A shard as the new manifest names it, and where it is.

    Attributes:
        root, path: of the file in the other output.
    """

    entry: ShardEntry
    root: Root
    path: str


def taken_shards(taken: Mapping[str, TakenSource], sequence_length: int, folder: str, seed: int) -> list[TakenShard]:
    """The shards of all taken sources. Their parts are shuffled as one.

    Args:
        folder: that their paths begin with.
        seed: of the new snapshot; ranges of shuffle hashes under another seed tell nothing.
    """
    found: list[TakenShard] = []
    for name, source in taken.items():
        snapshot = source.snapshot.of_length(sequence_length)
        for shard in snapshot.shards:
            if shard.source == source.source:
                own = f"{name}+{shard.part}" if shard.part else name
                changes = {"path": f"{folder}shards/{own}/{shard.path.rpartition('/')[2]}", "source": name, "part": None}
                hashes = shard.hashes if snapshot.seed == seed else None
                entry = shard.model_copy(update={**changes, "hashes": hashes})
                found.append(TakenShard(entry=entry, root=source.root, path=shard.path))
    return found


def taken_files(taken: Mapping[str, TakenSource]) -> Iterator[tuple[int, str, str]]:
    """Hash, source and path of the input files behind the documents of all taken sources."""
    for name, source in taken.items():
        for number, there, path in files_with_hashes(source.root, source.snapshot):
            if there == source.source:
                yield number, name, path


def copy_shards(
    target: Root,
    shards: Sequence[TakenShard],
    staging: str,
    say: Callable[[str], None] | None = None,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Puts shards that are not there into an output. Raises CorruptionError for one that is not as its manifest says.

    Args:
        staging: a folder of `target` for links before they are renamed.
        say: gets a line about how far it is, every ten seconds.
    """
    total, done, told_at = sum(shard.entry.bytes for shard in shards), 0, clock()
    for number, shard in enumerate(shards):
        if say is not None and clock() - told_at > _TELL_EVERY_S:
            told_at = clock()
            say(f"  taking shards of other snapshots: {number:,} of {len(shards):,}, {size(done)} of {size(total)}")
        done += shard.entry.bytes
        if target.size(shard.entry.path) == shard.entry.bytes:
            continue
        found = (shard.entry.checksum, shard.entry.bytes)
        if shard.root.size(shard.path) != found[1] or file_checksum(shard.root, shard.path, found[0]) != found:
            raise CorruptionError(
                f"{shard.root.child_url(shard.path)}: the shard is gone, or not the one that its snapshot names. "
                f"`datapipe verify {quote(shard.root.url)}` tells which shards are damaged; run its mixture again to "
                f"restore them."
            )
        target.take(shard.root, shard.path, shard.entry.path, f"{staging}/taken-{number:06d}")
