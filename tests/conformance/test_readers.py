"""What every reader must do with any file: found whole, cut anywhere, ended anywhere, with a flipped byte, empty, or too large,
the documents are those of one plain reading, and what is lost is reported."""

import gzip
import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from datapipe.config.catalogue import formats
from datapipe.stage import FieldNames, Split
from datapipe.stage.reader import NOT_SAMPLED, Sample
from datapipe.storage.root import open_input
from stages.read.arc import Arc
from tests.support.reader_formats import FORMATS, LFS_POINTER, Format
from tests.support.reader_results import ReadResult, broken_storage, in_ranges, read_file, read_splits, text_at

pytestmark = [pytest.mark.needs("fastwarc", "brotli")]

TEXTS = ["a first text", "", "zwölf 中文 \U0001f600, and more", "x" * 90, '"last" text']
FIELDS = FieldNames(keep=("url", "none"))

every_format = pytest.mark.parametrize("name", FORMATS)
at_most = pytest.mark.parametrize("most", [5, pytest.param(150, marks=pytest.mark.slow)])
"""In how many places a file is cut or changed."""


def _sampled(places: range, most: int) -> list[int]:
    """All places, or some of them in their order, the same ones each time."""
    return list(places) if len(places) <= most else sorted(random.Random(1).sample(places, most))


def _is_told(found: ReadResult, whole: ReadResult) -> bool:
    """Whether something that is no document is reported that is not reported of the whole file."""
    return bool(found.rejected) or found.passed_over != whole.passed_over


@every_format
def test_reader_finds_the_texts_each_again_by_its_position(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    reader, file = form.reader(), form.file(tmp_path, form.write(TEXTS))
    found = read_file(reader, file, FIELDS)
    assert (found.texts, found.rejected) == (form.texts(TEXTS), [])
    assert found.places == sorted(set(found.places))
    assert found.extra["none"] == [None] * len(found.texts)
    steps = (-1,) if form.reader is Arc else (-1, 1)  # an address of ARC without its first byte is one as well
    positions = {*found.places, *(place + step for place in found.places for step in steps), 1 << 40} - {-1}
    again = {place: text_at(reader, file, place, FIELDS) for place in sorted(positions)}
    assert {place: text for place, text in again.items() if text is not None} == dict(zip(found.places, found.texts))
    seen = reader.fields_seen(Split(file=file), FIELDS, open_input)
    assert seen.num_records and "text" in seen.found and "none" not in seen.found
    assert pickle.loads(pickle.dumps(reader)) == reader


@every_format
def test_reader_of_a_sample_finds_the_documents_that_it_chooses(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    reader, file = form.reader(), form.file(tmp_path, form.write([f"text {number}" for number in range(40)]))
    whole = read_file(reader, file, FIELDS)
    larger = set[int]()
    for share in (1.0, 0.5, 0.1, 1e-9):
        sample = Sample(seed=5, share=share, file_hash=77)
        splits = reader.cut(reader.probe_large(file, open_input), 100)
        parts = [part for split in splits for part in reader.read(split, replace(FIELDS, sample=sample), open_input)]
        chosen = [part.sampled(sample) for part in parts]
        positions = [position for part in chosen for position in part.positions.tolist()]
        contents = [text for part in chosen for text in part.content.to_pylist()]
        texts = [text.decode() if isinstance(text, bytes) else text for text in contents]
        has = sample.has(np.array(whole.places, np.uint64)).tolist()
        assert positions == [place for place, chosen in zip(whole.places, has) if chosen], share
        assert texts == [text for text, chosen in zip(whole.texts, has) if chosen], share
        assert sum(part.passed_over.get(NOT_SAMPLED, 0) for part in chosen) == len(whole.places) - len(positions)
        assert share == 1.0 or larger >= set(positions)
        larger = set(positions)


@every_format
def test_reader_of_a_file_without_documents_finds_none(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    found = read_file(form.reader(), form.file(tmp_path, form.write([])), FIELDS)
    assert (found.texts, found.rejected) == (form.texts([]), [])


@pytest.mark.medium
@at_most
@every_format
def test_reader_of_a_file_cut_anywhere_finds_what_one_reading_finds(tmp_path: Path, name: str, most: int) -> None:
    form = FORMATS[name]
    content = form.write(TEXTS)
    reader, file = form.reader(), form.file(tmp_path, content)
    whole = read_file(reader, file, FIELDS)
    for border in _sampled(range(1, len(content)), most) if form.borders == "bytes" else []:
        assert in_ranges(reader, file, [border], FIELDS) == whole.told, border
    planned = reader.probe_large(file, open_input)
    for target_bytes in (1, 7, 100, 400, len(content), 1 << 30):
        splits = reader.cut(planned, target_bytes)
        assert read_splits(reader, splits, FIELDS).told == whole.told, target_bytes
        assert splits[0].start == 0
        assert [split.stop for split in splits[:-1]] == [split.start for split in splits[1:]]
    assert (len(reader.cut(planned, 1)) > 1) == (form.borders != "none")


@pytest.mark.medium
@at_most
@every_format
def test_reader_of_a_file_that_ends_anywhere_reports_what_is_lost(tmp_path: Path, name: str, most: int) -> None:
    form = FORMATS[name]
    content, texts, reader = form.write(TEXTS), form.texts(TEXTS), form.reader()
    whole = read_file(reader, form.file(tmp_path, content), FIELDS)
    ends = [len(form.write(TEXTS[:count])) for count in range(len(TEXTS) + 1)]
    for size in _sampled(range(len(content)), most):
        file = form.file(tmp_path, content[:size])
        found = read_splits(reader, reader.cut(reader.probe_large(file, open_input), 64), FIELDS)
        _check_beginning(form, found, texts)
        may_be_whole = size == form.empty_bytes or any(
            end - form.slack <= size <= end for end in ends if form.slack is not None
        )
        if found.texts != texts and not may_be_whole and not form.hides_damage:
            assert any(found.is_damage) or (name == "json" and found.rejected), size
        assert len(found.places + found.rejected_places) == len({*found.places, *found.rejected_places})
        assert found.documents == whole.documents[: len(found.documents)] or form.hides_damage


def _check_beginning(form: Format, found: ReadResult, texts: list[str]) -> None:
    *before, last = found.texts or [""]
    assert before == texts[: len(before)]
    assert last == "" or texts[len(before)] == last or (form.hides_damage and texts[len(before)].startswith(last))


@pytest.mark.medium
@at_most
@every_format
def test_reader_of_a_flipped_byte_loses_nothing_in_silence(tmp_path: Path, name: str, most: int) -> None:
    form = FORMATS[name]
    content, reader, rng = form.write(TEXTS), form.reader(), random.Random(7)
    whole = read_file(reader, form.file(tmp_path, content), FIELDS)
    for place in _sampled(range(len(content)), most):
        changed = bytearray(content)
        changed[place] ^= 1 << rng.randrange(8)
        file = form.file(tmp_path, bytes(changed))
        found = read_file(reader, file, FIELDS)
        assert found.places == sorted(set(found.places))
        assert len(found.documents) <= len(whole.documents) or any(found.is_damage), place
        assert len(found.documents) == len(whole.documents) or _is_told(found, whole) or form.hides_damage, place
        if form.has_checksums:
            assert set(found.texts) <= set(whole.texts) or any(found.is_damage), place
        if form.borders == "bytes":
            borders = sorted({place or 1, *rng.sample(range(1, len(content)), 2)})
            assert in_ranges(reader, file, borders, FIELDS) in (found.told, None), place
        elif form.borders == "units":
            assert read_splits(reader, reader.cut(file, 1), FIELDS).told == found.told, place


@every_format
def test_reader_of_a_file_of_another_format_reports_it_once(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    is_plain = form.file(tmp_path, b"").compression is None
    other = gzip.compress(form.write(TEXTS)) if is_plain else b"plain text, which is no archive"
    for content, target_bytes in ((other, 10), (LFS_POINTER, 1 << 30)):
        file = form.file(tmp_path, content)
        found = read_splits(form.reader(), form.reader().cut(file, target_bytes), FIELDS)
        assert (found.documents, found.rejected_places, found.is_damage) == ([], [0], [True])
        assert not file.damage or file.damage == found.rejected[0][1]
    assert "Git LFS" in found.rejected[0][1]


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.limit])
def test_reader_of_a_document_beyond_the_limit_rejects_it_alone(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    assert form.limit
    file = form.file(tmp_path, form.write(["before", "x" * 5000, "after"]))
    whole = read_file(form.reader(), file)
    found = read_file(form.reader(**{form.limit: 3000}), file)
    assert found.documents == [whole.documents[0], whole.documents[2]]
    assert found.rejected_places == [whole.places[1]]
    assert form.limit in found.rejected[0][1]
    assert len(found.excerpts[0]) <= 4096
    assert read_file(form.reader(**{form.limit: 6500}), file).told == whole.told


@every_format
def test_reader_distinguishes_failing_storage_from_damage(tmp_path: Path, name: str) -> None:
    form = FORMATS[name]
    file = form.file(tmp_path, form.write(TEXTS * 20))
    for fails_at in (20, file.num_bytes // 2):
        with pytest.raises(OSError, match="the disk is gone"):
            read_splits(form.reader(), [Split(file=file)], opened=broken_storage(fails_at))


ONE_OF_EACH = {form.reader: name for name, form in reversed(FORMATS.items()) if not form.is_one_document}


@pytest.mark.medium
@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_reader_gives_batches_of_bounded_size(tmp_path: Path, name: str) -> None:
    form, long = FORMATS[name], [f"{number} " + "x" * 1_000_000 for number in range(9)]
    found = read_file(form.reader(), form.file(tmp_path, form.write(long)))
    assert found.texts == long
    assert max(found.batch_bytes) < 8 << 20
    if form.borders != "units":
        many = read_file(form.reader(), form.file(tmp_path, form.write(["a"] * 8_200)))
        assert many.texts == ["a"] * 8_200
        assert max(many.batch_sizes) <= 8192


def test_every_reader_is_here() -> None:
    assert {type(form.reader()).__name__.lower() for form in FORMATS.values()} == set(formats())
