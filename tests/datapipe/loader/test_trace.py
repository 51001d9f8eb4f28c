"""Trace agrees with what the loader hands out, forwards and backwards."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import SnapshotError, UserError
from datapipe.loader import Loader
from datapipe.loader.trace import find_document, trace_document, trace_step
from datapipe.shards.checksum import bytes_checksum
from datapipe.shards.manifest import read_snapshot
from datapipe.storage import Root
from tests.support import snapshots
from tests.support.snapshots import make_snapshot, source_path

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

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


@pytest.mark.medium
def test_trace_document_finds_every_step_it_appears_at(output: Path) -> None:
    appeared: dict[str, list[tuple[int, int, int, int]]] = {}
    for step in range(28):
        for row in trace_step(output, step, global_batch_size=7, world_size=3):
            appeared.setdefault(row.key, []).append((step, row.rank, row.row, row.piece))
    for key in sorted(appeared)[::5]:
        found = trace_document(output, key, global_batch_size=7, world_size=3, num_epochs=20)
        assert [(one.step, one.rank, one.row, one.piece) for one in found] == appeared[key]
    with pytest.raises(UserError, match="step 28 is not in this run"):
        trace_step(output, 28, global_batch_size=7)


def test_trace_document_finds_documents_of_the_validation_split(output: Path) -> None:
    row = trace_step(output, 1, global_batch_size=5, split="validation")[0]
    found = trace_document(output, row.key, global_batch_size=5, split="validation")
    assert (1, row.row, row.shard_row) in [(one.step, one.row, one.shard_row) for one in found]
    assert trace_document(output, row.key, global_batch_size=5) == []


@pytest.mark.parametrize("key", ["", "12", "not hex", "00" * 17])
def test_trace_document_of_no_key_is_refused(output: Path, key: str) -> None:
    with pytest.raises(UserError, match="expected SOURCE/PATH:POSITION"):
        trace_document(output, key, global_batch_size=5)


@pytest.mark.parametrize("content", [b"\xff", b"{}", b'{"model": ' + b"[" * 100_000])
def test_trace_step_with_a_tokenizer_that_is_none_says_so(content: bytes, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(snapshots, "TOKENIZER", bytes_checksum(content))
    output = make_snapshot(tmp_path / "out", {"code": 4})
    (output / "tokenizer.json").write_bytes(content)
    with pytest.raises(SnapshotError, match=r"tokenizer\.json: .*Expected a tokenizer\.json"):
        trace_step(output, 0, global_batch_size=2, text=True)


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


@pytest.mark.medium
def test_trace_document_of_a_state_is_every_step_that_it_counts(tmp_path: Path) -> None:
    """An endless run of many epochs with every kind of change."""
    folder = make_snapshot(tmp_path / "first", {"code": 6, "web": 11}, rows_per_shard=3)
    wider = make_snapshot(tmp_path / "wider", {"code": 6, "web": 11, "zeta": 4}, rows_per_shard=3)
    skipped = trace_step(folder, 0, global_batch_size=1)[0].key
    shard = [shard.path for shard in read_snapshot(Root(str(wider))).shards if shard.source == "web"][1]
    phases = [(S * 45, {"code": 1, "web": 2}), (None, {"code": 2, "web": 1})]
    changes: list[tuple[Path, int, dict[str, Any]]] = [
        (folder, 9, {"skip": [(2, 4), (7, 8)]}),
        (folder, 21, {"global_batch_size": 7, "mixture": phases, "skip": [(11, 13)]}),
        (wider, 34, {"global_batch_size": 4}),
        (wider, 47, {"global_batch_size": 4, "skip_documents": [skipped], "skip": [(40, 41)]}),
        (wider, 60, {"global_batch_size": 6, "skip_shards": [shard]}),
    ]
    batches, state = dict[int, dict[str, Any]](), None
    for output, stop, options in changes:
        loader = Loader(output, **{"global_batch_size": 5, "fields": (*FIELDS, "step"), "migrate": True, **options})
        if state is not None:
            loader.load_state_dict(state)
        while loader.step < stop:
            batch = next(loader)
            batches[batch["step"]] = batch
        state = loader.state_dict()
    assert sorted(batches) == [step for step in range(60) if step not in (2, 3, 7, 11, 12, 40)]
    read_at: dict[str, list[tuple[int, int, int]]] = {}
    for step, batch in sorted(batches.items()):
        for row, (first, stop) in enumerate(pairwise(batch["piece_offsets"].tolist())):
            for piece in range(first, stop):
                key = batch["document_keys"][piece].tobytes().hex()
                read_at.setdefault(key, []).append((step, row, piece - first))
    read_at.pop("0" * 32)  # the skipped document, where it is padding
    for key, expected in list(read_at.items())[::3]:
        found = trace_document(wider, key, state=state)
        assert [(one.step, one.row, one.piece) for one in found] == expected
    assert max(len({step for step, _, _ in steps}) for steps in read_at.values()) > 5


def test_find_document_says_what_was_searched(output: Path, tmp_path: Path) -> None:
    key = trace_step(output, 6, global_batch_size=7)[0].key
    endless = make_snapshot(tmp_path, {"code": 12, "web": 31})
    loader = Loader(output, global_batch_size=7, prefetch=0)
    start = loader.state_dict()
    loader.seek(6)
    state: dict[str, Any] = {"state": loader.state_dict()}
    for options, searched, is_found in (
        ({"state": start}, "nothing: the state is at step 0", False),
        (state, "the 6 steps that the state counts", False),
        ({**state, "num_epochs": 20}, "the first 20 epochs of its source", True),
        ({"global_batch_size": 7}, "all 28 steps of the run", True),
    ):
        found = find_document(output, key, **options)
        assert searched in found.searched
        assert (6 in [one.step for one in found.appearances]) == is_found
    assert "the run has no end" in find_document(endless, key, global_batch_size=7).searched


def test_find_document_of_a_batch_larger_than_memory_needs_no_array_of_it(tmp_path: Path) -> None:
    endless = make_snapshot(tmp_path, {"code": 12, "web": 31})
    first = trace_step(endless, 0, global_batch_size=7)
    for row in first:
        found = find_document(endless, row.key, global_batch_size=1 << 40).appearances
        assert (0, 0, row.row) in [(one.step, one.rank, one.row) for one in found]


def test_trace_knows_the_smaller_last_batch_that_a_state_counts(output: Path) -> None:
    loader = Loader(output, global_batch_size=7, fields=FIELDS, prefetch=0, drop_last=False)
    *_, last = loader
    assert (loader.step, len(last["input_ids"])) == (29, 4)
    state = loader.state_dict()
    assert [row.key for row in trace_step(output, 28, state=state)] == [key.tobytes().hex() for key in last["document_keys"]]
    for key in {key.tobytes().hex() for key in last["document_keys"]}:
        assert 28 in [one.step for one in trace_document(output, key, state=state)]
        assert 28 not in [one.step for one in trace_document(output, key, global_batch_size=7)]
