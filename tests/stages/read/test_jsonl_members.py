"""JSON lines in files of many members: cut anywhere, they give what one reading of the file gives."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.stage import Split
from datapipe.storage.root import open_input
from stages.read.jsonl import Jsonl
from tests.support import runs
from tests.support.reader_formats import PACKERS, line_positions, write
from tests.support.reader_results import in_ranges, input_file, read_file, read_splits, text_at

pytestmark = pytest.mark.medium

LINES = [
    b'{"text": "a"}\n',
    b"\n",
    b'{"text": "bcd", "id": 7}\r\n',
    b"bad\n",
    b'{"text": "\xc3\xa9\xe4\xb8\xad"}\n',
    b" \n",
    b'{"text": "' + b"long " * 40 + b'"}\n',
    b'{"text": "last"}',
]
CONTENT = b"".join(LINES)


def _pieces(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)]


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("size", [1, 3, 17, 1000])
def test_members_of_any_size_are_one_stream_with_positions_of_their_own(tmp_path: Path, packing: str, size: int) -> None:
    plain = read_file(Jsonl(), write(tmp_path, packing, [CONTENT]))
    contents = [b"", *_pieces(CONTENT, size), b"", b""]
    found = read_file(Jsonl(), write(tmp_path, packing, contents))
    assert (found.texts, found.ids, found.excerpts) == (plain.texts, plain.ids, plain.excerpts)
    assert [error for _, error in found.rejected] == [error for _, error in plain.rejected]
    assert found.input_bytes == plain.input_bytes == len(CONTENT)
    assert sorted(found.places + found.rejected_places) == line_positions(packing, contents)


@pytest.mark.parametrize("packing", PACKERS)
def test_a_member_is_cut_by_its_content_on_a_disk_alone(tmp_path: Path, packing: str) -> None:
    file = replace(write(tmp_path, packing, [100 * CONTENT + b"\n"]), ctime_ns=1)
    splits = Jsonl().cut(file, file.text_bytes // 10)
    assert (len(splits), sum(split.share for split in splits)) == (4, 1)
    assert read_splits(Jsonl(), splits).told == read_file(Jsonl(), file).told
    assert len(Jsonl().cut(replace(file, ctime_ns=None), file.text_bytes // 10)) == 1


@pytest.mark.parametrize("packing", PACKERS)
def test_ranges_of_large_members_end_at_them(tmp_path: Path, packing: str) -> None:
    rng = random.Random(3)
    contents = [b'{"text": "%s"}\n' % rng.randbytes(size).hex().encode() for size in (90_000, 300_000, 5, 800_000, 5, 100_000)]
    file = write(tmp_path, packing, contents)
    borders = [file.num_bytes * number // 7 for number in range(8)]
    alone = [read_splits(Jsonl(), [Split(file=file, start=start, stop=stop)]) for start, stop in pairwise(borders)]
    assert [document for found in alone for document in found.documents] == read_file(Jsonl(), file).documents
    assert len([found for found in alone if found.documents]) >= 3


@pytest.mark.parametrize("packing", ["gzip", "zstd", "zstd, streamed", "lz4", "lz4, streamed"])
def test_damaged_member_costs_its_lines_and_the_one_that_goes_on_behind(tmp_path: Path, packing: str) -> None:
    lines = [b'{"text": "%d %s"}\n' % (number, b"word " * 100) for number in range(40)]
    contents = _pieces(b"".join(lines), len(lines[0]) * 8 + 100)
    pack = PACKERS[packing][1]
    members = [pack(content) for content in contents]
    offset = sum(map(len, members[:2]))
    for gone in (members[2][:30], b"no member", bytes(300), members[2][:-1]):
        file = input_file(tmp_path / f"a.jsonl{PACKERS[packing][0]}", b"".join([*members[:2], gone, *members[3:]]))
        found = read_file(Jsonl(), file)
        numbers = [int(text.split()[0]) for text in found.texts]
        assert set(range(16)) | set(range(25, 40)) <= set(numbers)
        assert found.is_damage == [True]
        assert found.rejected[0][1].endswith(f"; reading goes on at byte {offset + len(gone):,} of the stored file")


@pytest.mark.parametrize("packing", ["gzip", "zstd", "lz4"])
def test_bytes_behind_the_last_member_are_reported_once(tmp_path: Path, packing: str) -> None:
    whole = write(tmp_path, packing, _pieces(CONTENT, 100))
    stored = Path(whole.url).read_bytes()
    padded = input_file(Path(whole.url), stored + bytes(700))
    assert read_file(Jsonl(), padded) == read_file(Jsonl(), input_file(Path(whole.url), stored))
    for behind in (bytes(512) + b"x", b"garbage", stored[:5]):
        file = input_file(Path(whole.url), stored + behind)
        expected = read_file(Jsonl(), file)
        assert expected.is_damage == [False, True]
        for range_bytes in (11, 200, len(stored), len(stored) + 1):
            assert in_ranges(Jsonl(), file, range(range_bytes, file.num_bytes, range_bytes)) == expected.told


@pytest.mark.parametrize("packing", ["gzip, stored blocks", "zstd", "lz4"])
def test_ranges_at_a_member_within_a_member_are_right_or_refused(tmp_path: Path, packing: str) -> None:
    pack = PACKERS[packing][1]
    inner = next(filter(_is_one_line, (pack(random.Random(seed).randbytes(300)) for seed in range(99))))
    contents = [b'{"text": "a"}\n' * 4, inner + b'\n{"text": "b"}\n', b'{"text": "c"}\n' * 4]
    file = write(tmp_path, packing, contents)
    expected = read_file(Jsonl(), file)
    found = [in_ranges(Jsonl(), file, [border]) for border in range(1, file.num_bytes, 3)]
    assert None in found and all(each in (None, expected.told) for each in found)
    assert expected.texts == [*"aaaabcccc"]
    for position, text, _ in expected.documents:
        assert text_at(Jsonl(), file, position) == text


def _is_one_line(content: bytes) -> bool:
    return b"\n" not in content


def test_frames_without_content_belong_to_no_member(tmp_path: Path) -> None:
    nothing = b"\x5f\x2a\x4d\x18\x05\0\0\0\x28\xb5\x2f\xfd\x1f"
    for packing in ("zstd", "lz4"):
        file = write(tmp_path, packing, _pieces(CONTENT, 80), between=nothing)
        file = input_file(Path(file.url), nothing * 2 + Path(file.url).read_bytes() + nothing)
        expected = read_file(Jsonl(), file)
        assert (expected.places[:2], expected.is_damage) == ([0, 15], [False])
        for range_bytes in (1, 10, 100):
            assert in_ranges(Jsonl(), file, range(range_bytes, file.num_bytes, range_bytes)) == expected.told


@pytest.mark.medium
@given(
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    lines=st.lists(st.sampled_from([*LINES, b"x" * 1500 + b"\n", b'{"text": "%s"}\n' % (b"x" * 900)]), min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 400), max_size=12),
    packing=st.sampled_from([*PACKERS]),
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), max_size=2),
    borders=st.lists(st.floats(0, 1, exclude_max=True), max_size=5),
)
def test_ranges_of_any_file_give_the_books_of_one_reading(tmp_path_factory, bom, lines, sizes, packing, flips, borders) -> None:
    content = bom + b"".join(lines)
    cuts = [0, *accumulate(sizes)]
    contents = [content[start:stop] for start, stop in pairwise(cuts)] + [content[cuts[-1] :]]
    file = write(tmp_path_factory.mktemp("members"), packing, contents)
    stored = bytearray(Path(file.url).read_bytes())
    for place, bit in flips:
        stored[int(place * len(stored))] ^= 1 << bit
    file = input_file(Path(file.url), bytes(stored))
    reader = Jsonl(max_line_bytes=1024)
    expected = read_file(reader, file)
    places = sorted({max(1, int(place * len(stored))) for place in borders})
    assert in_ranges(reader, file, places) in (expected.told, None)
    places = sorted({max(1, int(place * len(content))) for place in borders})
    is_refused = bool(flips) or (len(contents) > 1 and len(contents[0]) < 3)
    assert in_ranges(reader, file, places, is_of_content=True) in ((expected.told, None) if is_refused else (expected.told,))
    texts = dict(zip(expected.places, expected.texts))
    for position in () if flips else [*texts, *(position + 1 for position in texts), 1 << 40]:
        assert text_at(reader, file, position) == texts.get(position)


@pytest.mark.parametrize("packing", ["gzip", "zstd", "lz4"])
def test_document_of_a_large_file_is_read_without_what_is_far_before(tmp_path: Path, packing: str) -> None:
    rng = random.Random(5)
    contents = [b'{"text": "%d %s"}\n' % (number, rng.randbytes(40_000).hex().encode()) for number in range(100)]
    file = write(tmp_path, packing, contents)
    documents = read_file(Jsonl(), file).documents
    opened = Counting()
    for number in (99, 98, 57):
        position, text, _ = documents[number]
        assert text_at(Jsonl(), file, position, open_input=opened) == text
    assert opened.num_bytes < file.num_bytes


@pytest.mark.parametrize("packing", ["gzip", "zstd, streamed", "lz4, streamed"])
def test_search_for_members_reads_a_bounded_part_of_a_file(tmp_path: Path, packing: str) -> None:
    file = write(tmp_path, packing, [random.Random(1).randbytes(20 << 20)])
    opened = Counting()
    assert not Jsonl().probe_large(file, opened).has_members
    assert opened.num_bytes <= file.num_bytes // 64 + (1 << 20)


@pytest.mark.parametrize("stored", [b"", b"\x1f", b"no archive", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\xff\xff\xff\xff"])
@pytest.mark.parametrize("ending", [".gz", ".zst", ".lz4"])
def test_search_for_members_in_what_is_none_finds_none(tmp_path: Path, stored: bytes, ending: str) -> None:
    file = input_file(tmp_path / f"a.jsonl{ending}", stored)
    assert not Jsonl().probe_large(file, open_input).has_members
    found = read_splits(Jsonl(), [Split(file=file, start=3, stop=5)])
    assert (found.documents, found.rejected, found.input_bytes) == ([], [], 0)


class Counting:
    """Opens files, and counts the bytes that are read of them."""

    def __init__(self) -> None:
        self.num_bytes = 0

    def __call__(self, url: str) -> pa.NativeFile:
        return CountedFile(open_input(url), self)  # type: ignore[return-value]


class CountedFile:
    def __init__(self, stream: pa.NativeFile, counting: Counting) -> None:
        self.stream, self.counting = stream, counting

    def __enter__(self) -> CountedFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def size(self) -> int:
        return self.stream.size()

    def read_at(self, num_bytes: int, offset: int) -> bytes:
        content = self.stream.read_at(num_bytes, offset)
        self.counting.num_bytes += len(content)
        return content


def test_limit_reads_no_file_to_cut_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "gzip", [b'{"text": "%s"}\n' % random.Random(1).randbytes(20_000).hex().encode()] * 3)
    input_file(tmp_path / "small.jsonl.gz", PACKERS["gzip"][1](LINES[0]))
    looked: list[str] = []
    monkeypatch.setattr(Jsonl, "probe_large", lambda self, file, opened: looked.append(file.path) or file)
    tail = "tokenizer: none\ndocuments: {format: jsonl.zst}\nexecution: {split_bytes: 16KiB}\n"
    mixture = load_mixture(runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/*.jsonl.gz}}", "stages: []", tail))
    prepare(mixture, limit=3)
    assert looked == []
    prepare(mixture)
    assert looked == ["a.jsonl.gz"]  # the small file is not opened
