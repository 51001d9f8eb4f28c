"""WARC: the pages of a crawl as servers sent them, `response` and `resource` records; ISO 28500."""

from typing import ClassVar

from stages.read._archives.archive import PageReader


class Warc(PageReader):
    """Reads the HTML pages of a WARC file, without transfer and content encodings.

    `keep: [url, date, mime, status, charset]` are the target URI, the date of the capture, the media type of the response
    without parameters and in lower case, the HTTP status as a number, and the charset that the response declares. Any other
    name is a header, of the record or else of the response. The id is the record's own. Records that are not read are counted
    in the report: requests, metadata, revisits, other media types and status codes.
    """

    extensions: ClassVar[tuple[str, ...]] = (".warc",)
