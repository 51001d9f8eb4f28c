"""Labels, weights and counts of targets where a source has tokens that no loss counts, against plain Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader
from datapipe.loader.share import Mesh
from datapipe.shards.loss_mask import learned_of, runs_of
from tests.oracles import batch as oracle
from tests.support.snapshots import is_learned, make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
FIELDS = ("input_ids", "labels", "loss_weights", "sources", "piece_lengths", "piece_offsets", "global_target_tokens")


@pytest.fixture(scope="module", params=["arrow", "parquet"])
def output(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a masked source and a plain one."""
    folder = tmp_path_factory.mktemp("snapshot")
    return make_snapshot(folder, {"chat": 61, "web": 53}, sequence_length=S, shard_format=request.param, masked=["chat"])


def expected_labels(batch: dict[str, Any], labels: str) -> list[list[int]]:
    made = []
    for row, lengths in enumerate(np.split(batch["piece_lengths"], batch["piece_offsets"][1:-1])):
        tokens = batch["input_ids"][row].tolist()
        targets = getattr(oracle, f"{labels}_labels")(tokens, lengths.tolist())
        is_masked = batch["sources"][row] == 0
        made.append([oracle.IGNORED if is_masked and not is_learned(np.array(each)) else each for each in targets])
    return made


@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_labels_leave_out_what_no_loss_counts(output: Path, labels: Any, dtype: str) -> None:
    loader = Loader(output, global_batch_size=9, labels=labels, fields=FIELDS, dtype=dtype)
    num_ignored = 0
    for step in range(14):
        batch = loader.batch(step)
        expected = expected_labels(batch, labels)
        assert batch["labels"].tolist() == expected
        assert batch["loss_weights"].dtype == np.float32
        assert batch["loss_weights"].tolist() == [[float(each != oracle.IGNORED) for each in row] for row in expected]
        counted = [row if labels == "shifted" else row[1:] for row in expected]
        assert batch["global_target_tokens"] == sum(each != oracle.IGNORED for row in counted for each in row)
        num_ignored += sum(each == oracle.IGNORED for row in expected for each in row)
    assert num_ignored > 300


@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
def test_counts_of_ranks_and_of_left_out_documents_are_those_of_the_labels(output: Path, labels: Any) -> None:
    options: dict[str, Any] = {"global_batch_size": 9, "labels": labels, "fields": (*FIELDS, "document_keys")}
    ranks = [Loader(output, rank=rank, world_size=2, **options) for rank in range(2)]
    for step in range(6):
        parts = [rank.batch(step) for rank in ranks]
        rows = np.concatenate([part["labels"] for part in parts])
        counted = rows if labels == "shifted" else rows[:, 1:]
        assert {part["global_target_tokens"] for part in parts} == {int((counted != oracle.IGNORED).sum())}
    keys = Loader(output, **options).batch(0)["document_keys"]
    left_out = tuple(key.tobytes().hex() for key in keys[::2])
    batch = Loader(output, skip_documents=left_out, **options).batch(0)
    assert (batch["input_ids"] == 0).sum() > len(keys) / 2
    counted = batch["labels"] if labels == "shifted" else batch["labels"][:, 1:]
    assert batch["global_target_tokens"] == int((counted != oracle.IGNORED).sum())


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_ranks_of_a_context_group_have_their_tokens_of_the_labels(output: Path, layout: Any) -> None:
    fields = ("labels", "loss_weights")
    whole = Loader(output, global_batch_size=9, fields=fields).batch(2)
    for rank in range(2):
        mesh = Mesh(data_rank=0, data_size=1, context_rank=rank, context_size=2, layout=layout)
        part = Loader(output, global_batch_size=9, mesh=mesh, fields=fields).batch(2)
        for field in fields:
            np.testing.assert_array_equal(part[field], whole[field][:, mesh.columns(S)])


def test_prefetched_batches_equal_those_built_alone(output: Path) -> None:
    loader = Loader(output, global_batch_size=9, fields=FIELDS, prefetch=8)
    for step, batch in zip(range(12), loader):
        for field, value in loader.batch(step).items():
            np.testing.assert_array_equal(batch[field], value, err_msg=field)


def test_damaged_borders_are_found_and_named(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path / "out", {"chat": 20}, sequence_length=S, masked=["chat"])
    shard = next(output.rglob("train-*.arrow"))
    content = bytearray(shard.read_bytes())
    batch = pa.ipc.open_file(pa.BufferReader(bytes(content))).get_batch(0)
    borders = np.asarray(batch.column("unlearned").values, np.int32).tobytes()
    place = content.find(borders)
    assert place > 0 and content.count(borders) == 1
    content[place] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptionError, match=f"{shard.name}.*damaged"):
        Loader(output, global_batch_size=20).batch(0)


def test_runs_and_what_is_learned_are_two_forms_of_one_mask() -> None:
    rng = np.random.default_rng(3)
    for length in (1, 2, 16):
        learned = rng.integers(0, 2, 40 * length) > 0
        ends, runs = runs_of(learned, np.arange(41) * length)
        lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(runs, pa.int32()))
        tokens = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(40 * length, np.uint16)), length)
        rows = pa.record_batch({"tokens": tokens, "unlearned": lists})
        assert learned_of(rows).tolist() == learned.tolist()
        assert learned_of(rows.slice(7)).tolist() == learned[7 * length :].tolist()
        for start, stop, values in zip(ends, ends[1:], np.split(learned, 40)):
            borders = runs[start:stop].reshape(-1, 2)
            assert (borders[:, 0] < borders[:, 1]).all() and (borders[1:, 0] > borders[:-1, 1]).all()
            assert int((borders[:, 1] - borders[:, 0]).sum()) == int((~values).sum())


def test_snapshot_of_plain_sources_has_no_column_for_the_mask(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path / "out", {"web": 20}, sequence_length=S)
    assert all("unlearned" not in pa.ipc.open_file(path).schema.names for path in output.rglob("*.arrow"))
