"""Archives read in byte ranges: the documents are those of one reading of the file, or a range says that they may not be."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from datapipe.errors import UnsplittableInputError
from datapipe.ledger import pending
from datapipe.stage import FieldNames, InputFile, Reader
from datapipe.stage.reader import ReadBatch
from stages.read.warc import Warc
from tests.support import runs, web_archives
from tests.support.web_archives import PACKINGS, documents, packed, read, response, warc_record

pytestmark = [pytest.mark.needs("fastwarc", "isal", "lz4", "zstandard", "brotli")]

PAGES = [response(f"<p>page {number} {'x' * (37 * number)}".encode(), number) for number in range(5)]


def in_ranges(reader: Reader, file: InputFile, cuts: Sequence[int]) -> list[ReadBatch]:
    """The batches of all ranges between some cuts."""
    borders = [0, *cuts, file.num_bytes]
    return [batch for start, stop in zip(borders, borders[1:]) for batch in read(reader, file, start=start, stop=stop)]


def books(batches: Sequence[ReadBatch]) -> tuple[object, ...]:
    """All that a reading finds: documents in their order, kinds that are passed over, rejected records."""
    return list(documents(batches).items()), web_archives.passed_over(batches), web_archives.rejected(batches)


def _cut_anywhere(content: bytes, size: int) -> bytes:
    return b"".join(gzip.compress(content[start : start + size]) for start in range(0, len(content), size))


@pytest.mark.medium
@pytest.mark.parametrize("size", [37, 411])
def test_members_that_end_within_records_are_read_as_one_stream(tmp_path: Path, size: int) -> None:
    parts = [warc_record("warcinfo", b"ours"), *PAGES]
    pages = list(documents(read(Warc(), web_archives.file_of(tmp_path, packed(parts)))).values())
    file = web_archives.file_of(tmp_path, _cut_anywhere(b"".join(parts), size))
    expected = books(read(Warc(), file))
    assert list(documents(read(Warc(), file)).values()) == pages and expected[2] == []
    for position, page in documents(read(Warc(), file)).items():
        assert Warc().read_document(file, position, FieldNames(), pa.OSFile) == page.decode()
    for cut in range(1, file.num_bytes, 29):
        assert books(in_ranges(Warc(), file, [cut])) == expected


@pytest.mark.medium
@pytest.mark.parametrize(
    "packing", ["plain", "gzip, a member a record", "gzip, two records a member", "zstd, a frame a record", "lz4", "anywhere"]
)
def test_ranges_of_a_damaged_file_give_the_books_of_one_reading(tmp_path: Path, packing: str) -> None:
    rng = random.Random(5)
    content = _cut_anywhere(b"".join(PAGES), 150) if packing == "anywhere" else packed(PAGES, packing)
    ending = ".gz" if packing == "anywhere" else PACKINGS[packing][0]
    pages = list(documents(read(Warc(), web_archives.file_of(tmp_path, content, ending))).values())
    for _ in range(15):
        damaged = bytearray(content)
        for _ in range(rng.randrange(1, 4)):
            damaged[rng.randrange(20, len(damaged))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.3:
            start = rng.randrange(len(damaged))
            damaged[start : start + rng.randrange(60)] = rng.randbytes(rng.randrange(60))
        file = web_archives.file_of(tmp_path, bytes(damaged), ending)
        batches = read(Warc(), file)
        found = list(documents(batches).values())
        assert set(found) <= set(pages) or packing not in ("anywhere", "gzip, a member a record")
        assert len(found) == len(pages) or web_archives.rejected(batches) or web_archives.passed_over(batches)
        for _ in range(4):
            cuts = sorted(rng.sample(range(1, file.num_bytes), 2))
            assert books(in_ranges(Warc(), file, cuts)) == books(batches)


def test_ranges_of_frames_with_large_blocks_begin_at_them(tmp_path: Path) -> None:
    rng = random.Random(7)
    pages = [response(rng.randbytes(90_000).hex().encode(), number) for number in range(6)]
    for packing in ("zstd, a frame a record", "lz4", "gzip, a member a record"):
        file = web_archives.file_of(tmp_path, packed(pages, packing), PACKINGS[packing][0])
        sizes = []
        for number in range(6):
            start, stop = file.num_bytes * number // 6, file.num_bytes * (number + 1) // 6
            sizes.append(len(documents(read(Warc(), file, start=start, stop=stop))))
        assert sum(sizes) == 6 and max(sizes) <= 2


def _archive_in_a_record() -> list[bytes]:
    """Records of which one holds an archive that is stored as it is, so that its magic bytes stand in the file."""
    inner = b"".join(gzip.compress(response(f"<p>inside {number}".encode(), number), 0) for number in range(3))
    return [
        gzip.compress(PAGES[0]),
        gzip.compress(warc_record("resource", inner + b"tail", 7, "application/warc"), 0),
        *map(gzip.compress, PAGES[1:3]),
    ]


def _refused_cuts(file: InputFile) -> list[int]:
    """The places at which the file cannot be cut. Cut at any other, it gives the books of one reading."""
    expected, refused = books(read(Warc(), file)), []
    for cut in range(1, file.num_bytes, 2):
        try:
            assert books(in_ranges(Warc(), file, [cut])) == expected, cut
        except UnsplittableInputError:
            refused.append(cut)
    return refused


def test_ranges_of_an_archive_in_an_archive_are_right_or_refused(tmp_path: Path) -> None:
    parts = _archive_in_a_record()
    file = web_archives.file_of(tmp_path, b"".join(parts))
    assert len(documents(read(Warc(), file))) == 3
    refused = _refused_cuts(file)
    first, last = len(parts[0]) + 1, len(parts[0]) + len(parts[1])
    assert refused == [cut for cut in refused if first <= cut < last]
    assert len(refused) > len(parts[1]) // 4


def test_ranges_of_a_plain_archive_in_a_record_are_right_or_refused(tmp_path: Path) -> None:
    inner = b"".join(PAGES[:2])
    content = b"".join([PAGES[2], warc_record("resource", inner, 7, "application/warc"), PAGES[3]])
    refused = _refused_cuts(web_archives.file_of(tmp_path, content, ""))
    assert 0 < len(refused) < (len(inner) + 500) // 2


def _documents_of(done: runs.Finished) -> dict[str, str]:
    return {file.path: file.checksum for file in done.snapshot.documents}


@pytest.mark.medium
def test_run_reads_a_file_whole_that_cannot_be_cut_and_says_so(tmp_path: Path) -> None:
    mixture = web_archives.write_unsplittable(tmp_path)
    whole = runs.run_mixture(
        mixture, make_engine=runs.InProcess, output=tmp_path / "whole", overrides=["execution.split_bytes=1GB"]
    )
    assert whole.report["warnings"] == [] and len(whole.plan.of_kind("map")[0].tasks or ()) == 1
    cut = runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert cut.report["total"]["documents"]["kept"] == 90
    assert _documents_of(cut) == _documents_of(whole)
    [warning] = cut.report["warnings"]
    assert warning["kind"] == "read_whole" and warning["files"] == ["nested.warc.wet.gz"]
    splits = [split for task in cut.plan.of_kind("map")[0].tasks or () for split in task.splits]  # type: ignore[attr-defined]
    assert len([split for split in splits if split.file.path.startswith("good")]) > 3
    assert [split.stop for split in splits if split.file.path.startswith("nested")] == [None]
    assert runs.run_mixture(mixture, make_engine=runs.InProcess).watcher.records == []


@pytest.mark.slow
def test_run_that_is_stopped_knows_which_file_cannot_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "LONGEST_WAIT_S", 0.0)  # each task is committed by itself
    mixture = web_archives.write_unsplittable(tmp_path)
    expected = _documents_of(runs.run_mixture(mixture, make_engine=runs.InProcess, output=tmp_path / "undisturbed"))
    steps: list[str] = []

    class StoppedError(Exception):
        pass

    for _ in range(200):
        watcher = runs.Watcher()

        def stop(committed: object, watcher: runs.Watcher = watcher) -> None:
            steps.append(watcher.records[-1].fingerprint)
            raise StoppedError

        watcher.on_commit = stop
        try:
            done = runs.run_mixture(mixture, make_engine=runs.InProcess, watcher=watcher)
            break
        except StoppedError:
            continue
    assert _documents_of(done) == expected
    assert len(set(steps)) == len(steps) > 10  # no task ran twice
    assert [warning["kind"] for warning in done.report["warnings"]] == ["read_whole"]
