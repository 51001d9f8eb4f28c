"""The shards of other outputs: their names and entries, and copies between disks and stores."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from datapipe.composing.copies import copy_shards, taken_files, taken_shards
from datapipe.errors import CorruptionError
from datapipe.loader import Loader
from datapipe.plan.request import TakenSource
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.snapshots import DATA_PATH
from datapipe.storage import Root
from tests.support.object_store import object_store
from tests.support.snapshots import make_growing_snapshots, make_snapshot, source_path, upload


def taken(root: Root, source: str = "web") -> dict[str, TakenSource]:
    snapshot = read_snapshot(root)
    return {"old": TakenSource(snapshots={snapshot.sequence_length: (root, snapshot)}, source=source)}


def test_parts_of_a_source_that_grew_become_one_and_keep_names_of_their_own(tmp_path: Path) -> None:
    make_growing_snapshots(tmp_path / "grown", {"web": [20, 8, 9], "code": [5]})
    shards = taken_shards(taken(Root(str(tmp_path / "grown"))), 16, seed=17)
    assert sum(shard.entry.sequences for shard in shards) == 37
    assert {shard.entry.path.rpartition("/")[0] for shard in shards} == {"shards/old", "shards/old+1", "shards/old+2"}
    assert len({shard.entry.numbered_path for shard in shards}) == len(shards)
    assert DATA_PATH.fullmatch("shards/old.web+2/part-00000-00000-0123456789abcdef.arrow")  # so that cleaning knows them
    assert {(shard.entry.source, shard.entry.part) for shard in shards} == {("old", None)}


def test_ranges_of_hashes_count_under_their_own_seed_alone(tmp_path: Path) -> None:
    root = Root(str(make_snapshot(tmp_path, {"web": 10})))
    there = read_snapshot(root)
    hashed = there.model_copy(update={"shards": tuple(s.model_copy(update={"hashes": (0, 1 << 64)}) for s in there.shards)})
    source = {"old": TakenSource(snapshots={16: (root, hashed)}, source="web")}
    assert {shard.entry.hashes for shard in taken_shards(source, 16, seed=17)} == {(0, 1 << 64)}
    assert {shard.entry.hashes for shard in taken_shards(source, 16, seed=18)} == {None}


def test_the_files_behind_the_documents_have_the_hashes_that_their_keys_begin_with(tmp_path: Path) -> None:
    root = Root(str(make_snapshot(tmp_path, {"web": 10, "code": 3})))
    [(name, path, number)] = taken_files(taken(root))
    assert (name, path) == ("old", source_path("web"))
    assert number in {int.from_bytes(key[:8], "big") for key in _keys(root)}


def _keys(root: Root) -> list[bytes]:
    with closing(Loader(root.url, global_batch_size=10, fields=("document_keys",), mixture={"web": 1})) as loader:
        return [key.tobytes() for key in next(loader)["document_keys"]]


def test_on_one_disk_shards_are_links_and_those_that_are_there_stay(tmp_path: Path) -> None:
    there, here = Root(str(make_snapshot(tmp_path / "a", {"web": 20}))), Root(str(tmp_path / "b"))
    shards = taken_shards(taken(there), 16, seed=17)
    copy_shards(here, shards, "staging")
    times = [os.stat(here.path(shard.entry.path)).st_ino for shard in shards]
    assert times == [os.stat(there.path(shard.path)).st_ino for shard in shards]
    copy_shards(here, shards, "staging")
    assert [path for path, _ in here.list_files("")] == sorted(shard.entry.path for shard in shards)


def test_a_copy_that_takes_long_tells_how_far_it_is(tmp_path: Path) -> None:
    shards = taken_shards(taken(Root(str(make_snapshot(tmp_path / "a", {"web": 20})))), 16, seed=17)
    lines, times = list[str](), iter(range(0, 600, 6))
    copy_shards(Root(str(tmp_path / "b")), shards, "staging", lines.append, lambda: next(times))
    assert lines
    assert lines[0].startswith(f"  taking shards of other snapshots: 1 of {len(shards)}, ")


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_a_shard_that_is_not_as_its_manifest_says_is_told(tmp_path: Path, damage: str) -> None:
    there = Root(str(make_snapshot(tmp_path / "a", {"web": 20})))
    shards = taken_shards(taken(there), 16, seed=17)
    path = Path(there.path(shards[1].path))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    if damage != "gone":
        path.write_bytes(content if damage == "changed" else content[:-8])
    with pytest.raises(CorruptionError, match=path.name):
        copy_shards(Root(str(tmp_path / "b")), shards, "staging")
    assert not (tmp_path / "b" / shards[1].entry.path).exists()


@pytest.mark.medium
def test_shards_go_between_a_disk_and_stores(tmp_path: Path) -> None:
    folder = make_snapshot(tmp_path / "a", {"web": 20})
    wanted = {shard.entry.path: (folder / shard.path).read_bytes() for shard in taken_shards(taken(Root(str(folder))), 16, 17)}
    with object_store("bucket") as query:
        on_store = Root(upload(folder, f"s3://bucket/a{query}"))
        outputs = {
            f"s3://bucket/from-disk{query}": Root(str(folder)),
            f"s3://bucket/from-store{query}": on_store,
            str(tmp_path / "from-store"): on_store,
        }
        for url, there in outputs.items():
            copy_shards(Root(url), taken_shards(taken(there), 16, 17), "staging")
            found = {path: Root(url).read_bytes(path) for path, _ in Root(url).list_files("")}
            assert found == wanted
