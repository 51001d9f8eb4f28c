"""Parquet and Arrow: row groups, record batches, odd types, and files that are damaged."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from datapipe.stage import FieldNames, InputFile, Split
from datapipe.storage import open_input
from stages.read.arrow import Arrow
from stages.read.parquet import Parquet
from tests.support.reader_formats import parquet
from tests.support.reader_results import input_file, read_file, read_splits


@pytest.mark.medium
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


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_parquet_footer_whose_parts_contradict_each_other_is_damage(tmp_path: Path, compression: str) -> None:
    """One flipped bit. pyarrow ends the process where it is asked for the description of a column of this file."""
    content = parquet(["a first text", "second", "third"], compression=compression)
    optional, unknown = b"\x25\x02\x18\x04text", b"\x25\x12\x18\x04text"
    assert content.count(optional) == 1
    file = input_file(tmp_path / "a.parquet", content.replace(optional, unknown), reader=Parquet())
    found = read_splits(Parquet(), Parquet().cut(file, 1))
    assert (found.documents, found.rejected_places, found.is_damage) == ([], [0, 2], [True, True])


@pytest.mark.parametrize("count", [b"\x16\x02", b"\x16\x04", b"\x16\x06"], ids=["1 row", "2 rows", "3 rows"])
def test_parquet_footer_with_a_row_group_that_has_lost_its_rows_is_damage(tmp_path: Path, count: bytes) -> None:
    """Each number of this size in the footer is 0 in turn; one flipped bit is enough for that."""
    content = parquet(["a first text", "second", "third"])
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    places = [at for at in range(start, len(content) - 8) if content.startswith(count, at)]
    assert places
    for at in places:
        file = input_file(tmp_path / "a.parquet", content[: at + 1] + b"\0" + content[at + 2 :], reader=Parquet())
        found = read_splits(Parquet(), Parquet().cut(file, 1))
        assert len(found.documents) == 3 or any(found.is_damage), at


_WRITERS: dict[str, Callable[..., Any]] = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}
both = pytest.mark.parametrize("kind", ["file", "stream"])


def _write(path: Path, kind: str, table: pa.Table, rows: int | None = None, compression: str | None = None) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=kind == "stream")
    with _WRITERS[kind](str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path.read_bytes()


def _file(folder: Path, content: bytes) -> InputFile:
    return input_file(folder / "b.arrow", content, reader=Arrow())


@pytest.mark.parametrize("deltas", [False, True])
def test_arrow_dictionaries_that_change_in_a_stream_hold_in_every_split(tmp_path: Path, deltas: bool) -> None:
    first = pa.array(["a", "b", "a"]).dictionary_encode()
    longer = pa.DictionaryArray.from_arrays(pa.array([2, 0], pa.int32()), ["a", "b", "c"])
    other = pa.array(["x", "y"]).dictionary_encode()
    chunks = [first, longer] if deltas else [first, longer, other, first]
    schema = pa.schema([("text", first.type)])
    with pa.ipc.new_stream(
        str(tmp_path / "a.arrow"), schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    ) as writer:
        for chunk in chunks:
            writer.write_batch(pa.record_batch([chunk], schema=schema))
    file = input_file(tmp_path / "a.arrow", reader=Arrow())
    expected = [text for chunk in chunks for text in chunk.to_pylist()]
    assert read_file(Arrow(), file).texts == read_splits(Arrow(), Arrow().cut(file, 1)).texts == expected
    assert Arrow().read_document(file, len(expected) - 1, FieldNames(), open_input) == expected[-1]


def test_arrow_text_that_is_run_end_encoded_is_read(tmp_path: Path) -> None:
    column = pa.RunEndEncodedArray.from_arrays([1, 2, 3], ["a", "b", None])
    found = read_file(Arrow(), _file(tmp_path, _write(tmp_path / "a.arrow", "file", pa.table({"text": column, "id": column}))))
    assert (found.documents, found.rejected_places) == ([(0, "a", "a"), (1, "b", "b")], [2])


def test_arrow_saved_dataset_has_features_in_the_schema(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "url": ["u", "v"]})
    features = {"huggingface": '{"info": {"features": {"text": {"_type": "Value"}}}}'}
    _write(tmp_path / "data-00000-of-00001.arrow", "stream", table.replace_schema_metadata(features))
    file = input_file(tmp_path / "data-00000-of-00001.arrow", reader=Arrow())
    assert read_file(Arrow(), file).texts == ["a", "b"]
    seen = Arrow().fields_seen(Split(file=file), FieldNames(keep=("url", "none")), open_input)
    assert (seen.num_records, seen.found, seen.names) == (2, {"text", "url"}, ("text", "url"))


def test_arrow_feather_is_read_and_its_first_version_told(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"text": ["a", "b"]}), str(tmp_path / "a.feather"))
    assert read_file(Arrow(), input_file(tmp_path / "a.feather", reader=Arrow())).texts == ["a", "b"]
    found = read_file(Arrow(), _file(tmp_path, b"FEA1" + bytes(60) + b"FEA1"))
    assert found.documents == []
    assert "Feather version 1" in found.rejected[0][1]


@both
@pytest.mark.parametrize("target_bytes", [1, 1 << 30])
def test_arrow_damaged_record_batch_costs_itself_and_no_other(tmp_path: Path, kind: str, target_bytes: int) -> None:
    rng = random.Random(3)
    texts = [rng.randbytes(400).hex() for _ in range(60)]
    content = bytearray(_write(tmp_path / "a.arrow", kind, pa.table({"text": texts}), 20))
    at = content.index(texts[20].encode()) - 84  # within the 21 offsets of the batch
    content[at : at + 40] = b"\xff" * 40
    file = _file(tmp_path, bytes(content))
    found = read_splits(Arrow(), Arrow().cut(file, target_bytes))
    assert found.texts == texts[:20] + texts[40:]
    assert [place for place, _, _ in found.documents] == [*range(20), *range(40, 60)]
    assert found.rejected_places == [20]
    assert found.rejected[0][1].startswith("record batch 1 of the Arrow file is damaged, from row 20 on: ")


def test_arrow_bytes_behind_the_end_of_a_stream_are_told(tmp_path: Path) -> None:
    stored = _write(tmp_path / "a.arrow", "stream", pa.table({"text": ["a"]}))
    found = read_file(Arrow(), _file(tmp_path, stored + stored))
    assert (found.texts, found.rejected_places, found.is_damage) == (["a"], [1], [True])


@pytest.mark.medium
@both
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_arrow_with_flipped_bytes_never_raises(tmp_path: Path, kind: str, compression: str | None) -> None:
    texts = pa.array([f"text {number}" for number in range(200)])
    columns = {"text": texts, "id": range(200), "k": texts.dictionary_encode(), "v": texts.cast(pa.string_view())}
    stored = _write(tmp_path / "a.arrow", kind, pa.table(columns), 80, compression)
    fields = FieldNames(keep=("k", "v"))
    for seed in range(100):
        rng = random.Random(seed)
        content = bytearray(stored)
        for _ in range(rng.choice([1, 3])):
            content[rng.randrange(len(content))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
        file = _file(tmp_path, bytes(content))
        found = read_splits(Arrow(), Arrow().cut(file, rng.choice([1, 1 << 30])), fields)
        documents = [place for place, _, _ in found.documents]
        assert len(documents) == len(set(documents))
        assert len(documents) + len(found.rejected) >= 200 or any("damaged" in error for _, error in found.rejected)
