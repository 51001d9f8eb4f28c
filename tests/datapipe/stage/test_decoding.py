"""Decompression, which gives all there is before it reports damage; windows of more than 128 MiB."""

import bz2
import gzip
import json
import lzma
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard

from datapipe.stage import FieldNames, Reader, Split
from datapipe.stage.decoding import BrokenStreamError, decoded, has_members
from datapipe.storage.root import open_input
from stages.read.csv import Csv
from stages.read.jsonl import Jsonl
from stages.read.text import Text
from tests.support.reader_results import in_ranges, input_file, read_file

_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": partial(gzip.compress, mtime=0),
    "zstd": zstandard.compress,
    "lz4": lz4.frame.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


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


@pytest.mark.parametrize(("compression", "pack"), _PACKED.items())
def test_decoded_members_in_a_row_are_one_stream(tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]) -> None:
    parts = [b"", b"one", b"two" * 100_000, b""]
    assert _decoded(tmp_path / "a", b"".join(map(pack, parts)), compression) == (b"".join(parts), True)
    assert _decoded(tmp_path / "a", pack(b""), compression) == (b"", True)


@pytest.mark.parametrize(
    ("stored", "compression", "said"),
    [
        *((_PACKED[found](b"content"), "lz4", f"is (a )?{found}.*lz4") for found in ("gzip", "zstd", "bzip2", "xz")),
        (gzip.compress(b"content", mtime=0), None, r"is (a )?gzip.* \.gz"),
        (b"PK\x03\x04\x14\0\0\0", "zstd", "is (a )?zip"),
        *((b"a plain text\n" * 100, compression, "plain text.* without an") for compression in _PACKED if compression != "lz4"),
        *((_PACKED[compression](b"content")[:7], compression, "cut off") for compression in _PACKED),
    ],
)
def test_decoded_file_of_another_format_than_its_name_reports_is_reported_as_what_it_is(
    tmp_path: Path, stored: bytes, compression: str | None, said: str
) -> None:
    (tmp_path / "a").write_bytes(stored)
    with pytest.raises(BrokenStreamError, match=said):
        list(decoded(open_input, str(tmp_path / "a"), compression))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("compression", "library"),
    [("gzip", lambda: zlib.decompressobj(31)), ("bzip2", bz2.BZ2Decompressor), ("xz", lzma.LZMADecompressor)],
)
def test_decoded_archive_cut_anywhere_gives_what_the_library_gives(
    tmp_path: Path, compression: str, library: Callable[[], Any]
) -> None:
    first, second = (_PACKED[compression](content) for content in (bytes(range(256)) * 3, b"second"))
    stored = first + second
    for size in range(1, len(stored)):
        there = library().decompress(stored[: min(size, len(first))])
        there += library().decompress(stored[len(first) : size]) if size > len(first) else b""
        assert _decoded(tmp_path / "a", stored[:size], compression) == (there, size == len(first))


@pytest.mark.medium
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
@pytest.mark.parametrize(
    ("compression", "pack"), [("gzip", gzip.compress), ("zstd", _checked_zstd), ("bzip2", bz2.compress), ("xz", lzma.compress)]
)
def test_decoded_flipped_bit_anywhere_is_found_and_costs_nothing_before_it(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    content = b"".join(b'{"text": "%d"}\n' % number**5 for number in range(12))
    stored = pack(content[:100]) + pack(content[100:])
    for at in range(len(stored)):
        before, _ = _decoded(tmp_path / "a", stored[:at], compression)
        flipped = stored[:at] + bytes([stored[at] ^ (1 << at % 8)]) + stored[at + 1 :]
        found, is_whole = _decoded(tmp_path / "a", flipped, compression)
        num_sure = max(0, len(before) - (compression == "bzip2"))  # it raises instead of giving the last byte of a block
        assert content.startswith(before)
        assert found[:num_sure] == before[:num_sure]
        assert not is_whole or found == content


@pytest.mark.parametrize(("compression", "pack"), _PACKED.items())
@pytest.mark.parametrize("num_zeros", [1, 3, 4, 512, 300_001])
def test_decoded_zeros_at_the_end_are_padding(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes], num_zeros: int
) -> None:
    """As tapes and block devices have it; gzip itself passes over zeros."""
    assert _decoded(tmp_path / "a", pack(b"one") + bytes(num_zeros), compression) == (b"one", True)


@pytest.mark.parametrize(("compression", "pack"), _PACKED.items())
def test_decoded_zeros_between_members_are_padding_up_to_a_block_and_a_hole_otherwise(
    tmp_path: Path, compression: str, pack: Callable[[bytes], bytes]
) -> None:
    first, second = pack(b"one"), pack(b"two")
    padded = first + bytes(-len(first) % 512 + 1024)
    assert _decoded(tmp_path / "a", padded + second + bytes(512), compression) == (b"onetwo", True)
    assert _decoded(tmp_path / "a", padded + b"\0" + second, compression) == (b"one", False)


@pytest.mark.parametrize("num_zeros", [*range(9), 300_000])
def test_decoded_xz_padding_between_streams_is_zeros_in_groups_of_four(tmp_path: Path, num_zeros: int) -> None:
    stored = lzma.compress(b"one") + bytes(num_zeros) + lzma.compress(b"two")
    expected = (b"onetwo", True) if num_zeros % 4 == 0 else (b"one", False)
    assert _decoded(tmp_path / "a", stored, "xz") == expected


def test_decoded_xz_that_asks_for_much_memory_is_refused(tmp_path: Path) -> None:
    small = lzma.compress(b"content", check=lzma.CHECK_NONE)
    header = bytearray(small[12:24])  # the header of the first block: size, flags, filter 0x21, its one property, CRC32
    assert (header[2], header[3]) == (0x21, 1)
    header[4] = 36  # a dictionary of 1 GiB: (2 | 36 & 1) << (36 // 2 + 11)
    header[8:12] = zlib.crc32(header[:8]).to_bytes(4, "little")
    (tmp_path / "a").write_bytes(small[:12] + bytes(header) + small[24:])
    with pytest.raises(BrokenStreamError, match="more than 256 MiB"):
        list(decoded(open_input, str(tmp_path / "a"), "xz"))


_LARGE = 256 << 20
_LINES = b"".join(b'{"text": "%d"}\n' % number for number in range(2000))
_READERS: list[tuple[Callable[..., Reader], str, bytes]] = [
    (Jsonl, "a.jsonl", _LINES),
    (Jsonl, "a.json", json.dumps([{"text": str(number)} for number in range(2000)]).encode()),
    (Csv, "a.csv", b"text\n" + b"".join(b"%d\n" % number for number in range(2000))),
    (Text, "a.txt", _LINES),
]


def _frame(content: bytes, window_log: int = 28) -> bytes:
    """A frame that does not give its size, so that its window is the one that is asked for."""
    parameters = zstandard.ZstdCompressionParameters(
        window_log=window_log,
        enable_ldm=window_log > 27,
        write_checksum=True,
        write_content_size=False,
        chain_log=10,
        hash_log=10,
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(content) + packer.flush()


@pytest.mark.parametrize(("reader", "name", "content"), _READERS)
def test_large_window_is_refused_with_the_option_and_read_by_it(
    tmp_path: Path, reader: Callable[..., Reader], name: str, content: bytes
) -> None:
    file = input_file(tmp_path / f"{name}.zst", _frame(content))
    refused = read_file(reader(), file)
    assert refused.documents == []
    assert [f"Set max_window_bytes: {_LARGE} among the options" in error for _, error in refused.rejected] == [True]
    allowed = read_file(reader(max_window_bytes=_LARGE), file)
    plain = read_file(reader(), input_file(tmp_path / name, content))
    assert (allowed.documents, allowed.rejected) == (plain.documents, [])


def test_frames_of_all_windows_in_a_row_are_read(tmp_path: Path) -> None:
    cuts = [0, 1000, 9000, 20_000, len(_LINES)]
    frames = [_frame(_LINES[start:stop], log) for start, stop, log in zip(cuts, cuts[1:], (28, 20, 29, 12))]
    file = input_file(tmp_path / "a.jsonl.zst", b"".join(frames))
    found = read_file(Jsonl(max_window_bytes=1 << 29), file)
    assert (len(found.texts), found.rejected) == (2000, [])
    assert not has_members(input_file(tmp_path / "b.jsonl.zst", frames[0] + frames[2]), open_input)


def test_frames_with_a_dictionary_at_the_beginning_of_the_file_are_read(tmp_path: Path) -> None:
    lines = [b'{"text": "a text of page %d that all pages have"}\n' % number for number in range(500)]
    dictionary = zstandard.train_dictionary(1024, lines)
    packer = zstandard.ZstdCompressor(dict_data=dictionary)
    for content in (dictionary.as_bytes(), zstandard.compress(dictionary.as_bytes())):
        head = b"\x5d\x2a\x4d\x18" + len(content).to_bytes(4, "little") + content
        file = input_file(tmp_path / "a.jsonl.zst", head + b"".join(map(packer.compress, lines)))
        found = read_file(Jsonl(), file)
        assert (len(found.texts), found.rejected) == (500, [])
        assert in_ranges(Jsonl(), file, [len(head) // 2, len(head) + 100, file.num_bytes - 50]) == found.told


def test_large_window_that_is_damaged_or_cut_off_keeps_what_is_before(tmp_path: Path) -> None:
    stored = _frame(_LINES * 30)
    for content in (stored[:-40], stored[:-1] + bytes([stored[-1] ^ 1])):
        file = input_file(tmp_path / "a.jsonl.zst", content)
        batches = list(Jsonl(max_window_bytes=_LARGE).read(Split(file=file), FieldNames(), open_input))
        assert [reject.is_file_damage for batch in batches for reject in batch.rejected] == [True]
    assert sum(len(batch.positions) for batch in batches) == 60_000
