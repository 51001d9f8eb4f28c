"""Exact duplicates: who meets whom, and who survives."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.clusters import cluster_verdicts
from datapipe.documents import DocumentBatch
from datapipe.stage import EDGE_SCHEMA, StageContext
from stages.dedup.exact import Exact


def _batch(texts: list[str]) -> DocumentBatch:
    keys = columns.make_keys(1, np.arange(len(texts), dtype=np.uint64))
    ids = pa.array([str(number) for number in range(len(texts))], pa.large_string())
    return DocumentBatch(pa.record_batch({"key": keys, "id": ids, "text": pa.array(texts, pa.large_string())}))


def _opened(**options: object) -> Exact:
    stage = Exact.model_validate(options)
    stage.open(StageContext(name="dedup.exact", seed=1))
    return stage


def _sorted(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.take(pa.array(np.lexsort((*reversed(columns.key_halves(rows.column("key"))), rows.column("hash").to_numpy()))))


def _place(key: bytes) -> int:
    return int.from_bytes(key[8:], "big")


def _dropped(stage: Exact, texts: list[str]) -> dict[int, int]:
    """Place of each dropped document -> place of its survivor."""
    edges = stage.reduce(_sorted(stage.emit(_batch(texts))))
    assert edges.schema == EDGE_SCHEMA
    verdicts = cluster_verdicts(edges)
    stars = {row["other"]: row["key"] for row in edges.to_pylist()}
    assert stars == {row["key"]: row["survivor"] for row in verdicts.to_pylist()}
    assert set(edges.column("value").to_pylist()) <= {1.0}
    return {_place(row["key"]): _place(row["survivor"]) for row in verdicts.to_pylist()}


TEXTS = ["a b", "A  b", "a b", "", "x", "", " a\u00a0B\n", "a b ", "x", "\u3000", "STRASSE", "é", "É"]


def test_exact_equal_bytes_keep_the_first() -> None:
    assert _dropped(_opened(), TEXTS) == {2: 0, 5: 3, 8: 4}


def test_exact_whitespace_case_also_joins_those() -> None:
    assert _dropped(_opened(normalize="whitespace_case"), TEXTS) == {1: 0, 2: 0, 6: 0, 7: 0, 5: 3, 8: 4, 9: 3, 12: 11}


def test_exact_keep_longest_and_shortest_count_bytes_then_places() -> None:
    texts = ["a b", "a  b", " a b ", "A b ", "a  B"]
    assert _dropped(_opened(normalize="whitespace_case", keep="longest"), texts) == {0: 2, 1: 2, 3: 2, 4: 2}
    assert _dropped(_opened(normalize="whitespace_case", keep="shortest"), texts) == {1: 0, 2: 0, 3: 0, 4: 0}
    assert _dropped(_opened(normalize="whitespace_case", keep="longest"), texts[:2] + texts[4:]) == {0: 1, 2: 1}


def test_exact_keep_random_is_even_over_documents_and_fixed_by_seed() -> None:
    texts = [str(number // 4) for number in range(800)]
    dropped = _dropped(_opened(keep="random"), texts)
    assert dropped == _dropped(_opened(keep="random"), texts)
    counts = np.bincount([place % 4 for place in set(range(800)) - set(dropped)], minlength=4)
    assert counts.sum() == 200
    assert counts.min() > 25


def test_exact_hashes_of_a_text_are_pinned() -> None:
    """Changing these hashes makes every earlier run's rows worthless: a breaking change."""
    (row,) = _opened().emit(_batch(["Call me Ishmael."])).to_pylist()
    assert (row["hash"], row["digest"]) == (8330280356703803081, 4889607254472707005)


def test_exact_half_a_hash_in_common_is_not_equal() -> None:
    stage = _opened()
    rows = stage.emit(_batch(["a", "b", "a", "b", "c"]))
    same_hash = rows.set_column(0, rows.schema.field("hash"), pa.array(np.full(5, 7, np.uint64)))
    edges = stage.reduce(same_hash)
    assert [(_place(row["key"]), _place(row["other"])) for row in edges.to_pylist()] in ([(0, 2), (1, 3)], [(1, 3), (0, 2)])


@pytest.mark.parametrize("normalize", ["none", "whitespace_case"])
def test_exact_split_batches_emit_the_same_rows(normalize: str) -> None:
    stage, batch = _opened(normalize=normalize), _batch(TEXTS)
    parts = [stage.emit(batch.slice(start, stop)) for start, stop in ((0, 1), (1, 7), (7, 7), (7, len(TEXTS)))]
    whole = stage.emit(batch)
    assert whole.schema == stage.emit_schema()
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]))


def test_exact_batch_read_back_from_disk_emits_the_same_rows(tmp_path) -> None:
    stage, batch = _opened(), _batch(TEXTS)
    with pa.ipc.new_file(str(tmp_path / "batch.arrow"), batch.record.schema) as writer:
        writer.write_batch(batch.record)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "batch.arrow"))).get_batch(0)
    assert stage.emit(DocumentBatch(mapped)).equals(stage.emit(batch))


def test_exact_no_documents_emit_and_reduce_to_nothing() -> None:
    stage = _opened()
    rows = stage.emit(_batch([]))
    assert rows.num_rows == 0
    assert stage.reduce(rows).num_rows == 0


def test_exact_pickled_stage_emits_the_same() -> None:
    stage = _opened(keep="random")
    again = pickle.loads(pickle.dumps(stage))
    again.open(StageContext(name="dedup.exact", seed=1))
    assert again.emit(_batch(TEXTS)).equals(stage.emit(_batch(TEXTS)))
