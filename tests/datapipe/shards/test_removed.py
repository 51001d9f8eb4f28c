"""The list of documents that were taken down: what it holds after each takedown, and which keys it finds."""

from __future__ import annotations

import numpy as np
import pytest

from datapipe.errors import CorruptionError, SnapshotError
from datapipe.ledger.names import REMOVED
from datapipe.shards.manifest import SNAPSHOT, read_snapshot
from datapipe.shards.removed import Removed, RemovedAtSteps, read_removed, removed_entry
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import packed_shards


def _keys(count: int, seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    ends = [b"\0" * 8, b"\0" * 7 + b"\1", b"\xff" * 8]  # zeros at the end, which NumPy leaves out of a bytes object
    return [rng.bytes(8) + (ends[number] if number < len(ends) else rng.bytes(8)) for number in range(count)]


def _matrix(keys: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16)


@pytest.mark.parametrize("seed", range(4))
def test_a_list_finds_its_keys_and_no_others(seed):
    inside, outside = _keys(300, seed), _keys(300, seed + 100)
    removed = Removed.none().with_takedown(inside[:100]).with_takedown(inside[50:])
    asked = [*inside, *outside, inside[0][:8] + outside[5][8:]]
    assert removed.holds(_matrix(asked)).tolist() == [True] * 300 + [False] * 301
    assert not Removed.none().holds(_matrix(asked)).any()
    assert removed.holds(np.zeros((0, 16), np.uint8)).tolist() == []


def test_keys_of_one_mixed_number_are_told_apart():
    key = b"\1" * 16
    removed = Removed.none().with_takedown([key])
    first, second = np.frombuffer(key, np.uint64)
    odd = np.uint64(0x9E3779B97F4A7C15)
    other = second + np.uint64(1)
    with np.errstate(over="ignore"):
        alike = np.array([first ^ (second * odd) ^ (other * odd), other], np.uint64).tobytes()
    assert removed.holds(_matrix([key, alike])).tolist() == [True, False]


def test_a_list_knows_what_it_held_after_each_takedown():
    keys = _keys(6, 0)
    lists = [Removed.none()]
    for part in (keys[:2], keys[1:4], keys[5:]):
        lists.append(lists[-1].with_takedown(part))
    last = lists[-1]
    held = dict(zip((key.ljust(16, b"\0") for key in last.keys.tolist()), last.takedowns.tolist()))
    assert held == dict(zip([*keys[:4], keys[5]], [1, 1, 2, 2, 3]))
    assert len(set(last.digests)) == 3
    for number, before in enumerate(lists):
        assert last.until(before.digests[-1] if number else "").keys.tolist() == before.keys.tolist()
        assert last.digests[:number] == before.digests
    assert last.with_takedown(keys[:2]) is last
    with pytest.raises(KeyError):
        lists[1].until(last.digests[-1])
    assert Removed.none().with_takedown(reversed(keys)).digests == Removed.none().with_takedown(keys).digests
    # what holds at a step is the last list before it
    at_steps = RemovedAtSteps(last, [(3, lists[1].digests[0]), (7, last.digests[2]), (9, "")], "f" * 32)
    assert [len(at_steps.at(step)) for step in (0, 2, 3, 6, 7, 8, 9, 100)] == [0, 0, 2, 2, 5, 5, 0, 0]
    unknown = RemovedAtSteps(lists[1], [(3, last.digests[1])], "f" * 32)
    assert len(unknown.at(2)) == 0
    with pytest.raises(SnapshotError, match="at step 3"):
        unknown.at(3)


def test_a_manifest_names_its_list_and_a_damaged_list_is_found(tmp_path):
    root = Root(str(tmp_path))
    before = packed_shards.make_snapshot(tmp_path, packed_shards.packed_batch(40, 64))
    root.write_atomic(SNAPSHOT, before.to_json())
    assert b"removed" not in (tmp_path / SNAPSHOT).read_bytes()
    removed = Removed.none().with_takedown(_keys(5, 2))
    entry, files = removed_entry(removed, REMOVED)
    for path, content in files.items():
        root.write_atomic(path, content)
    after = before.model_copy(update={"removed": entry}).sealed()
    root.write_atomic(SNAPSHOT, after.to_json())
    read = read_snapshot(root)
    assert read.removed == entry
    assert read.fingerprint != before.fingerprint
    assert read_removed(root, read).keys.tolist() == removed.keys.tolist()
    assert read_removed(root, before).keys.tolist() == []
    assert not [line for line in verify_snapshot(root, read) if "removed" in line]
    content = bytearray((tmp_path / REMOVED).read_bytes())
    content[20] ^= 1
    (tmp_path / REMOVED).write_bytes(content)
    assert [line.partition(":")[0] for line in verify_snapshot(root, read) if "removed" in line] == [REMOVED]
    with pytest.raises(CorruptionError, match=r"removed\.parquet"):
        read_removed(root, read)
    assert removed_entry(Removed.none(), REMOVED) == (None, {})
