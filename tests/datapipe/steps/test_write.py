"""Runs without a tokenizer: cleaned documents in files, as a snapshot."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.tables import read_table
from datapipe.explore.documents import Inspector
from datapipe.loader import Loader
from datapipe.records.outputs import TableFile
from datapipe.shards.manifest import read_snapshot
from datapipe.snapshots.clean import clean
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.train import is_validation
from datapipe.steps.write import LEAST_DOCUMENT_BYTES
from datapipe.storage.root import Root
from tests.support import corpora, runs
from tests.support.command_line import datapipe
from tests.support.killed_changes import content_of

pytestmark = pytest.mark.medium

TARGET = 16 << 10
TEXT = """
tokenizer: none
documents: {target_bytes: 16KiB}
execution: {split_bytes: 64KiB, bucket_bytes: 64KiB}
"""


def _run(folder: Path, corpus: str, *overrides: str, tail: str = TEXT, **options) -> runs.Finished:
    path = runs.write_mixture(folder, corpus, tail=tail)
    return runs.run_mixture(path, overrides=overrides, **{"make_engine": runs.InProcess, **options})


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory, corpus) -> runs.Finished:
    """With tokens, and no document held out."""
    return _run(tmp_path_factory.mktemp("tokenized"), corpus, "validation=0%", tail=runs.TAIL)


@pytest.fixture(scope="module")
def written(tmp_path_factory, corpus) -> runs.Finished:
    return _run(tmp_path_factory.mktemp("written"), corpus)


def _checksums(run: runs.Finished) -> dict[str, str]:
    assert not run.snapshot.has_tokens
    return {entry.path: entry.checksum for entry in run.snapshot.shards}


def _kept(run: runs.Finished, source: str) -> list[dict]:
    """The documents that the last stage of a source left, in the order of the input."""
    root, step = Root(run.mixture.output), run.plan.of_kind("map", source)[-1]
    batches = [batch for output in step.outputs("documents", TableFile) for batch in read_table(root, output)]
    return [row for batch in batches for row in batch.to_pylist()]


def _rows(path: Path) -> list[dict]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in pa.CompressedInputStream(pa.OSFile(str(path)), "zstd").read().splitlines()]


def _files(run: runs.Finished, source: str) -> list[list[dict]]:
    """The documents of each file of a source."""
    entries = [entry for entry in run.snapshot.shards if entry.source == source]
    found = [_rows(Path(run.mixture.output, entry.path)) for entry in entries]
    texts = [[row["text"].encode() for row in rows] for rows in found]
    assert [(entry.documents, entry.text_bytes) for entry in entries] == [(len(t), sum(map(len, t))) for t in texts]
    return found


@pytest.mark.parametrize("source", ["web", "books"])
@pytest.mark.slow
def test_documents_are_those_that_a_run_with_a_tokenizer_packs_cut_into_files_by_their_bytes(tokenized, written, source):
    expected: dict[int, list[dict]] = {}
    begin = 0
    for row in _kept(tokenized, source):
        expected.setdefault(begin // TARGET, []).append({"id": row["id"], "source": source, "text": row["text"]})
        begin += len(row["text"].encode()) + LEAST_DOCUMENT_BYTES
    assert _files(written, source) == list(expected.values())
    assert len(expected) > 1


def test_documents_have_ids_source_and_text_and_then_the_kept_columns(tmp_path):
    rows = [{"id": "mine", "text": "A text", "score": 1, "url": "u"}, {"text": "Another text", "score": None, "url": None}]
    corpora.write_jsonl(tmp_path / "web/a.jsonl", rows)
    sources = f"  web:\n    path: {tmp_path}/web/*.jsonl\n    keep: [score, url]\n"
    run = runs.run_mixture(runs.write_mixture(tmp_path, sources, "", TEXT), make_engine=runs.InProcess)
    second = (tmp_path / "web/a.jsonl").read_bytes().index(b"\n") + 1
    ids = ["mine", f"web/a.jsonl:{second}"]
    (found,) = _files(run, "web")
    assert found == [{**row, "id": id_, "source": "web"} for row, id_ in zip(rows, ids)]
    assert list(found[0]) == ["id", "url", "source", "text", "score"]


def test_mixture_without_a_tokenizer_needs_no_weights_and_reports_of_keys_that_are_not_used(tmp_path, corpus):
    tail = TEXT + "validation: 1%\npack: {sequence_length: 64}\nmixture: {tokens: 1B}\n"
    run = _run(tmp_path, corpus, "sources.web.weight=0", "sources.books.weight=0", "stages=[]", tail=tail)
    assert not run.snapshot.has_tokens
    assert any("not used" in line and "validation, pack, mixture" in line for line in run.told)
    listed = json.loads(datapipe(["plan", str(tmp_path / "mixture.yaml"), "--json"]).stdout)
    assert listed["sources"]["web"]["share"] is None
    with pytest.raises(UserError, match="'source' cannot be kept"):
        _run(tmp_path, corpus, "sources.books.keep=[source]")


def test_commands_about_an_output_read_documents_or_refuse_them(written):
    output = written.mixture.output
    count = sum(entry.documents for entry in written.snapshot.shards)
    assert all(f"{count:,} documents" in datapipe([command, output]).stdout for command in ("verify", "snapshots"))
    assert datapipe(["clean", output]).returncode == datapipe(["inspect", output, "-n", "1"]).returncode == 0
    refused = datapipe(["export", output, "--format", "megatron", "--to", f"{output}-export"])
    assert (refused.returncode, "documents, not tokens" in refused.stderr) == (2, True)
    with pytest.raises(DatapipeError, match="documents, not tokens"):
        Loader(output, batch_size=1)


# ------------------------------------------------------------------------------------------------ around the stages


def _texts(folder: Path) -> str:
    """A source of pages that break their own rules."""
    words = (
        "Those who have been there say that it is to be seen with their own eyes, and the people of the town came to see it.\n"
    )
    text = f"{words * 3}Please write to jane{{0}}.doe@mail.org today or never.\nno end mark here\n"
    rows = [{"text": text.format(n), "url": "https://a.org" if n else None} for n in range(12)]
    corpora.write_jsonl(folder / "a.jsonl", rows)
    return f"  web: {{path: {folder}/a.jsonl, keep: [url]}}\n"


def test_filters_that_edit_or_tag_count_apart_and_change_what_is_kept(tmp_path):
    source, tags = _texts(tmp_path), "redact.pii: {as: tagging, mode: tag, max_hits: 0}"
    stages = f"stages=[filter.c4_quality: {{min_sentences: 1}}, {tags}, filter.url: {{domains: [b.org]}}]"
    done, edited = _run(tmp_path, source, stages), _run(tmp_path, source, "stages=[redact.pii]", output=tmp_path / "edited")
    assert done.report["sources"]["web"]["documents"]["kept"] == 12
    counts = [+Counter(run.report["sources"]["web"]["counts"]) for run in (done, edited)]
    lines = {"filter.c4_quality:lines_without_end_mark": 12, "filter.url:without_url": 1}
    assert counts == [{**lines, "tagging (tag):email": 12}, {"redact.pii:email": 12}]
    for run, has_mail, has_line in ((done, True, False), (edited, False, True)):
        texts = [row["text"] for rows in _files(run, "web") for row in rows]
        assert {("@mail.org" in text, "no end mark" in text) for text in texts} == {(has_mail, has_line)}


@pytest.mark.slow
def test_written_documents_are_a_source_of_another_mixture(tmp_path, written):
    sources = f"  clean:\n    path: {written.mixture.output}/documents/web/*.parquet\n"
    run = runs.run_mixture(runs.write_mixture(tmp_path, sources, "", TEXT), make_engine=runs.InProcess)
    found, expected = (
        [(row["id"], row["text"]) for rows in _files(*of) for row in rows] for of in ((run, "clean"), (written, "web"))
    )
    assert found == expected


def test_limit_counts_what_cannot_be_read(tmp_path):
    source = _texts(tmp_path)
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": ["text"]}] * 12)
    with pytest.raises(DatapipeError, match=r"no document is left.*3 are in quarantine"):
        _run(tmp_path, source, "stages=[filter.length: {min_chars: 1}]", "max_quarantined=100%", limit=3)
    assert len(Inspector.open(str(tmp_path / "out")).find(outcome="quarantined", count=100)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("format", ["parquet", "jsonl.zst"])
@pytest.mark.parametrize("split_bytes", ["24KiB", "1MiB"])
def test_bytes_depend_neither_on_workers_nor_on_how_the_input_is_cut(tmp_path, corpus, written, format, split_bytes):
    cut = [f"documents.format={format}", f"execution.split_bytes={split_bytes}"]
    one = written if format == "parquet" else _run(tmp_path, corpus, cut[0], output=tmp_path / "1")
    assert [_files(one, source) for source in one.mixture.sources] == [
        _files(written, source) for source in one.mixture.sources
    ]
    how = {"make_engine": None, "workers": 2} if split_bytes == "1MiB" else {}
    two = _run(tmp_path, corpus, *cut, **how)
    assert _checksums(two) == _checksums(one)
    assert two.snapshot == one.snapshot


@pytest.mark.slow
def test_a_tokenizer_that_is_added_cleans_nothing_again(tmp_path, corpus, tokenized):
    text = _run(tmp_path, corpus)
    tokens = _run(tmp_path, corpus, "validation=0%", tail=runs.TAIL)
    assert {step.rpartition("/")[2] for step in tokens.watcher.steps} == {"sample", "train", "tokenize", "pack"}
    assert tokens.snapshot == tokenized.snapshot
    root = Root(tokens.mixture.output)
    assert read_snapshot(root, text.snapshot.fingerprint) == text.snapshot
    assert not verify_snapshot(root, text.snapshot)
    assert not verify_snapshot(root, tokens.snapshot)
    assert _run(tmp_path, corpus).watcher.steps == []
    assert read_snapshot(root) == text.snapshot


@pytest.mark.slow
def test_verify_reports_damage_and_strangers_and_cleaning_deletes_earlier_files(tmp_path, corpus):
    first = _run(tmp_path, corpus)
    root = Root(first.mixture.output)
    assert verify_snapshot(root, first.snapshot) == []
    damaged = next(entry.path for entry in first.snapshot.shards if entry.source == "web")
    path = Path(root.path(damaged))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    (path.parent / "notes.txt").write_text("mine")
    problems = verify_snapshot(root, first.snapshot)
    assert [problem.partition(":")[0] for problem in problems] == [damaged, "documents/web/notes.txt"]
    (path.parent / "notes.txt").unlink()
    second = _run(tmp_path, corpus, "stages=[filter.length: {min_chars: 300}]")
    assert any("files of earlier snapshots" in line for line in second.told)
    clean(root, 1)
    left = {str(found.relative_to(root.url)) for found in Path(root.url).glob("documents/*/*")}
    assert left == set(_checksums(second)) != set(_checksums(first))


@pytest.mark.parametrize("format", ["parquet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jsonl", "mds"))])
def test_text_of_a_snapshot_with_tokens_is_that_of_a_run_without(tmp_path, tokenized, written, format):
    count = sum(entry.documents for entry in written.snapshot.shards)
    for run, name, options in ((tokenized, "x", ["--text"]), (written, "y", [])):
        command = ["export", run.mixture.output, "--format", format, "--to", f"{tmp_path}/{name}", "--target-bytes", "16KiB"]
        told = datapipe([*command, *options])
        assert told.returncode == 0, told.stderr
        assert f"{count:,} documents" in told.stdout
    one, other = content_of(tmp_path / "x"), content_of(tmp_path / "y")
    assert one.pop("_EXPORTED") != other.pop("_EXPORTED")  # it names the snapshot
    assert one == other
    assert len(one) > 3


@pytest.mark.slow
def test_text_of_held_out_documents_is_the_validation_split_until_work_has_lost_it(tmp_path, corpus):
    run = _run(tmp_path, corpus, "validation=20%", tail=runs.TAIL)
    command = ["export", run.mixture.output, "--text", "--format", "parquet", "--to"]
    assert datapipe([*command, f"{tmp_path}/x"]).returncode == 0
    rows = [row for source in sorted(run.mixture.sources) for row in _kept(run, source)]
    held_out = is_validation(pa.array([row["key"] for row in rows], pa.binary(16)), run.snapshot.seed, 0.2)
    for split, is_held_out in (("train", False), ("validation", True)):
        found = [row["id"] for file in sorted((tmp_path / "x/data").glob(f"{split}-*")) for row in _rows(file)]
        assert found == [row["id"] for row, held in zip(rows, held_out) if held == is_held_out]
        assert len(found) > 5
    shutil.rmtree(Path(run.mixture.output) / "work")
    told = datapipe([*command, f"{tmp_path}/y"])
    assert (told.returncode, "work/ has lost the texts" in told.stderr) == (2, True)
