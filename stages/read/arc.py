"""ARC: the pages of crawls before 2009, versions 1 and 2 of the format that came before WARC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa

from datapipe.stage import Rejected, Split
from stages.read._archives.arc_records import arc_records, arc_records_of_split
from stages.read._archives.page import PageReader
from stages.read._archives.record import Record


class Arc(PageReader):
    """Reads the HTML pages of an ARC file, without transfer and content encodings.

    `keep: [url, date, mime, status, charset]` are as those of WARC files, with dates written as there; WARC-IP-Address is the
    address of the server, and any other name is a header of the response. Records have no id of their own. Records that are not
    read are counted in the report: the file's own description, other media types and status codes.
    """

    extensions: ClassVar[tuple[str, ...]] = (".arc",)
    libraries: ClassVar[tuple[str, ...]] = ("brotli",)
    needs: ClassVar[tuple[str, ...]] = ("isal", "brotli", "zstandard")
    cuts_plain: ClassVar[bool] = False

    def records_of_split(self, stream: pa.NativeFile, split: Split) -> Iterator[Record | Rejected]:
        return arc_records_of_split(stream, split, self.max_record_bytes)

    def records_from(self, stream: pa.NativeFile, compression: str | None, start: int) -> Iterator[Record | Rejected]:
        return arc_records(stream, compression, self.max_record_bytes, start)
