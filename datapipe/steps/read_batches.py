"""The documents of the input files of a map task, in batches with keys, up to the limit.

splits ─▶ reader ─▶ fields in the types of their columns ─▶ keys ─▶ batches of `TARGET_BATCH_BYTES`
            └─▶ rejected input ─▶ quarantine
"""

import json
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import pyarrow as pa

from datapipe.columns import as_large_string, byte_slices, make_keys, numbers, text_lengths
from datapipe.columns import compute as pc
from datapipe.dataclass import dataclass, field, replace
from datapipe.document_name import document_name
from datapipe.errors import UserError
from datapipe.inputs.planned_input import PlannedInput, damages
from datapipe.machine.activity import at_place
from datapipe.metrics import TaskMetrics, UnreadableFile
from datapipe.shards.documents.json_lines import float_texts, json_values
from datapipe.stage.documents import BASE_FIELDS, PAGE_FIELDS, TARGET_BATCH_BYTES
from datapipe.stage.field_types import DECLARED, FoundType, holds, in_words, joined, plain, written
from datapipe.stage.reader import FieldNames, OpenInput, ReadBatch, Reader, RowFiles, Split
from datapipe.stage.row_files import listed_files, row_documents, texts_of_files
from datapipe.steps.quarantine import Quarantine
from datapipe.steps.splits import file_hash

MAX_BATCH_DOCS = 8192
_SHOWN_CHARS = 80


@dataclass(frozen=True, slots=True)
class InputSplit:
    """A split, its reader, and the digest of the reader's code and options."""

    split: Split
    reader: Reader
    reader_digest: str

    def identity(self) -> list[Any]:
        file = self.split.file
        return [self.reader_digest, file.path, file.num_bytes, file.stamp, self.split.start, self.split.stop]


@dataclass(slots=True)
class MapMetrics:
    """The numbers of a map task. A task with `unsplittable_files` or `wider_types` has no outputs and no counts."""

    # in the order of the input, one for each damage
    unreadable_files: list[UnreadableFile] = field(default_factory=list)
    # paths of input files that cannot be cut at the task's range; the plan then reads them whole
    unsplittable_files: list[str] = field(default_factory=list)
    # by field, the type of values that its column does not hold, as JSON (`stage/field_types.py`); the plan
    # then reads the source with wider types
    wider_types: dict[str, dict[str, str]] = field(default_factory=dict)
    # by stage and list, how many entries it has and how many of them cannot be found; see `stage/findings.py`
    searched: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    # by kept field, documents with a value; of tasks that read input
    field_values: dict[str, int] = field(default_factory=dict)

    def add(self, other: Self) -> None:
        self.unreadable_files += other.unreadable_files
        self.unsplittable_files += other.unsplittable_files
        self.wider_types |= other.wider_types
        for stage, lists in other.searched.items():
            self.searched.setdefault(stage, {}).update(lists)
        for name, number in other.field_values.items():
            self.field_values[name] = self.field_values.get(name, 0) + number


@dataclass(slots=True)
class InputSource:
    """The input of one task."""

    source: str
    inputs: tuple[InputSplit, ...]
    fields: FieldNames
    limit: int | None  # documents to read; None for all
    metrics: TaskMetrics
    own: MapMetrics  # of `metrics`
    quarantine: Quarantine
    path: str = ""  # of the file that is read

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Raises ChangedInputError where a file is not the planned one."""
        return coalesced(self._records())

    def _records(self) -> Iterator[pa.RecordBatch]:
        self.own.field_values = dict.fromkeys(self.fields.columns, 0)
        for entry in self.inputs:
            if self.limit == 0:
                return
            self.path = entry.split.file.path
            with PlannedInput(entry.split.file) as planned:
                yield from self._records_of(entry, planned.open)

    def _records_of(self, entry: InputSplit, open_input: OpenInput) -> Iterator[pa.RecordBatch]:
        """The batches of a split with keys, up to the limit; rejected input goes to quarantine."""
        split, num_records, sample = entry.split, 0, self.fields.sample
        if sample is not None:
            sample = replace(sample, file_hash=file_hash(self.source, split.file.path))
        reading = iter(entry.reader.read(split, replace(self.fields, sample=sample), open_input))
        while self.limit is None or self.limit > 0:
            with self.metrics.timed("read") as work:
                at_place(f"{split.file.path}, after {num_records:,} of its documents")
                part = next(reading, None)
                if part is None:
                    break
                part = part if sample is None else part.sampled(sample)
                self._add_wider(part)
                part = conformed(part, split, self.fields)
                if self.limit is not None:
                    part, self.limit = limited(part, self.limit)
                record = documents_of(part, split, self.source, self.fields)
                work.bytes, work.documents = part.input_bytes, record.num_rows
            num_records += len(part.positions) + len(part.rejected) + sum(part.passed_over.values())
            self.quarantine.reject(split.file.path, part.rejected)
            self.own.unreadable_files += damages(split.file, part.rejected)
            for kind, count in part.passed_over.items():
                self.metrics.document_counts.counts[f"read:{kind}"] += count
            if record.num_rows:
                for name, column in part.extra.items():
                    self.own.field_values[name] += len(column) - column.null_count
                yield from self._of_target_bytes(record)
        if not num_records and split.start == 0 and split.stop in (None, len(split.file.row_groups)):
            self.metrics.document_counts.counts["read:empty_files"] += 1

    def _of_target_bytes(self, record: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The documents of a batch, in several where one record has become many."""
        if self.fields.files is None:
            yield record
            return
        for start, stop in byte_slices(text_lengths(record.column("text")), TARGET_BATCH_BYTES):
            yield record.slice(start, stop - start)

    def _add_wider(self, part: ReadBatch) -> None:
        """Adds the types of values that do not fit to those of the batches before, in the order of the input."""
        for name, kind in part.wider.items():
            found_type, held = FoundType(kind=kind, path=self.path), self.own.wider_types.get(name)
            self.own.wider_types[name] = (
                found_type if held is None else FoundType.from_json(held).with_more(found_type)
            ).to_json()


def limited(part: ReadBatch, left: int) -> tuple[ReadBatch, int]:
    """The first `left` records of a batch, and how many are left. Rejected records count too: a
    limited run with a wrong field name would otherwise read everything."""
    rejected = np.array([record.position for record in part.rejected], np.uint64)
    positions = np.sort(np.concatenate([part.positions, rejected]))
    if len(positions) <= left:
        return part, left - len(positions)
    return part.between(0, int(positions[left])), 0


def conformed(part: ReadBatch, split: Split, fields: FieldNames) -> ReadBatch:
    """A reader's batch with its fields under the names and in the types of their columns. A document with a value that cannot
    be of its declared type is rejected; types that their column does not hold go to `ReadBatch.wider`. Raises UserError for a
    value that the type of all files does not hold."""
    if not len(part.positions):  # damage alone, which has no fields
        return replace(part, extra={})
    part = part if fields.files is not None else with_content(part, fields)
    columns: dict[str, pa.Array] = {}
    wider, bad = dict(part.wider), dict[int, str]()
    for column, name in fields.kept_columns.items():
        values, declared = part.extra[name], fields.declared.get(name)
        if declared is not None:
            columns[column], is_bad = in_declared_type(values, declared)
            bad |= {
                row: _no_such_value(name, values[row], declared) for row in np.flatnonzero(is_bad).tolist() if row not in bad
            }
            continue
        kind, own = fields.types.get(name, values.type), plain(values.type)
        if name in wider or (values.null_count < len(values) and not holds(kind, own)):
            columns[column] = values
            wider.setdefault(name, own)
        else:
            try:
                columns[column] = in_found_type(values, kind)
            except ValueError as error:
                raise UserError(
                    f"{split.file.url}: the field '{name}' is {in_words(own)} here, and {in_words(kind)} is the type that "
                    f"other files of the source need: {error}. Declare the type of the column in the source, as in "
                    f"types: {{{name}: string}}, or make two sources of the files."
                ) from error
    part = replace(part, extra=columns, wider=wider)
    part = part.without(bad) if bad else part
    return part if fields.files is None or wider else with_files(part, fields.files)


def with_files(part: ReadBatch, spec: RowFiles) -> ReadBatch:
    """A batch with the files of its records as `row_documents` takes them. A record without one is rejected."""
    listed, num_left_out, bad = listed_files(part.extra[spec.field], spec)
    passed_over = {**part.passed_over, "file_without_text": num_left_out} if num_left_out else part.passed_over
    part = replace(part, extra={**part.extra, spec.field: listed}, passed_over=passed_over)
    empty = np.flatnonzero(numbers(pc.list_value_length(listed)) == 0).tolist()
    bad = dict.fromkeys(empty, f"field '{spec.field}' has no file with a text") | bad
    return part.without(bad) if bad else part


def documents_of(part: ReadBatch, split: Split, source: str, fields: FieldNames) -> pa.RecordBatch:
    """A reader's batch, which is `conformed`, as documents with keys."""
    record = with_keys(part, split, source)
    if fields.files is None or not record.num_rows:
        return record
    return row_documents(record, fields.files, has_members=split.file.compression is not None)


def with_content(part: ReadBatch, fields: FieldNames) -> ReadBatch:
    """A reader's batch with its content: where that is made of fields, the JSON text of an object of those that a document
    has. A document without the first one is rejected. Where it is made of files, their texts, for samples and searches."""
    if fields.files is not None and len(part.positions):
        return replace(part, content=texts_of_files(part.extra[fields.files.field], fields.files))
    if not fields.json or not len(part.positions):
        return part
    values = [_json_texts(name, part.extra[name]) for name in fields.json]
    has_first = values[0].is_valid()
    lack = f"field '{fields.content}' is missing or null; expected the content of the document"
    bad = dict.fromkeys(np.flatnonzero(~has_first.to_numpy(zero_copy_only=False)).tolist(), lack)
    if bad:  # first, because a join that skips nulls leaves out a row of nulls alone
        part, values = part.without(bad), [texts.filter(has_first) for texts in values]
    names = [_json_text(name.rpartition(".")[2]) for name in fields.json]
    others = [pc.binary_join_element_wise(_COMMA, name, _COLON, each, _NOTHING) for name, each in zip(names[1:], values[1:])]
    others = [pc.fill_null(each, _NOTHING) for each in others]
    return replace(part, content=pc.binary_join_element_wise(_BEGIN, names[0], _COLON, values[0], *others, _END, _NOTHING))


_COLON, _COMMA, _BEGIN, _END, _NOTHING = (pa.scalar(text, pa.large_string()) for text in (":", ",", "{", "}", ""))


def _json_text(text: str) -> pa.Scalar:
    return pa.scalar(json.dumps(text, ensure_ascii=False), pa.large_string())


def _json_texts(name: str, column: pa.Array) -> pa.Array:
    """The values of a field as JSON text, (num_rows,) large_string; null where there is none."""
    try:
        return in_declared_type(column, "json")[0]
    except UserError as error:
        raise UserError(f"field '{name}': {error}") from error


def _no_such_value(field: str, value: pa.Scalar, declared: str) -> str:
    try:
        shown = repr(value.as_py())
    except (ValueError, OverflowError, KeyError):  # a time that Python cannot show
        shown = str(value)
    shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
    return f"field '{field}' is {shown}, which is no {declared}; `types` of the source declares {declared}"


def with_keys(part: ReadBatch, split: Split, source: str) -> pa.RecordBatch:
    """A reader's batch as documents; where the input has no id, it is the name of the document."""
    keys = make_keys(file_hash(source, split.file.path), part.positions)
    ids = part.ids
    if ids.null_count:
        positions = pa.array(part.positions).cast(pa.large_string())
        file = pa.scalar(document_name(source, split.file.path, 0).removesuffix("0"), pa.large_string())
        ids = pc.coalesce(ids, pc.binary_join_element_wise(file, positions, pa.scalar("", pa.large_string())))
    extra = [pa.field(name, column.type) for name, column in part.extra.items()]
    own = PAGE_FIELDS if pa.types.is_large_binary(part.content.type) else BASE_FIELDS
    return pa.record_batch([keys, ids, part.content, *part.extra.values()], schema=pa.schema([*own, *extra]))


def coalesced(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Joins small batches up to `TARGET_BATCH_BYTES`: files of one document each make batches of one."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_docs = 0
    for record in records:
        size = record.nbytes
        full = held_bytes + size > TARGET_BATCH_BYTES or held_docs + record.num_rows > MAX_BATCH_DOCS
        if held and (full or record.schema != held[0].schema):
            yield pa.concat_batches(held) if len(held) > 1 else held[0]
            held, held_bytes, held_docs = [], 0, 0
        held.append(record)
        held_bytes += size
        held_docs += record.num_rows
    if held:
        yield pa.concat_batches(held) if len(held) > 1 else held[0]


_NO_VALUE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError)
_HAS_ZONE = r"[T ]\d\d:?\d\d.*(?:[Zz]|[+-]\d\d(?::?\d\d)?)\s*$"
_OF_NUMBERS = ("bool", "int64", "float64")
_EMPTY_IS_NULL = ("bool", "int64", "float64", "date", "timestamp")


def in_found_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in the type that was found for the field. Raises ValueError for a value that it does not hold."""
    kind = written(kind)
    column = plain_values(column)
    if column.type == kind:
        return column
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    if joined(kind, column.type) != kind:
        raise ValueError(f"no {in_words(kind)} is made of {in_words(column.type)}")
    try:
        return column.cast(kind)
    except _NO_VALUE as error:
        raise ValueError(" ".join(str(error).split()).rstrip(".")) from error


def in_declared_type(column: pa.Array, name: str) -> tuple[pa.Array, np.ndarray]:
    """The values in the type that a mixture declares, and which rows hold a value that it cannot be: (num_rows,) bool."""
    kind, bad = DECLARED[name], np.zeros(len(column), np.bool_)
    if name == "json" and isinstance(column.type, pa.JsonType):
        return plain_values(column), bad
    column = plain_values(column)
    if pa.types.is_large_string(column.type) and name in _EMPTY_IS_NULL:
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    if column.null_count == len(column):
        return pa.nulls(len(column), kind), bad
    try:
        return _declared(column, name), bad
    except _NO_VALUE:
        return _one_by_one(column, name)


def _one_by_one(column: pa.Array, name: str) -> tuple[pa.Array, np.ndarray]:
    """As `in_declared_type`, by halves down to the rows at fault."""
    if len(column) == 1:
        return pa.nulls(1, DECLARED[name]), np.ones(1, np.bool_)
    middle = len(column) // 2
    first, bad_first = in_declared_type(column[:middle], name)
    second, bad_second = in_declared_type(column[middle:], name)
    return pa.concat_arrays([first, second]), np.concatenate([bad_first, bad_second])


def _declared(column: pa.Array, name: str) -> pa.Array:
    kind, is_text = DECLARED[name], pa.types.is_large_string(column.type)
    if name == "json" or (name == "string" and pa.types.is_nested(column.type)):
        return pc.if_else(column.is_valid(), json_values(name, column), pa.scalar(None, kind))
    if name == "string" and pa.types.is_floating(column.type):
        return float_texts(column)
    if is_text and name in ("date", "timestamp"):
        moments = _moments(column)
        return moments if name == "timestamp" else moments.cast(pa.date32(), safe=False)
    if name == "timestamp" and pa.types.is_timestamp(column.type) and column.type.tz is None:
        return column.cast(pa.timestamp("us")).cast(pa.int64()).cast(kind)
    is_number = any(test(column.type) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))
    if name in _OF_NUMBERS and not (is_text or column.type == kind or (is_number and name != "bool")):
        raise pa.ArrowInvalid(f"{column.type} is no {name}")
    if name in ("date", "timestamp") and pa.types.is_integer(column.type):
        return column.cast(pa.timestamp("s", "UTC")).cast(kind)
    return column.cast(kind)


def _moments(texts: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(texts)
    has_zone, none = pc.match_substring_regex(trimmed, _HAS_ZONE), pa.scalar(None, texts.type)
    zoned = pc.if_else(has_zone, trimmed, none).cast(pa.timestamp("us", "UTC"))
    return pc.coalesce(zoned, pc.if_else(has_zone, none, trimmed).cast(pa.timestamp("us")).cast(pa.int64()).cast(zoned.type))


def plain_values(column: pa.Array) -> pa.Array:
    """The values without dictionaries, runs and extensions; text as large strings."""
    kind = plain(column.type)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if column.type == kind:
        return column
    return as_large_string(column) if pa.types.is_large_string(kind) else column.cast(kind)
