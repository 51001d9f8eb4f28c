"""Pages: the records of archives that hold HTTP responses, or a page itself.

response ─▶ HTTP head ─▶ status? media type? ─▶ body without its encodings ─▶ page
resource ───────────────▶ media type? ─────────────────────────────────────▶ page
any other record, status or media type ─▶ passed over, by name
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

from pydantic import Field

from datapipe.stage import Rejected
from datapipe.stage.decoding import EXCERPT_BYTES
from stages.read._archives.archive import ArchiveReader, Document
from stages.read._archives.http import BodyError, Response, charset, decoded_body, media_type, parse_response
from stages.read._archives.record import Record

_PAGES = frozenset({"response", "resource"})


class PageReader(ArchiveReader):
    """Reads archives of pages."""

    libraries: ClassVar[tuple[str, ...]] = ("brotli",)
    gives: ClassVar[Literal["text", "html"]] = "html"

    mime: tuple[str, ...] = Field(
        default=("text/html", "application/xhtml+xml"),
        min_length=1,
        description="Media types of the pages to read, without parameters. An empty one takes responses without a media type.",
    )
    status: tuple[int, ...] = Field(
        default=(200,),
        min_length=1,
        description="HTTP status codes of the pages to read. Records that are no HTTP response have none, and are read.",
    )

    def document(self, record: Record) -> Document | Rejected | str:
        """The page of a record; in place of a record that is not read, the kind by which it is counted."""
        if record.kind not in _PAGES:
            return record.kind
        response = parse_response(record.body) if record.kind == "response" else None
        if response is None:
            return self._bare_page(record)
        content_type = response.headers.get("content-type")
        mime = media_type(content_type) or media_type(record.headers.get("WARC-Identified-Payload-Type"))
        passed_over = _passed_over(mime, self.mime) or (None if response.status in self.status else "other_status")
        if passed_over is not None:
            return passed_over
        body = self._body(record, response)
        if isinstance(body, Rejected):
            return body
        columns = {"mime": mime, "status": response.status, "charset": charset(content_type)}
        return Document(record, body, columns, response.headers)

    def _bare_page(self, record: Record) -> Document | Rejected | str:
        """The page of a record without an HTTP head: a resource, a response of another protocol."""
        content_type = record.headers.get("Content-Type")
        mime = media_type(content_type)
        if mime == "application/http":
            error = "the record has no HTTP status line; expected a block that begins with HTTP/"
            return Rejected(position=record.position, error=error, excerpt=record.body[:EXCERPT_BYTES])
        columns = {"mime": mime, "status": None, "charset": charset(content_type)}
        return _passed_over(mime, self.mime) or Document(record, record.body, columns)

    def _body(self, record: Record, response: Response) -> bytes | Rejected:
        """The body of a response. Of one that the crawler has cut off, and says so, what there is."""
        try:
            return decoded_body(response, self.max_record_bytes, record.headers.get("WARC-Truncated") is not None)
        except BodyError as error:
            return Rejected(position=record.position, error=str(error), excerpt=response.body[:EXCERPT_BYTES])


def _passed_over(mime: str | None, wanted: Collection[str]) -> str | None:
    """Why a page of this media type is not read; None for one that is."""
    if (mime or "") in wanted:
        return None
    return "other_mime" if mime else "no_mime"
