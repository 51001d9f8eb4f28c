"""Trace agrees with what the loader hands out, forwards and backwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.trace import trace_document, trace_step
from tests.support.snapshots import make_snapshot, source_path

S = 16
FIELDS = ("input_ids", "sources", "piece_offsets", "piece_lengths", "piece_starts", "document_keys")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, phases = tmp_path_factory.mktemp("snapshot"), [(S * 60, {"code": 1, "web": 3}), (None, {"code": 2, "web": 1})]
    return make_snapshot(folder, {"code": 12, "web": 31}, phases=phases, validation={"web": 7}, total_tokens=S * 200)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_trace_step_names_the_pieces_of_every_rank(output: Path, split: str) -> None:
    for rank in range(3):
        loader = Loader(output, split=split, global_batch_size=7, rank=rank, world_size=3, fields=FIELDS)
        batch = loader.batch(0)
        rows = trace_step(output, 0, global_batch_size=7, rank=rank, world_size=3, split=split)
        assert [row.key for row in rows] == [key.tobytes().hex() for key in batch["document_keys"]]
        assert [row.token_start for row in rows] == batch["piece_starts"].tolist()
        assert [row.num_tokens for row in rows] == batch["piece_lengths"].tolist()
        for row in rows:
            assert (row.rank, row.source) == (rank, loader.sources[batch["sources"][row.row]])
            assert row.path == source_path(row.source)
            assert row.shard.startswith(f"shards/{row.source}/{split}")
            if row.token_start == 0:
                at = sum(other.num_tokens for other in rows if other.row == row.row and other.piece < row.piece)
                assert row.position + 1 == batch["input_ids"][row.row, at]


def test_trace_step_all_ranks_are_the_global_batch(output: Path) -> None:
    whole = trace_step(output, 5, global_batch_size=7, world_size=4)
    single = trace_step(output, 5, global_batch_size=7)
    assert [row.key for row in whole] == [row.key for row in single]
    assert {row.rank for row in whole} == {0, 1, 2, 3}


def test_trace_document_finds_every_step_it_appears_at(output: Path) -> None:
    appeared: dict[str, list[tuple[int, int, int, int]]] = {}
    num_steps = Loader(output, global_batch_size=7).num_steps
    assert num_steps == 28
    for step in range(num_steps):
        for row in trace_step(output, step, global_batch_size=7, world_size=3):
            appeared.setdefault(row.key, []).append((step, row.rank, row.row, row.piece))
    for key in sorted(appeared)[::7]:
        found = trace_document(output, key, global_batch_size=7, world_size=3, num_epochs=20)
        assert [(one.step, one.rank, one.row, one.piece) for one in found] == appeared[key]


def test_trace_document_split_over_rows_has_all_its_pieces(output: Path) -> None:
    rows = [row for step in range(6) for row in trace_step(output, step, global_batch_size=7)]
    goes_on = next(row for row in rows if row.token_start > 0)
    found = trace_document(output, goes_on.key, global_batch_size=7, num_epochs=1)
    assert sorted(one.token_start for one in found) == [0, goes_on.token_start]
    assert {one.epoch for one in found} == {0}


def test_trace_document_finds_documents_of_the_validation_split(output: Path) -> None:
    row = trace_step(output, 1, global_batch_size=5, split="validation")[0]
    found = trace_document(output, row.key, global_batch_size=5, split="validation")
    assert (1, row.row, row.shard_row) in [(one.step, one.row, one.shard_row) for one in found]
    assert trace_document(output, row.key, global_batch_size=5) == []


@pytest.mark.parametrize("key", ["", "12", "not hex", "00" * 17])
def test_trace_document_of_no_key_is_refused(output: Path, key: str) -> None:
    with pytest.raises(UserError, match="expected SOURCE/PATH:POSITION"):
        trace_document(output, key, global_batch_size=5)


def test_trace_step_past_the_end_is_refused(output: Path) -> None:
    with pytest.raises(UserError, match="step 28 is not in this run"):
        trace_step(output, 28, global_batch_size=7)


def test_trace_refuses_the_state_of_another_output(output: Path, tmp_path: Path) -> None:
    other = make_snapshot(tmp_path, {"code": 13, "web": 31})
    with pytest.raises(SnapshotError, match="of another snapshot: source 'code' holds other rows"):
        trace_step(output, 3, state=Loader(other, global_batch_size=7).state_dict())


def test_trace_document_of_rows_in_another_output_names_its_snapshot(tmp_path: Path) -> None:
    both = make_snapshot(tmp_path / "both", {"code": 12, "web": 31})
    one = make_snapshot(tmp_path / "one", {"code": 12})
    before = Loader(both, global_batch_size=5, prefetch=0)
    before.seek(4)
    after = Loader(one, global_batch_size=5, prefetch=0, migrate=True)
    after.load_state_dict(before.state_dict())
    state = after.state_dict()
    key = next(row.key for row in trace_step(both, 1, global_batch_size=5) if row.source == "web")
    with pytest.raises(SnapshotError, match="steps 0 to 3 drew 'web' from snapshot"):
        trace_document(one, key, state=state)
    assert trace_document(one, key, state=state, strict=False) == []
    kept = next(row.key for row in trace_step(both, 1, global_batch_size=5) if row.source == "code")
    assert 1 in [found.step for found in trace_document(one, kept, state=state)]
