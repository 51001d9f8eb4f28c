"""From cleaned text to token rows.

    documents ─▶ encode, tokens around it    ─▶ rows (hash, key, tokens): a file for validation, one for training, or one for
                                              │   each stratum of the training documents; the hash of a row begins with the
                                              │   cell of the document, where the source is split (`cells.py`)
                                              ├▶ where documents are held out: hashes of texts, a file for training, one for
                                              │   validation with the keys, so that copies in both are found
                                              ├▶ tokens and words by language and licence, and the ids that occur
                                              └▶ quarantine: documents on which the library fails; drops, where there are limits

The end-of-text token ends every document; where the mixture has `tokenizer.bos`, that token begins
every document. Both count as tokens of the document from here on: in rows, quotas and reports. Only
fertility leaves them out.

The hash of a row is a keyed hash of the document's key: its position in the global shuffle of its
source. A threshold on another keyed hash holds documents out for validation. Neither depends on how
the input was split.

A worker keeps the tokenizer from task to task: loading one of 50,000 ids takes half a second,
encoding 100 MB about one. The libraries are imported when a task runs: readers of a plan or a
record need none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from datapipe.columns import KEY_TYPE, count_empty, full_schema, key_halves, numbers, take_rows
from datapipe.columns import compute as pc
from datapipe.dataclass import asdict, dataclass, field, replace
from datapipe.errors import EncodingError, UserError
from datapipe.exchange.files import TableWriters
from datapipe.exchange.tables import TableWriter, committed_bytes, read_documents
from datapipe.kernels.dedup.text_hashes import hash_texts
from datapipe.metrics import TaskMetrics
from datapipe.records.outputs import (
    CELL_SIZES,
    CELLS,
    HELD_OUT_TEXTS,
    TRAINING_TEXTS,
    OutputFile,
    Outputs,
    TableFile,
    TokenizerFile,
)
from datapipe.records.versions import normal, version_here
from datapipe.rng import shuffle_hash
from datapipe.shards import schemas
from datapipe.shards.loss_mask import runs_of
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.licenses import codes_of_documents
from datapipe.steps.cells import LEAST_DOCUMENT_BYTES, Axis, CellBytes, cell_hashes, cell_names, cells_in, column_of
from datapipe.steps.decisions import Drops
from datapipe.steps.grid import axes_of
from datapipe.steps.guard import Failed
from datapipe.steps.kind import LEFT_OUT, WHERE_GIVEN, Planning, Task, documents_of, entering, file_checksums, where_given
from datapipe.steps.quarantine import Quarantine
from datapipe.steps.train import ENCODERS, is_held_out
from datapipe.storage.root import Root
from datapipe.token_counts import CountsByName, Fertility

if TYPE_CHECKING:
    from datapipe.tokens.encoder import Encoder
    from datapipe.tokens.fertility import Meter
    from datapipe.tokens.proof import Choice
    from datapipe.tokens.segments import Encoded

TOO_LONG, CUT = "too_many_tokens", "cut_at_an_answer"
"""The rule of documents with more than `max_document_tokens`, and the count of those that were cut."""

LOADING = "load tokenizer"
"""The work of a worker's first task."""

_KEYED_HASHES = full_schema(hash=pa.uint64(), key=KEY_TYPE)
_HASHES = {TRAINING_TEXTS: full_schema(hash=pa.uint64()), HELD_OUT_TEXTS: _KEYED_HASHES}


def _encoding(file: TokenizerFile) -> list[str | None]:
    """What decides the ids that a tokenizer gives to documents, beside the versions of both libraries."""
    return [file.checksum, file.library, file.battery, file.eos_token, file.bos_token]


@dataclass(slots=True)
class TokenizeMetrics:
    tokens: int = 0  # that it wrote
    empty: int = 0  # documents without text, or of white space alone
    fertility: Fertility = field(default_factory=Fertility)  # tokens by language
    # tokens by the licences of documents, of a source with a `license_field`
    licenses: CountsByName = field(default_factory=CountsByName)

    def add(self, other: Self) -> None:
        self.tokens += other.tokens
        self.empty += other.empty
        self.fertility.add(other.fertility)
        self.licenses.add(other.licenses)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeTask(Task):
    """Encodes documents and writes their token rows sorted by keyed hash."""

    kind, version, of_tokens, libraries = "tokenize", 3, True, (*ENCODERS, "pyarrow")
    mb_per_s, metrics_type = 50.0, TokenizeMetrics
    options = (
        *("seed", "validation", "execution.bucket_bytes"),
        *("sources.SOURCE.strata.by", "sources.SOURCE.strata.bounds", "sources.SOURCE.split.by"),
        *("sources.SOURCE.fim", "sources.SOURCE.document_prefix"),
        *("sources.SOURCE.max_document_tokens", "sources.SOURCE.longer"),
    )

    before: str  # fingerprint of the task that wrote `documents`
    documents: tuple[TableFile, ...] = field(metadata=LEFT_OUT)  # they follow from `before`
    tokenizer: TokenizerFile = field(metadata=entering(_encoding))
    # whether its proof holds for the version of its library; otherwise the worker makes one
    is_proved: bool = field(default=True, metadata=LEFT_OUT)
    validation: float
    # column and bounds by which training documents go to separate files
    strata: tuple[str, tuple[float, ...]] | None = None
    # the columns by which the source is split, and the list of its cells
    axes: tuple[Axis, ...] = field(default=(), metadata=where_given(lambda axes: [asdict(axis) for axis in axes]))
    cells: tuple[TableFile, ...] = field(default=(), metadata=where_given(file_checksums))
    license_column: str | None = None  # with the licence of each document, to count by it; None: not counted
    fim: Mapping[str, Any] | None = None  # the fields of `tokens.fim.Fim`
    document_prefix: tuple[str, float] | None = None  # its form, and the share of the documents that get it
    # the most tokens of a document, and what happens to longer ones: "cut" or "drop"
    max_document_tokens: tuple[int, str] | None = field(default=None, metadata=WHERE_GIVEN)

    def run(self, root: Root, folder: str) -> tuple[Outputs, TaskMetrics]:
        """Memory: one batch, and one run of rows for all files."""
        from datapipe.tokens.fertility import Meter

        metrics = TaskMetrics(own=TokenizeMetrics())
        with metrics.timed(LOADING):
            encoder = encoder_of(self.tokenizer, root.url, self.is_proved)
        id_type = schemas.token_type(encoder.vocab_size)
        meter, num_tokens, num_borders = Meter(encoder.vocab_size, encoder.unknown_id), Counter[str](), Counter[str]()
        encode_batch, sizes = partial(self._encoded, encoder), CellBytes(id_type.bit_width // 8)
        read = read_documents(root, self.documents, metrics)
        first = next(read, None)
        has_mask = self.document_prefix is not None or (first is not None and first.segments is not None)
        rows_schema = schemas.tokens(id_type, has_mask=has_mask)
        writers = TableWriters(root, folder, {**dict.fromkeys(self._parts(), rows_schema), **_HASHES})
        counts, own = metrics.document_counts, metrics.of(TokenizeMetrics)
        quarantine, drops = Quarantine(root, folder, self.source, counts), Drops(root, folder, self.source, counts)
        for documents in chain([] if first is None else [first], read):
            counts.read += documents.num_docs
            counts.read_bytes += documents.text_bytes
            with metrics.timed("tokenize", documents.text_bytes, documents.num_docs):
                batch, encoded, failed = encode(documents, encode_batch)
                if self.max_document_tokens is not None:
                    batch, encoded = self._shortened(batch, encoded, encoder, drops)
                rows = _token_rows(batch, encoded, encoder, self.seed)
            quarantine.isolate(self.kind, documents, failed)
            counts.kept += batch.num_docs
            counts.kept_bytes += batch.text_bytes
            own.empty += count_empty(batch.texts)
            counts.counts.update({f"fim:{name}": number for name, number in encoded.counts.items()})
            with metrics.timed("count tokens", batch.text_bytes, batch.num_docs):
                counted = meter.add(batch, encoded.ids, encoded.offsets)
                if self.license_column is not None:
                    own.licenses.count(*codes_of_documents(batch.record, self.license_column), counted)
            with metrics.timed("write tokens", batch.text_bytes, batch.num_docs):
                by_part = self._by_part(batch, self._in_cells(root, batch, rows, sizes) if self.axes else rows)
                for name, part in by_part.items():
                    num_tokens[name] += int(pc.sum(pc.list_value_length(part.column("tokens"))).as_py() or 0)
                    if has_mask:
                        num_borders[name] += len(part.column(schemas.UNLEARNED).flatten())
                writers.add({**by_part, **(self._text_hashes(batch) if self.validation else {})})
        counts.check(self.label)
        own.tokens, own.fertility = num_tokens.total(), meter.fertility
        with metrics.timed("write tokens"):
            written = writers.finish()
            for name in num_tokens.keys() & written.keys():
                (file,) = written[name]
                mask_bytes = num_borders[name] * LEAST_DOCUMENT_BYTES // 8
                row_bytes = max(num_tokens[name] * id_type.bit_width // 8, file.rows * LEAST_DOCUMENT_BYTES) + mask_bytes
                written[name] = (replace(file, row_bytes=row_bytes),)
            used = (_write_used_ids(root, f"{folder}/used-ids.bin", meter),) if meter.used.any() else ()
            dropped = {} if self.max_document_tokens is None else drops.finish()
            of_cells = {CELL_SIZES: sizes.finish(TableWriter(root, f"{folder}/cell-sizes.arrow"))} if self.axes else {}
            return {**written, **quarantine.finish(), **dropped, **of_cells, "used_ids": used}, metrics

    def _encoded(self, encoder: Encoder, batch: DocumentBatch) -> Encoded:
        """The tokens of documents. Raises EncodingError."""
        from datapipe.tokens.fim import Fim, encode_filling, encode_filling_files
        from datapipe.tokens.prefix import with_prefix
        from datapipe.tokens.segments import Encoded, encode_segments

        if (segments := batch.segments) is not None:
            if self.fim is not None and (fim := Fim(**self.fim)).of_files:
                return encode_filling_files(encoder, fim, batch.texts, segments, batch.keys, self.seed)
            option = next((name for name in ("fim", "document_prefix") if getattr(self, name) is not None), None)
            if option is not None:
                raise UserError(
                    f"sources.{self.source}.{option}: the stages of the source make segments, which have their order and their "
                    f"mask already. Leave `{option}` out, or the stage that makes segments"
                )
            return encode_segments(encoder, batch.texts, segments)
        if self.document_prefix is not None:
            return encode_segments(encoder, *with_prefix(batch, *self.document_prefix, self.seed))
        if self.fim is not None:
            return encode_filling(encoder, Fim(**self.fim), batch.texts, batch.keys, self.seed)
        return Encoded(*encoder.encode(batch.texts), None)

    def _shortened(
        self, batch: DocumentBatch, encoded: Encoded, encoder: Encoder, drops: Drops
    ) -> tuple[DocumentBatch, Encoded]:
        """The documents of at most `max_document_tokens`, with those around them; others are cut, or dropped."""
        from datapipe.tokens.long_conversations import shortened

        assert self.max_document_tokens is not None
        most, longer = self.max_document_tokens
        begun, ended = (_lacks(number, encoded, at) for number, at in ((encoder.bos_id, 0), (encoder.eos_id, -1)))
        own = np.diff(encoded.offsets)
        lengths = own + begun + ended
        limits = np.where(lengths > most, most - 1 - begun, own)
        control = np.array([*encoder.control_tokens.values()], np.int64)
        left, keep, num_cut = shortened(encoded, limits, control, cuts=longer == "cut")
        drops.counts.counts[f"{self.kind}:{CUT}"] += num_cut
        rows = np.flatnonzero(~keep)
        if len(rows):
            rules, limit = pa.repeat(TOO_LONG, len(rows)), pa.array(np.full(len(rows), float(most)))
            drops.drop(batch, rows, self.kind, rules, lengths[rows].astype(np.float64), limit)
        return batch.filter(keep), left

    def _parts(self) -> list[str]:
        bounds = None if self.strata is None else self.strata[1]
        return [*training_parts(bounds).values(), "validation"]

    def _by_part(self, batch: DocumentBatch, rows: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        """The token rows of a batch by file: training rows, of every stratum where the source has any, and validation rows."""
        names = self._parts()
        held_out = is_held_out(batch, self.seed, self.validation)
        strata = 0 if self.strata is None else strata_of(batch, self.source, *self.strata)
        part = np.where(held_out, len(names) - 1, strata)  # (num_docs,) number of its file; the last one's are held out
        masks = {name: part == number for number, name in enumerate(names)}
        return {name: rows if mask.all() else take_rows(rows, np.flatnonzero(mask)) for name, mask in masks.items()}

    def _in_cells(self, root: Root, batch: DocumentBatch, rows: pa.RecordBatch, sizes: CellBytes) -> pa.RecordBatch:
        """The token rows of a batch, whose hashes begin with the cells of training documents."""
        cells = cells_in(self.axes, batch, self.seed, self.source, cell_names(root.url, self.cells))
        is_training, hashes = ~is_held_out(batch, self.seed, self.validation), numbers(rows.column("hash"))
        sizes.add(cells[is_training], rows.filter(pa.array(is_training)))
        placed = np.where(is_training, cell_hashes(cells, hashes), hashes)
        return rows.set_column(0, rows.schema.field(0), pa.array(placed))

    def _text_hashes(self, batch: DocumentBatch) -> dict[str, pa.RecordBatch]:
        """Hashes of the texts of a batch: of training documents, and with keys of held-out ones. Documents without text are
        left out: they are no copies of each other."""
        hashes, digests = (np.empty(batch.num_docs, np.uint64) for _ in range(2))
        hash_texts(*batch.buffers, hashes, digests)
        held_out = is_held_out(batch, self.seed, self.validation)
        has_text = np.diff(batch.buffers[0]) > 0
        rows = pa.record_batch([pa.array(hashes), batch.keys], schema=_KEYED_HASHES)
        masks = {TRAINING_TEXTS: ~held_out & has_text, HELD_OUT_TEXTS: held_out & has_text}
        return {name: rows.select(_HASHES[name].names).filter(pa.array(mask)) for name, mask in masks.items()}

    @classmethod
    def release(cls) -> None:
        encoder_of.cache_clear()

    @classmethod
    def plan_source(cls, planning: Planning, source: str) -> None:
        cleaned, spec = planning.cleaned(source), planning.mixture.sources[source]
        tokenizer, is_proved = _of_version_here(planning.plan.tokenizer, planning.request.trusts_records)
        is_ready, in_cells = tokenizer is not None and cleaned.is_committed, dict[str, Any]()
        if spec.split is not None:
            listed = planning.known[f"{source}/cells"]
            is_ready = is_ready and listed.is_committed
            in_cells = {"axes": axes_of(planning.plan, source, spec.split.by), "cells": listed.outputs(CELLS, TableFile)}
        planning.add(
            cls,
            f"{source}/tokenize",
            "tokenize and shuffle",
            map(documents_of, cleaned.records) if is_ready else None,
            ["tokenize"],
            source=source,
            tokenizer=tokenizer,
            is_proved=is_proved,
            validation=0.0 if planning.plan.earlier else planning.mixture.validation,  # the split stays as it is
            strata=spec.strata and (spec.strata.by, spec.strata.bounds),
            license_column=spec.license_field,
            fim=spec.fim and {**spec.fim.model_dump(), **({} if spec.repository is None else {"of_files": True})},
            document_prefix=spec.document_prefix and (spec.document_prefix.text, spec.document_prefix.rate),
            max_document_tokens=spec.max_document_tokens and (spec.max_document_tokens, spec.longer),
            **in_cells,
        )


def training_parts(bounds: Sequence[float] | None) -> dict[int | None, str]:
    """The kinds of output that hold token rows to train on, by stratum; None for a source without strata."""
    return {None: "train"} if bounds is None else {number: f"train-stratum-{number:02d}" for number in range(len(bounds) + 1)}


def _of_version_here(file: TokenizerFile | None, trusts_records: bool) -> tuple[TokenizerFile | None, bool]:
    """The tokenizer with the version of its library that this process has, which all workers must have too, and whether the
    proof of its record holds for it. Where it does not, and records of other versions are not trusted, workers refuse it."""
    if file is None:
        return None, True
    here = version_here(file.library)
    is_proved = normal(file.library, file.library_version) == normal(file.library, here)
    return replace(file, library_version=here) if is_proved or trusts_records else file, is_proved or not trusts_records


def choice_of(file: TokenizerFile) -> Choice:
    from datapipe.tokens.proof import Choice

    return Choice(library=file.library, version=file.library_version, battery=file.battery, reason=file.fallback_reason)


@lru_cache(maxsize=1)
def encoder_of(file: TokenizerFile, url: str, is_proved: bool = True) -> Encoder:
    """The encoder of a tokenizer in an output. Raises UserError where its library has another version here."""
    from datapipe.tokens.encoder import Encoder

    content = committed_bytes(Root(url), file)
    encoder = Encoder(content, eos=file.eos_token, bos=file.bos_token, choice=choice_of(file) if is_proved else None)
    encoder.load()
    return encoder


def encode(batch: DocumentBatch, encoded: Callable[[DocumentBatch], Encoded]) -> tuple[DocumentBatch, Encoded, Failed]:
    """The documents that `encoded` takes, their tokens, and the others."""
    failed = Failed()
    try:
        return batch, encoded(batch), failed
    except EncodingError:
        is_encoded = np.ones(batch.num_docs, np.bool_)
    for row in range(batch.num_docs):  # failures are rare: no need to halve
        try:
            encoded(batch.slice(row, row + 1))
        except EncodingError as error:
            failed[row], is_encoded[row] = str(error), False
    rest = batch.filter(is_encoded)
    return rest, encoded(rest), failed


def _token_rows(batch: DocumentBatch, encoded: Encoded, encoder: Encoder, seed: int) -> pa.RecordBatch:
    """Rows of `schemas.tokens`: every document's ids between the tokens that begin and end documents."""
    ids, offsets, learned = encoded[:3]
    begun, ended = (_lacks(number, encoded, at) for number, at in ((encoder.bos_id, 0), (encoder.eos_id, -1)))
    # shifted: (num_docs + 1,); each document moves right by the ids around every document before it
    shifted = offsets + np.concatenate([[0], np.cumsum(np.add(begun, ended, dtype=np.int64))])
    flat, id_type = np.empty(int(shifted[-1]), ids.dtype), pa.from_numpy_dtype(ids.dtype)
    is_text = np.ones(len(flat), np.bool_)
    first, last = shifted[:-1][begun], shifted[1:][ended] - 1
    for places, number in ((last, encoder.eos_id), (first, encoder.bos_id)):
        if number is not None:
            is_text[places], flat[places] = False, number
    flat[is_text] = ids
    hashes, schema = shuffle_hash(key_halves(batch.keys), seed), schemas.tokens(id_type, has_mask=learned is not None)
    tokens = pa.LargeListArray.from_arrays(pa.array(shifted), pa.array(flat, id_type))
    columns = [pa.array(hashes), batch.keys, tokens.cast(schema.field("tokens").type)]
    if learned is not None:
        mask = np.ones(len(flat), np.bool_)  # a document is learned from its first token to its end, where it is empty
        mask[is_text] = learned
        mask[last] = mask[np.maximum(last - 1, 0)] | (last == shifted[:-1][ended])  # ends as it was before
        lists = pa.LargeListArray.from_arrays(*map(pa.array, runs_of(mask, shifted)))
        columns.append(lists.cast(schema.field(schemas.UNLEARNED).type))
    return pa.record_batch(columns, schema=schema)


def _lacks(number: int | None, encoded: Encoded, at: int) -> NDArray[np.bool_]:
    """Which documents lack the token that begins (`at` 0) or ends them (-1): (num_docs,). Only segments may have meant it."""
    ids, offsets, learned = encoded[:3]
    lacks = np.full(len(offsets) - 1, number is not None)
    if learned is not None and number is not None:
        full = np.flatnonzero(np.diff(offsets))
        places = offsets[full] if at == 0 else offsets[full + 1] - 1
        lacks[full[ids[places] == number]] = False
    return lacks


def _write_used_ids(root: Root, path: str, meter: Meter) -> OutputFile:
    with root.open_output(path) as stream:
        stream.write(meter.used_ids)
    return OutputFile(path=path, rows=int(meter.used.sum()), bytes=stream.num_bytes, checksum=stream.checksum)


def strata_of(batch: DocumentBatch, source: str, column: str, bounds: Sequence[float]) -> NDArray[np.int64]:
    """The stratum of each document, (num_docs,): how many of `bounds` are at most its number.
    Raises UserError where documents have no such column, or one of them no number in it."""
    where, axis = f"sources.{source}.strata.by", Axis(column=column, bounds=tuple(bounds))
    own = column_of(axis, batch.record, where)
    values = axis.numbers(own, where)
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        document, value = (column[int(missing[0])].as_py() for column in (batch.record.column("id"), own))
        raise UserError(
            f"{where}: document {document} has {str(value)[:40]!r} in column '{column}', expected a number. Add the number to "
            f"the input, or drop such documents with a filter"
        )
    return np.searchsorted(bounds, values, side="right").astype(np.int64)
