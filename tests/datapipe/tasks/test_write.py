"""Runs without a tokenizer: cleaned documents in files, as a snapshot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.engine.clean import clean
from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.partitions import read_table
from datapipe.loader import Loader
from datapipe.plan.outputs import TableFile
from datapipe.shards.manifest import DocumentsSnapshot, read_manifest
from datapipe.shards.verify import verify_snapshot
from datapipe.storage import Root
from datapipe.tasks.train import is_validation
from tests.support import corpora, runs
from tests.support.command_line import datapipe

pytestmark = pytest.mark.slow

TEXT = """
tokenizer: none
documents: {target_bytes: 16KiB}
execution: {split_bytes: 64KiB, bucket_bytes: 64KiB}
"""


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory, corpus) -> runs.Finished:
    return runs.run_mixture(runs.write_mixture(tmp_path_factory.mktemp("tokenized"), corpus), make_engine=runs.InProcess)


@pytest.fixture(scope="module")
def without_validation(tmp_path_factory, corpus) -> runs.Finished:
    """With tokens, and no document held out."""
    path = runs.write_mixture(tmp_path_factory.mktemp("without"), corpus)
    return runs.run_mixture(path, overrides=["validation=0%"], make_engine=runs.InProcess)


@pytest.fixture(scope="module")
def written(tmp_path_factory, corpus) -> runs.Finished:
    path = runs.write_mixture(tmp_path_factory.mktemp("written"), corpus, tail=TEXT)
    return runs.run_mixture(path, make_engine=runs.InProcess)


def _checksums(run: runs.Finished) -> dict[str, str]:
    assert isinstance(run.snapshot, DocumentsSnapshot)
    return {entry.path: entry.checksum for entry in run.snapshot.documents}


def _kept(run: runs.Finished, source: str) -> list[tuple[str, str]]:
    """Id and text of the documents that the last stage of a source left, in the order of the input."""
    root, step = Root(run.mixture.output), run.plan.of_kind("map", source)[-1]
    batches = [batch for output in step.outputs("documents", TableFile) for batch in read_table(root, output)]
    return [pair for batch in batches for pair in zip(batch["id"].to_pylist(), batch["text"].to_pylist())]


def _files(run: runs.Finished, source: str) -> list[Path]:
    assert isinstance(run.snapshot, DocumentsSnapshot)
    return [Path(run.mixture.output) / entry.path for entry in run.snapshot.documents if entry.source == source]


def _written(run: runs.Finished, source: str) -> pa.Table:
    return pa.concat_tables([pq.read_table(path) for path in _files(run, source)])


@pytest.mark.parametrize("source", ["web", "books"])
def test_documents_are_those_that_a_run_with_a_tokenizer_packs(tokenized, written, source):
    table = _written(written, source)
    assert list(zip(table["id"].to_pylist(), table["text"].to_pylist())) == _kept(tokenized, source)
    assert set(table["source"].to_pylist()) == {source}
    assert len(_files(written, source)) > 1


def test_documents_have_ids_source_and_text_and_then_the_kept_columns(tmp_path):
    rows = [
        {"id": "mine", "text": "A text", "score": 1, "url": "https://example.org"},
        {"text": "Another text", "score": None, "url": None},
    ]
    corpora.write_jsonl(tmp_path / "web/a.jsonl", rows)
    sources = f"  web:\n    path: {tmp_path}/web/*.jsonl\n    keep: [score, url]\n"
    run = runs.run_mixture(runs.write_mixture(tmp_path, sources, "", TEXT), make_engine=runs.InProcess)
    table = _written(run, "web")
    assert table.column_names == ["id", "url", "source", "text", "score"]
    second = (tmp_path / "web/a.jsonl").read_bytes().index(b"\n") + 1
    assert table["id"].to_pylist() == ["mine", f"web/a.jsonl:{second}"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [["execution.split_bytes=8KiB"], ["execution.split_bytes=1MiB"]], ids=["small", "large"])
@pytest.mark.parametrize("format", ["parquet", "jsonl.zst"])
def test_bytes_depend_neither_on_workers_nor_on_how_the_input_is_cut(tmp_path, corpus, written, format, options):
    overrides = [f"documents.format={format}"]
    one = written
    if format != "parquet":
        one = runs.run_mixture(
            runs.write_mixture(tmp_path, corpus, tail=TEXT),
            overrides=overrides,
            output=tmp_path / "1",
            make_engine=runs.InProcess,
        )
    path = runs.write_mixture(tmp_path, corpus, tail=TEXT, name="other.yaml")
    two = runs.run_mixture(path, overrides=[*overrides, *options], workers=2)
    assert _checksums(two) == _checksums(one)
    assert two.snapshot == one.snapshot


def test_json_lines_hold_the_documents_of_parquet(tmp_path, corpus, written):
    path = runs.write_mixture(tmp_path, corpus, tail=TEXT)
    run = runs.run_mixture(path, overrides=["documents.format=jsonl.zst"], make_engine=runs.InProcess)
    for source in run.mixture.sources:
        lines = b"".join(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd").read() for path in _files(run, source))
        assert [json.loads(line) for line in lines.splitlines()] == _written(written, source).to_pylist()


@pytest.mark.slow
def test_a_tokenizer_that_is_added_cleans_nothing_again(tmp_path, corpus, tokenized):
    text = runs.run_mixture(runs.write_mixture(tmp_path, corpus, tail=TEXT), make_engine=runs.InProcess)
    tokens = runs.run_mixture(runs.write_mixture(tmp_path, corpus), make_engine=runs.InProcess)
    assert {step.rpartition("/")[2] for step in tokens.watcher.steps} == {"sample", "train", "tokenize", "pack"}
    assert tokens.snapshot == tokenized.snapshot
    root = Root(tokens.mixture.output)
    assert read_manifest(root, text.snapshot.fingerprint) == text.snapshot
    assert not verify_snapshot(root, text.snapshot) and not verify_snapshot(root, tokens.snapshot)
    again = runs.run_mixture(runs.write_mixture(tmp_path, corpus, tail=TEXT), make_engine=runs.InProcess)
    assert again.watcher.steps == [] and read_manifest(root) == text.snapshot


def test_the_loader_refuses_documents_and_says_what_to_do(written):
    with pytest.raises(
        DatapipeError,
        match=r"holds documents, not tokens: parquet files, in .*/documents. For tokens, add a tokenizer",
    ):
        Loader(written.mixture.output, batch_size=1)


@pytest.mark.slow
def test_verify_tells_damage_and_strangers(tmp_path, corpus):
    run = runs.run_mixture(runs.write_mixture(tmp_path, corpus, tail=TEXT), make_engine=runs.InProcess)
    root = Root(run.mixture.output)
    assert verify_snapshot(root, run.snapshot) == []
    path = _files(run, "web")[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    (path.parent / "notes.txt").write_text("mine")
    problems = verify_snapshot(root, run.snapshot)
    assert [problem.partition(":")[0] for problem in problems] == [
        run.snapshot.documents[-len(_files(run, "web"))].path,
        "documents/web/notes.txt",
    ]


@pytest.mark.slow
def test_documents_of_an_earlier_snapshot_are_told_and_cleaned(tmp_path, corpus):
    path = runs.write_mixture(tmp_path, corpus, tail=TEXT)
    first = runs.run_mixture(path, make_engine=runs.InProcess)
    second = runs.run_mixture(path, overrides=["stages=[filter.length: {min_chars: 300}]"], make_engine=runs.InProcess)
    assert any("files of earlier snapshots" in line for line in second.told)
    clean(Root(second.mixture.output), 1)
    left = {str(found.relative_to(second.mixture.output)) for found in Path(second.mixture.output).glob("documents/*/*")}
    assert left == set(_checksums(second)) != set(_checksums(first))


def test_keys_about_tokens_are_told_as_not_used(tmp_path, corpus):
    tail = TEXT + "validation: 1%\npack: {sequence_length: 64}\nmixture: {tokens: 1B}\n"
    run = runs.run_mixture(runs.write_mixture(tmp_path, corpus, tail=tail), make_engine=runs.InProcess)
    line = next(line for line in run.told if "not used" in line)
    assert "validation, pack, mixture" in line and "tokenizer: none" in line


def test_weights_of_zero_do_not_matter_without_a_tokenizer(tmp_path, corpus):
    overrides = ["sources.web.weight=0", "sources.books.weight=0"]
    path = runs.write_mixture(tmp_path, corpus, tail=TEXT)
    assert isinstance(runs.run_mixture(path, overrides=overrides, make_engine=runs.InProcess).snapshot, DocumentsSnapshot)
    settings = [part for override in overrides for part in ("--set", override)]
    told = datapipe(["plan", str(path), *settings])
    assert told.returncode == 0 and "write documents" in told.stdout and "tokens to draw" not in told.stdout
    listed = datapipe(["plan", str(path), *settings, "--json"])
    assert json.loads(listed.stdout)["sources"]["web"]["share"] is None


def test_commands_about_an_output_read_documents(written):
    output = written.mixture.output
    count = sum(entry.documents for entry in written.snapshot.documents)
    assert f"{count:,} documents: every byte equals" in datapipe(["verify", output]).stdout
    listed = datapipe(["snapshots", output]).stdout
    assert f"{count:,} documents" in listed and "Loader" not in listed
    assert "nothing to delete" in datapipe(["clean", output]).stdout
    assert datapipe(["inspect", output, "-n", "1"]).returncode == 0
    refused = datapipe(["export", output, "--format", "megatron", "--to", f"{output}-export"])
    assert refused.returncode == 2 and "holds documents, not tokens" in refused.stderr


def test_a_kept_column_called_source_is_refused_before_anything_runs(tmp_path, corpus):
    path = runs.write_mixture(tmp_path, corpus, tail=TEXT)
    with pytest.raises(UserError, match="'source' cannot be kept"):
        runs.run_mixture(path, overrides=["sources.books.keep=[source]"], make_engine=runs.InProcess)


@pytest.mark.slow
def test_written_documents_are_a_source_of_another_mixture(tmp_path, written):
    sources = f"  clean:\n    path: {written.mixture.output}/documents/web/*.parquet\n"
    run = runs.run_mixture(runs.write_mixture(tmp_path, sources, "", TEXT), make_engine=runs.InProcess)
    one, other = _written(run, "clean"), _written(written, "web")
    assert one["id"].to_pylist() == other["id"].to_pylist() and one["text"].to_pylist() == other["text"].to_pylist()


def test_a_run_that_is_stopped_between_any_two_files_goes_on(tmp_path, corpus, written):
    path = runs.write_mixture(tmp_path, corpus, tail=TEXT)
    num_writes, num_stops = sum(step.endswith("/write") for step in written.watcher.steps), 0

    def stop(record):
        if record.step.endswith("/write"):
            raise KeyboardInterrupt

    while True:
        try:
            done = runs.run_mixture(path, make_engine=runs.InProcess, watcher=runs.Watcher(on_commit=stop))
        except KeyboardInterrupt:
            num_stops += 1
            continue
        break
    assert num_stops == num_writes
    assert _checksums(done) == _checksums(written)


@pytest.mark.parametrize("format", ["parquet", "jsonl", "mds"])
def test_text_of_a_snapshot_with_tokens_is_that_of_a_run_without(tmp_path, without_validation, written, format):
    count = sum(entry.documents for entry in written.snapshot.documents)
    for run, name, options in ((without_validation, "x", ["--text"]), (written, "y", [])):
        command = ["export", run.mixture.output, "--format", format, "--to", f"{tmp_path}/{name}", "--target-bytes", "16KiB"]
        told = datapipe([*command, *options])
        assert told.returncode == 0, told.stderr
        assert f"{count:,} documents" in told.stdout
        assert f'"{tmp_path}/{name}"' in told.stdout.splitlines()[-1]
    one, other = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "x", tmp_path / "y")
    )
    assert one.pop(Path("_EXPORTED")) != other.pop(Path("_EXPORTED"))  # it names the snapshot
    assert one == other and len(one) > 3


@pytest.mark.slow
def test_text_of_held_out_documents_is_the_validation_split(tmp_path, corpus):
    path = runs.write_mixture(tmp_path, corpus)
    run = runs.run_mixture(path, overrides=["validation=20%"], make_engine=runs.InProcess)
    told = datapipe(["export", run.mixture.output, "--text", "--format", "parquet", "--to", f"{tmp_path}/x"])
    assert told.returncode == 0, told.stderr
    for split, is_held_out in (("train", False), ("validation", True)):
        table = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "x/data").glob(f"{split}-*"))])
        step = {source: run.plan.of_kind("map", source)[-1] for source in sorted(run.mixture.sources)}
        batches = [
            batch
            for source in step
            for output in step[source].outputs("documents", TableFile)
            for batch in read_table(Root(run.mixture.output), output)
        ]
        expected = [
            name
            for batch in batches
            for name, held_out in zip(batch["id"].to_pylist(), is_validation(batch["key"], run.snapshot.seed, 0.2))
            if held_out == is_held_out
        ]
        assert table["id"].to_pylist() == expected and len(expected) > 5


def test_text_that_work_has_lost_is_told(tmp_path, tokenized):
    copy = tmp_path / "copy"
    shutil.copytree(tokenized.mixture.output, copy)
    shutil.rmtree(copy / "work")
    told = datapipe(["export", str(copy), "--text", "--format", "parquet", "--to", f"{tmp_path}/x"])
    assert told.returncode == 2 and "work/ has lost the texts" in told.stderr and "--set tokenizer=none" in told.stderr
