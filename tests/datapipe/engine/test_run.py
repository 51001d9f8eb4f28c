"""Whole runs: what they write, do not do again and refuse; the history that they leave, and the kernels that they need."""

import json
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from datapipe.config import Mixture, load_mixture
from datapipe.engine import run as run_module
from datapipe.engine.history import add_node_hours, node_hours, read_history, read_mixture, was_whole
from datapipe.engine.kernels_used import kernels_of_run
from datapipe.engine.prepare import prepare
from datapipe.engine.run import Run, RunOptions, planned
from datapipe.errors import DatapipeError, UserError
from datapipe.kernels import kernels_named
from datapipe.loader.source import KERNELS
from datapipe.records.names import CLUSTER, LEDGER, RUN
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.snapshots.verify import verify_snapshot
from datapipe.storage.lock import exclusive
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.cli_processes import children
from tests.support.ledger_files import stored_records

pytestmark = pytest.mark.medium


def _run(mixture: Path, *overrides: str, **options) -> runs.Finished:
    return runs.run_mixture(mixture, overrides=overrides, **{"make_engine": runs.InProcess, **options})


def _of_web(folder: Path, *documents: list[dict[str, str]], stages: str = "stages: []", tail: str = runs.TAIL) -> Path:
    """A mixture over files of these documents."""
    for number, rows in enumerate(documents):
        corpora.write_jsonl(folder / f"web/{number}.jsonl", rows)
    return runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl}}\n", stages, tail)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    """A run by a worker process. Tests change nothing of it."""
    folder = tmp_path_factory.mktemp("finished")
    return runs.run_mixture(runs.write_mixture(folder, corpus), workers=1)


def test_run_writes_a_snapshot_that_verifies_and_leaves_no_other_file(finished):
    root = Root(finished.mixture.output)
    assert read_snapshot(root) == finished.snapshot
    assert verify_snapshot(root, finished.snapshot) == []
    assert [path for path, _ in root.list_files("shards")] == sorted(finished.checksums)
    outputs = [output for record in finished.watcher.records for files in record.outputs.values() for output in files]
    assert all(output.rows for output in outputs)
    assert [path for path, _ in root.list_files("work/attempts")] == sorted(output.path for output in outputs)


@pytest.mark.parametrize("is_complete", [True, False])
def test_run_into_a_new_output_starts_a_worker_before_the_inputs_are_listed_and_ends_it(tmp_path, monkeypatch, is_complete):
    mixture = load_mixture(_of_web(tmp_path, [{"text": "some words"}]))
    seen: list[set[int]] = []

    def prepared(*arguments, **options):
        seen.append({*children(os.getpid())} - before)
        if not is_complete:
            raise UserError("no input")
        return prepare(*arguments, **options)

    monkeypatch.setattr(run_module, "prepare", prepared)
    for _ in range(2):
        before = {*children(os.getpid())}
        with nullcontext() if is_complete else pytest.raises(UserError, match="no input"):
            Run(mixture, runs.Watcher(), RunOptions(workers=1)).execute()
        assert {*children(os.getpid())} == before
    assert [len(each) for each in seen] == [1, 0 if is_complete else 1]


def test_run_documents_are_in_one_split_and_named_by_files_parquet(finished):
    snapshot, root = finished.snapshot, Root(finished.mixture.output)
    known = set(pq.read_table(root.path("files.parquet")).column("hash").to_pylist())
    keys: dict[str, set[bytes]] = {"train": set(), "validation": set()}
    for entry in snapshot.shards:
        reader = ShardReader(root, entry, snapshot.form)
        keys[entry.split] |= {bytes(key) for key in reader.read(np.arange(reader.num_rows)).keys}
        reader.close()
    assert keys["train"] and keys["validation"]
    assert not keys["train"] & keys["validation"]
    assert {int.from_bytes(key[:8], "big") for key in keys["train"] | keys["validation"]} <= known


def test_run_resolved_mixture_gives_the_same_plan_and_a_run_of_it_runs_no_task(finished, monkeypatch):
    output = Path(finished.mixture.output)
    assert planned(load_mixture(output / "mixture.yaml"))[1].is_committed
    written = (output / "snapshot.json").stat().st_mtime_ns
    monkeypatch.setattr(run_module, "kernels_of_run", pytest.fail)  # nothing is looked for that no task needs
    again = _run(output.parent / "mixture.yaml")
    assert again.watcher.records == []
    assert again.snapshot == finished.snapshot
    assert (output / "snapshot.json").stat().st_mtime_ns == written


def test_run_with_one_more_file_reads_that_file_alone(tmp_path):
    mixture = _of_web(tmp_path, *(corpora.documents(number, 60) for number in range(3)))
    small = "execution.split_bytes=24KiB"
    first = _run(mixture, small)
    corpora.write_jsonl(tmp_path / "web/new.jsonl", corpora.documents(9, 60))
    second = _run(mixture, small)
    assert 0 < second.watcher.steps.count("web/read") < first.watcher.steps.count("web/read")
    assert second.report["sources"]["web"]["documents"]["read"] == 240


def test_run_that_is_held_by_another_is_refused(mixture, tmp_path):
    with exclusive(Root(str(tmp_path / "out"))), pytest.raises(UserError, match="another run"):
        _run(mixture)


def test_run_limit_reads_the_first_documents_of_each_source_and_replaces_no_whole_snapshot(mixture, tmp_path):
    limited = _run(mixture, limit=20, output=tmp_path / "limited")
    read = {name: entry["documents"]["read"] for name, entry in limited.report["sources"].items()}
    assert read == {"web": 20, "books": 20}
    _run(mixture)
    with pytest.raises(UserError, match="--limit"):
        _run(mixture, limit=20)


@pytest.mark.slow
def test_run_source_that_keeps_nothing_gives_its_weight_to_the_others(tmp_path, corpus):
    corpora.write_jsonl(tmp_path / "empty/short.jsonl", [{"text": "short"}])
    sources = corpus + f"  empty:\n    path: {tmp_path}/empty/*.jsonl\n    weight: 5\n"
    done = _run(runs.write_mixture(tmp_path, sources))
    assert done.snapshot.phases[0].weights == {"web": 7, "books": 3, "empty": 0}
    assert any("'empty' kept no document" in line and "gopher_quality" in line for line in done.told)


@pytest.mark.parametrize("tail", ["tokenizer: {train: {vocab_size: 300}}\n", "tokenizer: none\n"])
@pytest.mark.parametrize(
    ("rows", "stages", "reason"),
    [
        (3, "[filter.length: {min_words: 9}]", r"of 3 documents, filter\.length:too_few_words dropped 3"),
        (0, "[]", r"0\.jsonl and 1 more file"),
    ],
)
def test_run_that_keeps_nothing_fails_with_the_reason_and_publishes_nothing(tmp_path, rows, stages, reason, tail):
    mixture = _of_web(tmp_path, [{"text": "short"}] * rows, [], stages=f"stages: {stages}", tail=tail)
    with pytest.raises(DatapipeError, match=rf"no document is left.* source 'web': .*{reason}"):
        _run(mixture)
    assert not (tmp_path / "out/snapshot.json").exists()
    assert not (tmp_path / "out/documents").exists()


def test_run_past_max_quarantined_fails_and_names_the_source(tmp_path):
    mixture = _of_web(tmp_path, corpora.documents(1, 50))
    with (tmp_path / "web/0.jsonl").open("ab") as file:
        file.write(b"not json\n")
    with pytest.raises(DatapipeError, match="source 'web': 1 of 51"):
        _run(mixture)
    assert _run(mixture, "max_quarantined=5%").report["total"]["documents"]["quarantined"] == 1


def test_run_with_input_inside_its_output_is_refused_before_anything_is_touched(tmp_path):
    for place in ("out/shards/raw", "out/work/attempts/raw"):
        kept = corpora.write_jsonl(tmp_path / place / "a.jsonl", corpora.documents(1, 30))
        with pytest.raises(UserError, match="lies inside the output"):
            _run(runs.write_mixture(tmp_path, f"  web:\n    path: {kept}\n"))
        assert kept.exists()
    (tmp_path / "link").symlink_to("out/shards", target_is_directory=True)
    with pytest.raises(UserError, match=r"link/raw/a\.jsonl lies inside the output"):
        _run(runs.write_mixture(tmp_path, f"  web:\n    path: {tmp_path}/*/raw/*.jsonl\n"))


@pytest.mark.parametrize("pattern", ["*.parquet", "**/*.json", "**"])
def test_run_whose_pattern_takes_what_it_writes_is_refused_at_the_first_run(tmp_path, pattern):
    corpora.write_parquet(tmp_path / "in/a.parquet", corpora.documents(1, 3))
    corpora.write_jsonl(tmp_path / "in/b.json", corpora.documents(1, 3))
    mixture = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/in/{pattern}}}\n", "stages: []")
    with pytest.raises(UserError, match="which the run writes"):
        _run(mixture, output=tmp_path / "in")
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["a.parquet", "b.json"]


def test_run_again_restores_what_was_deleted_or_damaged_and_leaves_files_of_others(tmp_path):
    mixture, output = _of_web(tmp_path, corpora.documents(1, 120)), tmp_path / "out"
    own = output / "shards/web/notes.txt"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    first = _run(mixture)
    assert any("notes.txt" in line for line in first.told)
    (output / first.snapshot.shards[0].path).unlink()
    tokenizer = output / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes()[:-10] + b"0123456789")
    again = _run(mixture)
    assert again.watcher.records == []
    assert own.read_text() == "mine"
    own.unlink()
    assert verify_snapshot(Root(str(output)), again.snapshot) == []


@pytest.mark.slow
def test_run_again_names_the_committed_file_that_a_damaged_shard_is_linked_to(tmp_path):
    mixture, output = _of_web(tmp_path, corpora.documents(1, 120)), tmp_path / "out"
    shard = output / _run(mixture).snapshot.shards[0].path
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    with shard.open("r+b") as file:  # in place, as a failing disk would
        file.write(content)
    shard.unlink()
    with pytest.raises(DatapipeError, match="its checksum is not the committed one") as failure:
        _run(mixture)
    (output / str(failure.value).partition(":")[0]).unlink()
    again = _run(mixture)
    assert again.watcher.steps == ["web/pack"]
    assert verify_snapshot(Root(str(output)), again.snapshot) == []


_SMALL_TAIL = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    corpora.write_jsonl(tmp_path / "web.jsonl", corpora.documents(1, 30))
    return runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", "stages: [filter.length]", _SMALL_TAIL)


def _as_version_3(root: Root) -> None:
    """work/ as the version before this one left it: a file for each record."""
    run = json.loads(root.read_bytes(RUN))
    run["version"] = 3
    root.write_atomic(RUN, json.dumps(run).encode())
    for fingerprint in stored_records(root.url):
        root.write_atomic(f"{LEDGER}/{fingerprint}.json", b'{"checksum": ""}\n{"version": 3}\n')
    for path, _ in root.list_files(LEDGER):
        if path.endswith(".jsonl"):
            root.delete(path)


@pytest.mark.medium
def test_history_has_the_steps_records_and_files_of_the_last_run(small: Path):
    finished = runs.run_mixture(small, limit=20, make_engine=runs.InProcess)
    root = Root(finished.mixture.output)
    history = read_history(root)
    assert [(step.id, step.records) for step in history.steps] == [(step.id, step.records) for step in finished.plan.steps]
    assert [(source, file.path) for source, file, _ in history.files.values()] == [("web", "web.jsonl")]
    assert not was_whole(root)


def test_hours_of_nodes_are_summed_over_runs_and_a_damaged_file_counts_as_none(tmp_path: Path):
    root = Root(str(tmp_path))
    assert node_hours(root) == 0
    add_node_hours(root, 1.5)
    add_node_hours(root, 0.25)
    assert node_hours(root) == 1.75
    (tmp_path / CLUSTER).write_text('{"node_hours": null}')
    assert node_hours(root) == 0


def test_mixture_of_an_output_that_is_damaged_is_named_where_it_is(tmp_path: Path):
    (tmp_path / "mixture.yaml").write_text("name: [damaged\n")
    with pytest.raises(UserError, match=rf"^{tmp_path}/mixture.yaml:2: "):
        read_mixture(Root(str(tmp_path)))
    with pytest.raises(UserError):  # there was no run
        read_history(Root(str(tmp_path)))
    Root(str(tmp_path)).write_atomic("work/run.json", b'{"version"')
    with pytest.raises(UserError, match=r"work/run\.json or inputs\.parquet beside it is damaged: .*run again"):
        read_history(Root(str(tmp_path)))


@pytest.mark.medium
def test_output_of_the_version_before_keeps_its_snapshot_and_every_task_runs_again(small: Path):
    before = runs.run_mixture(small, make_engine=runs.InProcess)
    root = Root(before.mixture.output)
    _as_version_3(root)
    with pytest.raises(UserError, match="version 3"):
        read_history(root)
    assert verify_snapshot(root, read_snapshot(root)) == []
    again = runs.run_mixture(small, make_engine=runs.InProcess)
    assert again.watcher.steps == before.watcher.steps
    assert any("another version of datapipe" in line for line in again.watcher.lines)
    assert again.checksums == before.checksums


def test_listed_kernels_exist() -> None:
    for qualified_name in KERNELS:
        assert [kernel.qualified_name for kernel in kernels_named(qualified_name)] == [qualified_name]


@pytest.mark.parametrize(
    ("options", "has_json", "has_tokens"),
    [
        ({}, False, True),
        ({"tokenizer": "none"}, False, False),
        ({"tokenizer": "none", "documents": {"format": "jsonl.zst"}}, True, False),
    ],
)
def test_kernels_of_a_run_follow_from_what_it_writes(options, has_json: bool, has_tokens: bool) -> None:
    data = {"name": "m", "output": "runs/m", "sources": {"web": {"path": "a.jsonl"}}}
    names = kernels_of_run(Mixture.model_validate(data | options))
    assert any(".json_strings:" in name for name in names) == has_json
    assert any(".tokens.bpe_training:" in name for name in names) == has_tokens
    assert ("datapipe.kernels.tokens.pack:fill_rows_uint16" in names) == has_tokens


@pytest.mark.parametrize("kinds", [["email", "ip"], ["email", "card"]])
@pytest.mark.parametrize("replace", ["tag", "fake"])
def test_kernels_that_the_options_of_a_stage_do_not_need_are_not_compiled(kinds: list[str], replace: str) -> None:
    stages = [{"redact.pii": {"kinds": kinds, "replace": replace}}]
    data = {"name": "m", "output": "runs/m", "sources": {"web": {"path": "a.jsonl"}}, "stages": stages}
    names = kernels_of_run(Mixture.model_validate(data))
    assert "datapipe.kernels.redact.pii:find_spans" in names
    assert ("datapipe.kernels.redact.identifiers:find_identifiers" in names) == ("card" in kinds)
    assert ("datapipe.kernels.redact.stand_ins:write_stand_ins" in names) == (replace == "fake")


@pytest.mark.needs("icu4py")
@pytest.mark.parametrize("words", ["whitespace", "dictionary"])
def test_kernels_of_dictionaries_are_compiled_for_stages_that_use_them(words: str) -> None:
    stages = [{"filter.gopher_quality": {"words": words}}]
    data = {"name": "m", "output": "runs/m", "sources": {"web": {"path": "a.jsonl"}}, "stages": stages}
    names = kernels_of_run(Mixture.model_validate(data))
    assert any(".icu_breaks:" in name for name in names) == (words == "dictionary")
