"""WARC: the pages of a crawl as servers sent them, `response` and `resource` records; ISO 28500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from datapipe.stage import Rejected, Split
from stages.read._archives.page import PageReader
from stages.read._archives.record import Record
from stages.read._archives.warc_records import warc_records, warc_records_of_split


class Warc(PageReader):
    """Reads the HTML pages of a WARC file, without transfer and content encodings.

    `keep: [url, date, mime, status, charset]` are the target URI, the date of the capture, the media type of the response
    without parameters and in lower case, the HTTP status as a number, and the charset that the response declares. Any other
    name is a header, of the record or else of the response. The id is the record's own. Records that are not read are counted
    in the report: requests, metadata, revisits, other media types and status codes.
    """

    extensions: ClassVar[tuple[str, ...]] = (".warc",)
    libraries: ClassVar[tuple[str, ...]] = ("brotli",)
    needs: ClassVar[tuple[str, ...]] = ("isal", "brotli", "zstandard")

    def records_of_split(self, stream: pa.NativeFile, split: Split) -> Iterator[Record | Rejected]:
        return warc_records_of_split(stream, split, self.max_record_bytes)

    def records_from(self, stream: pa.NativeFile, compression: str | None, start: int) -> Iterator[Record | Rejected]:
        return warc_records(stream, compression, self.max_record_bytes, start)
