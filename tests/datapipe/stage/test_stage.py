"""The records and columns of the contract: rules, results, ranks, shares, licences, dates, cut points, documents."""

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from pydantic import TypeAdapter

from datapipe import columns
from datapipe.columns import make_keys, text_buffers
from datapipe.errors import StageError, UserError
from datapipe.kernels.text.raw_lines import RawLines
from datapipe.kernels.text.words import Lines, Words
from datapipe.stage import FieldNames, FilterResult, InputFile, ReadBatch, Reader, Rejected, Rule, Split, dates
from datapipe.stage.base import Share
from datapipe.stage.cut_points import CUT_POINTS, CUT_POINTS_TYPE, cut_points_after, no_cut_points, parts_of
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.licenses import license_codes
from datapipe.stage.segmentation.english_words import english_words
from datapipe.stage.segmentation.lines import lines
from datapipe.stage.segmentation.raw_lines import raw_lines
from datapipe.stage.segmentation.unicode_words import unicode_words
from datapipe.stage.segmentation.words import words
from datapipe.stage.tables import source_rank
from tests.support.global_stages import batch_of

_RULES = [Rule(name="short", limit=2, side="min"), Rule(name="long", limit=5, side="max")]
_SPLIT = Split(file=InputFile(url="a.own", path="a.own", num_bytes=1, stamp=""))


def _no_file(url: str) -> pa.NativeFile:
    raise AssertionError(url)


def test_filter_result_is_that_of_the_first_rule_that_fails() -> None:
    result = FilterResult.from_rules(_RULES, [np.array([1, 2, 9]), [1, 5, 6]])
    assert result.keep.tolist() == [False, True, False]
    assert result.rule.tolist() == [0, -1, 1]
    assert result.value[[0, 2]].tolist() == [1.0, 6.0]


@pytest.mark.parametrize(
    ("measured", "message"),
    [([np.zeros(3)], "2 rules, found those of 1"), ([np.zeros(3), np.zeros(2)], r"rule 1: .* found shapes \(2,\)")],
)
def test_filter_result_of_values_that_do_not_fit_the_rules_is_refused(measured, message) -> None:
    with pytest.raises(StageError, match=message):
        FilterResult.from_rules(_RULES, measured)


class Own(Reader):
    """Yields a reject and then two documents, of which one has a url."""

    num_docs: int = 2

    def read(self, split, fields, open_input):
        nothing = pa.array([], pa.large_string())
        reject = Rejected(position=0, error="bad")
        yield ReadBatch(positions=np.zeros(0, np.uint64), content=nothing, ids=nothing, rejected=(reject,))
        if self.num_docs:
            texts = pa.array(["a", "b"], pa.large_string())
            extra = {name: pa.array(["x", None] if name == "url" else [None, None], pa.large_string()) for name in fields.keep}
            yield ReadBatch(positions=np.arange(2, dtype=np.uint64), content=texts, ids=texts, extra=extra)
            raise AssertionError("a look ends with the first documents")


def test_reader_that_knows_no_schema_finds_the_fields_with_a_value() -> None:
    seen = Own().fields_seen(_SPLIT, FieldNames(text="body", keep=("url", "ulr")), _no_file)
    assert (seen.num_records, seen.found, seen.names) == (2, {"body", "url"}, ())


def test_reader_of_rejects_alone_has_seen_no_record() -> None:
    assert Own(num_docs=0).fields_seen(_SPLIT, FieldNames(), _no_file).num_records == 0


def test_source_rank_is_of_this_run_and_ascends_with_the_place() -> None:
    ranks = [source_rank(place) for place in (None, 0, 1, 32_767)]
    assert [int(rank) for rank in ranks] == [0x8000, 0x8000, 0x8001, 0xFFFF]
    assert {rank.dtype for rank in ranks} == {np.dtype(np.uint16)}
    with pytest.raises(UserError, match="source number 32,769, expected at most 32,768 sources"):
        source_rank(32_768)


@pytest.mark.parametrize(
    ("written", "share"), [("50%", 0.5), (" 29 % ", 0.29), ("0.07%", 0.0007), ("0.47%", 0.0047), (".5%", 0.005), (0.5, 0.5)]
)
def test_percentage_is_the_number_nearest_to_it(written: str | float, share: float) -> None:
    assert TypeAdapter(Share).validate_python(written) == share


@pytest.mark.parametrize("written", ["50", "half", "%", "-1%", "101%", 1.5])
def test_share_that_is_none_is_refused(written: str | float) -> None:
    with pytest.raises(ValueError, match=r"share from 0 to 1|equal to"):
        TypeAdapter(Share).validate_python(written)


@pytest.mark.parametrize(
    "column", [pa.array([["mit", "isc"], None, ["mit"]]), pa.array(['["mit", "isc"]', None, '["mit"]'])], ids=["list", "JSON"]
)
def test_lists_of_licences_are_those_of_their_json(column: pa.Array) -> None:
    numbers, names = license_codes(column, "license")
    assert [names[number] for number in numbers] == ["MIT AND ISC", "unknown", "MIT"]


_START = datetime(1, 1, 1, tzinfo=UTC)


def _read(column: pa.Array) -> list[datetime | None]:
    seconds, there = dates.seconds(column)
    return [_START + timedelta(seconds=one) if is_there else None for one, is_there in zip(seconds.tolist(), there.tolist())]


def test_seconds_iso_text_in_any_precision_is_the_same_moment() -> None:
    texts = ["2023", "2023-04", "2023-04-05", "2023-04-05T06:07", " 2023-04-05 06:07:08.9Z\n", "2023-04-05T06:07:08-01:30"]
    expected = [
        datetime(2023, 1, 1),
        datetime(2023, 4, 1),
        datetime(2023, 4, 5),
        datetime(2023, 4, 5, 6, 7),
        datetime(2023, 4, 5, 6, 7, 8),
        datetime(2023, 4, 5, 7, 37, 8),
    ]
    assert _read(pa.array(texts)) == [one.replace(tzinfo=UTC) for one in expected]


def test_seconds_random_moments_equal_those_of_python() -> None:
    drawn = np.random.default_rng(1).integers(0, 315_537_897_599, 300).tolist()
    moments = [_START + timedelta(seconds=one) for one in [0, 315_537_897_599, *drawn]]
    zoned = [one.astimezone(timezone(timedelta(minutes=-345))) for one in moments[2:]]
    assert _read(pa.array([one.isoformat() for one in moments])) == moments
    assert _read(pa.array([one.isoformat() for one in zoned if one.year > 1])) == moments[2:]


@pytest.mark.parametrize(
    "text", ["", "x", "23-04-05", "2023-13-01", "2023-02-29", "1900-02-29", "2023-04-05T24:00", "0000-01-01"]
)
def test_seconds_text_that_is_no_date_is_none(text: str) -> None:
    assert _read(pa.array([text, None, "2024-02-29"])) == [None, None, datetime(2024, 2, 29, tzinfo=UTC)]


def test_seconds_dates_and_timestamps_are_read_as_text_is() -> None:
    moment = datetime(1903, 4, 5, 6, 7, 8, 900_000, tzinfo=UTC)
    assert _read(pa.array([date(1903, 4, 5), None])) == [datetime(1903, 4, 5, tzinfo=UTC), None]
    for unit in ("ms", "us", "ns"):
        column = pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")).cast(pa.timestamp(unit, "UTC"), safe=False)
        assert _read(column) == [moment.replace(microsecond=0), None]
    assert _read(pa.nulls(2)) == [None, None]


def _with_cut_points(texts: list[str], cut_points: list[list[int]]) -> DocumentBatch:
    return batch_of(texts, cut_points=pa.array(cut_points, CUT_POINTS_TYPE))


def _cut(sizes: list[int], cut_points: list[list[int]], cuts: list[list[tuple[int, int]]]) -> list[list[int]]:
    """The cut points after bytes are cut: per remaining text, the offsets after a cut byte or an old cut point."""
    left = []
    for size, marks, spans in zip(sizes, cut_points, cuts):
        gone = {at for start, stop in spans for at in range(start, stop)}
        kept, found, marked = 0, set(), False
        for at in range(size):
            marked |= at in marks or at in gone
            if at not in gone:
                if marked and kept:
                    found.add(kept)
                kept, marked = kept + 1, False
        left.append(sorted(found))
    return left


@pytest.mark.parametrize("seed", range(20))
def test_cut_points_after_cuts_equal_those_of_a_model(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 5, 12]) for _ in range(rng.randint(1, 6))]
    offsets = np.cumsum([3, *sizes])
    before = [sorted(rng.sample(range(1, size), rng.randint(0, min(3, size - 1)))) if size else [] for size in sizes]
    cuts = []
    for size in sizes:
        ends = sorted(rng.sample(range(size + 1), 2 * rng.randint(0, (size + 1) // 4)))
        cuts.append(list(zip(ends[::2], ends[1::2])))
    spans = np.array([(at + start, at + stop) for at, part in zip(offsets, cuts) for start, stop in part], np.int64)
    starts, stops = spans.reshape(-1, 2).T
    left = [size - sum(stop - start for start, stop in part) for size, part in zip(sizes, cuts)]
    column = rng.choice([pa.array(before, CUT_POINTS_TYPE), None])
    found = cut_points_after(offsets, column, starts, stops, np.cumsum([0, *left]))
    found.validate(full=True)
    assert found.type == CUT_POINTS_TYPE
    assert found.to_pylist() == _cut(sizes, before if column is not None else [[]] * len(sizes), cuts)


def test_parts_are_those_of_a_slice_and_of_texts_without_cut_points() -> None:
    batch = _with_cut_points(["abcdef", "", "ghi", "jk"], [[2, 5], [], [1], []])
    for part, expected in ((batch, ["ab", "cde", "f", "", "g", "hi", "jk"]), (batch.slice(1, 3), ["", "g", "hi"])):
        data, parts = part.buffers[1], part.parts
        said = [bytes(data[start:stop]).decode() for start, stop in zip(parts.offsets[:-1], parts.offsets[1:])]
        assert said == expected
    assert batch.parts.documents.tolist() == [0, 0, 0, 1, 2, 2, 3]
    offsets = text_buffers(batch.texts)[0]
    for none in (None, no_cut_points(4)):
        assert parts_of(offsets, none).offsets.tolist() == offsets.tolist()
        assert parts_of(offsets, none).documents.tolist() == [0, 1, 2, 3]


def test_cut_points_are_dropped_where_the_text_of_their_document_changes() -> None:
    batch = _with_cut_points(["one two", "three", "four five", ""], [[4], [], [5], []]).slice(0, 3)
    assert batch.with_columns({"score": pa.array([1, 2, 3])}).record.column(CUT_POINTS).to_pylist() == [[4], [], [5]]
    changed = batch.with_columns({"text": pa.array(["one two", "3", "4 five"], pa.large_string())})
    assert changed.record.schema.types == batch.record.schema.types
    assert changed.record.column(CUT_POINTS).to_pylist() == [[4], [], []]
    assert batch_of(["a"]).with_columns({"text": pa.array(["b"], pa.large_string())}).cut_points is None


def _batch() -> DocumentBatch:
    return batch_of(["a b", "c\nd"])


def test_segmentation_is_found_once_and_its_time_noted_under_its_name():
    batch = _batch()
    assert batch.segmentation_s == {}
    found = words(batch)
    assert set(batch.segmentation_s) == {"words"}
    batch.segmentation_s.clear()
    assert words(batch) is found
    assert batch.segmentation_s == {}


def _columns(found) -> list[list[int]]:
    return [getattr(found, name).tolist() for name in found._fields]


@pytest.mark.parametrize("find", [words, lines, english_words, unicode_words, raw_lines], ids=lambda find: find.__name__)
def test_segmentation_of_a_filtered_batch_is_as_found_again(find: Callable[[DocumentBatch], Words | Lines | RawLines]):
    texts = pa.array(["a b.", "c\n\nd e", "", "don't stop\n", "x"], pa.large_string()).slice(1)
    keys = make_keys(1, np.arange(4, dtype=np.uint64))
    batch = DocumentBatch(pa.record_batch([keys, texts, texts], names=["key", "id", "text"]))  # of a slice
    _ = words(batch), lines(batch), english_words(batch), unicode_words(batch)
    once = batch.filter(np.array([True, True, False, True]))
    twice = once.filter(np.array([True, False, True]))  # before and after `once` was asked
    for kept in (once, twice, once.filter(np.array([False, False, True])), once.filter(np.zeros(3, bool))):
        assert _columns(find(kept)) == _columns(find(DocumentBatch(kept.record)))
    later = twice.with_columns({"text": pa.array(["other words", "here"], pa.large_string())})
    assert _columns(find(later)) == _columns(find(DocumentBatch(later.record)))


def test_buffers_of_a_writable_column_are_read_only() -> None:
    data = np.frombuffer(bytearray(b"ab"), np.uint8)
    texts = columns.texts_from(np.array([0, 1, 2]), data)
    assert [array.flags.writeable for array in columns.text_buffers(texts)] == [False, False]
    assert data.flags.writeable


# ------------------------------------------------------------------------------------------------ what a fingerprint covers


@pytest.mark.parametrize("name", ["record", "buffers", "anything"])
def test_batch_refuses_assignments_as_the_fault_of_the_stage(name: str) -> None:
    batch = _batch()
    with pytest.raises(StageError, match=f"assigns to `{name}`"):
        setattr(batch, name, batch)
    assert batch.texts.to_pylist() == ["a b", "c\nd"]
