"""The fields of a batch, against plain Python over the same pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.loader import Loader
from datapipe.loader.field_table import FIELDS
from datapipe.loader.share import Mesh
from tests.oracles import batch as oracle
from tests.support.snapshots import make_snapshot, source_hash

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
PIECES = ("piece_offsets", "piece_lengths", "piece_starts", "document_keys")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("snapshot"), {"code": 31, "web": 83}, weights={"code": 1, "web": 2})


def lengths_of(batch: dict[str, np.ndarray]) -> list[list[int]]:
    """The lengths of the pieces of each row."""
    return [row.tolist() for row in np.split(batch["piece_lengths"], batch["piece_offsets"][1:-1])]


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_fields_equal_their_oracles(output: Path, dtype: str) -> None:
    options: dict[str, Any] = {"global_batch_size": 9, "fields": tuple(FIELDS), "dtype": dtype}
    loader, unshifted = (Loader(output, labels=kind, **options) for kind in ("shifted", "unshifted"))
    assert loader.sources == ("code", "web")
    for step in range(12):
        batch = loader.batch(step)
        assert (batch["step"], batch["input_ids"].dtype, batch["labels"].dtype) == (step, dtype, dtype)
        assert batch["sources"].tolist() == (batch["input_ids"][:, 0] // S >= 31).tolist()
        for row, lengths in enumerate(lengths_of(batch)):
            tokens = batch["input_ids"][row].tolist()
            assert batch["labels"][row].tolist() == oracle.shifted_labels(tokens, lengths)
            assert unshifted.batch(step)["labels"][row].tolist() == oracle.unshifted_labels(tokens, lengths)
            assert batch["position_ids"][row].tolist() == oracle.positions(lengths, S)
            assert batch["segment_ids"][row].tolist() == oracle.segments(lengths, S)
        expected = oracle.borders(lengths_of(batch), S)
        assert (batch["cu_seqlens"].tolist(), batch["cu_seqlens"].dtype) == (expected, np.int32)
        assert batch["max_seqlen"] == max(np.diff(expected))
        assert type(batch["max_seqlen"]) is int


def test_pieces_name_the_documents_of_their_rows(output: Path) -> None:
    batch = Loader(output, global_batch_size=9, fields=("input_ids", "sources", *PIECES)).batch(4)
    for row, source in enumerate(batch["sources"].tolist()):
        at = 0
        for piece in range(batch["piece_offsets"][row], batch["piece_offsets"][row + 1]):
            key = batch["document_keys"][piece].tobytes()
            assert int.from_bytes(key[:8], "big") == source_hash(("code", "web")[source])
            if batch["piece_starts"][piece] == 0:
                assert int.from_bytes(key[8:], "big") + 1 == batch["input_ids"][row, at]
            at += batch["piece_lengths"][piece]


def test_rank_without_rows_gets_empty_arrays(output: Path) -> None:
    batch = Loader(output, global_batch_size=2, rank=0, world_size=3, fields=tuple(FIELDS)).batch(0)
    assert batch["input_ids"].shape == batch["labels"].shape == batch["position_ids"].shape == (0, S)
    assert batch["cu_seqlens"].tolist() == batch["piece_offsets"].tolist() == [0]
    assert batch["document_keys"].shape == (0, 16)
    assert batch["max_seqlen"] == 0


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_ranks_of_a_context_group_share_the_tokens_of_identical_rows(output: Path, layout: Any) -> None:
    fields = ("input_ids", "labels", "position_ids", "segment_ids", "document_keys")
    whole = Loader(output, global_batch_size=9, rank=1, world_size=2, fields=fields).batch(3)
    meshes = [Mesh(data_rank=1, data_size=2, context_rank=rank, context_size=2, layout=layout) for rank in range(2)]
    parts = [Loader(output, global_batch_size=9, mesh=mesh, fields=fields).batch(3) for mesh in meshes]
    for field in fields[:-1]:
        joined = np.empty_like(whole[field])
        for mesh, part in zip(meshes, parts):
            joined[:, mesh.columns(16)] = part[field]
        np.testing.assert_array_equal(joined, whole[field])
    assert all((part["document_keys"] == whole["document_keys"]).all() for part in parts)


def test_batches_built_ahead_equal_those_built_alone_and_nothing_overlaps(output: Path) -> None:
    loader = Loader(output, global_batch_size=9, fields=tuple(FIELDS), prefetch=16)
    together = [batch for _, batch in zip(range(20), loader)]
    for step, batch in enumerate(together):
        alone = loader.batch(step)
        for field, value in batch.items():
            np.testing.assert_array_equal(value, alone[field], err_msg=field)
    arrays = [value for batch in together for value in batch.values() if isinstance(value, np.ndarray)]
    assert not any(np.shares_memory(one, other) for at, one in enumerate(arrays) for other in arrays[:at])


def test_batches_that_are_kept_are_never_written_to_again(output: Path) -> None:
    # 1,200 rows of 16 tokens are 150 KiB: large enough for the memory of batches to be used again
    batches = iter(Loader(output, global_batch_size=1200, fields=("input_ids", "labels")))
    kept = [next(batches) for _ in range(3)]
    then = [{field: value.copy() for field, value in batch.items()} for batch in kept]
    for _ in range(20):
        next(batches)["input_ids"][:] = -7
    for batch, before in zip(kept, then):
        for field, value in before.items():
            np.testing.assert_array_equal(batch[field], value)
