"""`tokenizer.bos`: a token that begins every document, in rows, counts, batches and exports; and tokens of unknown text."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datapipe import columns
from datapipe.composing.additions import Addition
from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.following.additions import check_is_as_before, mixture_of
from datapipe.ledger.names import MIXTURE
from datapipe.loader import Loader
from datapipe.report.fertility import tokenizer_report
from datapipe.shards.export import ExportRequest, export_snapshot
from datapipe.shards.manifest import Snapshot, read_snapshot, snapshot_folder
from datapipe.shards.shard_file import open_shard
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import runs, tokenizer_files
from tests.support.megatron_reader import read_pair

pytestmark = pytest.mark.medium

LENGTHS = [1, 3, 14, 30, 31, 32, 33, 64, 70, 200]
"""Of documents, in bytes, each of which is a token."""


def write(folder: Path, content: bytes, **tokenizer: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(content)
    rows = [{"text": "ab" * (LENGTHS[number % 10] // 2) + "c" * (LENGTHS[number % 10] % 2)} for number in range(60)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "name": "t",
        "output": str(folder / "out"),
        "sources": {"a": {"path": str(folder / "a.jsonl")}},
        "tokenizer": {"path": str(folder / "tokenizer.json"), **tokenizer},
        "validation": 0.2,
        "execution": {"check_disk": False},
    }


def run(data: dict[str, Any]) -> runs.Finished:
    return runs.run_mixture(data, make_engine=runs.InProcess)


def batches(root: Root, snapshot: Snapshot) -> list[Any]:
    found = []
    for entry in snapshot.shards:
        with closing(open_shard(root, entry, snapshot.sequence_length, snapshot.tokenizer.fingerprint)) as shard:
            found += [shard.checked_batch(number) for number in range(shard.num_batches)]
    return found


@pytest.mark.parametrize("method", ["best_fit", "concat", "buckets"])
@pytest.mark.parametrize("make", [tokenizer_files.byte_level, tokenizer_files.unigram])
def test_rows_begin_documents_with_the_token_and_nothing_else(method, make, tmp_path):
    data = write(tmp_path, make(), bos="<s>") | {"pack": {"sequence_length": 32, "method": method}}
    finished = run(data)
    root, snapshot = Root(str(tmp_path / "out")), finished.snapshot
    bos = snapshot.tokenizer.bos_id
    assert verify_snapshot(root, snapshot) == []
    assert {entry.split for entry in snapshot.shards} == {"train", "validation"}
    begins = 0
    for batch in batches(root, snapshot):
        tokens = columns.numbers(batch.column("tokens").values).reshape(-1, 32)
        for row, lengths, starts in zip(tokens, batch.column("lengths").to_pylist(), batch.column("starts").to_pylist()):
            positions = np.cumsum([0, *lengths[:-1]])
            assert np.flatnonzero(row == bos).tolist() == [p for p, start in zip(positions, starts) if start == 0]
            begins += starts.count(0)
    assert begins == 60


def test_tokens_are_counted_with_those_around_documents(tmp_path):
    with_it, without = (
        run(write(tmp_path / name, tokenizer_files.byte_level(), **options) | {"pack": {"sequence_length": [32, 64]}})
        for name, options in (("with", {"bos": "<s>"}), ("without", {}))
    )
    tokens = [finished.report["total"]["tokens"] for finished in (without, with_it)]
    assert tokens == [6 * sum(LENGTHS) + 60, 6 * sum(LENGTHS) + 120]
    assert "bos_id" not in without.snapshot.model_dump(mode="json")["tokenizer"]
    for length in ("", "length-64"):
        root = Root(str(tmp_path / "with/out" / length))
        snapshot = read_snapshot(root)
        assert snapshot.tokenizer.bos_id == with_it.snapshot.tokenizer.bos_id
        assert verify_snapshot(root, snapshot) == []


def test_tasks_run_again_only_for_the_tokenizer_where_the_token_changes(tmp_path):
    data = write(tmp_path, tokenizer_files.byte_level()) | {"pack": {"sequence_length": 32}}
    first = run(data)
    again = run(data | {"tokenizer": {**data["tokenizer"], "bos": "<s>"}})
    assert again.watcher.steps == ["tokenizer/load", "a/tokenize", "a/pack", "a/pack"]
    assert again.snapshot.fingerprint != first.snapshot.fingerprint
    back = run(data)
    assert back.watcher.steps == []
    assert back.snapshot.fingerprint == first.snapshot.fingerprint


@pytest.mark.parametrize("split", ["train", "validation"])
def test_batches_have_the_token_at_position_0_and_predict_it_never(split, tmp_path):
    run(write(tmp_path, tokenizer_files.byte_level(), bos="<s>") | {"pack": {"sequence_length": 32}})
    snapshot = read_snapshot(Root(str(tmp_path / "out")))
    loader = Loader(
        str(tmp_path / "out"), batch_size=4, split=split, fields=["input_ids", "labels", "position_ids", "segment_ids"]
    )
    for step in range(2):
        batch = loader.batch(step)
        is_begin = batch["input_ids"] == snapshot.tokenizer.bos_id
        assert is_begin.any()
        assert (batch["position_ids"][is_begin] == 0).all()
        assert not (batch["labels"] == snapshot.tokenizer.bos_id).any()
        assert (batch["labels"][is_begin] == ord("a") - ord("!")).mean() > 0.8  # the first token of most texts
        assert batch["input_ids"].shape == (4, 32)


def test_export_of_documents_keeps_the_tokens_around_them(tmp_path):
    finished = run(write(tmp_path, tokenizer_files.byte_level(), bos="<s>") | {"pack": {"sequence_length": 32}})
    root, snapshot = Root(str(tmp_path / "out")), finished.snapshot
    parts = export_snapshot(root, snapshot, Root(str(tmp_path / "m")), ExportRequest(format="megatron"))
    found = [each for part in parts for each in read_pair(tmp_path / "m" / part.files[1])[0]]
    assert sorted(len(each) - 2 for each in found) == sorted(LENGTHS * 6)
    assert {(int(each[0]), int(each[-1])) for each in found} == {(snapshot.tokenizer.bos_id, snapshot.tokenizer.eos_id)}
    export_snapshot(root, snapshot, Root(str(tmp_path / "p")), ExportRequest(format="parquet"))
    target = Root(str(tmp_path / "p"))
    assert read_snapshot(target).tokenizer == snapshot.tokenizer
    assert verify_snapshot(target, read_snapshot(target)) == []


def test_rows_of_other_outputs_have_the_same_token_or_are_refused(tmp_path):
    first = write(tmp_path / "one", tokenizer_files.byte_level(), bos="<s>") | {"pack": {"sequence_length": 32}}
    run(first)
    run(write(tmp_path / "two", tokenizer_files.byte_level()) | {"pack": {"sequence_length": 32}})
    new = first["sources"]["a"]
    taken = {"new": new, "old": {"snapshot": str(tmp_path / "one/out")}}
    data = {"name": "both", "output": str(tmp_path / "both"), "sources": taken, "pack": first["pack"]}
    finished = run(data)
    assert finished.snapshot.tokenizer.bos_id == 256
    assert verify_snapshot(Root(str(tmp_path / "both")), finished.snapshot) == []
    with pytest.raises(UserError, match="is not the tokenizer of"):
        prepare(load_mixture(data | {"tokenizer": {"path": first["tokenizer"]["path"]}}))
    both = {"old": taken["old"], "other": {"snapshot": str(tmp_path / "two/out")}}
    with pytest.raises(UserError, match=r"documents of snapshot .* begin with their text, those of .* with token 256"):
        prepare(load_mixture(data | {"sources": both}))
    (kept,) = (tmp_path / "one/out/snapshots").glob("*/tokenizer.json")
    kept.unlink()
    kept.write_bytes(b'{"model": ' + b"[" * 100_000)
    with pytest.raises(UserError, match=r"tokenizer\.json: .*Expected a tokenizer\.json as Hugging Face"):
        prepare(load_mixture(data))


def test_additions_of_a_followed_mixture_have_the_same_token(tmp_path):
    data = write(tmp_path, tokenizer_files.byte_level(), bos="<s>") | {"pack": {"sequence_length": 32}}
    snapshot = run(data).snapshot
    mixture, root = load_mixture(data), Root(str(tmp_path / "out"))
    addition = Addition(number=1, base=snapshot.fingerprint, files={"a": (str(tmp_path / "a.jsonl"),)})
    assert mixture_of(mixture, root, addition).tokenizer.bos == "<s>"
    if not root.exists(f"{snapshot_folder(snapshot.fingerprint)}/{MIXTURE}"):
        root.write_atomic(f"{snapshot_folder(snapshot.fingerprint)}/{MIXTURE}", mixture.resolved_yaml().encode())
    check_is_as_before(mixture, root)
    with pytest.raises(UserError, match=r"tokenizer\.bos was <s> when"):
        check_is_as_before(load_mixture(data | {"tokenizer": {"path": data["tokenizer"]["path"]}}), root)


def test_trained_tokenizer_has_no_begin_of_text(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.bos: needs path"):
        load_mixture({"name": "t", "output": "o", "sources": {"a": {"path": "a"}}, "tokenizer": {"train": {}, "bos": "<s>"}})


def test_unknown_tokens_are_counted_by_source_and_warned_of_above_a_thousandth(tmp_path):
    data = write(tmp_path, tokenizer_files.unigram())
    texts = {"clean": ["the lazy dog and the quick fox"] * 99, "rare": ["one two three"] * 299 + ["漢"]}
    texts |= {"odd": ["the 漢 fox 字"] * 9}
    for name, lines in texts.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    finished = run(data | {"sources": {name: {"path": str(tmp_path / f"{name}.jsonl")} for name in texts}, "validation": 0})
    warned = [warning for warning in finished.warnings if warning.kind == "unknown_tokens"]
    assert [warning.source for warning in warned] == ["odd"]
    assert str(warned[0]).startswith("source 'odd': 18 of ")
    entry = tokenizer_report(Root(str(tmp_path / "out")), finished.plan)
    assert entry is not None
    assert {name: of["unknown_tokens"] for name, of in entry["sources"].items()} == {"clean": 0, "rare": 1, "odd": 18}
    assert entry["total"]["unknown_tokens"] == 19
