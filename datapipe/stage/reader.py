"""The contract of a reader: what planning and the engine know about input files, and the batches that they become."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from datapipe.dataclass import asdict, dataclass, field, replace
from datapipe.errors import UnsplittableInputError
from datapipe.rng import below_fraction, sample_hash
from datapipe.stage.base import Stage
from datapipe.stage.field_types import plain

_SPLIT_BYTES = 1 << 20
OFFSET_BITS = 24
"""A position in a compressed file is the offset of a member, and in so many bits the offset in its content, or in a web archive
the number of the record in it."""

TEXT_PER_ARCHIVE_BYTE = 4
"""Bytes of text in a byte of an archive: gzip and zstd compress text to about a quarter."""

_LEAST_FILE_BYTES = 4096

NOT_SAMPLED = "not_sampled"
"""The count of records that a sample leaves out (`ReadBatch.passed_over`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputFile:
    """An input file as planning sees it."""

    url: str  # the URL that `storage.open_input` opens
    path: str  # relative to the glob's fixed prefix, with forward slashes. Document keys are made of it.
    num_bytes: int  # size as stored
    stamp: str  # changes with the content: mtime in ns, ETag, or a digest of the content
    compression: str | None = None  # "gzip", "zstd", "lz4", "bzip2", "xz" or None, by the file's ending
    # (num_rows, num_bytes) of each unit at which the file can be cut, as in Parquet (`Reader.probe`)
    row_groups: tuple[tuple[int, int], ...] = ()
    # has_members, is_one_text: whether a compressed file can be cut at members, and whether the file cannot
    # be cut at all, as a JSON array and UTF-16 cannot (`Reader.probe_large`)
    has_members: bool = False
    is_one_text: bool = False
    schema: pa.Schema | None = None  # of a format that has one, without metadata. Tasks do without it.
    damage: str = ""  # why nothing of the file can be read; empty for any other file
    # mtime_ns, ctime_ns: times of the last change of content, and of content, metadata or name; None where
    # they are not known. A task that reads the file checks them, and they enter no fingerprint.
    mtime_ns: int | None = None
    ctime_ns: int | None = None

    @property
    def text_bytes(self) -> int:
        """The estimated bytes of text. Small files count as much as the work of opening them."""
        unpacked = sum(num_bytes for _, num_bytes in self.row_groups)
        stored = self.num_bytes * (TEXT_PER_ARCHIVE_BYTE if self.compression else 1)
        return max(unpacked or stored, _LEAST_FILE_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The part of an input file that a task reads, [start, stop): bytes of plain JSONL, stored bytes of archives of members,
    row groups of Parquet; without a stop, to the end of the file. `is_of_content`: bytes of the content of an archive."""

    file: InputFile
    start: int = 0
    stop: int | None = None
    is_of_content: bool = False

    @property
    def share(self) -> float:
        """Its share of the file, by bytes of text in row groups, or by stored bytes; by the estimated ones of content."""
        sizes = [num_bytes for _, num_bytes in self.file.row_groups]
        if sizes:
            return sum(sizes[self.start : self.stop]) / max(1, sum(sizes))
        total = self.file.text_bytes if self.is_of_content else self.file.num_bytes
        return ((total if self.stop is None else self.stop) - self.start) / max(1, total)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFiles:
    """How the files that a record lists become its documents (`stage/repositories.py`)."""

    field: str  # the field with the list of files
    # path, text, license: the members of a file
    path: str
    text: str
    license: str | None
    name: str | None  # the field with the name of the repository
    order: Literal["path", "random", "given"]
    most_bytes: int
    separators: tuple[str, ...]
    seed: int = 0  # of a random order


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Which records of an input file are read, by their keys. A reader may leave the others out before it parses them, and
    counts them as `NOT_SAMPLED`; the engine leaves out those that it gives."""

    seed: int  # of the mixture
    share: float
    file_hash: int = 0  # the first half of the keys of the file's documents

    def has(self, positions: np.ndarray) -> np.ndarray:
        """Which records at `positions` (num_records,) uint64 are in the sample: bool."""
        halves = np.full(len(positions), self.file_hash, np.uint64), positions
        return below_fraction(sample_hash(halves, self.seed), self.share)


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldNames:
    """Which fields of the input become which columns."""

    # text, id: the fields of the text and of the id. Dots reach into objects, `content.text`; else it is a
    # key of this name. A document without an id gets SOURCE/PATH:POSITION. Where `text` is None, readers give
    # empty texts, and the content is made of `json`.
    text: str | None = "text"
    id: str = "id"
    keep: tuple[str, ...] = ()
    # fields of `keep` whose values are the content of a document, as the JSON text of an object, for a stage
    # that makes a text of it (`Stage.takes_json`); a document has the first one. Empty: the content is the text.
    json: tuple[str, ...] = ()
    # a field of `keep` whose files are the content of documents; None: the content is the text, or made of `json`
    files: RowFiles | None = None
    # whether half a surrogate pair in JSON becomes U+FFFD; otherwise it makes a record a bad one
    replaces_surrogates: bool = False
    # by column the field that it is made of; empty where columns have the names of their fields
    columns: Mapping[str, str] = field(default_factory=dict)
    # by field the type of its column, one for all files of the source (`stage/field_types.py`). A reader that
    # reads values of another type may use it; the engine converts the values of readers.
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    # by field the name of the type that the mixture declares
    declared: Mapping[str, str] = field(default_factory=dict)
    sample: Sample | None = None  # None: all records are read

    def identity(self) -> list[Any]:
        types, columns = {name: str(kind) for name, kind in self.types.items()}, list(self.columns.items())
        made = [list(self.json)] if self.json else [asdict(self.files)] if self.files is not None else []
        made += [] if self.sample is None else [[NOT_SAMPLED, self.sample.share]]
        return [self.text, self.id, list(self.keep), columns, types, dict(self.declared), self.replaces_surrogates, *made]

    @property
    def content(self) -> str:
        """The field that every document has."""
        if self.text is not None:
            return self.text
        return self.json[0] if self.files is None else self.files.field

    @property
    def wanted(self) -> tuple[str, ...]:
        """The fields of the content, and those that are kept."""
        return tuple(dict.fromkeys((self.content, *self.keep)))

    @property
    def kept_columns(self) -> Mapping[str, str]:
        """The field of each column beside the content."""
        return self.columns or {name: name for name in self.keep if name not in self.json}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejected:
    """Input that is no document: a bad line, or the unread rest of a broken file."""

    position: int
    error: str  # what was found and what was expected, in one sentence
    excerpt: bytes = b""  # its first bytes, at most 4 KiB
    # whether an unknown number of documents of the file is lost. The run counts such files (`max_unreadable_files`).
    is_file_damage: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadBatch:
    """Documents as columns, and rejected input, both in the order of the file."""

    # (num_docs,) uint64, ascending: byte offset of the line in the decompressed file, row number, or the
    # offset of a member in the stored file, shifted by 24 bits, plus the byte or the number in it
    positions: np.ndarray
    # (num_docs,) without nulls: the texts, large_string, or the pages of a reader of pages, large_binary
    content: pa.Array
    ids: pa.Array  # (num_docs,) large_string; null for a document without an id
    extra: Mapping[str, pa.Array] = field(default_factory=dict)  # kept fields by name, (num_docs,) each
    # by field, the type of values that do not fit into `FieldNames.types`, and whose column is empty. The
    # source is then read with a wider type.
    wider: Mapping[str, pa.DataType] = field(default_factory=dict)
    rejected: tuple[Rejected, ...] = ()
    # records that are no documents by the meaning of the format, counted by kind, such as "request"
    passed_over: Mapping[str, int] = field(default_factory=dict)
    input_bytes: int = 0  # bytes of decompressed input that this batch accounts for

    @classmethod
    def of_rejected(cls, *rejected: Rejected) -> ReadBatch:
        """No document, and rejected input."""
        nothing = pa.array([], pa.large_string())
        return cls(positions=np.zeros(0, np.uint64), content=nothing, ids=nothing, rejected=rejected)

    def between(self, start: int, stop: int) -> ReadBatch:
        """The documents and rejected records whose positions are in [start, stop)."""
        first, last = np.searchsorted(self.positions, np.array([start, stop], np.uint64)).tolist()
        begin, end = (bisect_left(self.rejected, border, key=attrgetter("position")) for border in (start, stop))
        return self._chosen(slice(first, last), lambda column: column[first:last], self.rejected[begin:end])

    def without(self, bad: Mapping[int, str]) -> ReadBatch:
        """The batch without some documents: (row, why it is rejected)."""
        keep = np.ones(len(self.positions), np.bool_)
        keep[list(bad)] = False
        mask = pa.array(keep)
        more = (Rejected(position=int(self.positions[row]), error=bad[row]) for row in sorted(bad))
        rejected = sorted((*self.rejected, *more), key=lambda rejected: rejected.position)
        return self._chosen(keep, lambda column: column.filter(mask), tuple(rejected))

    def sampled(self, sample: Sample) -> ReadBatch:
        """The documents and rejected records of a sample, and damage of the file."""
        rows = sample.has(self.positions)
        positions = np.array([record.position for record in self.rejected], np.uint64)
        stays = sample.has(positions) | np.array([record.is_file_damage for record in self.rejected], np.bool_)
        rejected = tuple(record for record, stay in zip(self.rejected, stays.tolist()) if stay)
        left_out = self.passed_over.get(NOT_SAMPLED, 0) + int(len(rows) - rows.sum() + len(stays) - stays.sum())
        mask = pa.array(rows)
        chosen = self._chosen(rows, lambda column: column.filter(mask), rejected)
        return replace(chosen, passed_over={**self.passed_over, NOT_SAMPLED: left_out})

    def _chosen(self, rows: Any, choose: Callable[[pa.Array], pa.Array], rejected: tuple[Rejected, ...]) -> ReadBatch:
        return replace(
            self,
            positions=self.positions[rows],
            content=choose(self.content),
            ids=choose(self.ids),
            extra={name: choose(column) for name, column in self.extra.items()},
            rejected=rejected,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldsSeen:
    """The fields of the first records of a split: the asked ones that at least one of the records has, be its value null; the
    `names` of all, with dots inside objects, for messages; and the types of the asked ones."""

    num_records: int = 0
    found: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)


OpenInput = Callable[[str], pa.NativeFile]
"""Opens a URL for reading. The engine passes `storage.open_input`, or one that also checks that the file is the planned one, so
that a reader knows no file system."""


class Reader(Stage):
    """Turns input files into documents. For bad content it yields `Rejected` and does not raise."""

    extensions: ClassVar[tuple[str, ...]] = ()
    """File endings that `format: auto` maps to this reader, without the compression's: (".jsonl", ".ndjson")."""

    has_json: ClassVar[bool] = False
    """Whether values of one field may be of several types, as in JSON: then more records are probed before a run."""

    gives: ClassVar[Literal["text", "html"]] = "text"
    """What a document is made of: its text, or a page, whose text a stage extracts (`ReadBatch.content`)."""

    def probe(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """The file with its `row_groups` and `schema`. Raises UserError, OSError, or
        DamagedInputError if `read` can read nothing."""
        return file

    def probe_large(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """The file with what `cut` must know and only reading shows. Only files of more text than a
        split are read. Raises OSError."""
        return file

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """The splits of a file, a function of the file alone; by default the whole file. Where only
        reading shows that a file cannot be cut at a split, `read` raises UnsplittableInputError at
        the end of that split, and the run reads the file whole."""
        return [Split(file=file)]

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        raise NotImplementedError

    def fields_seen(self, split: Split, fields: FieldNames, open_input: OpenInput) -> FieldsSeen:
        """The fields of the first records of a split. The default reads up to the first document; a
        kept field counts as found where it has a value."""
        try:
            for batch in self.read(split, fields, open_input):
                if num_records := len(batch.positions):
                    extra, wider = batch.extra, batch.wider
                    kept = [name for name, column in extra.items() if column.null_count < num_records or name in wider]
                    types = {name: plain(extra[name].type) for name in kept} | dict(wider)
                    return FieldsSeen(num_records=num_records, found=frozenset({fields.text or "", *kept}), types=types)
        except UnsplittableInputError:  # the run reads the file whole
            pass
        return FieldsSeen()

    def find(
        self, file: InputFile, position: int, fields: FieldNames, open_input: OpenInput
    ) -> tuple[Split, ReadBatch, int] | None:
        """The document at `position`: a split that holds it, its batch and its row there; None where there is none."""
        for split in self.splits_at(file, position):
            try:
                for batch in self.read(split, fields, open_input):
                    rows = np.flatnonzero(batch.positions == position)
                    if len(rows):
                        return split, batch, int(rows[0])
                    if len(batch.positions) and int(batch.positions[-1]) > position:
                        break
            except UnsplittableInputError:
                continue
        return None

    def splits_at(self, file: InputFile, position: int) -> Iterator[Split]:
        """Splits that may hold a document, the smallest first, where the file can be cut; then the whole file."""
        if len(self.cut(file, _SPLIT_BYTES)) > 1:
            unit = position if file.compression is None else position >> OFFSET_BITS
            if file.row_groups:
                ends = np.cumsum([num_rows for num_rows, _ in file.row_groups])
                unit = int(np.searchsorted(ends, position, "right"))
            yield Split(file=file, start=unit, stop=unit + 1)
        yield Split(file=file)
