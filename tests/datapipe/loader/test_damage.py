"""Damaged and missing shards on a local disk: an error that names the shard, or replacement rows, equal on every rank."""

from __future__ import annotations

import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe.errors import CorruptionError
from datapipe.loader import Loader
from tests.support.loader_rows import assert_joined
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


def damage(output: Path, kind: str) -> tuple[str, range]:
    """Damages the third shard of web. Returns its path and the numbers of its rows."""
    path, rows = "shards/web/train-0000-00002.arrow", range(31 + 2 * 7, 31 + 3 * 7)
    content = bytearray((output / path).read_bytes())
    if kind == "flipped":
        content[content.index((rows[1] * S + 6).to_bytes(4, "little"))] ^= 1  # a token of its second row
    (output / path).write_bytes(content[:-100] if kind == "truncated" else content)
    if kind == "missing":
        (output / path).unlink()
    return path, rows


def numbers(batch: dict[str, Any]) -> np.ndarray:
    """The number of each row in its snapshot."""
    return (batch["input_ids"][:, 0] - 1) // S


@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damage_is_a_named_error(sound: Path, output: Path, kind: str) -> None:
    path, rows = damage(output, kind)
    reference, loader = Loader(sound, global_batch_size=5), Loader(output, global_batch_size=5)
    hit = [step for step in STEPS if np.isin(numbers(reference.batch(step)), rows).any()]
    assert len(hit) > 3
    for step in STEPS:
        with pytest.raises(CorruptionError, match=path) if step in hit else nullcontext():
            loader.batch(step)
    with pytest.raises(CorruptionError, match=path):
        list(zip(STEPS, loader))


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["flipped", "truncated", "missing"])
def test_damaged_rows_are_replaced_alike_on_every_rank_and_after_any_resume(sound: Path, output: Path, kind: str) -> None:
    path, rows = damage(output, kind)
    options: dict[str, Any] = {"global_batch_size": 5, "fields": ("input_ids", "sources"), "on_corrupt": "replace"}
    reference, whole = Loader(sound, **options), Loader(output, **options)
    with pytest.warns(UserWarning, match=path) as warned:
        batches = [whole.batch(step) for step in STEPS]
    assert len(warned) == 1
    for step, batch in zip(STEPS, batches):
        expected = reference.batch(step)
        kept = ~np.isin(numbers(expected), rows)
        np.testing.assert_array_equal(batch["input_ids"][kept], expected["input_ids"][kept])
        np.testing.assert_array_equal(batch["sources"], expected["sources"])
        assert not np.isin(numbers(batch), rows).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for step in STEPS[::-7]:
            ranks = [Loader(output, rank=rank, world_size=3, **options) for rank in range(3)]
            assert_joined([rank.batch(step) for rank in ranks], batches[step], ["input_ids"])


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
