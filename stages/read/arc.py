"""ARC: the pages of crawls before 2009, versions 1 and 2 of the format that came before WARC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from datapipe.stage import Rejected
from datapipe.stage.decoding import Beginning, Members
from stages.read._archives.arc_records import ARC, arc_records
from stages.read._archives.page import PageReader
from stages.read._archives.record import Record


class Arc(PageReader):
    """Reads the HTML pages of an ARC file, without transfer and content encodings.

    `keep: [url, date, mime, status, charset]` are as those of WARC files, with dates written as there; WARC-IP-Address is the
    address of the server, and any other name is a header of the response. Records have no id of their own. Records that are not
    read are counted in the report: the file's own description, other media types and status codes.
    """

    extensions: ClassVar[tuple[str, ...]] = (".arc",)
    cuts_plain: ClassVar[bool] = False
    beginning: ClassVar[Beginning] = ARC

    def records(self, members: Members, start: int = 0, stop: int | None = None) -> Iterator[Record | Rejected]:
        return arc_records(members, self.max_record_bytes, start, stop)
