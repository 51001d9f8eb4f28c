"""Samples, training and tokenizing, against plain Python; tokens around documents, and what the report counts."""

import base64
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.config import load_mixture
from datapipe.engine.following.follow import Follower
from datapipe.engine.prepare import prepare
from datapipe.errors import UserError
from datapipe.exchange.ranges import HASH_SPACE, read_rows
from datapipe.exchange.tables import TableWriter, read_table
from datapipe.loader import Loader
from datapipe.records.names import MIXTURE
from datapipe.records.outputs import TableFile, TokenizerFile
from datapipe.report.summary import tokenizer_figures
from datapipe.rng import shuffle_hash
from datapipe.shards.manifest import read_snapshot
from datapipe.shards.reader import ShardReader
from datapipe.shards.shard_table import RowForm
from datapipe.shards.snapshot_folder import snapshot_folder
from datapipe.snapshots.export.export import ExportRequest, export_snapshot
from datapipe.snapshots.verify import verify_snapshot
from datapipe.steps.run_task import run_task
from datapipe.steps.tokenize import TokenizeMetrics, TokenizeTask
from datapipe.steps.train import SampleTask, TrainTask, is_validation
from datapipe.storage.root import Root
from datapipe.tokens import Encoder
from datapipe.tokens.word_counts import COUNTED
from tests.support import corpora, runs, tokenizer_files
from tests.support.global_stages import batch_of
from tests.support.megatron_reader import read_pair

pytestmark = pytest.mark.medium

TAIL = """
validation: 10%
tokenizer:
  train: {vocab_size: 400, sample_bytes: 60kB}
pack: {sequence_length: 64}
execution: {split_bytes: 64KiB}
"""


# ------------------------------------------------------------------------------------------------ tasks


@pytest.mark.parametrize("bos", [None, "<s>"])
def test_task_writes_the_ids_of_every_document_once_by_stratum_and_split(tmp_path: Path, bos: str | None) -> None:
    root, writer = Root(str(tmp_path)), TableWriter(Root(str(tmp_path)), "documents")
    texts = [f"the lazy dog {number} and {'fox ' * (number % 5)}" if number % 9 else "" for number in range(120)]
    scores = [float(number % 12) for number in range(120)]
    columns_kept = {"score": pa.array(scores), "license": pa.array(["MIT", None] * 60)}
    for start in range(0, 120, 50):
        writer.add(batch_of(texts, **columns_kept).record.slice(start, 50))
    load = TrainTask(step="tokenizer/load", seed=3, content=tokenizer_files.byte_level(), eos="</s>", bos=bos)
    (tokenizer,) = run_task(load, root, "1").of("tokenizer", TokenizerFile)
    task = TokenizeTask(
        step="web/tokenize", source="web", seed=3, before="", documents=writer.finish(), tokenizer=tokenizer,
        validation=0.2, strata=("score", (2.0, 10.0)), license_column="license",
    )  # fmt: skip
    record = run_task(task, root, "1")
    encoder = Encoder(root.read_bytes(tokenizer.path), eos="</s>", bos=bos)
    begin = [] if bos is None else [encoder.bos_id]
    keys = batch_of(texts).keys
    held_out, hashes = is_validation(keys, 3, 0.2), shuffle_hash(columns.key_halves(keys), 3)
    expected: dict[str, list[tuple[Any, ...]]] = {}
    used: set[int] = set()
    for row, (text, score) in enumerate(zip(texts, scores)):
        name = "validation" if held_out[row] else f"train-{0 if score < 2 else 1 if score < 10 else 2}"
        ids = encoder.encode(pa.array([text], pa.large_string()))[0].tolist()
        used |= set(ids)
        expected.setdefault(name, []).append((int(hashes[row]), keys[row].as_py(), [*begin, *ids, encoder.eos_id]))
    found = {
        name: [tuple(row.values()) for row in read_rows(root, outputs, (0,), (HASH_SPACE,)).to_pylist()]
        for name, outputs in record.outputs.items()
        if outputs and ("train" in name or name == "validation") and "texts" not in name
    }
    assert sorted(found.values()) == sorted(map(sorted, expected.values()))
    assert found["validation"] == sorted(expected["validation"])
    counted, own = record.metrics, record.metrics.of(TokenizeMetrics)
    assert own.tokens == sum(len(ids) for rows in expected.values() for *_, ids in rows)
    assert (counted.document_counts.read, counted.document_counts.kept, own.empty) == (120, 120, texts.count(""))
    assert counted.document_counts.read_bytes == sum(map(len, texts))
    (ids,) = record.outputs["used_ids"]
    assert ids.rows == len(used)
    nothing_held = run_task(replace(task, validation=0.0, strata=None), root, "2")
    assert not nothing_held.outputs.get("validation")
    for name, outputs in record.outputs.items():  # hashes of texts, of which copies in both splits are found
        if "texts" in name:
            of_split = [text for text, is_held in zip(texts, held_out) if text and is_held == ("held" in name)]
            assert sum(output.rows for output in outputs) == len(of_split)


def counted_in(root: Root, outputs: Iterable[TableFile]) -> Counter[bytes]:
    """The words of samples."""
    rows = (row for output in outputs for batch in read_table(root, output) for row in batch.to_pylist())
    found: Counter[bytes] = Counter()
    for row in rows:
        found[row["word"]] += row["count"]
    return found


def test_sample_counts_the_words_of_training_documents_and_any_samples_train_one_tokenizer(tmp_path: Path) -> None:
    root, writer = Root(str(tmp_path)), TableWriter(Root(str(tmp_path)), "documents")
    texts = [f"word{number % 7} and word{number % 3}" for number in range(200)]
    writer.add(batch_of(texts).record)
    documents = writer.finish()

    def sample(fraction: float) -> Counter[bytes]:
        task = SampleTask(
            step="web/sample", source="web", seed=3, before="", documents=documents, fraction=fraction, validation=0.25,
            pattern="gpt2",
        )  # fmt: skip
        return counted_in(root, run_task(task, root, str(fraction)).of("sample", TableFile))

    words: Counter[bytes] = Counter()
    for text, is_held in zip(texts, is_validation(batch_of(texts).keys, 3, 0.25)):
        for number, word in enumerate([] if is_held else text.split()):
            words[(" " * (number > 0) + word.rstrip("0123456789")).encode()] += 1
    whole = sample(1.0)
    assert {word: count for word, count in whole.items() if not word.strip().isdigit()} == words
    assert sample(0.0) == Counter()
    assert 0.3 < sample(0.5).total() / whole.total() < 0.7

    made, counted = [], [{"word": word, "count": count} for word, count in sorted(whole.items())]
    for parts in (1, 3):
        files = []
        for part in range(parts):
            table = TableWriter(root, f"{parts}-{part}")
            table.add(pa.RecordBatch.from_pylist(counted[part::parts], schema=COUNTED))
            files += table.finish()
        task = TrainTask(
            step="tokenizer/train", seed=0, samples=tuple(files), vocab_size=270, pattern="gpt2", eos="<|endoftext|>"
        )
        (output,) = run_task(task, root, str(parts)).of("tokenizer", TokenizerFile)
        assert 257 < output.vocab_size <= 270
        made.append(root.read_bytes(output.path))
    assert made[0] == made[1]


# ------------------------------------------------------------------------------------------------ whole runs


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> str:
    folder, parts = tmp_path_factory.mktemp("weighted"), []
    for number, (name, count, weight) in enumerate([("large", 600, 1), ("small", 300, 3), ("tiny", 4, 2)]):
        corpora.write_jsonl(folder / f"{name}/a.jsonl", corpora.documents(number, count, exact=0, near=0, short=0))
        parts.append(f"  {name}:\n    path: {folder}/{name}/*.jsonl\n    weight: {weight}\n")
    return "".join(parts)


def run(folder: Path, sources: str, *overrides: str, tail: str = TAIL) -> runs.Finished:
    mixture = runs.write_mixture(folder, sources, stages="", tail=tail)
    return runs.run_mixture(mixture, overrides=overrides, make_engine=runs.InProcess)


def sampled(finished: runs.Finished) -> dict[str, Counter[bytes]]:
    """The words that were counted in the sample of each source."""
    root = Root(finished.mixture.output)
    return {step.source: counted_in(root, step.outputs("sample", TableFile)) for step in finished.plan.of_kind("sample")}


def report_of(finished: runs.Finished) -> dict:
    found = tokenizer_figures(Root(finished.mixture.output), finished.plan)
    assert found is not None
    return found.model_dump(mode="json")


def texts_of(finished: runs.Finished, source: str) -> list[str]:
    (step,) = finished.plan.of_kind("map", source)
    tables = (table for output in step.outputs("documents") for table in read_table(Root(finished.mixture.output), output))
    return [text for table in tables for text in table.column("text").to_pylist()]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, sources) -> runs.Finished:
    return run(tmp_path_factory.mktemp("reference"), sources)


@pytest.mark.slow
def test_sample_follows_the_weights_of_the_sources(reference):
    sizes = {name: sum(len(word) * count for word, count in words.items()) for name, words in sampled(reference).items()}
    # tiny has less than its third: all of it is taken, but for what is held out, and the others share the rest 1 : 3
    rest = 60_000 - sizes["tiny"]
    assert 0 < sizes["tiny"] < 8_000
    assert sizes["large"] == pytest.approx(rest / 4, rel=0.35)
    assert sizes["small"] == pytest.approx(rest * 3 / 4, rel=0.2)


def test_tokenizers_that_are_there_are_taken_and_what_does_not_fit_to_them_is_refused(tmp_path, reference):
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    ranks = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
    (tmp_path / "own.tiktoken").write_bytes(ranks)

    def prepared(**tokenizer: Any) -> Any:
        sources = {"a": {"path": str(tmp_path / "a.jsonl")}}
        return prepare(load_mixture({"name": "a", "output": str(tmp_path / "out"), "sources": sources, "tokenizer": tokenizer}))

    own = {"path": str(tmp_path / "own.tiktoken"), "pattern": "cl100k"}
    assert Encoder(prepared(**own, special_tokens={"<|endoftext|>": 256}).tokenizer_content).eos_id == 256
    for tokenizer, told in [
        (own, "`special_tokens`"),
        (own | {"path": f"{reference.mixture.output}/tokenizer.json"}, "`pattern`"),
        ({"train": {}, "bos": "<s>"}, r"tokenizer\.bos: needs path"),
    ]:
        with pytest.raises(UserError, match=told):
            prepared(**tokenizer)


def test_report_counts_tokens_words_bytes_and_the_ids_that_no_text_uses(reference):
    found, used = report_of(reference), set[int]()
    encoder = Encoder(Root(reference.mixture.output).read_bytes("tokenizer.json"))
    for name, entry in found["sources"].items():
        texts, counts = texts_of(reference, name), reference.report["sources"][name]
        ids = encoder.encode(pa.array(texts, pa.large_string()))[0].tolist()
        used |= set(ids)
        assert entry["tokens"] == len(ids) == counts["tokens"] - len(texts)  # but for the ends of documents
        assert entry["words"] == sum(len(text.split()) for text in texts)
        assert entry["bytes"] == sum(len(text.encode()) for text in texts) == counts["kept_bytes"]
        assert entry["tokens_per_word"] == pytest.approx(entry["tokens"] / entry["words"], abs=1e-4)
        assert entry["bytes_per_token"] == pytest.approx(entry["bytes"] / entry["tokens"], abs=1e-4)
        assert entry["languages"] == {}
    assert found["total"]["tokens"] == sum(entry["tokens"] for entry in found["sources"].values())
    assert found["unused"]["count"] == len(set(range(encoder.vocab_size)) - used - {encoder.eos_id})
    assert 0 < len(found["unused"]["examples"]) <= 10
    assert not {one["id"] for one in found["unused"]["examples"]} & used


def test_report_counts_by_the_language_that_documents_carry(tmp_path):
    pairs = [("a b", "en"), ("c", "de"), ("d e f", "en"), ("g", None)]
    corpora.write_jsonl(tmp_path / "in/a.jsonl", [{"text": text, "language": language} for text, language in pairs])
    source = f"  web:\n    path: {tmp_path}/in/*.jsonl\n    keep: [language]\n"
    languages = report_of(run(tmp_path, source, tail="tokenizer: {train: {vocab_size: 300}}"))["sources"]["web"]["languages"]
    found = {name: (one["documents"], one["words"], one["bytes"]) for name, one in languages.items()}
    assert found == {"": (1, 1, 1), "de": (1, 1, 1), "en": (2, 5, 8)}


# ------------------------------------------------------------------------------------------------ a token that begins documents

LENGTHS = [1, 3, 14, 30, 31, 32, 33, 64, 70, 200]
"""Of documents, in bytes, each of which is a token."""


def write(folder: Path, content: bytes, **tokenizer: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(content)
    corpora.write_jsonl(folder / "a.jsonl", [{"text": "ab" * (size // 2) + "c" * (size % 2)} for size in LENGTHS * 6])
    return {
        "name": "t",
        "output": str(folder / "out"),
        "sources": {"a": {"path": str(folder / "a.jsonl")}},
        "tokenizer": {"path": str(folder / "tokenizer.json"), **tokenizer},
        "pack": {"sequence_length": 32},
        "validation": 0.2,
        "execution": {"check_disk": False},
    }


def run_data(data: dict[str, Any]) -> runs.Finished:
    return runs.run_mixture(data, make_engine=runs.InProcess)


@pytest.mark.parametrize(
    ("pack", "make"),
    [
        ({"method": "best_fit"}, tokenizer_files.byte_level),
        ({"method": "concat"}, tokenizer_files.unigram),
        ({"method": "buckets"}, tokenizer_files.byte_level),
        ({"bos_aligned": True}, tokenizer_files.unigram),
    ],
)
def test_rows_begin_documents_with_the_token_and_nothing_else(pack, make, tmp_path):
    finished = run_data(write(tmp_path, make(), bos="<s>") | {"pack": {"sequence_length": 32, **pack}})
    root, snapshot, begins = Root(str(tmp_path / "out")), finished.snapshot, 0
    assert verify_snapshot(root, snapshot) == []
    assert {entry.split for entry in snapshot.shards} == {"train", "validation"}
    for entry in snapshot.shards:
        with closing(ShardReader(root, entry, RowForm(32, snapshot.tokenizer.fingerprint))) as reader:
            rows = reader.read(np.arange(entry.sequences))
        for row, (first, last) in zip(rows.tokens, pairwise(rows.piece_offsets)):
            positions, starts = np.cumsum([0, *rows.piece_lengths[first : last - 1]]), rows.starts[first:last]
            assert np.flatnonzero(row == snapshot.tokenizer.bos_id).tolist() == positions[starts == 0].tolist()
            begins += int((starts == 0).sum())
    assert begins == 60


def test_batches_exports_and_counts_have_the_token_and_a_change_of_it_tokenizes_again(tmp_path):
    data = write(tmp_path, tokenizer_files.byte_level())
    first = run_data(data)
    assert "bos_id" not in first.snapshot.model_dump(mode="json")["tokenizer"]
    again = run_data(data | {"tokenizer": {**data["tokenizer"], "bos": "<s>"}})
    assert again.watcher.steps == ["tokenizer/load", "a/tokenize", "a/pack", "a/pack"]
    assert [each.report["total"]["tokens"] for each in (first, again)] == [6 * sum(LENGTHS) + 60, 6 * sum(LENGTHS) + 120]
    root, snapshot = Root(str(tmp_path / "out")), again.snapshot
    bos = snapshot.tokenizer.bos_id
    with closing(Loader(root.url, batch_size=4, fields=["input_ids", "labels", "position_ids"])) as loader:
        batch = loader.batch(0)
        is_begin = batch["input_ids"] == bos
        assert is_begin.any()
        assert (batch["position_ids"][is_begin] == 0).all()
        assert not (batch["labels"] == bos).any()
        assert (batch["labels"][is_begin] == ord("a") - ord("!")).mean() > 0.8  # the first token of most texts
    parts = export_snapshot(root, snapshot, Root(str(tmp_path / "m")), ExportRequest(format="megatron"))
    found = [each for part in parts for each in read_pair(tmp_path / "m" / part.files[1])[0]]
    assert sorted(len(each) - 2 for each in found) == sorted(LENGTHS * 6)
    assert {(int(each[0]), int(each[-1])) for each in found} == {(bos, snapshot.tokenizer.eos_id)}
    target = Root(str(tmp_path / "p"))
    export_snapshot(root, snapshot, target, ExportRequest(format="parquet"))
    assert read_snapshot(target).tokenizer == snapshot.tokenizer
    back = run_data(data)
    assert (back.watcher.steps, back.snapshot.fingerprint) == ([], first.snapshot.fingerprint)


def test_rows_of_other_outputs_have_the_same_token_or_are_refused(tmp_path):
    first = write(tmp_path / "one", tokenizer_files.byte_level(), bos="<s>")
    run_data(first)
    run_data(write(tmp_path / "two", tokenizer_files.byte_level()))
    taken = {"new": first["sources"]["a"], "old": {"snapshot": str(tmp_path / "one/out")}}
    data = {"name": "both", "output": str(tmp_path / "both"), "sources": taken, "pack": first["pack"]}
    finished = run_data(data)
    assert finished.snapshot.tokenizer.bos_id == 256
    assert verify_snapshot(Root(str(tmp_path / "both")), finished.snapshot) == []
    with pytest.raises(UserError, match=r"go on in other rows, and pack.bos_aligned is true\. .* set it to false"):
        prepare(load_mixture(data | {"pack": {"sequence_length": 32, "bos_aligned": True}}))
    with pytest.raises(UserError, match="is not the tokenizer of"):
        prepare(load_mixture(data | {"tokenizer": {"path": first["tokenizer"]["path"]}}))
    both = {"old": taken["old"], "other": {"snapshot": str(tmp_path / "two/out")}}
    with pytest.raises(UserError, match=r"begin with their text\) than .* with token 256"):
        prepare(load_mixture(data | {"sources": both}))
    (kept,) = (tmp_path / "one/out/snapshots").glob("*/tokenizer.json")
    kept.unlink()
    kept.write_bytes(b'{"model": ' + b"[" * 100_000)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        prepare(load_mixture(data))


def test_the_tokens_around_documents_stay_while_a_mixture_is_followed(tmp_path):
    data = write(tmp_path, tokenizer_files.byte_level(), bos="<s>")
    snapshot, mixture, root = run_data(data).snapshot, load_mixture(data), Root(str(tmp_path / "out"))
    root.write_atomic(f"{snapshot_folder(snapshot.fingerprint)}/{MIXTURE}", mixture.resolved_yaml().encode())

    def follow(mixture):
        Follower(mixture, 1.0, lambda *given: None, lambda event: None).follow(num_listings=1)

    follow(mixture)
    with pytest.raises(UserError, match=r"tokenizer\.bos <s> →"):
        follow(load_mixture(data | {"tokenizer": {"path": data["tokenizer"]["path"]}}))


@pytest.mark.slow
def test_unknown_tokens_are_counted_by_source_and_warned_of_above_a_thousandth(tmp_path):
    data = write(tmp_path, tokenizer_files.unigram()) | {"validation": 0}
    texts = {"clean": ["the lazy dog and the quick fox"] * 99, "rare": ["one two three"] * 299 + ["漢"]}
    texts |= {"odd": ["the 漢 fox 字"] * 9}
    for name, lines in texts.items():
        corpora.write_jsonl(tmp_path / f"{name}.jsonl", [{"text": line} for line in lines])
    finished = run_data(data | {"sources": {name: {"path": str(tmp_path / f"{name}.jsonl")} for name in texts}})
    assert [warning.source for warning in finished.warnings if warning.kind == "unknown_tokens"] == ["odd"]
    entry = report_of(finished)
    assert {name: of["unknown_tokens"] for name, of in entry["sources"].items()} == {"clean": 0, "rare": 1, "odd": 18}
    assert entry["total"]["unknown_tokens"] == 19
