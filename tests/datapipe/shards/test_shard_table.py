"""Columns of shards hold what the entries hold, and a manifest that is read as columns is read as it is entry by entry."""

from __future__ import annotations

import gc
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import xxhash

from datapipe.errors import SnapshotError
from datapipe.loader.order.sample_order import Inventory
from datapipe.shards.manifest import SNAPSHOT, Phase, Snapshot, SourceEntry, TokenizerEntry, read_snapshot
from datapipe.shards.shard_table import ShardEntry, ShardTable, numbered_path
from datapipe.storage import Root


def entry(number: int, source: str = "web", **options: Any) -> ShardEntry:
    digest = f"{number * 0x9E3779B97F4A7C15 % (1 << 64):016x}"
    counts = {"sequences": 10 + number, "tokens": 1000 + number, "documents": number, "bytes": 4000}
    names = {"path": f"shards/{source}/part-{number:05d}-00000-{digest}.arrow", "source": source, "split": "train"}
    return ShardEntry(**{**names, **counts, "checksum": f"xxh3_128:{digest * 2}", **options})


MIXED = (
    entry(3, hashes=(0, 1 << 63)),
    entry(1, hashes=(1 << 63, 1 << 64), stratum=2),
    entry(2, "é 世", piece_length=8),
    entry(4, split="validation"),
    entry(0, "a b", stratum=0, piece_length=1, hashes=(7, 7)),
)


def manifest(shards: tuple[ShardEntry, ...]) -> dict[str, Any]:
    """The content of a manifest, without its fingerprint."""
    names = sorted({shard.source for shard in shards})
    snapshot = Snapshot(
        name="mixed",
        seed=1,
        sequence_length=16,
        shard_format="arrow",
        tokenizer=TokenizerEntry(path="tokenizer.json", fingerprint="xxh3_128:t", vocab_size=1000, eos_id=0),
        sources={name: SourceEntry(weight=1) for name in names},
        phases=(Phase(until_tokens=None, weights=dict.fromkeys(names, 1)),),
        shards=shards,
    )
    return {name: value for name, value in snapshot.model_dump(mode="json").items() if name != "fingerprint"}


def write(folder: Path, content: dict[str, Any], indent: int | None) -> None:
    """A sealed manifest: with `indent` 1 in the layout that runs write, with None in another."""
    sealed = xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, ensure_ascii=False).encode())
    folder.mkdir(exist_ok=True)
    (folder / SNAPSHOT).write_text(json.dumps({**content, "fingerprint": sealed}, indent=indent, ensure_ascii=False) + "\n")


def outcome(folder: Path, content: dict[str, Any], indent: int | None) -> Snapshot | str:
    write(folder, content, indent)
    try:
        return read_snapshot(Root(str(folder)))
    except SnapshotError as error:
        return str(error)


@pytest.mark.medium
@pytest.mark.parametrize("shards", [MIXED, MIXED[:1], tuple(entry(number) for number in range(1_000))], ids=len)
def test_table_is_the_sequence_of_its_entries(shards: tuple[ShardEntry, ...]) -> None:
    table = ShardTable.of(shards)
    assert (len(table), tuple(table)) == (len(shards), shards)
    assert table == shards and shards == table and table == ShardTable.of(table)
    assert table != shards[1:] and table != (*shards[:-1], shards[0].model_copy(update={"bytes": 1}))
    assert (table[0], table[-1], table[1:3]) == (shards[0], shards[-1], shards[1:3])
    with pytest.raises(IndexError):
        table[len(shards)]
    assert table.sequences.tolist() == [shard.sequences for shard in shards]
    assert table.strata.tolist() == [-1 if shard.stratum is None else shard.stratum for shard in shards]
    assert table.numbered_paths.to_pylist() == [numbered_path(shard.path) for shard in shards]
    written = b"".join(table.canonical_json()).decode()
    assert f"[{written}]" == json.dumps([s.model_dump(mode="json") for s in shards], sort_keys=True, ensure_ascii=False)
    assert pickle.loads(pickle.dumps(table)) == table


def test_table_is_sorted_selected_and_searched_as_its_entries() -> None:
    shards = [entry(number, source) for number in range(50) for source in ("b", "a", "é", "Z", "a b")]
    random.Random(3).shuffle(shards)
    table = ShardTable.of([*shards, MIXED[3]])
    expected = sorted(shards, key=lambda shard: (shard.source, shard.numbered_path))
    ordered = table.in_order("train")
    assert tuple(ordered) == tuple(expected)
    assert ordered[2] is list(ordered)[2]  # an entry is made once
    assert tuple(table.in_order("validation")) == tuple(table.of_source("web", "validation")) == (MIXED[3],)
    for source in ("a b", "é"):
        assert tuple(table.of_source(source, "train")) == tuple(shard for shard in expected if shard.source == source)
    assert tuple(table.of_source("a b", "validation")) == tuple(table.of_source("unknown", "train")) == ()
    table = ShardTable.of(MIXED)
    assert table.named([]) == []
    wanted = {MIXED[2].path, MIXED[1].numbered_path, MIXED[4].path, "shards/web/unknown.arrow"}
    assert sorted(table.named(wanted)) == [(1, MIXED[1].numbered_path), (2, MIXED[2].path), (4, MIXED[4].path)]


def test_manifest_in_the_layout_of_a_run_equals_the_one_in_another_layout(tmp_path: Path) -> None:
    content = manifest(MIXED)
    columns, entries = outcome(tmp_path, content, 1), outcome(tmp_path, content, None)
    assert isinstance(columns, Snapshot) and isinstance(entries, Snapshot)
    assert columns == entries and tuple(columns.shards) == MIXED
    assert columns.sealed() == columns and columns.to_json() == entries.to_json()
    assert Snapshot.model_validate_json(columns.to_json()) == columns
    assert pickle.loads(pickle.dumps(columns)) == columns


VALUES = (
    *(None, True, -1, 0, 1.0, 1.5, 1e3, 1 << 62, 1 << 64, 1 << 70, {}, {"a": 1}),
    *("", "5", "x\ny", 'x"y', "é", "a\\b", "..", "a/../b", "/a", "validation"),
    *([], [1], [1, 2], [1, 2, 3], [1, None], ["1", "2"], [-1, 2], [0, 1 << 64], [0, 1 << 65], [1.0, 2]),
)


@pytest.mark.medium
@pytest.mark.parametrize("field", [*ShardEntry.model_fields, "another"])
def test_manifest_with_any_value_in_an_entry_is_read_or_refused_as_entry_by_entry(tmp_path: Path, field: str) -> None:
    for value in VALUES:
        content = manifest(MIXED)
        content["shards"][1][field] = value
        assert outcome(tmp_path, content, 1) == outcome(tmp_path, content, None), value


def _rename(content: dict[str, Any], name: str) -> None:
    content["sources"][name] = content["sources"].pop("web")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["shards"].append(None), ""),
        (lambda content: content["shards"].append([]), ""),
        (lambda content: content["shards"].clear(), None),
        (lambda content: [shard.pop("split") for shard in content["shards"]], ""),
        (lambda content: content.update(shards=None), ""),
        (lambda content: content.update(shards={"a": 1}), ""),
        (lambda content: content.update(also=[1, 2]), ""),
        (lambda content: content["sources"].pop("web"), "shards of 'web', which is not a source"),
        (lambda content: content["sources"].update(shards=[]), ""),
        (lambda content: content["phases"].append({"until_tokens": None, "weights": {"shards": []}}), ""),
        (lambda content: content.update(name='"shards": []'), None),
        (lambda content: content.update(name='\n "shards": [\n'), None),
        (lambda content: content.update(version=3), "version"),
        (lambda content: content["tokenizer"].update(path="a/../../t.json"), "does not lie inside"),
        (lambda content: content["shards"][0].update(path="../../etc/passwd"), "does not lie inside"),
        (lambda content: content["shards"][0].update(path="/etc/passwd"), "does not lie inside"),
        (lambda content: _rename(content, "../../evil"), "does not lie inside"),
        (lambda content: _rename(content, "a/b"), "not a source name"),
        (lambda content: content["shards"].append(content["shards"][0]), "listed twice"),
    ],
)
def test_manifest_with_another_shape_is_read_or_refused_as_entry_by_entry(
    tmp_path: Path, change: Any, reason: str | None
) -> None:
    content = manifest(MIXED)
    change(content)
    found = outcome(tmp_path, content, 1)
    assert found == outcome(tmp_path, content, None)
    assert isinstance(found, Snapshot) if reason is None else isinstance(found, str) and reason in found


@pytest.mark.medium
def test_manifest_with_damaged_bytes_is_refused_or_says_the_same(tmp_path: Path) -> None:
    write(tmp_path, manifest(MIXED), 1)
    sound = (tmp_path / SNAPSHOT).read_bytes()
    expected, draw = read_snapshot(Root(str(tmp_path))), random.Random(7)
    others = [b"", *(bytes([byte]) for byte in b'0a"\\,{}[] \n\x00\xff'), b"},\n  {", b"\\u0041", b'\n "shards": [\n', b"\n ]"]
    for _ in range(250):
        damaged, at = bytearray(sound), draw.randrange(len(sound))
        damaged[at : at + draw.choice([0, 1, 2, 40])] = draw.choice(others)
        (tmp_path / SNAPSHOT).write_bytes(bytes(damaged))
        try:
            assert read_snapshot(Root(str(tmp_path))) == expected
        except SnapshotError:
            continue


@pytest.mark.medium
def test_manifest_of_many_shards_is_read_and_laid_out_without_an_object_for_each(tmp_path: Path) -> None:
    write(tmp_path, manifest(tuple(entry(number, f"s{number % 50}") for number in range(5000))), 1)
    gc.collect()
    before = len(gc.get_objects())
    snapshot = read_snapshot(Root(str(tmp_path)))
    inventory = Inventory(snapshot, "train", 1, 8)
    gc.collect()
    assert len(gc.get_objects()) - before < 2500  # about 30 for each source
    assert inventory.layout.num_sequences == sum(10 + number for number in range(5000))
