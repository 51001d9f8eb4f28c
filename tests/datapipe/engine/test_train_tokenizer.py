"""Training from files: any format, any order, and documents held out to measure with."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from datapipe.engine.train_tokenizer import LowestHashes, Trained, train_tokenizer_from_files
from datapipe.errors import UserError
from datapipe.report.funnel import print_training
from datapipe.tokens import Encoder
from tests.support import corpora
from tests.support.command_line import datapipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    corpora.write_jsonl(folder / "web/a.jsonl.gz", corpora.documents(1, 150))
    corpora.write_jsonl(folder / "web/b.jsonl.zst", corpora.documents(2, 150))
    corpora.write_parquet(folder / "books/c.parquet", corpora.documents(3, 150))
    return folder


def train(*inputs: str, sample_bytes: int = 50_000, text_field: str = "text", **options) -> Trained:
    return train_tokenizer_from_files(
        inputs,
        **{"vocab_size": 400, "pattern": "cl100k", "eos": "<|endoftext|>"} | options,
        sample_bytes=sample_bytes,
        text_field=text_field,
        say=lambda line: None,
    )


@pytest.mark.medium
def test_train_tokenizer_from_files_of_several_formats_in_any_order_measures_each_folder(folder):
    inputs = [f"{folder}/web/a.jsonl.gz", f"{folder}/web/b.jsonl.zst", f"{folder}/books/c.parquet"]
    trained, other = train(*inputs), train(*reversed(inputs))
    assert (trained.content, trained.tokenizer) == (other.content, other.tokenizer)
    assert Encoder(trained.content).vocab_size == 400
    assert 40_000 < trained.sample_bytes <= 50_000 < trained.read_bytes
    assert trained.tokenizer is not None
    assert list(trained.tokenizer["sources"]) == [f"{folder}/web", f"{folder}/books"]
    assert all(1 < source["bytes_per_token"] < 10 for source in trained.tokenizer["sources"].values())


@pytest.mark.medium
def test_train_tokenizer_from_files_names_damaged_ones_and_reads_what_there_is(tmp_path):
    path = corpora.write_jsonl(tmp_path / "a.jsonl.gz", corpora.documents(1, 150))
    path.write_bytes(path.read_bytes()[:-2000])
    trained = train(str(path))
    (damaged,) = trained.unreadable_files
    assert (damaged.path, damaged.error.partition(":")[0]) == (str(path), "the gzip archive is cut off")
    assert 0 < trained.read_bytes <= damaged.position
    printed = io.StringIO()
    print_training(trained, Console(file=printed, width=80))
    assert f"warning: {path} cannot be read from {damaged.position:,} on: the gzip archive is cut off" in printed.getvalue()


def test_train_from_one_document_measures_nothing(tmp_path):
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "the one and only document"}])
    trained = train(f"{tmp_path}/a.jsonl")
    assert trained.tokenizer is None
    assert trained.sample_bytes == len("the one and only document")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mixture.yaml", {}, "`datapipe run` trains its tokenizer"),
        ("nothing-*.jsonl", {}, "matches no file"),
        ("web/a.jsonl.gz", {"text_field": "content"}, "Give its name: --text"),
        ("web/a.jsonl.gz", {"pattern": "gpt3"}, "Did you mean 'gpt2'"),
    ],
)
def test_train_tokenizer_from_files_refuses_in_words(folder, name, options, message):
    with pytest.raises(UserError, match=message):
        train(f"{folder}/{name}", **options)


def test_lowest_hashes_do_not_depend_on_order_and_fit():
    rng = np.random.default_rng(1)
    hashes = rng.permutation(400).astype(np.uint64)
    texts = ["x" * int(length) for length in rng.integers(1, 60, 400)]
    by_hash = [text for _, text in sorted(zip(hashes.tolist(), texts))]
    expected = by_hash[: int(np.searchsorted(np.cumsum([len(text) for text in by_hash]), 1000, "right"))]
    for step in (1, 7, 400):
        held = LowestHashes(1000)
        for at in range(0, 400, step):
            held.add(hashes[at : at + step], pa.array(texts[at : at + step], pa.large_string()))
        assert held.texts().to_pylist() == expected


@pytest.mark.slow
def test_cli_tokenizer_train_writes_a_tokenizer_once_and_prints_the_table(folder, tmp_path):
    command = ["tokenizer", "train", f"{folder}/web/*", "--vocab-size", "300", "--output"]
    done = datapipe([*command, str(tmp_path / "own.json"), "--sample", "30kB", "--pattern", "llama3", "--eos", "</s>"])
    assert done.returncode == 0, done.stderr
    assert Encoder(tmp_path / "own.json").eos_token == "</s>"
    assert "tokenizer of 300 ids" in " ".join(done.stdout.split())
    for output in (tmp_path / "own.json", "/proc/own.json"):  # known before the work
        assert datapipe([*command, str(output)]).returncode == 2
