"""Warnings about the documents that are held out for validation: there are none, or their texts are in training, too.

    hashes of texts that tokenize tasks wrote, sorted ─▶ held-out ones, and which of them training has ─▶ counts

Texts are compared by 64 bits of a hash of all their bytes, across all sources that were read; rows of other outputs have no
hashes. Up to `fold.MOST_TEXTS` documents are compared all; above, those with the lowest hashes, a sample in which copies of one
text are together. Memory is that of the held-out documents among them, and of a block of the others.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from datapipe.columns import key_matrix, numbers
from datapipe.document_name import document_name
from datapipe.exchange.ranges import HASH_SPACE, read_blocks
from datapipe.quantities import counted
from datapipe.records.outputs import HELD_OUT_TEXTS, TRAINING_TEXTS, ExchangeFile
from datapipe.shards.shard_table import ShardEntry
from datapipe.steps.fold import compared_below, fewest
from datapipe.steps.kind import Plan
from datapipe.steps.warnings import RunWarning
from datapipe.storage.root import Root

_WANTED = 10

Files = Mapping[str, Sequence[ExchangeFile]]  # By source, the files with the hashes of its texts


def held_out_warnings(
    root: Root, share: float, plan: Plan, shards: Sequence[ShardEntry], files: Iterable[tuple[int, str, str]]
) -> Iterator[RunWarning]:
    """Warnings about the documents that are held out, a `share` of all; none without a share. `shards` are those of the
    sources with input files, `files` the (hash, source, path) of each file."""
    if not share:
        return
    held_out = {shard.source for shard in shards if shard.split == "validation"}
    without = {shard.source: 0 for shard in shards if shard.source not in held_out}
    for name in without:
        without[name] = sum(shard.documents for shard in shards if shard.source == name)
    if without:
        num_docs = sum(without.values())
        enough = math.ceil(min(50.0, 100 * _WANTED / num_docs) * 10) / 10
        text = (
            f"`validation: {100 * share:g}%` holds out none of {counted(num_docs, 'document')}, so nothing can be measured on "
            f"the split validation. `validation: {enough:g}%` would hold out about {max(1, round(num_docs * enough / 100))}."
        )
        yield RunWarning.of_sources("nothing_held_out", sorted(without), text)
    paths = {number: path for number, _, path in files}
    num_texts = sum(step.totals.rows[name] for step in plan.of_kind("tokenize") for name in (TRAINING_TEXTS, HELD_OUT_TEXTS))
    training, held_out_files = _text_files(plan, TRAINING_TEXTS), _text_files(plan, HELD_OUT_TEXTS)
    yield from _copies_in_training(root, paths, training, held_out_files, num_texts)


def _text_files(plan: Plan, name: str) -> Files:
    """The files with the lowest hashes, at least as many as are compared."""
    files: dict[str, list[ExchangeFile]] = {}
    for step in plan.of_kind("tokenize"):
        files.setdefault(step.source, []).extend(fewest(plan, step, name, ExchangeFile))
    return files


def _copies_in_training(
    root: Root, paths: Mapping[int, str], training: Files, held_out: Files, num_texts: int
) -> Iterator[RunWarning]:
    """A warning for each source with held-out documents whose text is in training, too."""
    stop = compared_below(num_texts)
    rows = {source: _rows(root, files, stop) for source, files in held_out.items()}
    wanted = np.unique(np.concatenate([np.zeros(0, np.uint64), *(hashes for hashes, _ in rows.values())]))
    in_training = {name: _which(root, files, stop, wanted) for name, files in training.items()}
    for source, (hashes, keys) in rows.items():
        places = np.searchsorted(wanted, hashes)
        copied = {name: is_there[places] for name, is_there in in_training.items() if is_there[places].any()}
        if copied:
            chosen = np.flatnonzero(np.logical_or.reduce([*copied.values()]))
            key = keys[chosen[0]].tobytes()  # of the lowest hash
            file, position = (int.from_bytes(half, "big") for half in (key[:8], key[8:]))
            example = document_name(source, paths.get(file, ""), position)
            yield _held_out_copies(source, sorted(copied), len(chosen), len(hashes), example, is_sample=stop < HASH_SPACE)


def _held_out_copies(
    source: str, names: Sequence[str], num_copied: int, num_compared: int, example: str, *, is_sample: bool
) -> RunWarning:
    where = " and ".join(f"'{name}'" for name in names)
    of = "a sample of " if is_sample else ""
    text = (
        f"source '{source}': {num_copied:,} of {of}{counted(num_compared, 'held-out document')} "
        f"({num_copied / num_compared:.2%}) have the text of a training document of {where}, such as {example}. The "
        f"loss on them does not measure how a model does on new text. Put dedup.exact among the stages of all these sources."
    )
    details = {
        "copied": num_copied,
        "compared": num_compared,
        "training_sources": list(names),
        "is_sample": is_sample,
        "document": example,
    }
    return RunWarning(kind="held_out_copies", source=source, text=text, details=details)


def _rows(root: Root, files: Sequence[ExchangeFile], stop: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes (num_docs,) and keys (num_docs, 16) of held-out documents, sorted by both."""
    blocks = [block for file in files for block in read_blocks(root, file, (0,), (stop,))]
    hashes = np.concatenate([np.zeros(0, np.uint64), *(numbers(block.column("hash")) for block in blocks)])
    keys = np.concatenate([np.zeros((0, 16), np.uint8), *(key_matrix(block.column("key")) for block in blocks)])
    order = np.lexsort([*keys.T[::-1], hashes])
    return hashes[order], keys[order]


def _which(root: Root, files: Sequence[ExchangeFile], stop: int, wanted: np.ndarray) -> np.ndarray:
    """Which of the sorted hashes are in the files: (num_hashes,) bool."""
    is_there = np.zeros(len(wanted), np.bool_)
    for block in (block for file in files for block in read_blocks(root, file, (0,), (stop,)) if len(wanted)):
        hashes = numbers(block.column("hash"))
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        is_there[places[wanted[places] == hashes]] = True
    return is_there
