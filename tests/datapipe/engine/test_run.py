"""Whole runs: what they write, what they do not do again, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.ledger.lock import exclusive
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("finished")
    return runs.run_mixture(runs.write_mixture(folder, corpus))


def test_run_writes_a_snapshot_that_verifies(finished):
    root = Root(finished.mixture.output)
    assert read_snapshot(root) == finished.snapshot
    assert verify_snapshot(root, finished.snapshot) == []


def test_run_leaves_nothing_under_shards_but_shards(finished):
    listed = [path for path, _ in Root(finished.mixture.output).list_files("shards")]
    assert listed == sorted(finished.checksums)


def test_run_leaves_no_file_without_rows_and_none_that_no_record_names(finished):
    outputs = [output for record in finished.watcher.records for files in record.outputs.values() for output in files]
    assert all(output.rows for output in outputs)
    listed = [path for path, _ in Root(finished.mixture.output).list_files("work/attempts")]
    assert listed == sorted(output.path for output in outputs)


def test_run_report_balances_for_every_source(finished):
    report = finished.report
    for entry in (*report["sources"].values(), report["total"]):
        documents = entry["documents"]
        assert documents["read"] == documents["kept"] + sum(documents["dropped"].values()) + documents["quarantined"]
    assert report["sources"]["web"]["documents"]["read"] == 3 * 120 + 2 * 80
    assert report["sources"]["books"]["documents"]["read"] == 150
    shards = finished.snapshot.shards
    assert report["total"]["tokens"] == sum(shard.tokens for shard in shards)
    assert report["total"]["sequences"] == sum(shard.sequences for shard in shards)
    assert report["total"]["documents"]["kept"] == sum(shard.documents for shard in shards)


def test_run_again_runs_no_task_and_leaves_the_snapshot_untouched(tmp_path, mixture):
    first = runs.run_mixture(mixture)
    written = (Path(first.mixture.output) / "snapshot.json").stat().st_mtime_ns
    second = runs.run_mixture(mixture)
    assert second.watcher.records == []
    assert second.snapshot == first.snapshot
    assert (Path(first.mixture.output) / "snapshot.json").stat().st_mtime_ns == written


@pytest.mark.slow
def test_run_with_one_more_file_reads_that_file_alone(tmp_path):
    for number in range(3):
        corpora.write_jsonl(tmp_path / f"web/{number}.jsonl", corpora.documents(number, 400))
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/web/*.jsonl\n")
    first = runs.run_mixture(mixture)
    corpora.write_jsonl(tmp_path / "web/new.jsonl", corpora.documents(9, 400))
    second = runs.run_mixture(mixture)
    before = first.watcher.steps.count("web/read")
    added = second.watcher.steps.count("web/read")
    assert 0 < added < before
    assert second.report["sources"]["web"]["documents"]["read"] == 1600


def test_run_that_is_held_by_another_is_refused(mixture, tmp_path):
    with exclusive(Root(str(tmp_path / "out"))), pytest.raises(UserError, match="another run is using this output"):
        runs.run_mixture(mixture)


@pytest.mark.slow
def test_run_limit_reads_the_first_documents_of_each_source(mixture):
    limited = runs.run_mixture(mixture, limit=20)
    read = {name: entry["documents"]["read"] for name, entry in limited.report["sources"].items()}
    assert read == {"web": 20, "books": 20}


@pytest.mark.slow
def test_run_limit_does_not_replace_a_whole_snapshot(mixture):
    runs.run_mixture(mixture)
    with pytest.raises(UserError, match="--limit would publish"):
        runs.run_mixture(mixture, limit=20)


@pytest.mark.slow
def test_run_source_that_keeps_nothing_gives_its_weight_to_the_others(tmp_path, corpus):
    corpora.write_jsonl(tmp_path / "empty/short.jsonl", [{"text": "short"}])
    sources = corpus + f"  empty:\n    path: {tmp_path}/empty/*.jsonl\n    weight: 5\n"
    done = runs.run_mixture(runs.write_mixture(tmp_path, sources))
    assert done.snapshot.phases[0].weights == {"web": 7, "books": 3, "empty": 0}
    assert any("'empty' kept no document" in line and "gopher_quality" in line for line in done.told)


@pytest.mark.medium
@pytest.mark.parametrize("tail", ["tokenizer: {train: {vocab_size: 300}}\n", "tokenizer: none\n"])
@pytest.mark.parametrize(
    ("rows", "stages", "reason"),
    [
        (3, "[filter.length: {min_words: 9}]", r"of 3 documents, filter\.length:too_few_words dropped 3"),
        (0, "[]", r"no document is in its input: 0\.jsonl and 1 more file"),
    ],
)
def test_run_that_keeps_nothing_fails_with_the_reason_and_publishes_nothing(tmp_path, rows, stages, reason, tail):
    for number in range(2):
        corpora.write_jsonl(tmp_path / f"in/{number}.jsonl", [{"text": "short"}] * (rows if number == 0 else 0))
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/in/*.jsonl}}\n", f"stages: {stages}", tail)
    with pytest.raises(DatapipeError, match=rf"no document is left, so nothing was published\. source 'web': {reason}\."):
        runs.run_mixture(mixture, make_engine=runs.InProcess)
    assert not (tmp_path / "out/snapshot.json").exists()
    assert not (tmp_path / "out/documents").exists()


@pytest.mark.slow
def test_run_past_max_quarantined_fails_and_names_the_source(tmp_path):
    rows = corpora.documents(1, 50)
    (tmp_path / "web").mkdir()
    (tmp_path / "web/a.jsonl").write_bytes(corpora.jsonl(rows) + b"not json\n")
    sources = f"  web:\n    path: {tmp_path}/web/*.jsonl\n"
    with pytest.raises(DatapipeError, match="source 'web': 1 of 51 documents quarantined"):
        runs.run_mixture(runs.write_mixture(tmp_path, sources))
    done = runs.run_mixture(runs.write_mixture(tmp_path, sources), overrides=["max_quarantined=5%"])
    assert done.report["total"]["documents"]["quarantined"] == 1


def test_run_validation_documents_are_in_no_training_shard(finished):
    root, keys = Root(finished.mixture.output), {"train": set(), "validation": set()}
    for entry in finished.snapshot.shards:
        reader = ShardReader(root, entry, finished.snapshot.sequence_length, finished.snapshot.tokenizer.fingerprint)
        rows = reader.read(np.arange(reader.num_rows))
        keys[entry.split] |= {bytes(key) for key in rows.keys}
        reader.close()
    assert keys["train"] and keys["validation"]
    assert not keys["train"] & keys["validation"]


def test_run_publishes_files_parquet_that_names_every_document(finished):
    root = Root(finished.mixture.output)
    known = set(pq.read_table(root.path("files.parquet")).column("hash").to_pylist())
    for entry in finished.snapshot.shards:
        reader = ShardReader(root, entry, finished.snapshot.sequence_length, finished.snapshot.tokenizer.fingerprint)
        rows = reader.read(np.arange(reader.num_rows))
        assert {int.from_bytes(bytes(key[:8]), "big") for key in rows.keys} <= known
        reader.close()


def test_run_resolved_mixture_gives_the_same_plan(finished):
    mixture = load_mixture(Path(finished.mixture.output) / "mixture.yaml")
    _, plan = planned(mixture)
    assert plan.is_committed


@pytest.mark.slow
def test_run_damaged_intermediate_file_is_named_and_made_anew_when_deleted(tmp_path, corpus):
    mixture = runs.write_mixture(tmp_path, corpus)
    first = runs.run_mixture(mixture)
    documents = next(step for step in first.plan.steps if step.id == "web/apply-dedup.minhash").outputs("documents")[0]
    damaged = tmp_path / "out" / documents.path
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DatapipeError, match=f"{damaged.name}: its checksum is not the committed one"):
        runs.run_mixture(mixture, overrides=["validation=20%"])
    damaged.unlink()
    again = runs.run_mixture(mixture, overrides=["validation=20%"])
    assert verify_snapshot(Root(again.mixture.output), again.snapshot) == []


def test_run_with_input_inside_its_output_is_refused_before_anything_is_touched(tmp_path):
    for place in ("out/shards/raw", "out/work/attempts/raw"):
        kept = corpora.write_jsonl(tmp_path / place / "a.jsonl", corpora.documents(1, 30))
        mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {kept}\n")
        with pytest.raises(UserError, match="lies inside the output"):
            runs.run_mixture(mixture)
        assert kept.exists()
    (tmp_path / "link").symlink_to("out/shards", target_is_directory=True)
    mixture = runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/*/raw/*.jsonl\n")
    with pytest.raises(UserError, match=r"link/raw/a\.jsonl lies inside the output"):
        runs.run_mixture(mixture)


@pytest.mark.parametrize("pattern", ["*.parquet", "**/*.json", "**"])
def test_run_whose_pattern_takes_what_it_writes_is_refused_at_the_first_run(tmp_path, pattern):
    corpora.write_parquet(tmp_path / "in/a.parquet", corpora.documents(1, 3))
    corpora.write_jsonl(tmp_path / "in/b.json", corpora.documents(1, 3))
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/in/{pattern}}}\n", "stages: []")
    with pytest.raises(UserError, match=r"the pattern takes .* in the output .* too, which the run writes"):
        runs.run_mixture(mixture, output=tmp_path / "in", make_engine=runs.InProcess)
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["a.parquet", "b.json"]


@pytest.mark.slow
def test_run_leaves_files_that_are_not_its_own_under_shards(tmp_path, mixture):
    own = tmp_path / "out/shards/web/notes.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    done = runs.run_mixture(mixture)
    assert own.read_text() == "mine"
    assert any("notes.txt" in line for line in done.told)


@pytest.mark.slow
def test_run_again_restores_a_shard_that_was_deleted(mixture):
    first = runs.run_mixture(mixture)
    shard = Path(first.mixture.output) / first.snapshot.shards[0].path
    shard.unlink()
    again = runs.run_mixture(mixture)
    assert again.watcher.records == []
    assert verify_snapshot(Root(again.mixture.output), again.snapshot) == []


@pytest.mark.slow
def test_run_again_names_the_committed_file_that_a_damaged_shard_is_linked_to(mixture):
    first = runs.run_mixture(mixture)
    shard = Path(first.mixture.output) / first.snapshot.shards[0].path
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    with open(shard, "r+b") as file:  # in place, as a failing disk would
        file.write(content)
    shard.unlink()
    with pytest.raises(DatapipeError, match="its checksum is not the committed one") as failure:
        runs.run_mixture(mixture)
    (Path(first.mixture.output) / str(failure.value).partition(":")[0]).unlink()
    again = runs.run_mixture(mixture)
    assert again.watcher.steps in (["web/pack"], ["books/pack"])
    assert verify_snapshot(Root(again.mixture.output), again.snapshot) == []


@pytest.mark.slow
def test_run_again_restores_a_damaged_tokenizer_file(mixture):
    first = runs.run_mixture(mixture)
    path = Path(first.mixture.output) / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-10] + b"0123456789")
    again = runs.run_mixture(mixture)
    assert verify_snapshot(Root(again.mixture.output), again.snapshot) == []
