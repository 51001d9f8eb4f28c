"""Arrow IPC: files and streams, in any cut, odd types, and damage at every byte."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.stage import FieldNames, InputFile, Split
from datapipe.storage import open_input
from stages.read.arrow import ROW_BITS, Arrow
from tests.support.reader_results import ReadResult, broken_storage, input_file, read_file, read_splits

Writer = Callable[..., Any]
KINDS: dict[str, Writer] = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def _write(path: Path, table: pa.Table, rows: int = 3, writer: Writer = pa.ipc.new_stream, **options: Any) -> InputFile:
    """A file of record batches of so many rows each."""
    with pa.OSFile(str(path), "wb") as sink, writer(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as written:
        written.write_table(table, max_chunksize=rows)
    return input_file(path, reader=Arrow())


def _table(count: int = 10) -> pa.Table:
    texts = [f"text {number} " + "é中" * (number % 4) for number in range(count)]
    return pa.table({"id": [f"d{number}" for number in range(count)], "text": texts, "url": [f"u{n}" for n in range(count)]})


def _whole(table: pa.Table, rows: int = 3) -> list[tuple[int, str, str | None]]:
    """The documents of a table in record batches of so many rows."""
    places = [((number // rows) << ROW_BITS) + number % rows for number in range(table.num_rows)]
    return list(zip(places, table.column("text").to_pylist(), table.column("id").to_pylist()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("target_bytes", [1, 400, 1 << 30])
def test_arrow_any_cut_gives_every_row_at_its_place(
    tmp_path: Path, kind: str, compression: str | None, target_bytes: int
) -> None:
    file = _write(tmp_path / "a.arrow", _table(), writer=KINDS[kind], compression=compression)
    splits = Arrow().cut(file, target_bytes)
    assert (len(splits) > 1) == (kind == "file" and target_bytes < 1 << 30)
    found = read_splits(Arrow(), splits, FieldNames(keep=("url",)))
    assert found.documents == _whole(_table())
    assert found.rejected == []
    assert found.extra == {"url": [f"u{number}" for number in range(10)]}
    again = [Arrow().read_document(file, place, FieldNames(), open_input) for place, _, _ in found.documents]
    assert again == found.texts
    assert Arrow().read_document(file, 9 << ROW_BITS, FieldNames(), open_input) is None
    assert Arrow().read_document(file, 7, FieldNames(), open_input) is None


def test_arrow_saved_dataset_is_read_by_its_streams_with_features_in_the_schema(tmp_path: Path) -> None:
    schema = _table().schema.with_metadata({"huggingface": '{"info": {"features": {"text": {"_type": "Value"}}}}'})
    file = _write(tmp_path / "data-00000-of-00001.arrow", _table().replace_schema_metadata(schema.metadata))
    assert read_file(Arrow(), file).documents == _whole(_table())
    seen = Arrow().fields_seen(Split(file=file), FieldNames(keep=("url", "none")), open_input)
    assert (seen.num_records, seen.found, seen.names) == (3, {"text", "url"}, ("id", "text", "url"))


def test_arrow_a_large_record_batch_comes_in_parts(tmp_path: Path) -> None:
    table = pa.table({"text": ["x" * 3000] * 9000})
    found = read_file(Arrow(), _write(tmp_path / "a.arrow", table, rows=9000))
    assert max(found.batch_sizes) < 1500
    assert [place for place, _, _ in found.documents] == list(range(9000))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b", None], pa.large_string()),
        pa.array(["a", "b", None], pa.string_view()),
        pa.array(["a", "b", None]).dictionary_encode(),
        pa.array([b"a", b"b", b"\xff"], pa.binary()),
        pa.array([b"a", b"b", b"\xff"], pa.binary(1)),
    ],
)
def test_arrow_text_of_every_string_type_is_read_and_the_rest_rejected(tmp_path: Path, kind: str, column: pa.Array) -> None:
    found = read_file(Arrow(), _write(tmp_path / "a.arrow", pa.table({"text": column, "id": column}), writer=KINDS[kind]))
    assert found.documents == [(0, "a", "a"), (1, "b", "b")]
    assert found.rejected == [(2, "field 'text' is null or invalid UTF-8; expected UTF-8 text")]


def test_arrow_string_that_is_not_utf8_costs_its_row_alone(tmp_path: Path) -> None:
    offsets, data = pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0])), pa.py_buffer(b"\xffb")
    column = pa.Array.from_buffers(pa.string(), 2, [None, offsets, data])
    found = read_file(Arrow(), _write(tmp_path / "a.arrow", pa.table({"text": column})))
    assert found.documents == [(1, "b", None)]
    assert found.rejected_places == [0]


def test_arrow_dots_reach_into_structs_and_a_missing_text_rejects_every_row(tmp_path: Path) -> None:
    table = pa.table({"c": [{"text": "a", "id": 1}, None, {"text": "b", "id": None}], "c.x": ["l", "m", "n"]})
    file = _write(tmp_path / "a.arrow", table)
    found = read_file(Arrow(), file, FieldNames(text="c.text", id="c.id", keep=("c.x",)))
    assert found.documents == [(0, "a", "1"), (2, "b", None)]
    assert found.extra == {"c.x": ["l", "n"]}
    assert read_file(Arrow(), file).rejected_places == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_arrow_without_rows_or_batches_has_no_documents(tmp_path: Path, kind: str) -> None:
    table = _table().slice(0, 0)
    assert read_file(Arrow(), _write(tmp_path / "a.arrow", table, writer=KINDS[kind])) == ReadResult()


def test_arrow_inside_an_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.arrow.gz").write_bytes(b"")
    with pytest.raises(UserError, match=r"a\.arrow\.gz: Arrow inside gzip cannot be read by record batches"):
        Arrow().probe(input_file(tmp_path / "a.arrow.gz"), open_input)


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_arrow_cut_off_at_any_byte_keeps_a_beginning_and_tells_the_rest(tmp_path: Path, kind: str) -> None:
    whole = _whole(_table())
    content = Path(_write(tmp_path / "a.arrow", _table(), writer=KINDS[kind]).url).read_bytes()
    for length in range(0, len(content), 7):
        file = input_file(tmp_path / "cut.arrow", content[:length], Arrow())
        found = read_file(Arrow(), file)
        assert found.documents == whole[: len(found.documents)]
        assert len(found.rejected) == 1, length
        assert found.rejected[0][1].startswith("the Arrow data is damaged: ")


def test_arrow_stream_that_ends_between_batches_or_goes_on_behind_its_end_is_told(tmp_path: Path) -> None:
    content = Path(_write(tmp_path / "a.arrow", _table()).url).read_bytes()
    found = read_file(Arrow(), input_file(tmp_path / "cut.arrow", content[:-8], Arrow()))
    assert found.documents == _whole(_table())
    assert "ends without its end marker" in found.rejected[0][1]
    found = read_file(Arrow(), input_file(tmp_path / "twice.arrow", content + content, Arrow()))
    assert found.documents == _whole(_table())
    assert f"something follows the end marker of the stream, at byte {len(content):,}" in found.rejected[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_arrow_with_flipped_bytes_never_raises(tmp_path: Path, kind: str, compression: str | None) -> None:
    content = Path(_write(tmp_path / "a.arrow", _table(60), 20, KINDS[kind], compression=compression).url).read_bytes()
    rng = random.Random(5)
    for _ in range(1500):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file = input_file(tmp_path / "damaged.arrow", bytes(damaged), Arrow())
        for _, text, _ in read_file(Arrow(), file, FieldNames(keep=("url",))).documents:
            text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_arrow_failure_of_the_storage_is_no_damage_of_the_file(tmp_path: Path, kind: str) -> None:
    file = _write(tmp_path / "a.arrow", _table(), writer=KINDS[kind])
    with pytest.raises(OSError, match="the disk is gone"):
        read_splits(Arrow(), [Split(file=file)], opened=broken_storage(file.num_bytes - 20))
