"""Documents that are made of fields which are no text: the JSON text of an object, the same from every format."""

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from datapipe.config import catalogue
from datapipe.stage.reader import FieldNames, ReadBatch, Split
from datapipe.steps.read_batches import conformed
from datapipe.storage.root import open_input
from tests.support.reader_results import input_file

FIELDS = ("data.turns", "tools")
NAMES = FieldNames(
    text=None,
    json=FIELDS,
    keep=("n", *FIELDS),
    columns={"n": "n"},
    types={"n": pa.int64()},
    declared=dict.fromkeys(FIELDS, "json"),
)
TURNS = [{"role": "user", "content": 'a "b"\n\\é漢'}, {"role": "assistant", "content": "\u0001 1e5"}]
ROWS: list[dict[str, Any]] = [
    {"id": "a", "n": 1, "data": {"turns": TURNS}, "tools": [{"name": "add"}]},
    {"id": "b", "n": 2, "data": {"turns": TURNS[:1]}, "tools": None},
    {"id": "c", "n": 3, "data": {"turns": []}, "tools": []},
    {"id": "d", "n": 4, "data": {"turns": None}, "tools": [{"name": "add"}]},
    {"id": "e", "n": 5, "data": {"turns": TURNS}, "tools": [{"name": "add"}, {"name": "c"}]},
    {"id": "f", "n": 6, "data": {"turns": None}, "tools": None},
]


def _lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def _parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)


def _arrow(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for row in ROWS:
            content = json.dumps(row).encode()
            member = tarfile.TarInfo(f"{row['id']}.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


WRITERS = {"a.jsonl": _lines, "a.parquet": _parquet, "a.arrow": _arrow, "a.tar": _tar}


def read(path: Path, names: FieldNames = NAMES) -> list[ReadBatch]:
    reader = catalogue.reader_for(str(path))
    split = Split(file=input_file(path, reader=reader))
    return [conformed(batch, split, names) for batch in reader.read(split, names, open_input)]


def documents(batches: Sequence[ReadBatch]) -> list[tuple[str, Any, int]]:
    return [
        (identity, json.loads(content), number)
        for batch in batches
        for identity, content, number in zip(
            batch.ids.to_pylist(), batch.content.to_pylist(), batch.extra["n"].to_pylist() if len(batch.positions) else ()
        )
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_fields_become_one_object_in_every_format(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    batches = read(tmp_path / name)
    expected = [
        (row["id"], {"turns": row["data"]["turns"]} | ({} if row["tools"] is None else {"tools": row["tools"]}), row["n"])
        for row in ROWS
        if row["data"]["turns"] is not None
    ]
    assert documents(batches) == expected
    errors = [each.error for batch in batches for each in batch.rejected]
    assert errors == ["field 'data.turns' is missing or null; expected the content of the document"] * 2


def test_values_of_csv_are_strings_in_the_object(tmp_path: Path) -> None:
    fields = ("turns", "tools")
    names = FieldNames(text=None, json=fields, keep=("n", *fields), columns={"n": "n"}, declared=dict.fromkeys(fields, "json"))
    rows = [{"id": "a", "turns": json.dumps(TURNS), "n": "7"}, {"id": "b", "turns": "none", "n": "8"}]
    pc.write_csv(pa.Table.from_pylist(rows), tmp_path / "a.csv")
    batches = read(tmp_path / "a.csv", names)
    assert [(identity, content["turns"]) for identity, content, _ in documents(batches)] == [
        ("a", json.dumps(TURNS)),
        ("b", "none"),
    ]


def test_lines_that_are_no_json_are_rejected_and_the_others_read(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in ROWS[:2]]
    (tmp_path / "a.jsonl").write_text("\n".join([lines[0], '{"data": {"turns": [}', "[]", '{"a": "\\ud800"}', lines[1]]) + "\n")
    batches = read(tmp_path / "a.jsonl")
    assert [identity for identity, _, _ in documents(batches)] == ["a", "b"]
    errors = [each.error for batch in batches for each in batch.rejected]
    assert len(errors) == 3 and "not valid JSON" in errors[0] and "half a surrogate pair" in errors[2]


def test_a_column_that_is_kept_too_is_json_text(tmp_path: Path) -> None:
    _parquet(tmp_path / "a.parquet")
    names = FieldNames(
        text=None, json=FIELDS, keep=("tools", *FIELDS), columns={"calls": "tools"}, declared=dict.fromkeys(FIELDS, "json")
    )
    kept = [value for batch in read(tmp_path / "a.parquet", names) for value in batch.extra["calls"].to_pylist()]
    assert [value and json.loads(value) for value in kept] == [row["tools"] for row in ROWS if row["data"]["turns"] is not None]
