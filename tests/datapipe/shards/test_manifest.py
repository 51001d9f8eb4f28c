"""A manifest is read only if it is sealed, stays inside its output, and lists every shard once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from datapipe.errors import SnapshotError
from datapipe.shards.manifest import SNAPSHOT, read_snapshot
from datapipe.storage import Root
from tests.support.snapshots import make_snapshot


def seal_again(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes a changed manifest with the fingerprint it should have."""
    content = json.loads(path.read_text())
    change(content)
    del content["fingerprint"]
    sealed = xxhash.xxh3_128_hexdigest(json.dumps(content, sort_keys=True, ensure_ascii=False).encode())
    path.write_text(json.dumps({**content, "fingerprint": sealed}))


def rename_source(content: dict[str, Any], name: str) -> None:
    content["sources"][name] = content["sources"].pop("web")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content["shards"][0].update(path="../../etc/passwd"), "does not lie inside"),
        (lambda content: content["shards"][0].update(path="/etc/passwd"), "does not lie inside"),
        (lambda content: content["tokenizer"].update(path="a/../../t.json"), "does not lie inside"),
        (lambda content: content["files"].update(path=""), "does not lie inside"),
        (lambda content: rename_source(content, "../../evil"), "does not lie inside"),
        (lambda content: rename_source(content, "a/b"), "not a source name"),
        (lambda content: rename_source(content, "web2"), "shards of 'web', which is not a source"),
        (lambda content: content["shards"].append(content["shards"][0]), "listed twice"),
    ],
)
def test_sealed_manifest_with_invalid_content_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    folder = make_snapshot(tmp_path, {"web": 20})
    seal_again(folder / SNAPSHOT, lambda content: None)
    read_snapshot(Root(str(folder)))
    seal_again(folder / SNAPSHOT, change)
    with pytest.raises(SnapshotError, match=reason):
        read_snapshot(Root(str(folder)))
