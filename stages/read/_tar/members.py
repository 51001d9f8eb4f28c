"""The members of a tar archive in the order of the file, over a stream that is read once.

The standard library reads the headers. It takes a damaged header behind the first member, and the
end of a file that is cut off, for the end of the archive; here both are damage, which is reported
once and ends the reading. Zeros are the end of an archive, behind which another one may follow, as
after `cat a.tar b.tar`. Memory is one header, and one content that the caller asks for.
"""

import tarfile
from collections.abc import Iterator
from tarfile import HeaderError
from typing import Any, Self

from datapipe.dataclass import dataclass
from datapipe.stage import Rejected
from datapipe.stage.decoding import ByteStream

_MOST_HEADER_BYTES = 1 << 20
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.LNKTYPE: "link", tarfile.SYMTYPE: "link"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    name: str
    kind: str  # "file", "folder", "link", "sparse" or "special"
    position: int  # of its first header, in the decompressed archive
    num_bytes: int  # of its content


class TarMembers:
    """Iterates over members and damage. `content` reads that of the member that came last. Raises what the stream raises."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._is_over = stream, False

    def content(self, member: Member) -> bytes | Rejected:
        """The content of the member that came last, or what is wrong with it."""
        content = self._stream.read(member.num_bytes)
        if len(content) == member.num_bytes:
            return content
        self._is_over = True
        error = f"member '{member.name}' is cut off: {len(content)} of {member.num_bytes} bytes"
        return Rejected(position=member.position, error=error, is_file_damage=True)

    def __iter__(self) -> Iterator[Member | Rejected]:
        source: Any = _Source(self._stream)
        try:
            archive: Any = tarfile.TarFile(
                fileobj=source, tarinfo=_Header, ignore_zeros=True, encoding="utf-8", errors="surrogateescape"
            )
            while not self._is_over and (header := archive.next()) is not None:
                archive.members.clear()
                yield _member(header)
            if not source.has_ended and not self._is_over:
                raise _DamageError(self._stream.position, "it has no end marker, two blocks of zeros, so it may be cut off")
        except (_DamageError, tarfile.TarError) as error:
            position, why = error.args if isinstance(error, _DamageError) else (self._stream.position, error)
            error = f"the tar archive is damaged or cut off at byte {position}: {why}"
            yield Rejected(position=position, error=error, is_file_damage=True)


def _member(header: tarfile.TarInfo) -> Member:
    is_sparse = header.issparse() or any(key.startswith("GNU.sparse.") for key in header.pax_headers)
    kind = "sparse" if is_sparse else "file" if header.isreg() else _KINDS.get(header.type, "special")
    return Member(name=header.name.rstrip("/"), kind=kind, position=header.offset, num_bytes=header.size)


class _DamageError(Exception):
    """Position and kind of damage, which the standard library does not catch."""


class _Header(tarfile.TarInfo):
    """A header that raises `_DamageError` where the standard library would end the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: Any) -> Self:
        source: _Source = tarfile.fileobj
        position, had_ended = source.tell(), source.has_ended
        source.has_ended = False
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            kind = type(error).__name__
            if kind not in ("EOFHeaderError", "EmptyHeaderError"):
                raise _DamageError(position, error) from None
            source.has_ended = had_ended or kind == "EOFHeaderError"
            raise


class _Source:
    """A stream as the file that the standard library reads headers from, each of at most `_MOST_HEADER_BYTES`."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self.has_ended = stream, False

    def tell(self) -> int:
        return self._stream.position

    def seek(self, position: int) -> None:
        num_bytes = position - self._stream.position
        if num_bytes < 0 or self._stream.skip(num_bytes) < num_bytes:
            raise _DamageError(self._stream.position, "the content of a member is missing")

    def read(self, num_bytes: int) -> bytes:
        if not 0 <= num_bytes <= _MOST_HEADER_BYTES:
            raise _DamageError(self._stream.position, f"a header of {num_bytes} bytes, expected at most 1 MiB")
        return self._stream.read(num_bytes)
