"""WET: the plain text of pages, as Common Crawl extracts it; `conversion` records of WARC files, one for each page."""

from typing import ClassVar

from stages.read._archives.archive import ArchiveReader, Document
from stages.read._archives.warc_records import Record


class Wet(ArchiveReader):
    """Reads the text of each page of a WET file as a document, with its URL, date, and any other header.

    `keep: [url, date, mime]` are the target URI, the date and the content type of a record; any
    other name is a header, such as WARC-Identified-Content-Language. The id is the record's own.
    Other records, such as the description of the file, are counted.
    """

    extensions: ClassVar[tuple[str, ...]] = (".warc.wet", ".wet")

    def document(self, record: Record) -> Document | str:
        if record.kind != "conversion":
            return record.kind
        return Document(record, record.body, {"mime": record.headers.get("Content-Type")})
