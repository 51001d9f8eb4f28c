"""One type for a kept column of a source, whichever files come first and whichever stages follow."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.shards.documents.reader import parquet_schema
from datapipe.snapshots.generations import Generation
from datapipe.steps.counts import source_counts
from datapipe.storage.root import Root
from tests.support import runs

pytestmark = pytest.mark.medium

_TEXT = "tokenizer: none\nmax_quarantined: 60%\n"


def _write_table(path: Path, **columns: Any) -> None:
    """A table of Parquet or Arrow, by its ending."""
    path.parent.mkdir(exist_ok=True)
    num_rows = len(next(iter(columns.values())))
    table = pa.table({"text": [f"text {row} of {path.name}" for row in range(num_rows)], **columns})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _write_lines(path: Path, values: Sequence[str], name: str = "v") -> None:
    """JSON lines with these values as they are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'{{"text": "text {row} of {path.name}", "{name}": {value}}}\n' for row, value in enumerate(values)]
    path.write_text("".join(lines), encoding="utf-8")


def _mixture(folder: Path, source: str, stages: Sequence[str] = (), more: str = "") -> Path:
    sources = f"  web: {{path: '{folder}/in/*', {source}}}"
    return runs.write_mixture(folder, sources, f"stages: [{', '.join(stages)}]", _TEXT + more)


def _run(folder: Path, source: str, stages: Sequence[str] = (), more: str = "", **options: Any) -> runs.Finished:
    return runs.run_mixture(_mixture(folder, source, stages, more), **{"make_engine": runs.InProcess, **options})


def _values(folder: Path, column: str = "v") -> tuple[str, list[Any]]:
    table = pq.read_table(str(folder / "out/documents/web"))
    return str(table.schema.field(column).type).replace("large_", ""), table.column(column).to_pylist()


def _refused(folder: Path, source: str, stages: Sequence[str] = ()) -> str:
    with pytest.raises(UserError) as caught:
        prepare(load_mixture(_mixture(folder, source, stages)))
    return str(caught.value)


STRINGS = pa.array(["007", None])
TIMES = [pa.array([0, 1], pa.timestamp("us", zone)) for zone in ("UTC", "CET")]


@pytest.mark.parametrize(
    ("first", "second"), [(pa.array([1, 2]), STRINGS), (STRINGS, pa.array([1, 2])), (pa.array([[1]]), pa.array([["x"]])), TIMES]
)
def test_types_that_no_type_holds_are_refused_with_both_files(tmp_path: Path, first: pa.Array, second: pa.Array) -> None:
    _write_table(tmp_path / "in/a.parquet", v=first)
    _write_table(tmp_path / "in/b.parquet", v=second)
    for stages in ((), ("dedup.exact",)):
        message = _refused(tmp_path, "keep: [v]", stages)
        assert all(fact in message for fact in ("a.parquet", "b.parquet", "types: {v: string}"))


@pytest.mark.parametrize("stages", [(), ("dedup.exact",)], ids=["before dedup", "behind dedup"])
def test_declared_type_gives_one_decision_before_and_behind_dedup(tmp_path: Path, stages: tuple[str, ...]) -> None:
    _write_table(tmp_path / "in/a.parquet", zip=pa.array([7, 501]))
    _write_table(tmp_path / "in/b.parquet", zip=STRINGS)
    _run(tmp_path, "keep: [zip], types: {zip: string}", [*stages, 'filter.field: {field: zip, keep: ["007"]}'])
    assert _values(tmp_path, "zip") == ("string", ["007"])


@pytest.mark.parametrize(
    ("first", "second", "expected", "values"),
    [
        (pa.array([1]), pa.array([1.5]), "double", [1.0, 1.5]),
        (pa.nulls(1), pa.array([True]), "bool", [None, True]),
        (None, pa.array([3]), "int64", [None, 3]),  # a file without the column
        (pa.array([{"a": 1}]), pa.array([{"b": [2]}]), None, [{"a": 1, "b": None}, {"a": None, "b": [2]}]),
    ],
    ids=["integer and float", "null", "absent", "structs"],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_types_are_widened_for_every_value_in_any_order(tmp_path: Path, first, second, expected, values, ending: str) -> None:
    for name, column in zip("ab" if ending == "parquet" else "ba", (first, second), strict=True):
        _write_table(tmp_path / f"in/{name}.{ending}", **({"other": pa.array([1])} if column is None else {"v": column}))
    _run(tmp_path, "keep: [v]")
    kind, found = _values(tmp_path)
    assert expected in (None, kind)
    assert sorted(found, key=str) == sorted(values, key=str)


def test_whole_number_that_no_double_holds_is_refused_with_its_file(tmp_path: Path) -> None:
    _write_table(tmp_path / "in/a.parquet", v=pa.array([2**53 + 1]))
    _write_table(tmp_path / "in/b.parquet", v=pa.array([0.5]))
    with pytest.raises(UserError, match=r"a\.parquet"):
        _run(tmp_path, "keep: [v]")


@pytest.mark.parametrize("source", ["keep: [v]", "id: v", "text: v"])
def test_column_that_a_file_has_twice_is_refused(tmp_path: Path, source: str) -> None:
    columns = [pa.array(["t"]), pa.array(["x"]), pa.array([1])]
    (tmp_path / "in").mkdir()
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "v", "v"]), tmp_path / "in/a.parquet")
    assert "a.parquet: the column 'v' occurs 2 times" in _refused(tmp_path, source)


def test_field_can_be_kept_under_another_name(tmp_path: Path) -> None:
    _write_lines(tmp_path / "in/a.jsonl", ['"cc"', "null"], name="source")
    assert "{origin: source}" in _refused(tmp_path, "keep: [source]")
    _run(tmp_path, "keep: {origin: source}", ["filter.field: {field: origin, keep: [cc]}"])
    assert _values(tmp_path, "origin") == ("string", ["cc"])
    assert _values(tmp_path, "source")[1] == ["web"]


# ------------------------------------------------------------------------------------------------ JSON


JSON_VALUES = {
    "numbers": (["1", "2.5"], "double", [1.0, 2.5], []),
    "objects": (['{"b": 1}', '{"a": [0.5]}'], "struct<a: list<element: double>, b: int64>", [(None, 1), ([0.5], None)], []),
    "number and string": (["7", '"007"'], "string", ["7", "007"], ["mixed_types"]),
    "rounded": (["9007199254740993", "0.5"], "string", ["9007199254740993", "0.5"], ["mixed_types"]),
    "nothing": (["null", "null"], "string", [None, None], ["null_field"]),
    "long numbers in lists": (["[1234567890123456]", "[0.5]"], "list<element: double>", [[1234567890123456.0], [0.5]], []),
    "rounded in lists": (["[9007199254740993]", "[0.5]"], "string", ["[9007199254740993]", "[0.5]"], ["mixed_types"]),
    "odd objects": (
        ['{"a": {}, "b": 1, "c": true}', '{"a": null, "b": "x", "c": false}'],
        "struct<a: string, b: string, c: bool>",
        [("{}", "1", True), (None, "x", False)],
        ["mixed_types"],
    ),
}


@pytest.mark.parametrize("are_apart", [False, True], ids=["one file", "a file each"])
@pytest.mark.parametrize("case", JSON_VALUES)
def test_json_values_keep_their_types(tmp_path: Path, case: str, are_apart: bool) -> None:
    written, expected, values, warned = JSON_VALUES[case]
    for number, file in enumerate([[value] for value in written] if are_apart else [written]):
        _write_lines(tmp_path / f"in/{number}.jsonl", file)
    run = _run(tmp_path, "keep: [v]", ["dedup.exact"])
    kind, found = _values(tmp_path)
    assert kind.replace("item", "element") == expected
    assert [tuple(value.values()) if isinstance(value, dict) else value for value in found] == list(values)
    assert [warning.kind for warning in run.warnings] == list(warned)


@pytest.mark.slow
def test_json_of_several_splits_gives_the_same_files_as_of_one(tmp_path: Path) -> None:
    """A value of another type far behind widens the column of all."""
    values = [json.dumps({f"k{row % 7}": row, "x": row / 2 if row % 800 == 799 else row}) for row in range(2500)]
    found = []
    for size, engine in (("16KiB", runs.InProcess), ("16KiB", runs.LastFirst), ("64MiB", runs.InProcess)):
        folder = tmp_path / f"{size}-{engine.__name__}"
        _write_lines(folder / "in/a.jsonl", values)
        given = (folder, "keep: [v]", (), f"execution: {{split_bytes: {size}}}\n")
        _run(*given, make_engine=engine)
        (path,) = (folder / "out/documents/web").iterdir()
        found.append((path.read_bytes(), str(parquet_schema(Root(str(path.parent)), path.name))))
        assert not _run(*given).watcher.records
    assert "double" in found[0][1]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("declared", "written", "expected", "num_quarantined"),
    [
        ("int64", ["7", '"008"', '"x"', "true", "null"], ("int64", [7, 8, None]), 2),
        ("json", ['{"a": [1, "x"]}', '"s"', "1.50", "null"], ("string", ['{"a": [1, "x"]}', '"s"', "1.50", None]), 0),
    ],
)
def test_declared_type_of_json_keeps_what_fits_and_quarantines_the_rest(
    tmp_path: Path, declared, written, expected, num_quarantined
) -> None:
    _write_lines(tmp_path / "in/a.jsonl", written)
    run = _run(tmp_path, f"keep: [v], types: {{v: {declared}}}")
    assert _values(tmp_path) == expected
    assert source_counts(run.plan, "web").document_counts.quarantined == num_quarantined


def test_generation_has_the_types_of_all_files_that_there_are(tmp_path: Path) -> None:
    _write_table(tmp_path / "in/a.parquet", v=pa.array([0.5]))
    first = _run(tmp_path, "keep: [v]")
    later = Generation(base=first.snapshot.fingerprint, files={"web": ("b.parquet",)})
    _write_table(tmp_path / "in/b.parquet", v=pa.array([1]))
    mixture = load_mixture(_mixture(tmp_path, "keep: [v]"))
    assert prepare(mixture, generation=later).sources["web"].types["v"].kind == pa.float64()
    _write_table(tmp_path / "in/b.parquet", v=pa.array(["x"]))
    with pytest.raises(UserError, match=r"double in a\.parquet and string in b\.parquet"):
        prepare(mixture, generation=later)


def test_values_that_a_filter_cannot_compare_are_reported_with_their_number(tmp_path: Path) -> None:
    _write_lines(tmp_path / "in/a.jsonl", ["NaN", "null", '"3"', '"x"', "true", "5", "1", "[5]", '"3,5"'])
    run = _run(tmp_path, "keep: [v]", ["filter.field: {field: v, min_value: 3}"])
    assert _values(tmp_path) == ("string", ["3", "5"])
    assert source_counts(run.plan, "web").document_counts.dropped == {
        "filter.field:missing": 1,
        "filter.field:not_a_number": 5,
        "filter.field:too_small": 1,
    }
    (warning,) = [warning for warning in run.warnings if warning.kind == "other_kind"]
    assert "filter.field: 5 of 8 values of 'v'" in warning.text
