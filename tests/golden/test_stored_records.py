"""A manifest (version 2) and a loader state (version 4) as they were written in November 2026. Every
later version reads them, or refuses them by their version: checkpoints and snapshots outlive releases."""

import json
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import SnapshotError
from datapipe.loader import Loader
from datapipe.records.names import SNAPSHOT
from datapipe.shards.manifest import Snapshot, read_snapshot
from datapipe.storage.root import Root

MANIFEST = """
{"format": "datapipe-snapshot", "version": 2, "name": "web-and-code", "seed": 17, "sequence_length": 16,
 "shard_format": "arrow",
 "tokenizer": {"path": "tokenizer.json", "fingerprint": "xxh3_128:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "vocab_size": 32000,
               "eos_id": 0},
 "sources": {"code": {"weight": 3, "max_epochs": 2.5, "license": "mit", "synthetic": false, "strata": null},
             "web": {"weight": 7, "max_epochs": null, "license": null, "synthetic": false,
                     "strata": {"column": "score", "bounds": [2.0], "repeats": [1, 2], "order": "shuffled"}}},
 "phases": [{"until_tokens": 480, "weights": {"code": 3, "web": 7}}, {"until_tokens": null, "weights": {"code": 1, "web": 1}}],
 "total_tokens": 16000, "exhausted": "redistribute", "window_shards": 2,
 "files": {"path": "files.parquet", "bytes": 900, "checksum": "xxh3_128:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"},
 "shards": [
  {"path": "shards/code/part-00000-00000.arrow", "source": "code", "split": "train", "sequences": 12, "tokens": 192,
   "documents": 12, "bytes": 768, "checksum": "xxh3_128:11111111111111111111111111111111", "hashes": [0, 9223372036854775808]},
  {"path": "shards/code/part-00001-00000.arrow", "source": "code", "split": "train", "sequences": 9, "tokens": 144,
   "documents": 9, "bytes": 576, "checksum": "xxh3_128:22222222222222222222222222222222", "piece_length": 8},
  {"path": "shards/web/part-stratum-00-00000-00000.arrow", "source": "web", "split": "train", "sequences": 20, "tokens": 320,
   "documents": 20, "bytes": 1280, "checksum": "xxh3_128:33333333333333333333333333333333", "stratum": 0},
  {"path": "shards/web/part-stratum-01-00000-00000.arrow", "source": "web", "split": "train", "sequences": 11, "tokens": 176,
   "documents": 11, "bytes": 704, "checksum": "xxh3_128:44444444444444444444444444444444", "stratum": 1},
  {"path": "shards/web/validation-00000-00000.arrow", "source": "web", "split": "validation", "sequences": 3, "tokens": 48,
   "documents": 3, "bytes": 192, "checksum": "xxh3_128:55555555555555555555555555555555"}],
 "fingerprint": "24f2bf4856a4f19d22074a318a7f974a"}
"""

LINEAGE = """
{"sequence_length": 16, "sources": ["code", "web"], "batches": [[0, 0, 4], [10, 40, 6]],
 "mixtures": [
  {"step": 0, "sample": 0, "snapshot": "24f2bf4856a4f19d22074a318a7f974a", "exhausted": "redistribute", "total_tokens": 16000,
   "phases": [[480, [3, 7]], [null, [1, 1]]], "max_epochs": [2.5, null], "data": ["_9TCbflsH18v", "FVmrhEIAVgZo"],
   "sizes": [21, 42]},
  {"step": 10, "sample": 40, "phases": [[null, [1, 4]]]}],
 "skip": {"documents": {"0123456789abcdef0123456789abcdef": 10},
          "shards": {"shards/web/part-stratum-00-00000-00000.arrow": 10}, "steps": [[12, 14]]}}
"""
"""The samples drawn before the second mixture, 14 of code and 26 of web, follow from the first."""

STATE: dict[str, Any] = {
    "version": 4,
    "step": 11,
    "global_batch_size": 6,
    "split": "train",
    "seed": 17,
    "window_shards": 2,
    "sequence_length": 16,
    "tokenizer": "xxh3_128:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "snapshot": "24f2bf4856a4f19d22074a318a7f974a",
    "lineage": LINEAGE,
    "checksum": "xxh3_128:1d339d4cb0f20b7591f11d384c8d506a",
}

ADDRESSES = {9: [18, 38, 15, 35], 11: [43, 17, 48, 45, 51, 47], 14: [49, 43, 47, 13, 43, 44]}
"""Of the rows of some steps: of the first batch size and mixture, of the second, and after the skipped steps."""


def open_stored(folder: Path) -> Loader:
    """A loader with the options that the state was saved with. No shard exists: the order follows from the manifest."""
    (folder / SNAPSHOT).write_text(MANIFEST)
    weights = {"code": "0.2", "web": "0.8"}
    return Loader(folder, global_batch_size=6, prefetch=0, mixture=weights)


def read_stored(folder: Path, manifest: str) -> Snapshot:
    (folder / SNAPSHOT).write_text(manifest)
    return read_snapshot(Root(str(folder)))


def test_stored_manifest_is_read_and_keeps_its_fingerprint(tmp_path: Path) -> None:
    stored, snapshot = json.loads(MANIFEST), read_stored(tmp_path, MANIFEST)
    newer = snapshot.model_dump(mode="json") | {"shards": [shard.model_dump(mode="json") for shard in snapshot.shards]}
    assert (stored.pop("version"), newer.pop("version"), newer.pop("lists")) == (2, 3, [])
    assert stored == newer


def test_stored_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match=r"a manifest of another version, expected 3, at version\. Run the mixture again"):
        read_stored(tmp_path, MANIFEST.replace('"version": 2', '"version": 1'))


def test_stored_state_gives_the_same_order_and_is_saved_again(tmp_path: Path) -> None:
    loader = open_stored(tmp_path)
    loader.load_state_dict(STATE)
    order = loader.batch_order
    assert {step: order.addresses_of(order.samples(step)).tolist() for step in ADDRESSES} == ADDRESSES
    assert order.left_out_documents(9) == frozenset()
    assert order.left_out_documents(11) == {bytes.fromhex("0123456789abcdef0123456789abcdef")}
    assert dict(order.lineage.mixtures[1].num_drawn) == {"code": 14, "web": 26}
    saved = loader.state_dict()
    assert json.loads(saved.pop("lineage")) == json.loads(LINEAGE)
    saved.pop("checksum")
    assert saved == {name: value for name, value in STATE.items() if name not in ("lineage", "checksum")}


@pytest.mark.parametrize("version", [1, 2, 3, 5, "4", None])
def test_stored_state_of_another_version_is_refused(tmp_path: Path, version: object) -> None:
    with pytest.raises(SnapshotError, match=f"the loader state has version {version!r}; this datapipe reads version 4"):
        open_stored(tmp_path).load_state_dict({**STATE, "version": version})
