"""What `dedup.substring` does where rows meet: equal spans go, spans alike in part are looked at window by window.

anchors     ->  cut_repeated  ->  cuts        all but the first of equal (hash, span)
            ->  candidates_of                 one of each span, where a gram has several
candidates  ->  windows_of                    their windows, by 128-bit hashes of what they say
windows     ->  cut_repeated  ->  cuts        all but the first of equal (hash, check)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE
from datapipe.kernels.dedup import substring
from datapipe.kernels.types import input_record
from datapipe.stage.tables import is_new, key_hash
from stages.dedup._cutting import cut_rows
from stages.dedup._passages import Grams

CANDIDATES = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("piece", pa.uint32(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("size", pa.uint32(), nullable=False),
        pa.field("gram", pa.uint64(), nullable=False),
    ]
)
WINDOWS = pa.schema(
    [
        pa.field("hash", pa.uint64(), nullable=False),
        pa.field("check", pa.uint64(), nullable=False),
        pa.field("rank", pa.uint16(), nullable=False),
        pa.field("key", KEY_TYPE, nullable=False),
        pa.field("start", pa.int64(), nullable=False),
        pa.field("size", pa.uint32(), nullable=False),
    ]
)


def _runs(rows: pa.RecordBatch, *names: str) -> np.ndarray:
    """Where rows differ from the one before in any of these columns: (num_rows + 1,) bool, true at both ends."""
    new = np.ones(rows.num_rows + 1, np.bool_)
    values = [columns.numbers(rows.column(name)) for name in names]
    new[1:-1] = np.logical_or.reduce([value[1:] != value[:-1] for value in values]) if rows.num_rows else False
    return new


def cut_repeated(rows: pa.RecordBatch, second: str, keep: str) -> pa.RecordBatch:
    """Cuts of all rows but the first of each group of equal (hash, second), or of all in groups of several; of rows about
    documents of this run.

    A piece of a giant group may bring a row twice: a row that is its own neighbour is no copy of itself.
    """
    new, other = _runs(rows, "hash", second), _runs(rows, "hash", second, "rank", "start")
    high, low = columns.key_halves(rows.column("key"))
    other[1:-1] |= (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    firsts = np.flatnonzero(new[:-1])
    group = np.cumsum(new[:-1]) - 1
    several = np.add.reduceat(other[:-1], firsts, dtype=np.int64) > 1 if len(firsts) else np.zeros(0, np.bool_)
    place = np.cumsum(other[:-1])  # equal for a row and its double
    is_first = place == place[firsts][group] if len(firsts) else np.zeros(0, np.bool_)
    repeated = several[group] if keep == "none" else ~is_first
    gone = rows.take(pa.array(np.flatnonzero(repeated & is_new(rows))))
    starts, stops = _whole(gone)
    return cut_rows(gone.column("key"), starts, stops)


def _whole(rows: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """First byte and last of spans without the characters that their ends cut."""
    starts = columns.numbers(rows.column("start"))
    stops = starts + columns.numbers(rows.column("size"))
    if "trims" not in rows.schema.names:
        return starts, stops
    trims = columns.numbers(rows.column("trims")).astype(np.int64)
    return starts + trims % 16, stops - trims // 16


def candidates_of(anchors: pa.RecordBatch) -> pa.RecordBatch:
    """The first anchor of each span, where a gram has several spans: their windows may be equal in part."""
    first_of_gram, first_of_span = _runs(anchors, "hash")[:-1], _runs(anchors, "hash", "span")[:-1]
    gram = np.cumsum(first_of_gram) - 1
    chosen = np.flatnonzero(first_of_span & (np.bincount(gram, first_of_span)[gram] > 1))
    rows = anchors.take(pa.array(chosen))
    hashes = pa.array(key_hash(rows.column("key")))
    arrays = [hashes, *(rows.column(name) for name in ("rank", "key", "piece", "start", "size", "hash"))]
    return pa.RecordBatch.from_arrays(arrays, schema=CANDIDATES)


def windows_of(candidates: pa.RecordBatch, passages: pa.RecordBatch, grams: Grams) -> pa.RecordBatch:
    """The windows of the candidates whose passages are here."""
    there, wanted = _places(passages), _places(candidates)
    order = np.argsort(there)
    at = np.minimum(np.searchsorted(there, wanted, sorter=order), max(0, len(there) - 1))
    here = order[at] if len(order) else at
    spans = np.flatnonzero(there[here] == wanted) if len(order) else np.zeros(0, np.int64)
    spans = spans[np.argsort(here[spans], kind="stable")]
    passage, begins = here[spans], columns.numbers(passages.column("start"))
    starts, sizes = columns.numbers(candidates.column("start"))[spans], columns.numbers(candidates.column("size"))[spans]
    sizes = sizes.astype(np.int64)
    room = int(np.minimum(sizes, grams.most_windows).sum())
    windows, halves = np.empty((room, 3), np.int64), np.empty((room, 2), np.uint64)
    met = columns.numbers(candidates.column("gram"))[spans]
    anchor_spans = input_record(substring.AnchorSpans, (passage, starts - begins[passage], sizes, met))
    offsets, data = columns.text_buffers(passages.column("text"))
    scratch = substring.scratch_for(grams.sizes)
    found = substring.hash_windows(offsets, data, grams.rules, grams.sizes, anchor_spans, scratch, windows, halves)
    windows, halves = windows[:found], halves[:found]
    candidate = spans[windows[:, 0]]
    keys = columns.keys_from(columns.key_matrix(candidates.column("key"))[candidate])
    ranks = pa.array(columns.numbers(candidates.column("rank"))[candidate])
    first_bytes = windows[:, 1] + begins[passage[windows[:, 0]]]
    hashes, checks = (pa.array(np.ascontiguousarray(half)) for half in halves.T)
    arrays = [hashes, checks, ranks, keys, pa.array(first_bytes), pa.array(windows[:, 2].astype(np.uint32))]
    return pa.RecordBatch.from_arrays(arrays, schema=WINDOWS)


def _places(rows: pa.RecordBatch) -> np.ndarray:
    """Key, piece and rank of every row as (num_rows,) byte strings, which NumPy compares like memory. By the rank too, since a
    document may have been in an earlier run, under the same key."""
    pieces = columns.numbers(rows.column("piece")).astype(">u4").view(np.uint8).reshape(-1, 4)
    ranks = columns.numbers(rows.column("rank")).astype(">u2").view(np.uint8).reshape(-1, 2)
    return np.concatenate([columns.key_matrix(rows.column("key")), pieces, ranks], axis=1).view("S22").reshape(-1)
