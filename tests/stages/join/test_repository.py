"""join.repository: files become the documents that plain Python makes of them, whatever the batches, buckets and slices."""

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipe.columns import key_halves, make_keys
from datapipe.errors import UserError
from datapipe.exchange.files import sorted_rows
from datapipe.rng import keyed_hash, seed_for
from datapipe.stage.documents import DocumentBatch
from datapipe.stage.licenses import named
from datapipe.stage.tables import CONTENTS
from stages.join.repository import Repository
from tests.oracles.repositories import File, documents
from tests.support.global_stages import opened, reduce_all

_TEXT = pa.large_string()
SEPARATORS = [("<repo_name>", "<file_sep>"), ("<|repo_name|>", "<|file_sep|>"), ("", "<|file_separator|>"), ()]

names = st.sampled_from(["", "a/b", "a/c", "é", "n\n"])
paths = st.sampled_from(["", "a.py", "a/b.py", "a-b/c", "../x", "b/é.py", "b/" + "deep/" * 60 + "x", "a.py\n"])
texts = st.sampled_from(["", "x", "x\n", "é漢字", "<file_sep>a\n", "\n", "y" * 40])
licenses = st.sampled_from(["", "MIT", "isc", '["mit", "BSD-2-Clause"]'])
files = st.lists(st.tuples(names, paths, texts, licenses), max_size=40)


def batch_of(listed: Sequence[File]) -> DocumentBatch:
    columns = {"repo": "repository", "path": "path", "text": "text", "license": "license"}
    arrays = {column: pa.array([getattr(file, field) for file in listed], _TEXT) for column, field in columns.items()}
    keys = pa.array([file.key for file in listed], pa.binary(16))
    return DocumentBatch(pa.record_batch({"key": keys, "id": pa.array([file.key.hex() for file in listed], _TEXT), **arrays}))


def files_of(rows: Sequence[tuple[str, str, str, str]]) -> list[File]:
    """Files of two input files, with the ranks that the stage gives them at seed 1."""
    numbers = np.arange(len(rows), dtype=np.uint64)
    keys = make_keys(np.where(numbers % 2, 3, 7).astype(np.uint64), numbers)
    ranks = keyed_hash(key_halves(keys), seed_for(1, "stage", "order")).tolist()
    return [File(key, *row, rank) for key, row, rank in zip(keys.to_pylist(), rows, ranks)]


@given(
    files,
    st.sampled_from(["path", "random", "given"]),
    st.sampled_from(SEPARATORS),
    st.integers(1, 200),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 7),
)
def test_documents_are_those_of_plain_python(rows, order, separators, max_bytes, batch_files, num_buckets, slice_rows):
    listed = files_of(rows)
    stage = opened(Repository(group_by="repo", license="license", order=order, separators=separators, max_bytes=max_bytes))
    batches = [batch_of(listed[start : start + batch_files]) for start in range(0, len(listed), batch_files)]
    made = reduce_all(stage, batches, num_buckets=num_buckets, chunk_rows=slice_rows)
    expected = {document.key: document for document in documents(listed, order, max_bytes, separators)}
    contents = {row["key"]: row for row in made[CONTENTS].to_pylist()}
    assert contents.keys() == expected.keys()
    for key, document in expected.items():
        row, (first, *_) = contents[key], document.files
        assert row["text"] == document.text
        assert row.get("segments", []) == document.segments
        assert row["id"] == (first.repository or first.key.hex())
        assert json.loads(row["files"]) == [file.path for file in document.files]
        assert row["license"] == merged([file.license for file in document.files])
    survivors = {file.key: document.key for document in expected.values() for file in document.files[1:]}
    assert {row["key"]: row["survivor"] for row in made["drops"].to_pylist()} == survivors


def merged(of_files: Sequence[str]) -> str | None:
    listed = {each for text in of_files for each in (json.loads(text) if text.startswith("[") else [text])}
    found = sorted(listed - {""})
    found += ["LicenseRef-unknown"] if found and "" in listed else []
    return json.dumps(found) if len(found) > 1 else found[0] if found else None


def test_license_of_a_document_needs_those_of_all_files():
    assert named(merged(["MIT", "isc"])) == "MIT AND ISC"
    assert named(merged(["MIT", ""])) == "MIT AND LicenseRef-unknown"


def test_repositories_of_one_hash_stay_apart(monkeypatch: pytest.MonkeyPatch):
    """Hashes of 64 bits collide in a corpus of billions: the second hash keeps the repositories apart."""
    listed = files_of([("a", "x", "1", ""), ("b", "x", "2", ""), ("a", "y", "3", "")])
    stage = opened(Repository(group_by="repo"))
    batch = batch_of(listed)
    rows = stage.emit(batch)["files"]
    equal = rows.set_column(0, rows.schema.field(0), pa.array([5, 5, 5], pa.uint64()))
    monkeypatch.setattr(Repository, "emit", lambda *_: {"files": equal})
    assert sorted(row["text"] for row in reduce_all(stage, [batch])[CONTENTS].to_pylist()) == ["#x\n1\n#y\n3", "#x\n2"]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"size_column": "size"}, "`size_column` is for duplicates"),
        ({"cluster_column": "cluster"}, "`cluster_column` is for duplicates"),
        ({"against": ["runs/a"]}, "`against` is for duplicates"),
        ({"max_dropped": 0.5}, "`max_dropped` is for duplicates"),
        ({"on_excess": "warn"}, "`on_excess` is for duplicates"),
        ({"scope": "run"}, "scope: found run, expected source"),
        ({"separators": ["<a>"]}, "expected two control tokens"),
        ({"separators": ["<a>", ""]}, "expected two control tokens"),
        ({"separators": ["", ""]}, "expected two control tokens"),
    ],
)
def test_options_that_it_cannot_have_are_refused(options, cause):
    with pytest.raises(ValueError, match=cause):
        Repository(group_by="repo", **options)


def test_columns_that_are_no_text_are_refused():
    batch = DocumentBatch(batch_of(files_of([("a", "x", "1", "")])).record.append_column("list", pa.array([[1]])))
    with pytest.raises(UserError, match=r"column 'list' is list<.*>, expected text"):
        opened(Repository(group_by="list")).emit(batch)


@pytest.mark.parametrize("order", ["path", "random", "given"])
def test_large_repository_comes_out_document_by_document_as_its_rows_come_in(order):
    listed = files_of([("a", f"{number % 97:03}.py", "x" * 90, "") for number in range(2000)])
    stage = opened(Repository(group_by="repo", order=order, max_bytes=1000))
    rows = sorted_rows(pa.Table.from_batches([stage.emit(batch_of(listed))["files"]]))
    given = 0

    def slices():
        nonlocal given
        for start in range(0, rows.num_rows, 50):
            given = start + 50
            yield rows.slice(start, 50)

    num_made = 0
    for tables in stage.reduce_slices("join", slices()):
        num_made += sum(table.num_rows for table in tables.values())  # each file is a document's first, or a drop
        assert given - num_made <= 10  # one document
    assert num_made == len(listed)
