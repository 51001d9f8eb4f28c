"""The decisions of a global stage on the documents of a batch: drops, cuts, and sizes of clusters, looked up and applied.

    batch ─▶ drops ─▶ cuts ─┬─▶ more cut than allowed, or nothing left: dropped, as STAGE:too_much_removed
                            └─▶ the text without the spans, and its cut points ─▶ size and cluster columns
                 └─▶ contents ─▶ batches of the texts and columns that the stage has made for the documents

The bytes cut from documents that stay are counted by rule, as STAGE:RULE_bytes; each byte once.

Decision files are exchange files whose hash is the first half of the document's key, and their blocks together are in the
order of keys. So the index has the blocks that may hold rows about a batch. They are read one at a time, and the last few are
kept, since batches come in file order. Memory does not grow with the number of decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self, cast

import numpy as np
import pyarrow as pa

from datapipe.columns import (
    KEY_BYTES,
    hex_keys,
    is_first,
    key_matrix,
    keys_from,
    numbers,
    take_rows,
    text_buffers,
    text_lengths,
    texts_from,
)
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass, fields
from datapipe.errors import DatapipeError, StageError, UserError
from datapipe.exchange.files import Block, open_rows, read_block, read_index
from datapipe.exchange.tables import FactWriter
from datapipe.kernels.text import replace
from datapipe.metrics import DocumentCounts
from datapipe.records.outputs import ExchangeFile, Outputs, Tables
from datapipe.shards import schemas
from datapipe.stage.base import Filter, FilterResult
from datapipe.stage.cut_points import CUT_POINTS, cut_points_after, no_cut_points
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.segments import SEGMENTS
from datapipe.stage.tables import CONTENTS
from datapipe.steps.edited_segments import after_cuts
from datapipe.steps.kind import table_checksums
from datapipe.steps.measuring import Measurement
from datapipe.steps.pipeline import BoundStage
from datapipe.steps.read_batches import coalesced
from datapipe.storage.root import Root

TOO_MUCH_REMOVED = "too_much_removed"

_CONTINUES, _MASK = 0x80, 0xC0  # bytes 10xxxxxx continue a character

HELD_BLOCKS = 32  # of about 256 KiB, for the next batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """The decisions of a global stage, `name`, on the documents of a task."""

    name: str
    rule: str  # the reason of its drops
    # "drops", "cuts", "sizes" and "contents", those that the stage writes; files with rows for the task's input files alone
    tables: Tables
    # size_column, cluster_column: the columns for sizes and names of clusters; None: not written
    size_column: str | None = None
    cluster_column: str | None = None
    removed_share: float = 1.0  # a document of which a greater share is cut is dropped

    def identity(self) -> dict[str, Any]:
        own = {declared.name: getattr(self, declared.name) for declared in fields(self)}
        return own | {"tables": table_checksums(self.tables)}


class Drops:
    """The documents that a task drops: rows of `schemas.DROPS`, counted by stage and rule in `counts`."""

    def __init__(self, root: Root, folder: str, source: str, counts: DocumentCounts) -> None:
        self._writer, self.counts = FactWriter(root, f"{folder}/drops.parquet", source=source, fate="dropped"), counts

    def add(self, bound: BoundStage, batch: DocumentBatch, result: FilterResult) -> None:
        rows = np.flatnonzero(~result.keep)
        if not len(rows):
            return
        rules, numbers = cast(Filter, bound.stage).rules(), result.rule[rows].astype(np.int64)
        names = pa.array([rule.name for rule in rules], pa.string()).take(pa.array(numbers))
        limits = np.array([rule.limit for rule in rules], np.float64)[numbers] if result.limit is None else result.limit[rows]
        self.drop(batch, rows, bound.name, names, result.value[rows], pa.array(limits))

    def drop(
        self,
        batch: DocumentBatch,
        rows: np.ndarray,
        stage: str,
        rules: pa.Array,
        values: np.ndarray,
        limits: pa.Array,
        survivors: pa.Array | None = None,
    ) -> None:
        """Adds the documents in `rows`, (num_rows,), of a batch, at least one; `rules` and all that follow are (num_rows,)."""
        for rule in rules.value_counts().to_pylist():
            self.counts.dropped[f"{stage}:{rule['values']}"] += rule["counts"]
        keys, ids = (column.take(pa.array(rows)) for column in (batch.keys, batch.record.column("id")))
        survivors = pa.nulls(len(rows), schemas.DROPS.field("survivor").type) if survivors is None else survivors
        arrays = [keys, ids, pa.repeat(stage, len(rows)), rules, pa.array(values), limits, survivors]
        self._writer.add(pa.record_batch(arrays, schema=schemas.DROPS))

    def finish(self) -> Outputs:
        return {"drops": self._writer.finish()}


@dataclass(frozen=True, slots=True)
class DecisionApplier:
    """Applies decisions to one task's documents; `rows` are those of each table."""

    decisions: Decisions
    rows: Mapping[str, KeyedRows]
    drops: Drops
    measurements: Sequence[Measurement]

    def batches(self, batch: DocumentBatch) -> Iterator[DocumentBatch]:
        """The documents of a batch that stay: one batch, or as many as their new contents take."""
        batch = self.apply(batch)
        return iter([batch]) if CONTENTS not in self.rows else map(DocumentBatch, coalesced(self._with_contents(batch)))

    def _with_contents(self, batch: DocumentBatch) -> Iterator[pa.RecordBatch]:
        for start, stop, rows in self.rows[CONTENTS].of_each(batch.keys):
            made = {name: column for name, column in zip(rows.schema.names, rows.columns) if name not in ("hash", "key")}
            yield batch.slice(start, stop).with_columns(made).record

    def apply(self, batch: DocumentBatch) -> DocumentBatch:
        """The documents of a batch that stay, without the spans that are cut."""
        if "drops" in self.rows:
            batch = self._without_drops(batch)
        if "cuts" in self.rows and batch.num_docs:
            batch = self._cut(batch, cuts_of(self.rows["cuts"], batch.keys))
        return self._with_cluster(batch)

    def _without_drops(self, batch: DocumentBatch) -> DocumentBatch:
        dropped, survivors, values = drops_of(self.rows["drops"], batch.keys)
        if not dropped.any():
            return batch
        name, rows = self.decisions.name, np.flatnonzero(dropped)
        for measurement in self.measurements:
            measurement.dropped(name, survivors)
        rules = pa.repeat(self.decisions.rule, len(rows))
        self.drops.drop(batch, rows, name, rules, values, pa.nulls(len(rows), pa.float64()), survivors)
        return batch.filter(~dropped)

    def _with_cluster(self, batch: DocumentBatch) -> DocumentBatch:
        added: dict[str, pa.Array] = {}
        if self.decisions.size_column is not None:
            sizes = cluster_sizes(self.rows["sizes"], batch.keys) if "sizes" in self.rows else np.ones(batch.num_docs, np.int64)
            added[self.decisions.size_column] = pa.array(sizes)
        if self.decisions.cluster_column is not None:
            added[self.decisions.cluster_column] = hex_keys(batch.keys)
        again = next((name for name in added if name in batch.record.schema.names), None)
        if again is not None:
            raise UserError(
                f"{self.decisions.name}: the column '{again}' exists already: an earlier stage wrote it. Name another column."
            )
        return batch.with_columns(added) if added else batch

    def _cut(self, batch: DocumentBatch, cuts: Cuts) -> DocumentBatch:
        if not len(cuts.documents):
            return batch if batch.cut_points is not None else batch.with_columns({CUT_POINTS: no_cut_points(batch.num_docs)})
        offsets, data = batch.buffers
        starts, stops = _parted(cuts, offsets, data, self.decisions.name)
        is_left = starts < stops  # earlier cuts did not take all of it
        starts, stops, documents, rules = starts[is_left], stops[is_left], cuts.documents[is_left], cuts.rules[is_left]
        removed = np.bincount(documents, stops - starts, batch.num_docs)  # (num_docs,) bytes; exact below 2**53
        share = np.round(removed / np.maximum(np.diff(offsets), 1), 6)
        texts = _without(offsets, data, starts, stops)
        is_blank = numbers(pc.utf8_is_space(texts)) | (text_lengths(texts) == 0)
        too_much = (share > self.decisions.removed_share) | ((removed > 0) & is_blank)
        if too_much.any():
            rows = np.flatnonzero(too_much)
            reasons, limits = (pa.repeat(value, len(rows)) for value in (TOO_MUCH_REMOVED, self.decisions.removed_share))
            self.drops.drop(batch, rows, self.decisions.name, reasons, share[rows], limits)
        stay = ~too_much[documents]
        counts = np.bincount(rules[stay], (stops - starts)[stay], len(cuts.names))
        for rule, count in zip(cuts.names, counts):
            self.drops.counts.counts[f"{self.decisions.name}:{rule}_bytes"] += int(count)
        cut_points = cut_points_after(offsets, batch.cut_points, starts, stops, text_buffers(texts)[0])
        cut = {"text": texts, CUT_POINTS: cut_points}
        if (segments := batch.segments) is not None:
            cut[SEGMENTS] = after_cuts(segments, offsets, starts, stops, text_buffers(texts)[0])
        return batch.with_columns(cut).filter(~too_much)


def _parted(cuts: Cuts, offsets: np.ndarray, data: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Start and stop of each cut in `data`, without the bytes of the cuts before it: (num_cuts,) int64 each, ascending. Raises
    StageError for a span outside its document, or within a character."""
    begins, ends = offsets[cuts.documents], offsets[cuts.documents + 1]
    starts, stops = cuts.starts + begins, cuts.stops + begins
    inside = (starts >= begins) & (starts <= stops) & (stops <= ends)
    for byte_offsets in (starts, stops):
        before_end = byte_offsets[inside & (byte_offsets < ends)]
        if not inside.all() or ((data[before_end] & _MASK) == _CONTINUES).any():
            raise StageError(f"{name}: cuts outside of a text or within a character. This is a defect of the stage.")
    taken = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]])
    return np.maximum(starts, np.minimum(taken, stops)), stops


def _without(offsets: np.ndarray, data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> pa.Array:
    out_offsets = np.empty(len(offsets), np.int64)
    out = np.empty(int(offsets[-1] - offsets[0] - (stops - starts).sum()), np.uint8)
    nothing = np.zeros((len(starts), 32), np.uint8), np.zeros(len(starts), np.int64)
    replace.replace_spans(offsets, data, np.ascontiguousarray(starts), np.ascontiguousarray(stops), *nothing, out_offsets, out)
    return texts_from(out_offsets, out)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuts:
    """Spans to cut, by (document, start): (num_cuts,) int64 each; `rules` are numbers of `names`."""

    documents: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    rules: np.ndarray
    names: tuple[str, ...]


class KeyedRows:
    """Rows of exchange files, looked up by document key."""

    def __init__(self, root: Root, blocks: Sequence[tuple[ExchangeFile, Block, pa.Schema]], held_blocks: int) -> None:
        self.root, self._blocks = root, sorted(blocks, key=lambda entry: entry[1].first)
        self._firsts = _as_keys([block.first for _, block, _ in self._blocks])
        self._lasts = _as_keys([block.last for _, block, _ in self._blocks])
        self._block = lru_cache(held_blocks)(self._read_block)

    @classmethod
    def open(cls, root: Root, files: Sequence[ExchangeFile], held_blocks: int = HELD_BLOCKS) -> Self:
        """Reads the index of every file."""
        blocks: list[tuple[ExchangeFile, Block, pa.Schema]] = []
        for file in files:
            with open_rows(root, file) as stream:
                of_file, schema = read_index(stream, file)
            blocks += [(file, block, schema) for block in of_file]
        return cls(root, blocks, held_blocks)

    def matches(self, keys: pa.Array) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, pa.RecordBatch]]:
        """Block by block: documents with rows in it, start and stop of the rows of each, and the block."""
        wanted = sortable(key_matrix(keys))
        low = np.searchsorted(self._lasts, wanted, "left")  # the first block that does not end before the document
        high = np.searchsorted(self._firsts, wanted, "right")
        changes = np.zeros(len(self._blocks) + 1, np.int64)
        np.add.at(changes, low[low < high], 1)
        np.add.at(changes, high[low < high], -1)
        for number in np.flatnonzero(np.cumsum(changes[:-1])):
            rows = self._block(int(number))
            documents = np.flatnonzero((low <= number) & (number < high))
            row_keys = sortable(key_matrix(rows.column("key")))
            starts = np.searchsorted(row_keys, wanted[documents], "left")
            stops = np.searchsorted(row_keys, wanted[documents], "right")
            has_rows = starts < stops
            if has_rows.any():
                yield documents[has_rows], starts[has_rows], stops[has_rows], rows

    def of_each(self, keys: pa.Array) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """The rows of documents that have one each, in the order of `keys`: of documents [start, stop)."""
        wanted = sortable(key_matrix(keys))
        numbers_of_blocks = np.minimum(np.searchsorted(self._lasts, wanted, "left"), len(self._blocks) - 1)
        for start, stop in pairwise([*np.flatnonzero(is_first(numbers_of_blocks)).tolist(), len(wanted)]):
            rows = self._block(int(numbers_of_blocks[start]))
            row_keys = sortable(key_matrix(rows.column("key")))
            found = np.minimum(np.searchsorted(row_keys, wanted[start:stop]), len(row_keys) - 1)
            if (row_keys[found] != wanted[start:stop]).any():
                raise DatapipeError("a document has no content. This is a defect of datapipe or of a stage of yours")
            yield start, stop, take_rows(rows, found)

    def _read_block(self, number: int) -> pa.RecordBatch:
        file, block, schema = self._blocks[number]
        with open_rows(self.root, file) as stream:
            return read_block(stream, file, block, schema)


def drops_of(drops: KeyedRows, keys: pa.Array) -> tuple[np.ndarray, pa.Array, np.ndarray]:
    """Which documents of a batch are dropped, (num_docs,) bool; survivor and value, float64, of each one that is."""
    dropped, values = np.zeros(len(keys), np.bool_), np.zeros(len(keys))
    survivors = np.zeros((len(keys), KEY_BYTES), np.uint8)
    for documents, starts, _, rows in drops.matches(keys):
        dropped[documents] = True
        survivors[documents] = key_matrix(rows.column("survivor"))[starts]
        values[documents] = numbers(rows.column("value"))[starts]
    return dropped, keys_from(survivors[dropped]), values[dropped]


def cluster_sizes(sizes: KeyedRows, keys: pa.Array) -> np.ndarray:
    """Documents in the cluster of each survivor: (num_docs,) int64, 1 where it was alone."""
    counts = np.ones(len(keys), np.int64)
    for documents, starts, _, rows in sizes.matches(keys):
        counts[documents] += numbers(rows.column("size"))[starts]
    return counts


def cuts_of(cuts: KeyedRows, keys: pa.Array) -> Cuts:
    """The cuts of a batch's documents, by (document, start, the longest first, rule)."""
    parts, rules = [(np.zeros(0, np.int64),) * 3], [pa.array([], pa.string())]
    for documents, starts, stops, rows in cuts.matches(keys):
        counts = stops - starts
        # taken: (num_cuts,) the rows starts[0], …, stops[0] - 1, starts[1], …
        taken = np.repeat(starts - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        parts.append((np.repeat(documents, counts), numbers(rows.column("start"))[taken], numbers(rows.column("stop"))[taken]))
        rules.append(rows.column("rule").take(pa.array(taken)))
    documents, starts, stops = (np.concatenate([part[column] for part in parts]).astype(np.int64) for column in range(3))
    encoded = pa.concat_arrays(rules).dictionary_encode()
    known = encoded.dictionary.to_pylist()
    names = sorted(known)
    numbered = np.array([names.index(name) for name in known], np.int64)[numbers(encoded.indices)]
    order = np.lexsort((numbered, -stops, starts, documents))
    return Cuts(documents=documents[order], starts=starts[order], stops=stops[order], rules=numbered[order], names=tuple(names))


def _as_keys(words: Sequence[tuple[int, ...]]) -> np.ndarray:
    """The keys in the words of rows (hash, first half, second half, …), as byte strings that compare like keys."""
    halves = np.array([row[1:3] for row in words], np.uint64).reshape(-1, 2).astype(">u8")
    return sortable(halves.view(np.uint8).reshape(-1, KEY_BYTES))


def sortable(matrix: np.ndarray) -> np.ndarray:
    """Keys as (num_docs,) byte strings, which NumPy compares like memory; all have 16 bytes."""
    return np.ascontiguousarray(matrix).view(f"S{KEY_BYTES}").reshape(-1)
