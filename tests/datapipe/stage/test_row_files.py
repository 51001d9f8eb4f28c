"""Records that list the files of a repository: their documents, by the oracle, and what becomes of odd files."""

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import key_halves, make_keys
from datapipe.engine.history import read_history, read_mixture
from datapipe.errors import UserError
from datapipe.exchange.tables import read_documents
from datapipe.explore.located import DocumentLocator
from datapipe.metrics import TaskMetrics
from datapipe.rng import keyed_hash
from datapipe.stage.documents import BASE_FIELDS
from datapipe.stage.field_types import plain
from datapipe.stage.reader import RowFiles
from datapipe.stage.row_files import POSITION_BITS, files_problem, listed_files, row_documents, texts_of_files
from datapipe.storage.root import Root
from tests.oracles.repositories import ORDERS, File, document, parts
from tests.support import repository_runs, runs
from tests.support.repository_runs import SEPARATORS

pytestmark = pytest.mark.medium

_TEXT = pa.large_string()
names = st.sampled_from(["", "a/b", "é"])
paths = st.sampled_from([None, "", "a.py", "a/b.py", "../x", "a" * 300])
texts = st.sampled_from([None, "", "x", "x\n", "é漢字", "y" * 40])
licenses = st.sampled_from([None, "MIT", "isc"])
records = st.lists(st.tuples(names, st.lists(st.tuples(paths, texts, licenses), max_size=12)), max_size=8)


def _spec(**options: Any) -> RowFiles:
    defaults = {"order": "path", "most_bytes": 100, "separators": SEPARATORS, "seed": 7, "license": "license", "name": "repo"}
    return RowFiles(field="blobs", path="path", text="content", **defaults | options)


def _record(rows: Sequence[tuple[str, Sequence[tuple[Any, ...]]]], positions: np.ndarray, spec: RowFiles) -> pa.RecordBatch:
    listed = [[dict(zip(("path", "content", "license"), file)) for file in files] for _, files in rows]
    kind = pa.list_(pa.struct([(name, pa.string()) for name in ("path", "content", "license")]))
    nothing = pa.array([""] * len(rows), _TEXT)
    arrays = [make_keys(5, positions), pa.array([f"{number}" for number in range(len(rows))], _TEXT), nothing]
    blobs, *_ = listed_files(pa.array(listed, kind), spec)
    fields = [*BASE_FIELDS, pa.field("repo", _TEXT), pa.field("blobs", blobs.type)]
    columns = [*arrays, pa.array([name for name, _ in rows], _TEXT), blobs]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


@given(
    records, st.sampled_from(["path", "random", "given"]), st.sampled_from([SEPARATORS, ()]), st.integers(1, 90), st.booleans()
)
def test_documents_are_those_of_plain_python(rows, order, separators, most_bytes, has_members):
    rows = [(name, files) for name, files in rows if any(file[1] is not None for file in files)]
    positions = np.arange(len(rows), dtype=np.uint64) * np.uint64(50) + np.uint64(3)
    spec = _spec(order=order, separators=separators, most_bytes=most_bytes)
    made = row_documents(_record(rows, positions, spec), spec, has_members=has_members).to_pylist()
    expected = []
    hashes = keyed_hash(key_halves(make_keys(5, positions)), 7)
    for number, (name, listed) in enumerate(rows):
        kept = [file for file in listed if file[1] is not None]
        ranks = keyed_hash((np.repeat(hashes[number], len(kept)), np.arange(len(kept), dtype=np.uint64)), 7).tolist()
        files = [
            File(place.to_bytes(16, "big"), name, path or "", text, license or "", rank)
            for place, ((path, text, license), rank) in enumerate(zip(kept, ranks))
        ]
        exact = {**ORDERS, "path": lambda file: (file.path.encode(), file.key)}
        for place, part in enumerate(parts(sorted(files, key=exact[order]), most_bytes)):
            expected.append((number, place, document(part, separators)))
    assert len(made) == len(expected)
    for row, (number, place, one) in zip(made, expected):
        position = int(positions[number]) + (place if has_members else place << POSITION_BITS)
        assert row["key"] == make_keys(5, np.array([position], np.uint64))[0].as_py()
        assert (row["id"], row["repo"]) == (f"{number}", rows[number][0])
        assert (row["text"], row.get("segments", [])) == (one.text, one.segments)
        assert json.loads(row["files"]) == [file.path for file in one.files]
    assert len({row["key"] for row in made}) == len(made)


@pytest.mark.parametrize(
    ("column", "cause"),
    [
        (pa.array([["a"]]), r"field 'blobs' is list<.*>, expected a list of objects with path, content"),
        (pa.array(["a"], _TEXT), r"field 'blobs' is string"),
        (pa.array([[{"path": "a", "text": "b"}]]), "expected a list of objects with path, content"),
        (pa.array([[{"path": "a", "content": [1]}]]), "expected a list of objects with path, content"),
        (pa.array([3]), "field 'blobs' is int64"),
    ],
)
def test_column_that_lists_no_files_is_a_problem_and_its_records_are_bad(column, cause):
    assert re.match(f".*{cause}", files_problem(plain(column.type), _spec(license=None)) or "")
    made, _, bad = listed_files(column, _spec(license=None))
    assert (made.to_pylist(), list(bad)) == ([[]], [0])


GOOD = [{"path": "a.py", "content": "a"}, {"path": "b.py", "content": "é"}]
ODD = ["oops", {"a.py": "x"}, ["a", "b"], [GOOD[0], 3], 7, [{"path": "c", "content": "\ud800"}], [[]]]


@pytest.mark.parametrize("odd", [ODD[:1], ODD[2:3], ODD], ids=str)
def test_records_whose_value_is_no_list_of_files_are_quarantined_alone(tmp_path: Path, odd):
    rows = [{"files": GOOD, "name": f"{number}"} for number in range(300)]
    rows[200:200] = [{"files": value, "name": "odd"} for value in odd]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    done = runs.run_mixture(_mixture(tmp_path, f"{tmp_path}/rows.jsonl"), make_engine=runs.InProcess)
    counts = done.report["sources"]["code"]["documents"]
    assert (counts["kept"], counts["quarantined"]) == (300, len(odd))


def test_source_whose_field_lists_no_files_is_refused_before_anything_runs(tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"files": {"a.py": "x"}, "name": "a"}\n' * 3)
    cause = r"sources.code.repository: rows.jsonl: field 'files' is struct<.*>, expected a list of objects with path, content"
    with pytest.raises(UserError, match=cause):
        runs.run_mixture(_mixture(tmp_path, f"{tmp_path}/rows.jsonl"), make_engine=runs.InProcess)


def test_file_with_no_text_is_left_out_and_any_path_stays():
    kind = pa.list_(pa.struct([("path", pa.string()), ("content", pa.binary())]))
    files = [("a", b"x"), (None, b"y"), ("../../etc/passwd", b"z"), ("a", b"x"), ("bin", b"\xff\x00"), ("none", None)]
    column = pa.array([[{"path": path, "content": content} for path, content in files], [], None], kind)
    made, num_left_out, bad = listed_files(column, _spec(license=None))
    assert (num_left_out, bad) == (2, {})
    assert texts_of_files(column, _spec(license=None)).to_pylist() == ["xyzx", "", ""]
    kept, *others = made.to_pylist()
    assert [(file["path"], file["text"]) for file in kept] == [("a", "x"), ("", "y"), ("../../etc/passwd", "z"), ("a", "x")]
    assert others == [[], []]


def test_hundred_thousand_files_in_a_record_are_documents_of_the_limit():
    rows = [("big", [(f"{number:06}.py", "x = 1\n", None) for number in range(100_000)])]
    spec = _spec(most_bytes=10_000)
    made = row_documents(_record(rows, np.array([4], np.uint64), spec), spec, has_members=False)
    assert max(map(len, made.column("text").to_pylist())) <= 10_010
    assert sum(len(json.loads(listed)) for listed in made.column("files").to_pylist()) == 100_000


ROWS = [
    {"name": "a/b", "files": [{"path": "b.py", "content": "b = 1"}, {"path": "a.py", "content": "a = 1\n" * 50}]},
    {"name": None, "files": [{"path": "c", "content": "é"}, {"path": "d", "content": None}]},
    {"name": "empty", "files": []},
    {"name": "none", "files": None},
    {"name": "lacking", "files": [{"path": "e", "content": None}]},
]


def _write(folder: Path, kind: str) -> str:
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
        return f"{folder}/rows.parquet"
    content = "".join(f"{json.dumps(row)}\n" for row in ROWS).encode()
    path = folder / f"rows.{kind}"
    path.write_bytes(gzip.compress(content) if kind.endswith("gz") else content)
    return str(path)


def _mixture(folder: Path, pattern: str, options: str = "max_bytes: 200", tail: str = "") -> Path:
    repository_runs.write_mixture(folder, folder)
    source = f"  code:\n    path: {pattern}\n    repository: {{files: files, name: name, {options}}}\n"
    path = f'tokenizer: {{path: {folder}/tokenizer.json, eos: "</s>"}}\npack: {{sequence_length: 64}}\n'
    return runs.write_mixture(folder, source, "", f"max_quarantined: 1\n{tail or path}")


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz"])
def test_run_makes_a_document_of_the_files_of_a_record(tmp_path: Path, kind: str):
    done = runs.run_mixture(_mixture(tmp_path, _write(tmp_path, kind)), make_engine=runs.InProcess)
    root = Root(str(done.mixture.output))
    outputs = [output for step in done.plan.of_kind("map", "code")[-1:] for output in step.outputs("documents")]
    batches = list(read_documents(root, outputs, TaskMetrics()))
    texts = [text for batch in batches for text in batch.texts.to_pylist()]
    assert texts == ["a/b\na.py\n" + "a = 1\n" * 50, "a/b\nb.py\nb = 1", "c\né"]
    counts = done.report["sources"]["code"]["documents"]
    assert (counts["read"], counts["kept"], counts["quarantined"]) == (6, 3, 3)
    assert done.plan.of_kind("map", "code")[0].totals.documents.counts["read:file_without_text"] == 2
    keys = [key for batch in batches for key in batch.keys.to_pylist()]
    locator = DocumentLocator(root, read_history(root), read_mixture(root))
    located = [locator.read(key) for key in keys]
    is_found = [original.batch is not None for original in located]
    assert is_found == [True, kind != "jsonl.gz", True]


def test_record_of_other_files_is_refused_before_anything_runs(tmp_path: Path):
    path = _mixture(tmp_path, _write(tmp_path, "parquet"))
    path.write_text(path.read_text().replace("files: files", "files: blobs"))
    with pytest.raises(UserError, match=r"sources.code.repository: none of the 5 records probed has the field 'blobs'"):
        runs.run_mixture(path, make_engine=runs.InProcess)
