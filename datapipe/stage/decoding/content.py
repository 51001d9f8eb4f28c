"""The content of an input file: its stored bytes, decompressed; and content as UTF-8 text.

A failure of the storage raises OSError unchanged, and the engine retries the task. A damaged archive breaks at the same byte
every time: this module yields all content before the damage and then raises `BrokenStreamError`. It raises the same for a file
of another format than that of its name. Memory is bounded by a chunk and the state of the decompressor.
"""

import codecs
from collections.abc import Iterator

from datapipe.errors import UnsplittableInputError
from datapipe.stage.decoding.decompressors import MOST_WINDOW_BYTES
from datapipe.stage.decoding.formats import HEAD_BYTES, BrokenStreamError
from datapipe.stage.decoding.members import Members, opened_members
from datapipe.stage.reader import OpenInput


class ByteStream:
    def __init__(self, chunks: Iterator[bytes | memoryview]) -> None:
        self._chunks = chunks
        self._chunk = memoryview(b"")
        self.position = 0

    def read(self, num_bytes: int) -> bytes:
        """The next bytes; fewer at the end of the file alone."""
        parts = list(self._parts(num_bytes))
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def peek(self, num_bytes: int) -> bytes:
        """The next bytes, which are read again; fewer at the end of the file alone."""
        parts, missing = [self._chunk], num_bytes - len(self._chunk)
        while missing > 0 and (chunk := next(self._chunks, None)) is not None:
            parts.append(memoryview(chunk))
            missing -= len(chunk)
        parts = [part for part in parts if part]
        self._chunk = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return bytes(self._chunk[:num_bytes])

    def skip(self, num_bytes: int) -> int:
        """Passes over bytes, and returns how many there were."""
        return sum(len(part) for part in self._parts(num_bytes))

    def rest(self) -> Iterator[memoryview]:
        """All bytes up to the end of the file, in parts."""
        return self._parts(1 << 62)

    def _parts(self, num_bytes: int) -> Iterator[memoryview]:
        while num_bytes > 0:
            if not self._chunk:
                chunk = next(self._chunks, None)
                if chunk is None:
                    return
                self._chunk = memoryview(chunk)
                continue
            part, self._chunk = self._chunk[:num_bytes], self._chunk[num_bytes:]
            num_bytes -= len(part)
            self.position += len(part)
            yield part


_WIDE = (
    (codecs.BOM_UTF32_LE, "UTF-32", "utf-32-le"),
    (codecs.BOM_UTF32_BE, "UTF-32", "utf-32-be"),
    (codecs.BOM_UTF16_LE, "UTF-16", "utf-16-le"),
    (codecs.BOM_UTF16_BE, "UTF-16", "utf-16-be"),
)
"""Byte-order marks of Unicode's wide encodings. Those of UTF-32 come first: one of them begins with one of UTF-16."""

_PROBED_BYTES, _LEAST_BYTES = 1024, 16
_MOST_FULL = 0.6
"""Share of the high bytes of UTF-16 that are not zero, above which text is taken as it is. In Latin letters it is about 0."""


def is_wide(beginning: bytes) -> bool:
    """Whether content begins with the byte-order mark of UTF-16 or UTF-32, or looks like UTF-16 without one."""
    return any(beginning.startswith(mark) for mark, _, _ in _WIDE) or bool(unmarked_utf16(beginning))


def unmarked_utf16(beginning: bytes) -> str:
    """ "UTF-16LE" or "UTF-16BE" for content that looks like it, by the zeros at every second byte; else ""."""
    head = beginning[:_PROBED_BYTES]
    even, odd = head[::2], head[1::2]
    for name, high, low in (("UTF-16LE", odd, even), ("UTF-16BE", even, odd)):
        full = len(high) - high.count(0)
        if len(head) >= _LEAST_BYTES and 0 not in low and full <= _MOST_FULL * len(high):
            return name
    return ""


def head_of(members: Members) -> bytes:
    """The first `HEAD_BYTES` of content or more, fewer of a shorter or damaged file."""
    try:
        return next(_with_whole_head(_content(members)), b"")
    except BrokenStreamError:
        return b""


def as_utf8(content: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks of UTF-16 or UTF-32 with a byte-order mark, which is in the first chunk, as UTF-8; others as they are. Raises
    BrokenStreamError behind all text before the damage, and for UTF-16 without a mark."""
    first = next(content, b"")
    mark, name, codec = next((wide for wide in _WIDE if first.startswith(wide[0])), (b"", "", ""))
    if not mark:
        if name := unmarked_utf16(first):
            raise BrokenStreamError(
                f"the file looks like {name} without a byte-order mark; expected UTF-8, which `iconv -f {name} -t UTF-8` writes"
            )
        if first:
            yield first
        yield from content
        return
    decoder = codecs.getincrementaldecoder(codec)()
    try:
        yield decoder.decode(first[len(mark) :]).encode()
        for chunk in content:
            yield decoder.decode(chunk).encode()
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        yield error.object[: error.start].decode(codec).encode()
        raise BrokenStreamError(f"the file is {name}, and is damaged or cut off: {error.reason}") from None


def decoded(
    open_input: OpenInput, url: str, compression: str | None, max_window_bytes: int = MOST_WINDOW_BYTES
) -> Iterator[bytes]:
    """The decompressed content in chunks, the first of at least `HEAD_BYTES` or all. Raises OSError where the storage failed,
    and BrokenStreamError for a damaged archive or another format, behind all content before the damage."""
    with open_input(url) as stream:
        yield from _with_whole_head(_content(opened_members(stream, compression, max_window_bytes=max_window_bytes)))


def placed(open_input: OpenInput, url: str, compression: str, max_window_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The decompressed content in chunks, each with its position. Raises UnsplittableInputError for damage, and for a first
    member with less than a byte-order mark."""
    with open_input(url) as stream:
        try:
            members, position = opened_members(stream, compression, max_window_bytes=max_window_bytes), 0
            for number, member in enumerate(members.of_range()):
                if number == 1 and position < len(codecs.BOM_UTF8):
                    raise UnsplittableInputError(f"the first {compression} member has {position} bytes")
                position = member.position
                for chunk in member.chunks if number else _with_whole_head(member.chunks):
                    yield position, chunk
                    position += len(chunk)
                if member.damage:
                    raise BrokenStreamError(member.damage)
        except BrokenStreamError as error:
            raise UnsplittableInputError(str(error)) from None


def _with_whole_head(content: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, the first ones joined up to `HEAD_BYTES`: members may hold a byte each."""
    head = b""
    try:
        while len(head) < HEAD_BYTES and (chunk := next(content, None)) is not None:
            head += chunk
    except BrokenStreamError:
        yield head
        raise
    if head:
        yield head
    yield from content


def _content(members: Members) -> Iterator[bytes]:
    for member in members.of_range():
        yield from member.chunks
        if member.damage:
            raise BrokenStreamError(member.damage)
