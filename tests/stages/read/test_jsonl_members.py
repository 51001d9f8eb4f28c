"""JSON lines in files of many members: cut anywhere, they give what one reading of the file gives."""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.browse.document.originals import Originals
from datapipe.browse.output import BrowsedOutput
from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.exchange.partitions import read_table
from datapipe.stage import FieldNames, Split
from datapipe.storage import open_input
from stages.read.jsonl import Jsonl
from tests.support import runs
from tests.support.many_members import PACKERS, books, in_ranges, line_positions, write
from tests.support.reader_results import input_file

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
    plain = books(Jsonl(), [Split(file=write(tmp_path, packing, [CONTENT]))])
    contents = [b"", *_pieces(CONTENT, size), b"", b""]
    documents, rejected, num_bytes = books(Jsonl(), [Split(file=write(tmp_path, packing, contents))])
    assert [row[1:] for row in documents] == [row[1:] for row in plain[0]]
    assert [(reject.error, reject.excerpt) for reject in rejected] == [(reject.error, reject.excerpt) for reject in plain[1]]
    assert num_bytes == plain[2] == len(CONTENT)
    found = sorted([*(row[0] for row in documents), *(reject.position for reject in rejected)])
    assert found == line_positions(packing, contents)


@pytest.mark.parametrize("packing", PACKERS)
def test_ranges_of_large_members_end_at_them(tmp_path: Path, packing: str) -> None:
    rng = random.Random(3)
    contents = [b'{"text": "%s"}\n' % rng.randbytes(size).hex().encode() for size in (90_000, 300_000, 5, 800_000, 5, 100_000)]
    file = write(tmp_path, packing, contents)
    expected = books(Jsonl(), [Split(file=file)])
    borders = [file.num_bytes * number // 7 for number in range(1, 7)]
    splits = [Split(file=file, start=start, stop=stop) for start, stop in pairwise([0, *borders, file.num_bytes])]
    alone = [books(Jsonl(), [split]) for split in splits]
    assert [row for found in alone for row in found[0]] == expected[0]
    assert len([found for found in alone if found[0]]) >= 3


@pytest.mark.parametrize("packing", ["gzip", "zstd", "zstd, streamed", "lz4", "lz4, streamed"])
def test_damaged_member_costs_its_lines_and_the_one_that_goes_on_behind(tmp_path: Path, packing: str) -> None:
    lines = [b'{"text": "%d %s"}\n' % (number, b"word " * 100) for number in range(40)]
    contents = _pieces(b"".join(lines), len(lines[0]) * 8 + 100)
    pack = PACKERS[packing][1]
    members = [pack(content) for content in contents]
    offset = sum(map(len, members[:2]))
    for gone in (members[2][:30], b"no member", bytes(300), members[2][:-1]):
        file = input_file(tmp_path / f"a.jsonl{PACKERS[packing][0]}", b"".join([*members[:2], gone, *members[3:]]))
        documents, rejected, _ = books(Jsonl(), [Split(file=file)])
        numbers = [int(text.split()[0]) for _, text, _ in documents]
        assert set(range(16)) | set(range(25, 40)) <= set(numbers)
        assert [reject.is_file_damage for reject in rejected] == [True]
        assert rejected[0].error.endswith(f"; reading goes on at byte {offset + len(gone):,} of the stored file")


@pytest.mark.parametrize("packing", ["gzip", "zstd", "lz4"])
def test_bytes_behind_the_last_member_are_told_once(tmp_path: Path, packing: str) -> None:
    whole = write(tmp_path, packing, _pieces(CONTENT, 100))
    stored = Path(whole.url).read_bytes()
    padded = input_file(Path(whole.url), stored + bytes(700))
    assert books(Jsonl(), [Split(file=padded)]) == books(Jsonl(), [Split(file=input_file(Path(whole.url), stored))])
    for behind in (bytes(512) + b"x", b"garbage", stored[:5]):
        file = input_file(Path(whole.url), stored + behind)
        expected = books(Jsonl(), [Split(file=file)])
        assert [reject.is_file_damage for reject in expected[1]] == [False, True]
        for range_bytes in (11, 200, len(stored), len(stored) + 1):
            assert in_ranges(Jsonl(), file, range(range_bytes, file.num_bytes, range_bytes)) == expected


@pytest.mark.parametrize("packing", ["gzip, stored blocks", "zstd", "lz4"])
def test_ranges_at_a_member_within_a_member_are_right_or_refused(tmp_path: Path, packing: str) -> None:
    pack = PACKERS[packing][1]
    inner = next(filter(_is_one_line, (pack(random.Random(seed).randbytes(300)) for seed in range(99))))
    contents = [b'{"text": "a"}\n' * 4, inner + b'\n{"text": "b"}\n', b'{"text": "c"}\n' * 4]
    file = write(tmp_path, packing, contents)
    expected = books(Jsonl(), [Split(file=file)])
    found = [in_ranges(Jsonl(), file, [border]) for border in range(1, file.num_bytes, 3)]
    assert None in found and all(each in (None, expected) for each in found)
    assert [text for _, text, _ in expected[0]] == [*"aaaabcccc"]
    for position, text, _ in expected[0]:
        assert Jsonl().read_document(file, position, FieldNames(), open_input) == text


def _is_one_line(content: bytes) -> bool:
    return b"\n" not in content


def test_frames_without_content_belong_to_no_member(tmp_path: Path) -> None:
    nothing = b"\x5f\x2a\x4d\x18\x05\0\0\0\x28\xb5\x2f\xfd\x1f"
    for packing in ("zstd", "lz4"):
        file = write(tmp_path, packing, _pieces(CONTENT, 80), between=nothing)
        file = input_file(Path(file.url), nothing * 2 + Path(file.url).read_bytes() + nothing)
        expected = books(Jsonl(), [Split(file=file)])
        assert [position for position, *_ in expected[0]][:2] == [0, 15]
        assert [reject.is_file_damage for reject in expected[1]] == [False]
        for range_bytes in (1, 10, 100):
            assert in_ranges(Jsonl(), file, range(range_bytes, file.num_bytes, range_bytes)) == expected


@pytest.mark.medium
@settings(max_examples=60, deadline=None)
@given(
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
    lines=st.lists(st.sampled_from([*LINES, b"x" * 1500 + b"\n", b'{"text": "%s"}\n' % (b"x" * 900)]), min_size=1, max_size=8),
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=12),
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
    expected = books(reader, [Split(file=file)])
    places = sorted({max(1, int(place * len(stored))) for place in borders})
    assert in_ranges(reader, file, places) in (expected, None)
    texts = {position: text for position, text, _ in expected[0]}
    for position in () if flips else [*texts, *(position + 1 for position in texts), 1 << 40]:
        assert reader.read_document(file, position, FieldNames(), open_input) == texts.get(position)


@pytest.mark.parametrize("packing", ["gzip", "zstd", "lz4"])
def test_document_of_a_large_file_is_read_without_what_is_far_before(tmp_path: Path, packing: str) -> None:
    rng = random.Random(5)
    contents = [b'{"text": "%d %s"}\n' % (number, rng.randbytes(40_000).hex().encode()) for number in range(100)]
    file = write(tmp_path, packing, contents)
    documents = books(Jsonl(), [Split(file=file)])[0]
    opened = Counting()
    for number in (99, 98, 57):
        position, text, _ = documents[number]
        assert Jsonl().read_document(file, position, FieldNames(), opened) == text
    assert opened.num_bytes < file.num_bytes


@pytest.mark.parametrize("packing", ["gzip", "zstd, streamed", "lz4, streamed"])
def test_looking_for_members_reads_a_bounded_part_of_a_file(tmp_path: Path, packing: str) -> None:
    file = write(tmp_path, packing, [random.Random(1).randbytes(20 << 20)])
    opened = Counting()
    assert not Jsonl().probe_large(file, opened).has_members
    assert opened.num_bytes <= file.num_bytes // 64 + (1 << 20)


@pytest.mark.parametrize("stored", [b"", b"\x1f", b"no archive", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18\xff\xff\xff\xff"])
@pytest.mark.parametrize("ending", [".gz", ".zst", ".lz4"])
def test_looking_for_members_in_what_is_none_finds_none(tmp_path: Path, stored: bytes, ending: str) -> None:
    file = input_file(tmp_path / f"a.jsonl{ending}", stored)
    assert not Jsonl().probe_large(file, open_input).has_members
    assert books(Jsonl(), [Split(file=file, start=3, stop=5)]) == ([], [], 0)


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


def _mixture(folder: Path) -> Path:
    """A mixture of one large file of many members among small files."""
    rng = random.Random(11)
    texts = [rng.randbytes(rng.randrange(10, 900)).hex() for _ in range(400)]
    content = b"".join(b'{"text": "%s"}\n' % text.encode() for text in texts)
    (folder / "m.jsonl.gz").write_bytes(b"".join(map(PACKERS["gzip"][1], _pieces(content, 3000))))
    for name in ("a", "b", "y", "z"):
        (folder / f"{name}.jsonl.gz").write_bytes(PACKERS["gzip"][1](b'{"text": "the small file %s"}\n' % name.encode() * 3))
    tail = "tokenizer: none\ndocuments: {format: jsonl.zst}\nexecution: {split_bytes: 16KiB}\n"
    return runs.write_mixture(folder, f"  web: {{path: {folder}/*.jsonl.gz}}", "stages: []", tail)


@pytest.mark.slow
def test_run_reads_a_file_of_many_members_on_all_workers_as_one_task_reads_it(tmp_path: Path) -> None:
    mixture = _mixture(tmp_path)
    cut = runs.run_mixture(mixture, workers=2)
    splits = [split for task in cut.plan.of_kind("map")[0].tasks or () for split in task.splits]  # type: ignore[attr-defined]
    assert len([split for split in splits if split.file.path == "m.jsonl.gz"]) > 20
    assert len([split for split in splits if split.file.path != "m.jsonl.gz"]) == 4
    large = ["execution.split_bytes=1GB"]
    whole = runs.run_mixture(mixture, make_engine=runs.InProcess, output=tmp_path / "whole", overrides=large)
    assert len(whole.plan.of_kind("map")[0].tasks or ()) == 1
    assert [file.checksum for file in cut.snapshot.documents] == [file.checksum for file in whole.snapshot.documents]
    assert cut.report["total"]["documents"]["kept"] == 412 and cut.report["warnings"] == []
    assert runs.run_mixture(mixture, make_engine=runs.InProcess).watcher.records == []
    output = BrowsedOutput.open(str(tmp_path / "out"))
    documents = [row for table in output.tables for batch in read_table(output.root, table.file) for row in batch.to_pylist()]
    originals = Originals(output)
    assert len(documents) == 412
    for row in documents[::40]:
        assert output.inspector.locator.locate(row["key"]).text == row["text"]
        found = originals.read(row["key"])
        assert found.batch is not None and found.batch.texts.to_pylist() == [row["text"]], found.note


@pytest.mark.medium
def test_run_reads_a_file_whole_that_has_a_member_within_a_member(tmp_path: Path) -> None:
    mixture = _mixture(tmp_path)
    pack = PACKERS["gzip, stored blocks"][1]
    inner = next(filter(_is_one_line, (pack(random.Random(seed).randbytes(900)) for seed in range(999))))
    with open(tmp_path / "m.jsonl.gz", "ab") as file:
        file.write(pack(b'{"text": "before"}\n' * 300 + inner * 12 + b'\n{"text": "behind"}\n'))
    allowed = ["max_quarantined=1%"]  # the line of members
    done = runs.run_mixture(mixture, make_engine=runs.InProcess, overrides=allowed)
    assert done.report["total"]["documents"]["kept"] == 412 + 300 + 1
    [warning] = done.report["warnings"]
    assert warning["kind"] == "read_whole" and warning["files"] == ["m.jsonl.gz"]


def test_limit_reads_no_file_to_cut_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(Jsonl, "probe_large", lambda self, file, opened: looked.append(file.path) or file)
    mixture = load_mixture(_mixture(tmp_path))
    prepare(mixture, limit=3)
    assert looked == []
    prepare(mixture)
    assert looked == ["m.jsonl.gz"]  # the small files are not opened
