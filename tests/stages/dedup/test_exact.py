"""Exact duplicates: who meets whom, and who survives."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

from datapipe.documents import DocumentBatch
from stages.dedup.exact import TEXTS as SCHEMA
from stages.dedup.exact import Exact
from tests.meetings import batch_of, exchanged, meet_all, opened, place


def _opened(**options: object) -> Exact:
    return opened(Exact.model_validate(options), "dedup.exact")


def _dropped(stage: Exact, texts: list[str]) -> dict[int, int]:
    """Place of each dropped document -> place of its survivor."""
    drops = meet_all(stage, [batch_of(texts)])["drops"]
    assert set(drops.column("value").to_pylist()) <= {1.0}
    return {place(row["key"]): place(row["survivor"]) for row in drops.to_pylist()}


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
    (row,) = _opened().emit(batch_of(["Call me Ishmael."]))["texts"].to_pylist()
    assert (row["hash"], row["digest"]) == (8330280356703803081, 4889607254472707005)


def test_exact_half_a_hash_in_common_is_not_equal() -> None:
    stage = _opened()
    rows = stage.emit(batch_of(["a", "b", "a", "b", "c"]))["texts"]
    same_hash = rows.set_column(0, rows.schema.field("hash"), pa.array(np.full(5, 7, np.uint64)))
    drops = exchanged(stage, {"texts": [same_hash]})["drops"].to_pylist()
    assert {place(row["key"]): place(row["survivor"]) for row in drops} == {2: 0, 3: 1}


def test_exact_sizes_count_what_was_dropped_where_a_column_is_asked_for() -> None:
    sizes = meet_all(_opened(size_column="copies"), [batch_of(TEXTS)])["sizes"].to_pylist()
    assert sorted((place(row["key"]), row["size"]) for row in sizes) == [(0, 1), (3, 1), (4, 1)]
    assert meet_all(_opened(), [batch_of(TEXTS)])["sizes"].num_rows == 0


@pytest.mark.parametrize("normalize", ["none", "whitespace_case"])
def test_exact_split_batches_emit_the_same_rows(normalize: str) -> None:
    stage, batch = _opened(normalize=normalize), batch_of(TEXTS)
    parts = [stage.emit(batch.slice(start, stop))["texts"] for start, stop in ((0, 1), (1, 7), (7, 7), (7, len(TEXTS)))]
    whole = stage.emit(batch)["texts"]
    assert whole.schema == SCHEMA
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]))


def test_exact_batch_read_back_from_disk_emits_the_same_rows(tmp_path) -> None:
    stage, batch = _opened(), batch_of(TEXTS)
    with pa.ipc.new_file(str(tmp_path / "batch.arrow"), batch.record.schema) as writer:
        writer.write_batch(batch.record)
    mapped = pa.ipc.open_file(pa.memory_map(str(tmp_path / "batch.arrow"))).get_batch(0)
    assert stage.emit(DocumentBatch(mapped)) == stage.emit(batch)


def test_exact_pickled_stage_emits_the_same() -> None:
    stage = _opened(keep="random")
    again = opened(pickle.loads(pickle.dumps(stage)), "dedup.exact")
    assert again.emit(batch_of(TEXTS)) == stage.emit(batch_of(TEXTS))
