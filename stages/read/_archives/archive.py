"""The readers of web archives share: records become batches of documents, and the others are counted.

    split ─▶ records (`warc_records.py`, `arc.py`) ─┬─▶ documents     `document()` of the reader
                                                    ├─▶ passed over   by kind: requests, metadata, other media types
                                                    └─▶ rejected      what cannot be read, and why

Memory is one batch, of about `TARGET_BATCH_BYTES` or one record, and the state of the decompressors.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.dataclass import dataclass, field
from datapipe.errors import UserError
from datapipe.stage import FieldNames, InputFile, OpenInput, ReadBatch, Rejected, Split, decoding
from datapipe.stage.documents import TARGET_BATCH_BYTES
from datapipe.stage.reader import TEXT_PER_ARCHIVE_BYTE
from stages.read._archives.http import BodyError, Fields, charset, decoded_body, media_type, parse_response
from stages.read._archives.warc_records import WARC, Record, warc_records
from stages.read._content_reader import ContentReader

_BATCH_RECORDS = 4096
_HEADERS = {"id": "WARC-Record-ID", "url": "WARC-Target-URI", "date": "WARC-Date"}
"""Headers of records by the names that sources use for them. Any other name is that of a header itself."""


@dataclass(frozen=True, slots=True)
class Document:
    """A record that is a document, values by the names that sources use for them, and the headers of the response."""

    record: Record
    content: bytes
    columns: Mapping[str, str | int | None] = field(default_factory=dict)
    headers: Fields = field(default_factory=lambda: Fields({}))

    def value(self, name: str) -> str | int | None:
        if name in self.columns:
            return self.columns[name]
        value = self.record.headers.get(_HEADERS.get(name, name))
        if value is None:
            return self.headers.get(name)
        return value.strip().strip("<>")  # wget writes addresses in angle brackets


class ArchiveReader(ContentReader):
    """Reads archives of records, those of WARC unless a reader has `beginning` and `records` of another format."""

    max_record_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Maximum bytes of a record, and of its decompressed page. Larger records are quarantined.",
    )

    beginning: ClassVar[decoding.Beginning] = WARC
    """How a member begins that a search finds."""

    def records(self, members: decoding.Members, start: int = 0, stop: int | None = None) -> Iterator[Record | Rejected]:
        """The records that begin in a byte range; see `warc_records`."""
        return warc_records(members, self.max_record_bytes, start, stop)

    def document(self, record: Record) -> Document | Rejected | str:
        """The document of a record; for a record without one, the kind by which it is counted."""
        raise NotImplementedError

    def probe(self, file: InputFile, open_input: OpenInput) -> InputFile:
        """The file as it is. Raises UserError for a compression whose members cannot be found."""
        if file.compression not in (None, *decoding.HAVE_MEMBERS):
            raise UserError(
                f"{file.url}: records of a {file.compression} file cannot be found by their position. Expected a web archive "
                f"ending in .gz, .zst or .lz4, or without compression: repack it"
            )
        return file

    def cut(self, file: InputFile, target_bytes: int) -> list[Split]:
        """Ranges of stored bytes; a record belongs to the range that holds the first byte of its member."""
        range_bytes = max(1, target_bytes // (TEXT_PER_ARCHIVE_BYTE if file.compression else 1))
        return decoding.byte_ranges(file, range_bytes)

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        batch = _Batch(fields, self.gives == "html")
        with open_input(split.file.url) as stream:
            try:
                limits = {"beginning": self.beginning, "max_window_bytes": self.max_window_bytes}
                members = decoding.opened_members(stream, split.file.compression, split.start, split.stop, **limits)
                for record in self.records(members, split.start, split.stop):
                    batch.add(record if isinstance(record, Rejected) else self.document(record))
                    if isinstance(record, Record) and record.has_short_length:
                        batch.add("short_length")
                    if batch.is_full:
                        yield batch.take()
            except decoding.BrokenStreamError as error:
                if split.start == 0:  # the other ranges of the file need not report it again
                    batch.add(Rejected(position=0, error=str(error), is_file_damage=True))
        yield batch.take()


class _Batch:
    def __init__(self, fields: FieldNames, is_html: bool) -> None:
        self._fields, self._is_html = fields, is_html
        self._documents: list[Document] = []
        self._rejected: list[Rejected] = []
        self._passed_over: Counter[str] = Counter()
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._num_bytes >= TARGET_BATCH_BYTES or len(self._documents) + len(self._rejected) >= _BATCH_RECORDS

    def add(self, item: Document | Rejected | str) -> None:
        """Adds a document, an unreadable record, or the kind of a record that is no document."""
        if isinstance(item, Rejected):
            self._rejected.append(item)
        elif isinstance(item, str):
            self._passed_over[item] += 1
        else:
            self._documents.append(item)
            self._num_bytes += len(item.content)

    def take(self) -> ReadBatch:
        """The batch since the last call. Texts that are not UTF-8 are rejected."""
        contents = self._contents()
        documents = self._documents
        batch = ReadBatch(
            positions=np.array([document.record.position for document in documents], np.uint64),
            content=contents,
            ids=_column(documents, self._fields.id),
            extra={name: _column(documents, name) for name in self._fields.keep},
            rejected=tuple(sorted(self._rejected, key=lambda rejected: rejected.position)),
            passed_over=dict(sorted(self._passed_over.items())),
            input_bytes=self._num_bytes,
        )
        self._documents, self._rejected, self._passed_over, self._num_bytes = [], [], Counter(), 0
        return batch

    def _contents(self) -> pa.Array:
        contents = pa.array([document.content for document in self._documents], pa.large_binary())
        if self._is_html:
            return contents
        try:
            return contents.cast(pa.large_string())
        except pa.ArrowInvalid:
            self._documents = [document for document in self._documents if self._is_utf8(document)]
            return pa.array([document.content for document in self._documents], pa.large_binary()).cast(pa.large_string())

    def _is_utf8(self, document: Document) -> bool:
        try:
            document.content.decode()
        except UnicodeDecodeError as error:
            message = f"invalid UTF-8 at byte {error.start}: {error.reason}; expected a record of UTF-8 text"
            excerpt = document.content[: decoding.EXCERPT_BYTES]
            self._rejected.append(Rejected(position=document.record.position, error=message, excerpt=excerpt))
            return False
        return True


def _column(documents: Sequence[Document], name: str) -> pa.Array:
    """A value of each document, (num_docs,): int64 for `status`, else large_string; null where there is none."""
    return pa.array([document.value(name) for document in documents], pa.int64() if name == "status" else pa.large_string())


class PageReader(ArchiveReader):
    """Reads archives of pages."""

    libraries: ClassVar[tuple[str, ...]] = ("brotli",)
    gives: ClassVar[Literal["text", "html"]] = "html"

    mime: tuple[str, ...] = Field(
        default=("text/html", "application/xhtml+xml"),
        min_length=1,
        description="Media types of the pages to read, without parameters. An empty text stands for responses without "
        "a media type.",
    )
    status: tuple[int, ...] = Field(
        default=(200,), min_length=1, description="HTTP status codes of the pages to read. Other records have none."
    )

    def document(self, record: Record) -> Document | Rejected | str:
        """The page of a record; in place of a record that is not read, the kind by which it is counted."""
        if record.kind not in ("response", "resource"):
            return record.kind
        response = parse_response(record.body) if record.kind == "response" else None
        if response is None:
            return self._bare_page(record)
        content_type = response.headers.get("content-type")
        mime = media_type(content_type) or media_type(record.headers.get("WARC-Identified-Payload-Type"))
        passed_over = _passed_over(mime, self.mime) or (None if response.status in self.status else "other_status")
        if passed_over is not None:
            return passed_over
        is_cut_off = record.headers.get("WARC-Truncated") is not None
        try:
            body = decoded_body(response, self.max_record_bytes, is_cut_off)
        except BodyError as error:
            excerpt = response.body[: decoding.EXCERPT_BYTES]
            return Rejected(position=record.position, error=str(error), excerpt=excerpt)
        columns = {"mime": mime, "status": response.status, "charset": charset(content_type)}
        return Document(record, body, columns, response.headers)

    def _bare_page(self, record: Record) -> Document | Rejected | str:
        """The page of a record without an HTTP head: a resource, a response of another protocol."""
        content_type = record.headers.get("Content-Type")
        mime = media_type(content_type)
        if mime == "application/http":
            error = "the record has no HTTP status line; expected a block that begins with HTTP/"
            return Rejected(position=record.position, error=error, excerpt=record.body[: decoding.EXCERPT_BYTES])
        columns = {"mime": mime, "status": None, "charset": charset(content_type)}
        return _passed_over(mime, self.mime) or Document(record, record.body, columns)


def _passed_over(mime: str | None, wanted: Collection[str]) -> str | None:
    if (mime or "") in wanted:
        return None
    return "other_mime" if mime else "no_mime"
