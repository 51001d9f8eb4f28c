"""Parquet: row groups, odd types, and files that are damaged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.stage import FieldNames, InputFile, Split
from datapipe.storage import open_input
from stages.read.parquet import Parquet
from tests.support.reader_results import ReadResult, broken_storage, input_file, read_file, read_splits


def _read(folder: Path, columns: dict[str, Any], fields: FieldNames | None = None, **writing: Any) -> ReadResult:
    pq.write_table(pa.table(columns), folder / "a.parquet", **writing)
    return read_file(Parquet(), input_file(folder / "a.parquet", reader=Parquet()), fields)


def test_parquet_rows_are_documents_at_their_numbers(tmp_path: Path) -> None:
    found = _read(tmp_path, {"id": ["x", None, "z"], "text": ["a", "", "é中"], "other": [1, 2, 3]})
    assert found.documents == [(0, "a", "x"), (1, "", None), (2, "é中", "z")]
    assert found.rejected == []


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", None], pa.string()),
        pa.array(["a", "b", None], pa.large_string()),
        pa.array(["a", "b", None], pa.string_view()),
        pa.array(["a", "b", None]).dictionary_encode(),
        pa.array([b"a", b"b", b"\xff"], pa.binary()),
        pa.array([b"a", b"b", b"\xff"], pa.large_binary()),
        pa.array([b"a", b"b", b"\xff"], pa.binary_view()),
        pa.array([b"a", b"b", b"\xff"], pa.binary(1)),
        pa.array(["a", "b", None], pa.json_(pa.string())),
        pa.array([b"a", b"b", b"\xff"]).dictionary_encode(),
    ],
)
def test_parquet_text_of_every_string_type_is_read_and_the_rest_rejected(tmp_path: Path, column: pa.Array) -> None:
    found = _read(tmp_path, {"text": column, "id": column})
    assert found.documents == [(0, "a", "a"), (1, "b", "b")]
    assert found.rejected == [(2, "field 'text' is null or invalid UTF-8; expected UTF-8 text")]


def test_parquet_string_column_of_invalid_utf8_is_rejected_row_by_row(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xffb")
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    assert _read(tmp_path, {"text": column}).rejected_places == [0]
    found = _read(tmp_path, {"text": ["a", "b"], "id": column, "k": column}, FieldNames(keep=("k",)))
    assert found.documents == [(0, "a", None), (1, "b", "b")]
    assert found.extra == {"k": [None, "b"]}


def test_parquet_without_the_text_field_rejects_every_row(tmp_path: Path) -> None:
    error = "field 'text' is not in the file; expected a column of strings"
    assert _read(tmp_path, {"body": ["a", "b"]}).rejected == [(0, error), (1, error)]
    error = "field 'text' is int64; expected a column of strings"
    assert _read(tmp_path, {"text": [1, 2]}).rejected == [(0, error), (1, error)]
    error = "field 'text' is struct<a: string>; expected a column of strings"
    assert _read(tmp_path, {"text": [{"a": "b"}]}).rejected == [(0, error)]
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), tmp_path / "twice.parquet")
    found = read_file(Parquet(), input_file(tmp_path / "twice.parquet", reader=Parquet()))
    assert found.rejected == [(0, "field 'text' occurs twice in the file; expected a column of strings")]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([1, None, -(2**63)]), ["1", None, "-9223372036854775808"]),
        (pa.array([2**64 - 1, 0, 1], pa.uint64()), ["18446744073709551615", "0", "1"]),
        (pa.array([0.5, -2.0, None], pa.float64()), ["0.5", "-2", None]),
        (pa.array([True, False, None]), ["true", "false", None]),
        (pa.array([0, 1, None], pa.date32()), ["1970-01-01", "1970-01-02", None]),
        (pa.array([0, 1, None], pa.timestamp("ms")), ["1970-01-01 00:00:00.000", "1970-01-01 00:00:00.001", None]),
        (pa.array([b"ab", b"\xff\xff", None], pa.binary(2)), ["ab", None, None]),
        (pa.array([[1], [], None]), ["[1]", "[]", None]),
        (pa.array([0, 1, None], pa.timestamp("us", "Nowhere/At_all")), [None, None, None]),
        (pa.array([bytes(15) + b"\x07", None, bytes(16)], pa.uuid()), [str(UUID(int=7)), None, str(UUID(int=0))]),
        (pa.array([1, 2, 1]).dictionary_encode(), ["1", "2", "1"]),
    ],
)
def test_parquet_ids_become_strings(tmp_path: Path, ids: pa.Array, expected: list[str | None]) -> None:
    found = _read(tmp_path, {"text": ["a", "b", "c"], "id": ids})
    assert found.ids == expected


def test_parquet_kept_columns_keep_their_types(tmp_path: Path) -> None:
    columns = {
        "text": ["a", None, "c"],
        "url": pa.array(["u", "v", None]),
        "tag": pa.array(["x", "x", "y"]).dictionary_encode(),
        "score": [0.5, None, 1.5],
        "tags": [["p"], [], None],
        "empty": pa.nulls(3),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    file = input_file(tmp_path / "a.parquet", reader=Parquet())
    fields = FieldNames(keep=("url", "tag", "score", "tags", "none", "empty"))
    (batch,) = Parquet().read(Split(file=file), fields, open_input)
    types = [batch.extra[name].type for name in fields.keep]
    large = pa.large_string()
    assert types == [large, large, pa.float64(), pa.list_(pa.string()), large, large]
    kept = [batch.extra[name].to_pylist() for name in fields.keep]
    assert kept == [["u", None], ["x", "y"], [0.5, 1.5], [["p"], None], [None, None], [None, None]]


def test_parquet_text_that_all_rows_share_is_read_in_parts_of_bounded_memory(tmp_path: Path) -> None:
    long, num_rows = "x" * 800_000, 20_000  # 8 GB of text in a file of some kB
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1] * (num_rows // 2), pa.int32()), pa.array([long, "short"]))
    for name, stored in (("as a dictionary", True), ("as strings", False)):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"text": texts}), path, compression="zstd", store_schema=stored)
        batches = Parquet().read(Split(file=input_file(path, reader=Parquet())), FieldNames(), open_input)
        first = [next(batches) for _ in range(40)]
        assert not any(batch.rejected for batch in first)
        assert max(batch.content.nbytes for batch in first) < 8 << 20
        found = [text for batch in first for text in batch.content.to_pylist()]
        assert found == [long, "short"] * (len(found) // 2) + [long] * (len(found) % 2)
        assert [int(batch.positions[0]) for batch in first[:2]] == [0, len(first[0].positions)]


def test_parquet_dots_reach_into_structs_unless_a_column_has_the_name(tmp_path: Path) -> None:
    columns = {"c": [{"text": "a", "id": 1, "x": 0}, None, {"text": "b", "id": None, "x": 0}], "c.x": ["l", "m", "n"]}
    found = _read(tmp_path, columns, FieldNames(text="c.text", id="c.id", keep=("c.x", "c.none")))
    assert found.documents == [(0, "a", "1"), (2, "b", None)]
    assert found.rejected_places == [1]
    assert found.extra == {"c.x": ["l", "n"], "c.none": [None, None]}


def test_parquet_row_groups_are_cut_into_splits_that_read_every_row_once(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(100)]}), tmp_path / "a.parquet", row_group_size=7)
    file = input_file(tmp_path / "a.parquet", reader=Parquet())
    assert [rows for rows, _ in file.row_groups] == [7] * 14 + [2]
    whole = read_file(Parquet(), file)
    assert whole.texts == [f"row {number}" for number in range(100)]
    for target in (1, 300, 1000, 1 << 30):
        splits = Parquet().cut(file, target)
        assert [splits[0].start, splits[-1].stop] == [0, 15]
        assert read_splits(Parquet(), splits).documents == whole.documents
    assert len(Parquet().cut(file, 1)) == 15


@pytest.mark.medium
def test_parquet_batches_are_bounded_by_the_size_of_rows(tmp_path: Path) -> None:
    texts = [f"{number:08d}" + "x" * 500_000 for number in range(30)]
    found = _read(tmp_path, {"text": texts}, compression="none", use_dictionary=False)
    assert found.texts == texts
    assert max(found.batch_sizes) <= 10
    assert _read(tmp_path, {"text": ["a"] * 20_000}).batch_sizes == [8192, 8192, 3616]


def test_parquet_empty_files_hold_nothing(tmp_path: Path) -> None:
    found = _read(tmp_path, {"text": pa.array([], pa.string())})
    assert (found.documents, found.rejected) == ([], [])


def test_parquet_inside_an_archive_is_refused_at_planning(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Parquet inside zstd"):
        input_file(tmp_path / "a.parquet.zst", b"anything", reader=Parquet())


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all", b"PAR1" + b"x" * 100 + b"\xff\xff\x00\x00PAR1"])
def test_parquet_what_is_no_parquet_is_one_reject(tmp_path: Path, content: bytes) -> None:
    file = input_file(tmp_path / "a.parquet", content, reader=Parquet())
    found = read_splits(Parquet(), Parquet().cut(file, 1 << 20))
    assert (file.row_groups, found.documents, found.rejected_places) == ((), [], [0])


def _damaged(path: Path, texts: list[str], first: int, **writing: Any) -> InputFile:
    """Three row groups, the text of the second of them overwritten from byte `first` of its pages on."""
    pq.write_table(pa.table({"text": texts}), path, row_group_size=-(-len(texts) // 3), use_dictionary=False, **writing)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    for at in range(column.data_page_offset + first, column.data_page_offset + column.total_compressed_size):
        content[at] ^= 0xFF
    return input_file(path, bytes(content), reader=Parquet())


@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_parquet_damaged_row_group_costs_itself_and_no_other(tmp_path: Path, target_bytes: int) -> None:
    rng = random.Random(3)
    texts = [rng.randbytes(400).hex() for _ in range(60)]
    file = _damaged(tmp_path / "a.parquet", texts, 100, compression="zstd")
    found = read_splits(Parquet(), Parquet().cut(file, target_bytes))
    assert found.texts == texts[:20] + texts[40:]
    assert [place for place, _, _ in found.documents] == [*range(20), *range(40, 60)]
    assert found.rejected_places == [20]
    assert found.rejected[0][1].startswith("row group 1 of the Parquet file is damaged from row 20 on: ")


@pytest.mark.medium
@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_parquet_damage_within_a_row_group_costs_what_is_behind_it(tmp_path: Path, target_bytes: int) -> None:
    texts = [f"{number:06d}" * 100_000 for number in range(60)]
    file = _damaged(tmp_path / "a.parquet", texts, 6_500_000, compression="none", data_page_size=600_000)
    found = read_splits(Parquet(), Parquet().cut(file, target_bytes))
    num_before = len(found.texts) - 40
    assert 0 < num_before <= 10
    assert found.texts == texts[: 20 + num_before] + texts[40:]
    assert found.rejected_places == [20 + num_before]


def test_parquet_flipped_bit_in_a_page_of_known_checksum_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    plain = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    pq.write_table(pa.table({"text": ["some text"] * 10}), path, write_page_checksum=True, **plain)
    stored = path.read_bytes()
    file = input_file(path, stored.replace(b"some text", b"some tent", 1), reader=Parquet())
    found = read_file(Parquet(), file)
    assert (found.documents, found.rejected_places) == ([], [0])


@pytest.mark.medium
def test_parquet_cut_short_anywhere_is_one_reject(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    stored = path.read_bytes()
    for size in range(len(stored)):
        file = input_file(path, stored[:size], reader=Parquet())
        found = read_splits(Parquet(), Parquet().cut(file, 1))
        assert (found.documents, found.rejected_places) == ([], [0])


@pytest.mark.medium
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_parquet_with_flipped_bytes_never_raises(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.parquet"
    columns = {"text": [f"text {number}" for number in range(200)], "id": list(range(200))}
    pq.write_table(pa.table(columns), path, row_group_size=80, compression=compression)
    stored = path.read_bytes()
    for seed in range(150):
        rng = random.Random(seed)
        content = bytearray(stored)
        for _ in range(rng.choice([1, 3])):
            content[rng.randrange(len(content))] = rng.randrange(256)
        file = input_file(path, bytes(content), reader=Parquet())
        found = read_splits(Parquet(), Parquet().cut(file, rng.choice([1, 1 << 30])))
        places = [place for place, _, _ in found.documents] + found.rejected_places
        assert len(places) == len(set(places)) <= 200
        assert len(places) == 200 or any("damaged" in error for _, error in found.rejected)


def test_parquet_replaced_since_it_was_planned_stops_the_task(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    file = input_file(path, reader=Parquet())
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), path)
    with pytest.raises(DatapipeError, match="its row groups differ from those that were planned"):
        read_file(Parquet(), file)


def test_parquet_what_storage_raises_is_no_fault_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [random.Random(1).randbytes(1000).hex() for _ in range(100)]}), path)
    file = input_file(path, reader=Parquet())
    with pytest.raises(OSError, match="the disk is gone"):
        Parquet().probe(file, broken_storage(fails_at=100))
    for fails_at in (100, file.num_bytes // 2, file.num_bytes - 1):
        with pytest.raises(OSError, match="the disk is gone"):
            read_splits(Parquet(), [Split(file=file)], opened=broken_storage(fails_at=fails_at))
    assert len(read_splits(Parquet(), [Split(file=file)], opened=broken_storage(fails_at=file.num_bytes)).documents) == 100


def test_parquet_read_one_gives_each_document_by_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None, "c", "d", "e"]}), path, row_group_size=2)
    file = input_file(path, reader=Parquet())
    assert [Parquet().read_document(file, row, FieldNames(), open_input) for row in range(7)] == [
        "a",
        None,
        "c",
        "d",
        "e",
        None,
        None,
    ]


def test_parquet_column_with_a_dot_comes_before_the_member_of_its_name(tmp_path: Path) -> None:
    inner = pa.array([{"b": "in"}, {"b": "deep"}])
    alone = _read(tmp_path, {"a.b": ["x", "y"], "t": ["1", "2"]}, FieldNames(text="a.b", keep=("a.b",)))
    both = _read(tmp_path, {"a": inner, "a.b": ["x", "y"]}, FieldNames(text="a.b", keep=("a.b",)))
    nested = _read(tmp_path, {"a": inner}, FieldNames(text="a.b", keep=("a.b",)))
    assert alone.texts == both.texts == ["x", "y"]
    assert alone.extra == both.extra == {"a.b": ["x", "y"]}
    assert nested.texts == ["in", "deep"]
