"""Warnings about the documents that are held out for validation: there are none, or their texts are in training, too.

    hashes of texts that tokenize tasks wrote, sorted ─▶ range by range: held-out ones, and which of them training has ─▶ counts

Texts are compared by 64 bits of a hash of all their bytes, across all sources that were read; rows of other outputs have no
hashes. Up to `MOST_TEXTS` documents are compared all; above, those with the lowest hashes, a sample in which copies of one text
are together. Memory is that of one range, about `_RANGE_TEXTS` documents.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from datapipe.columns import key_matrix, numbers
from datapipe.document_name import document_name
from datapipe.exchange.ranges import read_blocks
from datapipe.metrics import counted
from datapipe.plan.compile import Plan
from datapipe.plan.outputs import HELD_OUT_TEXTS, TRAINING_TEXTS, ExchangeFile
from datapipe.plan.request import Request
from datapipe.plan.splits import file_hash
from datapipe.plan.warnings import RunWarning
from datapipe.plan.work import HASH_SPACE
from datapipe.shards.shard_table import ShardEntry
from datapipe.storage import Root

MOST_TEXTS = 1 << 25
"""About 270 MB of hashes, which the driver reads once for each snapshot."""

_RANGE_TEXTS = 1 << 22
_WANTED = 10

Files = Mapping[str, Sequence[ExchangeFile]]
"""By source, the files with the hashes of its texts."""


def held_out_warnings(root: Root, request: Request, plan: Plan, shards: Sequence[ShardEntry]) -> Iterator[RunWarning]:
    """Warnings about the validation split of a snapshot; none where nothing is to be held out.

    Args:
        shards: of the sources with input files.
    """
    share = request.mixture.validation
    if not share:
        return
    held_out = {shard.source for shard in shards if shard.split == "validation"}
    without = {shard.source: 0 for shard in shards if shard.source not in held_out}
    for name in without:
        without[name] = sum(shard.documents for shard in shards if shard.source == name)
    if without:
        yield _nothing_held_out(share, without)
    for source, copies in find_copies(root, *_text_files(plan)).items():
        yield _held_out_copies(request, source, copies)


def _nothing_held_out(share: float, documents: Mapping[str, int]) -> RunWarning:
    num_docs = sum(documents.values())
    enough = math.ceil(min(50.0, 100 * _WANTED / num_docs) * 10) / 10
    text = (
        f"`validation: {100 * share:g}%` holds out none of {counted(num_docs, 'document')}, so nothing can be measured on the "
        f"split validation. `validation: {enough:g}%` would hold out about {max(1, round(num_docs * enough / 100))}."
    )
    return RunWarning.of_sources("nothing_held_out", sorted(documents), text)


@dataclass(slots=True)
class Copies:
    """Held-out documents of one source whose text is in training, too.

    Attributes:
        compared, copied: held-out documents that were compared, and of these the ones with a copy.
        sources: of the copies in training, each with the held-out documents that it copies.
        example: key of one of the held-out documents, that of the lowest hash.
        is_sample: whether a sample was compared.
    """

    compared: int = 0
    copied: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    example: bytes = b""
    is_sample: bool = False


def _held_out_copies(request: Request, source: str, copies: Copies) -> RunWarning:
    number = int.from_bytes(copies.example[:8], "big")
    path = next(path for path in request.sources[source].files if file_hash(source, path) == number)
    example = document_name(source, path, int.from_bytes(copies.example[8:], "big"))
    where = " and ".join(f"'{name}'" for name in sorted(copies.sources))
    of = "a sample of " if copies.is_sample else ""
    text = (
        f"source '{source}': {copies.copied:,} of {of}{counted(copies.compared, 'held-out document')} "
        f"({copies.copied / copies.compared:.2%}) have the text of a training document of {where}, such as {example}. The "
        f"loss on them does not tell how a model does on new text. Put dedup.exact among the stages of all these sources."
    )
    details = {
        "copied": copies.copied,
        "compared": copies.compared,
        "training_sources": sorted(copies.sources),
        "is_sample": copies.is_sample,
        "document": example,
    }
    return RunWarning(kind="held_out_copies", source=source, text=text, details=details)


def _text_files(plan: Plan) -> tuple[Files, Files]:
    """The files about training and about held-out documents."""
    found: list[dict[str, list[ExchangeFile]]] = [{}, {}]
    for step in plan.of_kind("tokenize"):
        for files, name in zip(found, (TRAINING_TEXTS, HELD_OUT_TEXTS)):
            files.setdefault(step.source, []).extend(step.outputs(name, ExchangeFile))
    return found[0], found[1]


def find_copies(root: Root, training: Files, held_out: Files) -> dict[str, Copies]:
    """Held-out documents whose text is in training, too, by their source; only sources that have some."""
    num_texts = sum(file.rows for files in (training, held_out) for listed in files.values() for file in listed)
    stop = HASH_SPACE if num_texts <= MOST_TEXTS else HASH_SPACE * MOST_TEXTS // num_texts
    num_ranges = max(1, math.ceil(min(num_texts, MOST_TEXTS) / _RANGE_TEXTS))
    found = {source: Copies(is_sample=stop < HASH_SPACE) for source in held_out}
    for number in range(num_ranges if any(held_out.values()) else 0):
        first, last = stop * number // num_ranges, stop * (number + 1) // num_ranges
        _compare(root, training, held_out, first, last, found)
    return {source: copies for source, copies in found.items() if copies.copied}


def _compare(root: Root, training: Files, held_out: Files, first: int, last: int, found: Mapping[str, Copies]) -> None:
    """Adds the copies with hashes in [first, last)."""
    rows = {source: _rows(root, files, first, last) for source, files in held_out.items()}
    wanted = np.unique(np.concatenate([hashes for hashes, _ in rows.values()]))
    in_training = {source: _which(root, files, first, last, wanted) for source, files in training.items()}
    for source, (hashes, keys) in rows.items():
        copies, places = found[source], np.searchsorted(wanted, hashes)
        copied = np.zeros(len(hashes), np.bool_)
        for name, is_there in in_training.items():
            own = is_there[places]
            copies.sources.update({name: int(own.sum())} if own.any() else {})
            copied |= own
        if copied.any() and not copies.copied:
            chosen = np.flatnonzero(copied)
            copies.example = keys[chosen[np.argmin(hashes[chosen])]].tobytes()
        copies.compared += len(hashes)
        copies.copied += int(copied.sum())


def _rows(root: Root, files: Sequence[ExchangeFile], first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes (num_docs,) and keys (num_docs, 16) of held-out documents, sorted by both."""
    blocks = [block for file in files for block in read_blocks(root, file, (first,), (last,))]
    hashes = np.concatenate([np.zeros(0, np.uint64), *(numbers(block.column("hash")) for block in blocks)])
    keys = np.concatenate([np.zeros((0, 16), np.uint8), *(key_matrix(block.column("key")) for block in blocks)])
    order = np.lexsort([*keys.T[::-1], hashes])
    return hashes[order], keys[order]


def _which(root: Root, files: Sequence[ExchangeFile], first: int, last: int, wanted: np.ndarray) -> np.ndarray:
    """Which of the sorted hashes are in the files: (num_hashes,) bool."""
    is_there = np.zeros(len(wanted), np.bool_)
    for block in (block for file in files for block in read_blocks(root, file, (first,), (last,)) if len(wanted)):
        hashes = numbers(block.column("hash"))
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        is_there[places[wanted[places] == hashes]] = True
    return is_there
