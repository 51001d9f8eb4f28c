"""The rows that many files have in a range of hashes: held as they are stored, handed out in order, in slices.

    files + a range ─▶ parts: the rows of each block in the range ─▶ spans: of each part up to a bound ─▶ one slice, sorted

Every block is read once. Its rows are sorted already, so a slice is one span of every part, and
only one slice at a time is copied and sorted. The bounds between slices are quantiles of a sample
of the parts. Memory is that of the parts, which are released as they are used up, and of one slice.
Neither bounds nor the order of the files change the rows or their order."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from datapipe.columns import take_rows
from datapipe.exchange.files import (
    Block,
    Bound,
    joined,
    open_rows,
    read_index,
    read_neighbours,
    sort_word,
    sort_words,
    sorted_columns,
    sorted_rows,
)
from datapipe.records.outputs import ExchangeFile
from datapipe.storage.root import Root

HASH_SPACE = 1 << 64  # the number of 64-bit hashes: the end of the last range
SLICE_BYTES = 8 << 20  # about: small beside a bucket, and large enough for one call
_SAMPLES_PER_SLICE = 32

Parts = list[pa.RecordBatch]  # rows of one table, sorted in each batch


def read_rows(root: Root, files: Sequence[ExchangeFile], start: Bound, stop: Bound) -> pa.RecordBatch | None:
    """All rows in [start, stop), sorted, as one batch; None where there are none. Memory: the rows twice."""
    slices: list[pa.RecordBatch] = []
    for rows in read_slices(root, files, start, stop):
        slices.append(rows)
        pa.default_memory_pool().release_unused()  # the parts that are used up: an allocator keeps them until later
    return joined(slices) if slices else None


def read_slices(
    root: Root,
    files: Sequence[ExchangeFile],
    start: Bound,
    stop: Bound,
    # hold about so many bytes of rows at a time, and read blocks again that have more; None: hold all
    limit_bytes: int | None = None,
    prefix: int | None = None,  # see `in_slices`
) -> Iterator[pa.RecordBatch]:
    """All rows in [start, stop), sorted, in slices."""
    while start < stop:
        parts, start = read_portion(root, files, start, stop, limit_bytes, prefix)
        for spans in in_slices({"rows": parts}, prefix):
            yield sorted_rows(pa.Table.from_batches(spans["rows"]))


def read_blocks(root: Root, output: ExchangeFile, start: Bound, stop: Bound) -> Iterator[pa.RecordBatch]:
    """The rows of one file in [start, stop), block by block; only overlapping blocks are fetched, and no batch is empty."""
    with open_rows(root, output) as stream:
        blocks, schema = read_index(stream, output)
        overlapping = (block for block in blocks if _overlaps(block, start, stop))
        for block, rows in read_neighbours(stream, output, overlapping, schema):
            part = _between(rows, block, start, stop)
            if part.num_rows:
                yield part


def _overlaps(block: Block, start: Bound, stop: Bound, wanted: np.ndarray | None = None) -> bool:
    """Whether a block may have rows in [start, stop), with hashes that are wanted."""
    if block.last < start or block.first >= stop:
        return False
    if wanted is None:
        return True
    first = np.searchsorted(wanted, np.uint64(block.first[0]))
    return bool(first < len(wanted) and wanted[first] <= block.last[0])


def _between(rows: pa.RecordBatch, block: Block, start: Bound, stop: Bound, wanted: np.ndarray | None = None) -> pa.RecordBatch:
    """The rows of a block in [start, stop), with hashes that are wanted."""
    if wanted is not None:
        (hashes,) = sort_words(rows, 1)
        places = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        rows = take_rows(rows, np.flatnonzero(wanted[places] == hashes))
    if not (start <= block.first and block.last < stop):
        rows = take_rows(rows, np.arange(position(rows, start), position(rows, stop)))  # a slice would hold on to the block
    return rows


def read_portion(
    root: Root,
    files: Sequence[ExchangeFile],
    start: Bound,
    stop: Bound,
    limit_bytes: int | None = None,
    # rows with so many equal words stay together, whatever they take; None: all words
    prefix: int | None = None,
    # (num_hashes,) uint64, sorted: only rows with these hashes; None: all rows
    wanted: np.ndarray | None = None,
) -> tuple[Parts, Bound]:
    """The first rows of [start, stop), and the bound where they end: `stop`, or at the limit.

    Whenever the held rows pass the limit, about their upper half is dropped, to be read again by a
    later call. So memory is the limit and a block, however many rows there are.
    """
    held: Parts = []
    held_bytes = 0
    for output in files:
        with open_rows(root, output) as stream:
            blocks, schema = read_index(stream, output)
            overlapping = (block for block in blocks if _overlaps(block, start, stop, wanted))
            for block, rows in read_neighbours(stream, output, overlapping, schema):
                part = _between(rows, block, start, stop, wanted)  # a cut lowers `stop` within a file, too
                if not part.num_rows:
                    continue
                held.append(part)
                held_bytes += part.nbytes
                if limit_bytes is not None and held_bytes > limit_bytes:
                    cut = _middle(held, prefix)
                    if cut is None:
                        limit_bytes *= 2
                    else:
                        stop, held = cut, before(held, cut)
                        held_bytes = sum(part.nbytes for part in held)
    return held, stop


def before(parts: Parts, bound: Bound) -> Parts:
    """The rows before a bound. Parts that go beyond it are copied; the others are the same."""
    ends = [position(part, bound) for part in parts]
    return [part if end == part.num_rows else take_rows(part, np.arange(end)) for part, end in zip(parts, ends) if end]


def position(rows: pa.RecordBatch, bound: Bound) -> int:
    """How many of the sorted rows come before a bound."""
    low, high = 0, rows.num_rows
    for number, value in enumerate(bound):
        if low == high or value >= 1 << 64:
            return high
        word = sort_word(rows.slice(low, high - low), number)
        wanted = np.uint64(value)
        low, high = low + int(np.searchsorted(word, wanted, "left")), low + int(np.searchsorted(word, wanted, "right"))
    return low


def words_at(rows: pa.RecordBatch, row: int, prefix: int | None = None) -> Bound:
    """The words of a row; row -1 is the last one."""
    row = row % rows.num_rows
    return tuple(int(word[0]) for word in sort_words(rows.slice(row, 1), prefix))


def _after(bound: Bound) -> Bound:
    return (*bound[:-1], bound[-1] + 1)


def in_slices(tables: Mapping[str, Parts], prefix: int | None = None) -> Iterator[dict[str, Parts]]:
    """The rows of tables as spans, unsorted, slice by slice: all rows of a slice come before those of the next one.

    Takes the parts out of the lists as it goes. Rows with the same first `prefix` words (None: all words) come in one slice.
    """
    for bound in [*_slice_bounds(tables, prefix), None]:
        spans = {name: _take_before(parts, bound) for name, parts in tables.items()}
        if any(spans.values()):
            yield spans


def _take_before(parts: Parts, bound: Bound | None) -> Parts:
    """Removes the rows before a bound (None: all) from the parts, and returns views of them."""
    spans: Parts = []
    rest: Parts = []
    for part in parts:
        end = part.num_rows if bound is None else position(part, bound)
        if end:
            spans.append(part.slice(0, end))
        if end < part.num_rows:
            rest.append(part.slice(end))
    parts[:] = rest
    return spans


def _slice_bounds(tables: Mapping[str, Parts], prefix: int | None) -> list[Bound]:
    """The bounds between slices of about `SLICE_BYTES`; they isolate what is too frequent for one."""
    total = sum(part.nbytes for parts in tables.values() for part in parts)
    count = -(-total // SLICE_BYTES)
    if count < 2:
        return []
    samples = _Samples([part for parts in tables.values() for part in parts], SLICE_BYTES // _SAMPLES_PER_SLICE, prefix)
    chosen = [samples.quantile(number / count) for number in range(1, count)]
    hot = [_after(bound) for bound, following in pairwise(chosen) if bound == following]
    return sorted({*chosen, *hot})


def _middle(parts: Parts, prefix: int | None) -> Bound | None:
    """A bound near the middle with rows before and behind it; None where all rows have the same words."""
    least = min(words_at(part, 0, prefix) for part in parts)
    step_bytes = sum(part.nbytes for part in parts) // _SAMPLES_PER_SLICE
    middle = _Samples(parts, step_bytes, prefix).quantile(0.5)
    if middle > least:
        return middle
    starts = [(part, position(part, _after(least))) for part in parts]
    return min((words_at(part, start, prefix) for part, start in starts if start < part.num_rows), default=None)


class _Samples:
    """Words of rows in sorted parts, at least one a part and about one in `step_bytes`, and the bytes that each stands for."""

    def __init__(self, parts: Parts, step_bytes: int, prefix: int | None) -> None:
        words: list[list[np.ndarray]] = []
        weights: list[np.ndarray] = []
        for part in parts:
            count = min(part.num_rows, 1 + part.nbytes // max(1, step_bytes))
            rows = (np.arange(count) * 2 + 1) * part.num_rows // (2 * count)
            words.append(sort_words(take_rows(sorted_columns(part), rows), prefix))
            weights.append(np.full(count, part.nbytes / count))
        joined = [np.concatenate(of_parts) for of_parts in zip(*words)]
        order = np.lexsort(joined[::-1])
        self._words = [word[order] for word in joined]
        self._ends = np.cumsum(np.concatenate(weights)[order])

    def quantile(self, share: float) -> Bound:
        """The sample behind about this share of the bytes."""
        sample = int(np.searchsorted(self._ends, share * self._ends[-1], "right"))
        return tuple(int(word[min(sample, len(word) - 1)]) for word in self._words)
