"""The reduce functions of `dedup.substring` for partly equal spans, which are compared window by window.

anchors     ->  cut_repeated       ->  cuts        all but the first of equal (hash, span) (`_cutting.py`)
            ->  candidate_spans    ->  candidates  the first of each distinct span, where a gram has several
candidates  ->  candidate_windows  ->  windows     the windows of these spans, by 128-bit hashes of their tokens
windows     ->  cut_repeated       ->  cuts        all but the first of equal (hash, check)
"""

import numpy as np
import pyarrow as pa

from datapipe import columns
from datapipe.columns import KEY_TYPE, full_schema, is_first
from datapipe.kernels.dedup import substring
from datapipe.kernels.types import input_record
from datapipe.stage.tables import key_hash
from stages.dedup._passages import Windowing

CANDIDATES = full_schema(
    hash=pa.uint64(), rank=pa.uint16(), key=KEY_TYPE, piece=pa.uint32(), start=pa.int64(), size=pa.uint32(), gram=pa.uint64()
)
WINDOWS = full_schema(hash=pa.uint64(), check=pa.uint64(), rank=pa.uint16(), key=KEY_TYPE, start=pa.int64(), size=pa.uint32())


def candidate_spans(selected: pa.RecordBatch) -> pa.RecordBatch:
    """The first row of each distinct span, where a gram has several spans: some of their windows may be equal."""
    hashes, spans = columns.numbers(selected.column("hash")), columns.numbers(selected.column("span"))
    gram, first_of_span = np.cumsum(is_first(hashes)) - 1, is_first(hashes, spans)
    chosen = np.flatnonzero(first_of_span & (np.bincount(gram, first_of_span)[gram] > 1))
    rows = selected.take(pa.array(chosen))
    kept = (rows.column(name) for name in ("rank", "key", "piece", "start", "size", "hash"))
    return pa.RecordBatch.from_arrays([key_hash(rows.column("key")), *kept], schema=CANDIDATES)


def candidate_windows(candidates: pa.RecordBatch, passages: pa.RecordBatch, windowing: Windowing) -> pa.RecordBatch:
    """The windows of the candidates, hashed from the passages in the bucket; a candidate without its passage has none."""
    available, wanted = _chunk_names(passages), _chunk_names(candidates)
    order = np.argsort(available)
    sorted_row = np.minimum(np.searchsorted(available, wanted, sorter=order), max(0, len(available) - 1))
    passage_row = order[sorted_row] if len(order) else sorted_row
    spans = np.flatnonzero(available[passage_row] == wanted) if len(order) else np.zeros(0, np.int64)
    spans = spans[np.argsort(passage_row[spans], kind="stable")]
    passage, begins = passage_row[spans], columns.numbers(passages.column("start"))
    starts, sizes = columns.numbers(candidates.column("start"))[spans], columns.numbers(candidates.column("size"))[spans]
    sizes = sizes.astype(np.int64)
    room = int(np.minimum(sizes, windowing.length - windowing.gram + 1).sum())  # the most windows that select one gram
    windows, halves = np.empty((room, 3), np.int64), np.empty((room, 2), np.uint64)
    gram_hashes = columns.numbers(candidates.column("gram"))[spans]
    gram_spans = input_record(substring.GramSpans, (passage, starts - begins[passage], sizes, gram_hashes))
    offsets, data = columns.text_buffers(passages.column("text"))
    scratch = substring.scratch_for(windowing.sizes)
    num_windows = substring.hash_windows(offsets, data, windowing.rules, windowing.sizes, gram_spans, scratch, windows, halves)
    windows, halves = windows[:num_windows], halves[:num_windows]
    candidate = spans[windows[:, 0]]
    keys = columns.keys_from(columns.key_matrix(candidates.column("key"))[candidate])
    ranks = columns.numbers(candidates.column("rank"))[candidate]
    first_bytes = windows[:, 1] + begins[passage[windows[:, 0]]]
    return pa.RecordBatch.from_arrays([*halves.T, ranks, keys, first_bytes, windows[:, 2]], schema=WINDOWS)


def _chunk_names(rows: pa.RecordBatch) -> np.ndarray:
    """Key, chunk number and rank of every row, (num_rows,) byte strings that NumPy compares like memory. The rank is part of
    the name, since a document may have been in an earlier run under the same key."""
    chunks = columns.numbers(rows.column("piece")).astype(">u4").view(np.uint8).reshape(-1, 4)
    ranks = columns.numbers(rows.column("rank")).astype(">u2").view(np.uint8).reshape(-1, 2)
    return np.concatenate([columns.key_matrix(rows.column("key")), chunks, ranks], axis=1).view("S22").reshape(-1)
