"""HTTP responses as archives store them: status and headers, and the body without transfer and content encodings.

    HTTP/1.1 200 OK                          status 200
    Content-Type: text/HTML; charset=gbk     mime "text/html", charset "gbk"
    Transfer-Encoding: chunked               ─▶ chunks are joined
    Content-Encoding: gzip                   ─▶ the body is inflated: gzip, deflate, br, zstd; several in the reverse order

Crawlers keep these headers beside bodies that they have decoded, as Common Crawl did until 2018. So a body that does not begin
with the encoding that its headers claim is kept as it is stored. Nothing that a body can hold makes it inflate beyond a limit.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from datapipe.dataclass import dataclass, field
from datapipe.errors import DatapipeError
from datapipe.stage.decoding import MAGIC, decompressors

_HEAD_END = re.compile(rb"\r?\n\r?\n")
_USUAL_HEAD_END = b"\r\n\r\n"
_STATUS = re.compile(rb"HTTP/\S* +(\d{3})(?!\d)")
_FIELD = re.compile(rb"\n([^\s:]+):([^\r\n]*)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
_CHUNK = re.compile(rb"[ \t]*([0-9A-Fa-f]{1,16})[ \t]*(?:;[^\r\n]{0,1024})?\r?\n")
_LINE_END = re.compile(rb"\r?\n")
_FEED_BYTES = 16 << 10
"""Stored bytes that are inflated at a time: at most 16 MiB of content come of them."""

_ZSTD_FEED_BYTES = 512  # the same for Zstandard, of which 4 bytes may stand for 128 KiB
_PLAIN_HEAD_BYTES = 1 << 10
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_MOST_ANNOUNCEMENTS, _MOST_CODINGS = 4, 6
_ZSTD_WINDOW_BYTES = 8 << 20  # RFC 9659: the largest window of Zstandard as a content coding


class Fields:
    """Headers as bytes by their names in lower case, found without regard to case and decoded when they are asked for."""

    __slots__ = ("_encoding", "_fields")

    def __init__(self, fields: dict[bytes, bytes], encoding: str = "utf-8") -> None:
        self._fields, self._encoding = fields, encoding

    def get(self, name: str, /) -> str | None:
        value = self._fields.get(name.lower().encode())
        return None if value is None else value.decode(self._encoding, "replace").strip()


class BodyError(DatapipeError):
    """The body of a response cannot be decoded. `decoded` is what could be decoded of it."""

    def __init__(self, message: str, decoded: bytes = b"") -> None:
        super().__init__(message)
        self.decoded = decoded


@dataclass(frozen=True, slots=True)
class Response:
    """A response: its stored body, its headers, those of one name joined by ", ", its status."""

    body: bytes
    status: int | None = None
    headers: Fields = field(default_factory=lambda: Fields({}))


def parse_response(block: bytes) -> Response | None:
    """The response in the block of a record; None without a status line. Responses of the class 1xx are passed over."""
    response = _parse(block)
    for _ in range(_MOST_ANNOUNCEMENTS):
        if response is None or (response.status or 0) // 100 != 1 or not response.body.startswith(b"HTTP/"):
            break
        response = _parse(response.body)
    return response


def _parse(block: bytes) -> Response | None:
    if not block.startswith(b"HTTP/"):
        return None
    stop, start = _ends_of_head(block)
    head = block[:stop]
    headers = {name.lower(): value for name, value in _FIELD.findall(head)}
    if len(headers) != head.count(b"\n"):
        headers = _odd_headers(head)
    status = _STATUS.match(head)
    return Response(body=block[start:], status=int(status[1]) if status else None, headers=Fields(headers, "latin-1"))


def _ends_of_head(block: bytes) -> tuple[int, int]:
    stop = block.find(_USUAL_HEAD_END)
    if stop >= 0 and block.find(b"\n\n", 0, stop) < 0 and block.find(b"\n\r\n", 0, stop + 1) < 0:
        return stop, stop + len(_USUAL_HEAD_END)
    end = _HEAD_END.search(block)
    return (len(block), len(block)) if end is None else end.span()


def _odd_headers(head: bytes) -> dict[bytes, bytes]:
    """The headers of a head with a name twice, a header over several lines, or lines that are no headers."""
    headers: dict[bytes, bytes] = {}
    last = b""
    for line in head.split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if line[:1] in (b" ", b"\t") and last:
            headers[last] += b" " + line.strip()
        elif colon:
            last, value = name.strip().lower(), value.strip()
            headers[last] = headers[last] + b", " + value if last in headers else value
    return headers


def media_type(content_type: str | None) -> str | None:
    """The type of a Content-Type without its parameters, in lower case; None without one."""
    return (content_type or "").partition(";")[0].partition(",")[0].strip().lower() or None


def charset(content_type: str | None) -> str | None:
    """The parameter `charset` of a Content-Type, in lower case; None where there is none."""
    match = _CHARSET.search(content_type or "")
    return match[1].lower() if match else None


def decoded_body(response: Response, max_bytes: int, is_cut_off: bool = False) -> bytes:
    """The body without transfer and content encodings; of one that the crawler has cut off, the decoded part. Raises BodyError
    for one that is larger than `max_bytes`, encoded or not, that breaks off, or whose encoding is damaged."""
    headers, body = response.headers, response.body
    codings, transfer_codings = _listed(headers.get("content-encoding")), _listed(headers.get("transfer-encoding"))
    if len(codings) + len(transfer_codings) > _MOST_CODINGS:
        num_codings = len(codings) + len(transfer_codings)
        raise BodyError(f"the body has {num_codings} encodings; the most that this reader takes off is {_MOST_CODINGS}")
    for coding in (*reversed(transfer_codings), *reversed(codings)):
        try:
            body = _unchunked(body) if coding == "chunked" else _decoded(body, coding, max_bytes)
        except BodyError as error:
            if not is_cut_off or not error.decoded:
                raise
            body = error.decoded
    return body


def _listed(header: str | None) -> list[str]:
    return [name for part in (header or "").lower().split(",") if (name := part.strip())]


def _unchunked(body: bytes) -> bytes:
    """The chunks of a body (RFC 9112, 7.1), joined; the body itself without a chunk. The last, of size 0, may be missing."""
    content, offset, view = bytearray(), 0, memoryview(body)
    while offset < len(body):
        size = _CHUNK.match(body, offset)
        if size is None:
            if not content:
                return body
            raise BodyError(f"byte {offset:,} of the chunked body is not the size of a chunk", bytes(content))
        num_bytes = int(size[1], 16)
        if num_bytes == 0:
            break
        stop = size.end() + num_bytes
        line_end = _LINE_END.match(body, stop)
        if line_end is None and stop < len(body) and not content:
            return body  # the first line is no size, but text that reads like one
        content += view[size.end() : stop]
        if stop > len(body):
            raise BodyError(
                f"the chunked body breaks off: {stop - len(body):,} bytes of its last chunk are missing", bytes(content)
            )
        if line_end is None and stop < len(body):
            raise BodyError(f"byte {stop:,} of the chunked body is not the end of a chunk", bytes(content))
        offset = stop if line_end is None else line_end.end()
    return bytes(content)


def _decoded(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The body without one content encoding; the body itself for an encoding that is not known, and where it has none."""
    inflate = _INFLATE.get(coding.removeprefix("x-"))
    if inflate is None or not body:
        return body
    content: list[bytes] = []
    num_bytes = 0
    try:
        for chunk in inflate(body):
            num_bytes += len(chunk)
            if num_bytes > max_bytes:
                raise BodyError(
                    f"the {coding} body inflates to more than {max_bytes:,} bytes, the most that this reader takes "
                    "(max_record_bytes)"
                )
            content.append(chunk)
    except BodyError:
        raise
    except Exception as error:  # each library has other errors
        if _CONTROL.search(body[:_PLAIN_HEAD_BYTES]) is None:  # it begins as text does
            return body
        raise BodyError(f"the {coding} body is damaged: {error}", b"".join(content)) from None
    return b"".join(content)


def _frames(coding: str, feed_bytes: int, body: bytes) -> Iterator[bytes]:
    """The content of all members; bytes behind the last one are ignored, as browsers do."""
    magic = MAGIC[coding]
    if not body.startswith(magic):
        yield body
        return
    make, offset = decompressors(coding, b"", _ZSTD_WINDOW_BYTES), 0
    while body.startswith(magic, offset):
        decompressor = make()
        while not decompressor.eof:
            stored = body[offset : offset + feed_bytes]
            if not stored:
                raise ValueError("it breaks off")
            yield decompressor.decompress(stored)
            offset += len(stored)
        offset -= len(decompressor.unused_data or b"")


def _inflated(body: bytes) -> Iterator[bytes]:
    """The content of a zlib stream, or of a bare deflate stream, which some servers send for it."""
    from isal import isal_zlib

    has_header = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    decompressor = isal_zlib.decompressobj(15 if has_header else -15)
    for offset in range(0, len(body), _FEED_BYTES):
        yield decompressor.decompress(body[offset : offset + _FEED_BYTES])
        if decompressor.eof:
            return
    raise ValueError("it breaks off")


def _unbrotli(body: bytes) -> Iterator[bytes]:
    import brotli

    decompressor, offset = brotli.Decompressor(), 0
    while not decompressor.is_finished():
        stored = body[offset : offset + _FEED_BYTES] if decompressor.can_accept_more_data() else b""
        content = decompressor.process(stored, output_buffer_limit=_FEED_BYTES << 6)
        yield content
        offset += len(stored)
        if offset >= len(body) and not content and not decompressor.is_finished() and decompressor.can_accept_more_data():
            raise ValueError("it breaks off")


_INFLATE: Mapping[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": partial(_frames, "gzip", _FEED_BYTES),
    "deflate": _inflated,
    "br": _unbrotli,
    "zstd": partial(_frames, "zstd", _ZSTD_FEED_BYTES),
}
