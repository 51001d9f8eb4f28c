"""The members of a tar archive in the order of the file, over a stream that is read once.

    blocks of 512 bytes ─▶ header ─┬─▶ member     name and size, by the GNU and PAX headers before it; its content on demand
                                   ├─▶ zeros      the end of an archive; another one may follow, as after `cat a.tar b.tar`
                                   └─▶ damage     reported once, then on to the next block that is a header with a right
                                   checksum

The standard library's `TarInfo.frombuf` reads a header block. Its `TarFile` is not used: behind the first member it takes a
damaged header, and the end of a file that is cut off, for the end of the archive, in silence. Memory is one name, and one
content that the caller asks for. See pax in POSIX.1-2017 and "Basic Tar Format" of GNU tar.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from datapipe.stage import Rejected
from datapipe.stage.decoding import ByteStream

_BLOCK_BYTES = 512
_MOST_NAME_BYTES = 1 << 20
_PAX, _PAX_GLOBAL = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE), tarfile.XGLTYPE
_LONG_NAMES = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_MAGIC = slice(257, 262)
_KINDS = {tarfile.DIRTYPE: "folder", tarfile.LNKTYPE: "link", tarfile.SYMTYPE: "link"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A member of an archive.

    Attributes:
        kind: "file", "folder", "link", "sparse" or "special".
        position: of its first header, in the decompressed archive.
        num_bytes: of its content.
    """

    name: str
    kind: str
    position: int
    num_bytes: int


class TarMembers:
    """Iterates over members and damage. `content` reads that of the member that came last. Raises what the stream raises."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._left = self._padding = 0  # bytes of the content that came last, and behind it
        self._global: dict[str, str] = {}
        self._is_over = False  # whether the end of a file that is cut off is reported

    def content(self, member: Member) -> bytes | Rejected:
        """The content of the member that came last, or what is wrong with it."""
        content = self._stream.read(self._left)
        if len(content) == member.num_bytes:
            self._left = 0
            return content
        self._is_over = True
        error = f"member '{member.name}' is cut off: {len(content)} of {member.num_bytes} bytes"
        return Rejected(position=member.position, error=error, is_file_damage=True)

    def __iter__(self) -> Iterator[Member | Rejected]:
        has_ended = is_damaged = False
        while not self._is_over:
            missing = self._pass_content()
            if missing:
                yield self._damage(self._stream.position, f"cut off: the content of a member lacks {missing} bytes")
                return
            position = self._stream.position
            block = self._stream.read(_BLOCK_BYTES)
            if len(block) < _BLOCK_BYTES:
                yield from () if is_damaged else self._ended(block, position, has_ended)
                return
            if not block.strip(b"\0"):
                has_ended = True
                continue
            found = self._member(block, position, is_damaged)
            if isinstance(found, Member):
                has_ended = is_damaged = False
                yield found
            elif not is_damaged:
                is_damaged = True
                yield found

    def _ended(self, rest: bytes, position: int, has_ended: bool) -> Iterator[Rejected]:
        if rest.strip(b"\0"):
            yield self._damage(position, f"cut off: {len(rest)} bytes where a block of 512 should be")
        elif not has_ended:
            yield self._damage(position, "without its end marker, two blocks of zeros, so it may be cut off")

    def _pass_content(self) -> int:
        """Passes over what is left of a content. Returns how many bytes are missing; padding may be, at the end of a file."""
        missing = self._left - self._stream.skip(self._left)
        self._stream.skip(self._padding)
        self._left = self._padding = 0
        return missing

    def _member(self, block: bytes, position: int, is_damaged: bool) -> Member | Rejected:
        """The member whose first header is `block`; the stream then stands at its content. With
        `is_damaged` headers are searched for, so that blocks of contents come here too."""
        said: dict[str, str] = {}
        while True:
            header = None if is_damaged and block[_MAGIC] != b"ustar" else _header(block)
            if header is None:
                return self._damage(position, f"damaged at byte {position}: no header with a right checksum")
            size = _size(said.get("size", self._global.get("size")), header.size)
            if header.type not in (*_PAX, _PAX_GLOBAL, *_LONG_NAMES):
                return self._described(header, said, position, size)
            if not 0 <= size <= _MOST_NAME_BYTES:
                return self._damage(position, f"damaged at byte {position}: a header of {size} bytes, expected at most 1 MiB")
            content = self._stream.read(size)
            self._stream.skip(-size % _BLOCK_BYTES)
            if header.type in _LONG_NAMES:
                said[_LONG_NAMES[header.type]] = _text(content.rstrip(b"\0"))
            else:
                (self._global if header.type == _PAX_GLOBAL else said).update(_pax_records(content))
            is_damaged, block = False, self._stream.read(_BLOCK_BYTES)
            if len(block) < _BLOCK_BYTES:
                return self._damage(position, "cut off: it ends within the headers of a member")

    def _described(self, header: tarfile.TarInfo, said: dict[str, str], position: int, size: int) -> Member | Rejected:
        if size < 0:
            return self._damage(position, f"damaged at byte {position}: a member of {size} bytes")
        described = self._global | said
        is_sparse = header.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse.") for key in described)
        kind = "sparse" if is_sparse else "file" if header.isreg() else _KINDS.get(header.type, "special")
        self._left = size if header.isreg() or header.type not in tarfile.SUPPORTED_TYPES else 0
        self._padding = -self._left % _BLOCK_BYTES
        name = described.get("path", header.name)
        return Member(name=name.rstrip("/"), kind=kind, position=position, num_bytes=self._left)

    def _damage(self, position: int, error: str) -> Rejected:
        return Rejected(position=position, error=f"the tar archive is {error}", is_file_damage=True)


def _header(block: bytes) -> tarfile.TarInfo | None:
    """The header in a block; None where it is none."""
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None


def _size(said: str | None, of_header: int) -> int:
    """The size of a content: what PAX headers say wins."""
    try:
        return of_header if said is None else int(said)
    except ValueError:
        return -1


def _pax_records(content: bytes) -> dict[str, str]:
    """The values by name of a PAX header, `LENGTH NAME=VALUE` on each line; up to the first that is malformed."""
    records: dict[str, str] = {}
    while content:
        length, blank, _ = content.partition(b" ")
        stop = int(length) if blank and length.isdigit() and len(length) < 8 else 0
        name, sign, value = content[len(length) + 1 : stop].partition(b"=")
        if not sign or not value.endswith(b"\n"):
            break
        records[_text(name)] = _text(value[:-1])
        content = content[stop:]
    return records


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
