"""WET: the plain text of pages, as Common Crawl extracts it; `conversion` records of WARC files, one for each page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import ClassVar

import numpy as np
import pyarrow as pa
from pydantic import Field

from datapipe.errors import UserError
from datapipe.stage import FieldNames, InputFile, OpenInput, ReadBatch, Reader, Rejected, Split
from datapipe.stage.decoding import EXCERPT_BYTES, BrokenStreamError
from datapipe.stage.documents import TARGET_BATCH_BYTES
from stages.read._warc_records import NUMBER_BITS, Record, records

_BATCH_DOCS = 4096
_LIBRARY = {"gzip": ("isal",), "zstd": ("zstandard",), "lz4": ("lz4",)}
_HEADERS = {"id": "WARC-Record-ID", "url": "WARC-Target-URI", "date": "WARC-Date", "mime": "Content-Type"}
"""Headers by the names that sources use for them. Any other name is that of a header itself."""


class Wet(Reader):
    """Reads the text of each page of a WET file as a document, with its URL, date, and any other header.

    `keep: [url, date, mime]` are the target URI, the date and the content type of a record; any other name is a header, such as
    WARC-Identified-Content-Language. The id is the record's own.
    """

    extensions: ClassVar[tuple[str, ...]] = (".warc.wet", ".wet")
    libraries: ClassVar[tuple[str, ...]] = ("fastwarc",)

    max_record_bytes: int = Field(default=64 << 20, ge=1, description="Most bytes of a record; larger ones are quarantined.")

    def probe(self, file: InputFile, open_input: OpenInput) -> tuple[tuple[int, int], ...]:
        """No cuts: a file is read in one task. Raises UserError where the libraries for web archives are not installed."""
        needed = ["fastwarc", *_LIBRARY.get(file.compression or "", ())]
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise UserError(f"web archives need {', '.join(missing)}, not installed here. Run: pip install 'datapipe[web]'")
        return ()

    def read(self, split: Split, fields: FieldNames, open_input: OpenInput) -> Iterator[ReadBatch]:
        batch = _Batch(fields)
        with open_input(split.file.url) as stream:
            try:
                for record in records(stream, split.file.compression, self.max_record_bytes):
                    batch.add(record)
                    if batch.is_full:
                        yield batch.take()
            except BrokenStreamError as error:
                batch.add(Rejected(position=0, error=str(error), is_file_damage=True))
        yield batch.take()

    def read_document(self, file: InputFile, position: int, fields: FieldNames, open_input: OpenInput) -> str | None:
        start = position if file.compression is None else position >> NUMBER_BITS
        with open_input(file.url) as stream:
            for record in records(stream, file.compression, self.max_record_bytes, start):
                if record.position < position:
                    continue
                if isinstance(record, Record) and record.position == position and _is_text(record):
                    return record.body.decode()
                break
        return None


def _is_text(record: Record) -> bool:
    from fastwarc.warc import WarcRecordType

    return record.kind == WarcRecordType.conversion


class _Batch:
    """Records that become a batch of documents."""

    def __init__(self, fields: FieldNames) -> None:
        self._fields = fields
        self._records: list[Record] = []
        self._rejected: list[Rejected] = []
        self._num_bytes = 0

    @property
    def is_full(self) -> bool:
        return self._num_bytes >= TARGET_BATCH_BYTES or len(self._records) >= _BATCH_DOCS

    def add(self, record: Record | Rejected) -> None:
        if isinstance(record, Rejected):
            self._rejected.append(record)
        elif _is_text(record):
            self._records.append(record)
            self._num_bytes += len(record.body)

    def take(self) -> ReadBatch:
        """The batch of what was added since the last call. Records that are not UTF-8 are rejected."""
        texts = self._texts()
        batch = ReadBatch(
            positions=np.array([record.position for record in self._records], np.uint64),
            texts=texts,
            ids=_column(self._records, self._fields.id),
            extra={name: _column(self._records, name) for name in self._fields.keep},
            rejected=tuple(sorted(self._rejected, key=lambda rejected: rejected.position)),
            input_bytes=self._num_bytes,
        )
        self._records, self._rejected, self._num_bytes = [], [], 0
        return batch

    def _texts(self) -> pa.Array:
        try:
            return pa.array([record.body for record in self._records], pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            decodable = []
            for record in self._records:
                try:
                    record.body.decode()
                    decodable.append(record)
                except UnicodeDecodeError as error:
                    message = f"invalid UTF-8 at byte {error.start}: {error.reason}; expected a WET record of UTF-8 text"
                    self._rejected.append(
                        Rejected(position=record.position, error=message, excerpt=record.body[:EXCERPT_BYTES])
                    )
            self._records = decodable
            return pa.array([record.body for record in decodable], pa.large_binary()).cast(pa.large_string())


def _column(listed: Sequence[Record], name: str) -> pa.Array:
    """A header of each record: (num_records,) large_string, null where it is absent; brackets of wget are left out."""
    header = _HEADERS.get(name, name)
    values = (record.headers.get(header) for record in listed)
    return pa.array([None if value is None else value.strip().strip("<>") for value in values], pa.large_string())
