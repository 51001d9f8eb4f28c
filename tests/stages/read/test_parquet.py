"""Parquet: row groups, odd types, and files that are damaged."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.stage import FieldNames, InputFile, Split
from datapipe.storage import open_input
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
