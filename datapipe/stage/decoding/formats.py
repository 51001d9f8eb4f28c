"""What a file is by its first bytes: archives, text, pointers of Git LFS."""

import re
from codecs import getincrementaldecoder

from datapipe.errors import DatapipeError

COMPRESSION_OF_ENDING = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bzip2", ".xz": "xz", ".zstd": "zstd"}
"""The compressions that are read, by the endings of files."""

MAGIC = {
    "gzip": b"\x1f\x8b\x08",
    "zstd": b"\x28\xb5\x2f\xfd",
    "xz": b"\xfd7zXZ\x00",
    "lz4": b"\x04\x22\x4d\x18",
    "bzip2": b"BZh",
    "zip": b"PK\x03\x04",
}
"""The first bytes of archives: RFC 1952, RFC 8878, and the formats' own descriptions. No text begins so."""

_BEGINNINGS = {name: (magic,) for name, magic in MAGIC.items()} | {
    "bzip2": tuple(b"BZh%d%b" % (level, block) for level in range(1, 10) for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"))
}
"""Also of bzip2 at its nine levels, with its first block, or the end of an empty stream."""

HEAD_BYTES = 1024
_LFS_POINTER = re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/v1\r?\n(?:ext-[^\n]*\n)*oid ")
"""The beginning of what Git LFS leaves in the place of a file. The whole pointer is shorter than 1,024 bytes (the Git LFS
specification, "The Pointer")."""


class BrokenStreamError(DatapipeError):
    """The file is truncated or damaged, or of another format than that of its name."""


def check_format(beginning: bytes, compression: str | None) -> None:
    """Raises BrokenStreamError where a file begins like another format than `compression`, and for a pointer of Git LFS."""
    head = beginning[:HEAD_BYTES]
    if pointer := lfs_pointer(head):
        raise BrokenStreamError(pointer)
    kind = next((name for name, beginnings in _BEGINNINGS.items() if head.startswith(beginnings)), None)
    if kind is None and compression is not None and is_text(head):
        if not any(beginning.startswith(head) for beginning in _BEGINNINGS[compression]):
            raise BrokenStreamError(f"the file is plain text, and its name is that of a {compression} archive. {_expected('')}")
    elif kind not in (None, compression):
        named = "a plain file" if compression is None else f"a {compression} archive"
        raise BrokenStreamError(f"the file is a {kind} archive, and its name is that of {named}. {_expected(kind or '')}")


def lfs_pointer(beginning: bytes) -> str:
    """That a file is a pointer of Git LFS and what to do, by its first `HEAD_BYTES` bytes; empty for any other file."""
    if len(beginning) >= HEAD_BYTES or not _LFS_POINTER.match(beginning):
        return ""
    return (
        "the file is a pointer of Git LFS, and its content is not here. Expected the content: `git lfs pull` in the repository "
        "fetches it"
    )


def _expected(kind: str) -> str:
    if not kind:
        return "Expected a name without an ending of an archive: rename it"
    ending = next((ending for ending, name in COMPRESSION_OF_ENDING.items() if name == kind), None)
    if ending is None:
        return f"Expected plain text, {' or '.join(COMPRESSION_OF_ENDING)}: repack it"
    return f"Expected a name ending in {ending}: rename it"


def is_text(head: bytes) -> bool:
    """Whether the first 1,024 bytes of a file are UTF-8 text; a character may be cut off at their end."""
    head = head[:HEAD_BYTES]
    try:
        getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return b"\0" not in head
