"""Damaged and missing shards on a local disk: an error that names the shard, or replacement rows, equal on every rank."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader
from tests.support.snapshots import make_snapshot

pytestmark = pytest.mark.filterwarnings("ignore::datapipe.loader.share.RaggedRanksWarning")

S = 16
STEPS = range(30)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_snapshot(tmp_path_factory.mktemp("sound"), {"code": 31, "web": 83}, vocab_size=1 << 20)


@pytest.fixture
def output(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "copy")
    return tmp_path / "copy"


def damage(output: Path, kind: str) -> tuple[str, int, int]:
    """Damages the third shard of web. Returns its path and the addresses of its rows."""
    loader = Loader(output, batch_size=1)
    number = loader.batch_order.layout.source_shards[1] + 2
    entry, starts = loader.batch_order.layout.shards[number], loader.batch_order.layout.shard_starts
    path = output / entry.path
    content = bytearray(path.read_bytes())
    if kind == "flipped":
        at = content.index(int(starts[number] * S + S + 5).to_bytes(4, "little"))  # a token of its second row
        content[at] ^= 1
        path.write_bytes(content)
    elif kind == "truncated":
        path.write_bytes(content[:-100])
    else:
        path.unlink()
    return entry.path, int(starts[number]), int(starts[number + 1])


@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damage_is_a_named_error(output: Path, kind: str) -> None:
    path, first, stop = damage(output, kind)
    loader = Loader(output, global_batch_size=5)
    met = 0
    for step in STEPS:
        addresses = loader.batch_order.locate(loader.batch_order.samples(step))
        if ((addresses >= first) & (addresses < stop)).any():
            met += 1
            with pytest.raises(CorruptionError, match=path):
                loader.batch(step)
        else:
            loader.batch(step)
    assert met > 3
    with pytest.raises(CorruptionError, match=path):
        list(zip(STEPS, loader))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damaged_rows_are_replaced_alike_on_every_rank_and_after_any_resume(sound: Path, output: Path, kind: str) -> None:
    path, first, stop = damage(output, kind)
    fields = ("input_ids", "sources")
    reference = Loader(sound, global_batch_size=5, fields=fields)
    whole = Loader(output, global_batch_size=5, fields=fields, on_corrupt="replace")
    with pytest.warns(UserWarning, match=path) as warned:
        batches = [whole.batch(step) for step in STEPS]
    assert len(warned) == 1
    for step, batch in zip(STEPS, batches):
        addresses = reference.batch_order.locate(reference.batch_order.samples(step))
        hit = (addresses >= first) & (addresses < stop)
        expected = reference.batch(step)
        np.testing.assert_array_equal(batch["input_ids"][~hit], expected["input_ids"][~hit])
        np.testing.assert_array_equal(batch["sources"], expected["sources"])
        rows = (batch["input_ids"][hit, 0] - 1) // S
        assert ((rows < first) | (rows >= stop)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for step in reversed(STEPS):
            ranks = [
                Loader(output, global_batch_size=5, fields=fields, rank=rank, world_size=3, on_corrupt="replace")
                for rank in range(3)
            ]
            rows = np.concatenate([rank.batch(step)["input_ids"] for rank in ranks])
            np.testing.assert_array_equal(rows, batches[step]["input_ids"])


def test_unchecked_reading_is_what_was_asked_for(output: Path) -> None:
    damage(output, "flipped")
    loader = Loader(output, global_batch_size=5, check=False)
    for step in STEPS:
        loader.batch(step)


def test_damage_to_the_rows_of_a_batch_is_a_named_error(tmp_path: Path) -> None:
    output = make_snapshot(tmp_path, {"web": 1}, rows_per_shard=1)
    path = next(output.glob("shards/web/*.arrow"))
    content, one_row = path.read_bytes(), b"\1\0\0\x001\0\0\0"  # the metadata "1", as Arrow writes a string
    assert one_row in content
    path.write_bytes(content.replace(one_row, one_row.replace(b"1", b"0")))
    with pytest.raises(CorruptionError, match="are not those of a shard"):
        Loader(output, global_batch_size=1, check=False).batch(0)
