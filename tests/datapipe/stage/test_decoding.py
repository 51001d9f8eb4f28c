"""Decompression that gives all there is before it tells that an archive is broken."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from datapipe.stage.decoding import BrokenStreamError, decoded
from datapipe.storage import open_input


def _decoded(path: Path, stored: bytes, compression: str | None) -> tuple[bytes, bool]:
    """What can be decompressed, and whether the archive is whole."""
    path.write_bytes(stored)
    pieces = []
    try:
        for piece in decoded(open_input, str(path), compression):
            pieces.append(piece)
    except BrokenStreamError:
        return b"".join(pieces), False
    return b"".join(pieces), True


def _checked_zstd(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(content)


@pytest.mark.parametrize(
    ("compression", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress), ("lz4", lz4.frame.compress)]
)
def test_decoded_members_in_a_row_are_one_stream(tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]) -> None:
    parts = [b"", b"one", b"two" * 100_000, b""]
    assert _decoded(tmp_path / "a", b"".join(map(pack, parts)), compression) == (b"".join(parts), True)
    assert _decoded(tmp_path / "a", pack(b""), compression) == (b"", True)


_STORED = {
    "plain text": '{"text": "é"}\n'.encode() * 100,
    "gzip": gzip.compress(b"content"),
    "zstd": zstandard.compress(b"content"),
    "lz4": lz4.frame.compress(b"content"),
    "xz": lzma.compress(b"content"),
    "bzip2": bz2.compress(b"content"),
    "zip": b"PK\x03\x04\x14\0\0\0",
}


@pytest.mark.parametrize(
    ("found", "compression", "error"),
    [
        ("gzip", "zstd", "the file is a gzip archive, and its name is that of a zstd archive. Expected a name ending in .gz"),
        ("zstd", "gzip", "the file is a zstd archive, and its name is that of a gzip archive. Expected a name ending in .zst"),
        ("gzip", None, "the file is a gzip archive, and its name is that of a plain file. Expected a name ending in .gz"),
        ("zstd", None, "the file is a zstd archive, and its name is that of a plain file. Expected a name ending in .zst"),
        ("xz", None, "the file is a xz archive, and its name is that of a plain file. Expected plain text, .gz, .zst or"),
        ("bzip2", "gzip", "the file is a bzip2 archive, and its name is that of a gzip archive. Expected plain text"),
        ("zip", "zstd", "the file is a zip archive, and its name is that of a zstd archive. Expected plain text"),
        ("plain text", "gzip", "the file is plain text, and its name is that of a gzip archive. Expected a name without an"),
        ("plain text", "zstd", "the file is plain text, and its name is that of a zstd archive. Expected a name without an"),
    ],
)
def test_decoded_file_of_another_format_than_its_name_tells_is_told_as_what_it_is(
    tmp_path: Path, found: str, compression: str | None, error: str
) -> None:
    (tmp_path / "a").write_bytes(_STORED[found])
    with pytest.raises(BrokenStreamError) as raised:
        list(decoded(open_input, str(tmp_path / "a"), compression))
    assert str(raised.value).startswith(error)


@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_decoded_beginning_of_an_archive_is_cut_off_and_no_other_format(tmp_path: Path, compression: str, size: int) -> None:
    (tmp_path / "a").write_bytes(_STORED[compression][:size])
    with pytest.raises(BrokenStreamError, match="is empty" if size == 0 else f"the {compression} archive is cut off"):
        list(decoded(open_input, str(tmp_path / "a"), compression))


@pytest.mark.parametrize(
    ("compression", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress), ("lz4", lz4.frame.compress)]
)
@pytest.mark.parametrize("behind", [bytes(512), b"garbage", b'{"text": "plain"}\n'])
def test_decoded_bytes_behind_an_archive_are_told_from_damage_in_it(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes], behind: bytes
) -> None:
    (tmp_path / "a").write_bytes(pack(b"content") + behind)
    with pytest.raises(BrokenStreamError, match=f"bytes that are no {compression} archive follow the end of the archive"):
        list(decoded(open_input, str(tmp_path / "a"), compression))


def test_decoded_plain_file_is_its_bytes(tmp_path: Path) -> None:
    assert _decoded(tmp_path / "a", b"\x1f\x8b any bytes", None) == (b"\x1f\x8b any bytes", True)
    assert _decoded(tmp_path / "a", b"", None) == (b"", True)


@pytest.mark.medium
def test_decoded_gzip_cut_anywhere_gives_what_zlib_gives(tmp_path: Path) -> None:
    content = bytes(range(256)) * 3
    first, second = gzip.compress(content), gzip.compress(b"second")
    stored = first + second
    for size in range(len(stored)):
        there = zlib.decompressobj(31).decompress(stored[:size])
        if size > len(first):
            there += zlib.decompressobj(31).decompress(stored[len(first) : size])
        assert _decoded(tmp_path / "a", stored[:size], "gzip") == (there, size == len(first))


def test_decoded_zstd_damage_costs_the_block_it_is_in_and_what_follows(tmp_path: Path) -> None:
    blocks = [bytes([65 + number]) * 1000 for number in range(5)]
    packer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    sizes, stored = [], b""
    for block in blocks:
        stored += packer.compress(block) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        sizes.append(len(stored))
    stored += packer.flush()
    for number, size in enumerate(sizes):
        assert _decoded(tmp_path / "a", stored[:size], "zstd") == (b"".join(blocks[: number + 1]), False)
    assert _decoded(tmp_path / "a", stored[:-1] + bytes([stored[-1] ^ 1]), "zstd") == (b"".join(blocks), False)


@pytest.mark.medium
@pytest.mark.parametrize(("compression", "pack"), [("gzip", gzip.compress), ("zstd", _checked_zstd)])
def test_decoded_flipped_bit_anywhere_is_found_and_costs_nothing_before_it(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    content = b"".join(b'{"text": "%d"}\n' % number**5 for number in range(12))
    stored = pack(content[:100]) + pack(content[100:])
    for at in range(len(stored)):
        before, _ = _decoded(tmp_path / "a", stored[:at], compression)
        flipped = stored[:at] + bytes([stored[at] ^ (1 << at % 8)]) + stored[at + 1 :]
        found, is_whole = _decoded(tmp_path / "a", flipped, compression)
        assert content.startswith(before)
        assert found.startswith(before)
        assert not is_whole or found == content


def test_decoded_zeros_behind_an_archive_are_no_archive(tmp_path: Path) -> None:
    assert _decoded(tmp_path / "a", gzip.compress(b"one") + bytes(512), "gzip") == (b"one", False)
    assert _decoded(tmp_path / "a", zstandard.compress(b"one") + b"two", "zstd") == (b"one", False)
