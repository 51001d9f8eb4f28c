"""The user's tokenizer, what is refused of it and printed of its special tokens; and training of one from files."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from datapipe.config import Mixture, load_mixture
from datapipe.engine.prepare import prepare
from datapipe.engine.tokenizer_file import UsersTokenizer, chat_tokens, users_tokenizer
from datapipe.engine.train_tokenizer import train_tokenizer_from_files
from datapipe.errors import UserError
from datapipe.report.screen import print_training
from datapipe.storage.root import Root
from datapipe.tokens import Encoder
from datapipe.tokens.training import Trained
from tests.support import corpora, tokenizer_files
from tests.support.command_line import datapipe
from tests.support.object_store import object_store


def mixture_of(folder: Path, **tokenizer: Any) -> Mixture:
    (folder / "a.jsonl").write_text('{"text": "the dog"}\n')
    sources = {"a": {"path": str(folder / "a.jsonl")}}
    return load_mixture({"name": "t", "output": str(folder / "out"), "sources": sources, "tokenizer": tokenizer})


def told(found: UsersTokenizer) -> str:
    return " | ".join(str(warning).partition("tokenizer.path: ")[2] for warning in found.warnings)


def read(folder: Path, content: bytes, config: bytes | None = None, **options: Any) -> UsersTokenizer:
    (folder / "tokenizer.json").write_bytes(content)
    if config is not None:
        (folder / "tokenizer_config.json").write_bytes(config)
    return users_tokenizer(mixture_of(folder, path=str(folder), **options))


UNIGRAM, BYTE_LEVEL = tokenizer_files.unigram, tokenizer_files.byte_level
ENDS_OTHERWISE = tokenizer_files.config(bos_token={"content": "<s>"}, eos_token="<unk>", add_bos_token=True)
ENDS_IN_SEP = tokenizer_files.config(eos_token="[SEP]")
BOTH = {"bos": "<s>", "eos": "</s>"}


@pytest.mark.parametrize(
    ("content", "config", "options", "warned", "noted"),
    [
        (UNIGRAM(), None, {}, [], ["documents end with '</s>'"]),
        (UNIGRAM(added="<s> $A"), None, {}, ["'<s>' before a text", '`bos: "<s>"`'], ["documents end with '</s>'"]),
        (BYTE_LEVEL(added="<s> $A"), None, {}, ["'<s>' before a text", '`bos: "<s>"`'], ["documents end with '</s>'"]),
        (UNIGRAM(added="<s> $A"), None, {"bos": "<s>"}, [], ["begin with '<s>' and end with '</s>'"]),
        (UNIGRAM(added="<s> $A </s>"), None, {}, ["'<s>' before a text"], ["adds '<s>' before and '</s>' behind a text"]),
        (UNIGRAM(added="<s> <unk> $A <s>"), None, {"bos": "<s>"}, ["'<s>' '<unk>' before", "'<s>' behind a text", "`eos`"], []),
        (UNIGRAM(), ENDS_OTHERWISE, {}, ["(add_bos_token)", "'<unk>' as eos_token"], ["bos_token '<s>' and eos_token '<unk>'"]),
        (UNIGRAM(), ENDS_OTHERWISE, BOTH, [], []),
        (UNIGRAM(), tokenizer_files.config(bos_token="<s>", eos_token="</s>"), {}, [], []),
        *((UNIGRAM(), config, {}, [], []) for config in (b"{", b"[]", b'{"bos_token": 3, "eos_token": null}', b"[" * 100_000)),
        (tokenizer_files.words(), None, {"eos": "[SEP]"}, [], []),
    ],
)
def test_tokenizer_that_would_begin_or_end_documents_otherwise_is_reported(tmp_path, content, config, options, warned, noted):
    found = read(tmp_path, content, config, **options)
    assert [fact for fact in warned if fact not in told(found)] == []
    assert bool(told(found)) == bool(warned)
    notes = " | ".join(found.notes)
    assert [fact for fact in noted if fact not in notes] == []


@pytest.mark.parametrize(
    ("files", "path", "cause"),
    [
        ({"tokenizer.json": tokenizer_files.words(), "tokenizer_config.json": ENDS_IN_SEP}, "", r"\[SEP\]"),
        ({"tokenizer.json": BYTE_LEVEL(without="qz")}, "", "0x71 'q', 0x7a 'z'"),
        ({"spiece.model": b""}, "", "save_pretrained"),
        ({}, "none", "none"),
    ],
    ids=["no known end", "bytes without tokens", "a folder without the file", "no file"],
)
def test_tokenizer_that_cannot_be_used_is_refused_where_it_is_named(tmp_path, files, path, cause):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=cause):
        prepare(mixture_of(tmp_path, path=f"{tmp_path}/{path}"))


@pytest.mark.parametrize(
    "added", [[{"id": 1}], {"a": 1}, 3, [3], [{"content": 3, "special": False}], [[]], "a"], ids=json.dumps
)
def test_tokens_of_a_tokenizer_that_is_none_are_none_for_chats(tmp_path, added):
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert not chat_tokens(mixture_of(tmp_path, path=str(tmp_path))).control_tokens


def test_special_tokens_of_the_mixture_are_the_variables_of_a_template(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(UNIGRAM())
    config = tokenizer_files.config(bos_token="<b>", eos_token="<e>", pad_token="<p>")
    (tmp_path / "tokenizer_config.json").write_bytes(config)
    tokens = chat_tokens(mixture_of(tmp_path, path=str(tmp_path), eos="</s>")).special_tokens
    assert tokens == {"bos_token": "<b>", "eos_token": "</s>", "pad_token": "<p>"}


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_folder_in_the_place_of_a_file_of_a_tokenizer_is_an_error(tmp_path, name):
    (tmp_path / "tokenizer.json").write_bytes(UNIGRAM())
    (tmp_path / name).mkdir()
    mixture = mixture_of(tmp_path, path=str(tmp_path))
    with pytest.raises(UserError, match=f"tokenizer.path: cannot read .*{name}: Is a directory"):
        chat_tokens(mixture)
    if name == "tokenizer_config.json":
        with pytest.raises(UserError, match=f"tokenizer.path: cannot read .*{name}: Is a directory"):
            users_tokenizer(mixture)


@pytest.mark.slow
def test_tokenizer_folder_in_a_store_is_read(tmp_path):
    with object_store("models") as query:
        store = Root(f"s3://models/mine{query}")
        store.write_atomic("tokenizer.json", UNIGRAM())
        store.write_atomic("tokenizer_config.json", tokenizer_files.config(eos_token="<s>"))
        for path in ("s3://models/mine", "s3://models/mine/"):
            assert "'<s>' as eos_token" in told(users_tokenizer(mixture_of(tmp_path, path=f"{path}{query}")))
        with pytest.raises(UserError):
            users_tokenizer(mixture_of(tmp_path, path=f"s3://models/none{query}"))


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
        emit=lambda line: None,
    )


@pytest.mark.medium
def test_train_tokenizer_from_files_of_several_formats_in_any_order_measures_each_folder_or_single_file(folder):
    inputs = [f"{folder}/web/a.jsonl.gz", f"{folder}/web/b.jsonl.zst", f"{folder}/books/c.parquet"]
    trained, other = train(*inputs), train(*reversed(inputs))
    assert (trained.content, trained.tokenizer) == (other.content, other.tokenizer)
    assert Encoder(trained.content).vocab_size == 400
    assert 25_000 < trained.sample_bytes < 75_000 < trained.read_bytes
    assert trained.tokenizer is not None
    assert list(trained.tokenizer.sources) == [f"{folder}/web", f"{folder}/books/c.parquet"]
    assert all(1 < source.bytes_per_token < 10 for source in trained.tokenizer.sources.values())


@pytest.mark.medium
def test_train_tokenizer_from_files_names_damaged_ones_and_reads_what_there_is(tmp_path):
    path = corpora.write_jsonl(tmp_path / "a.jsonl.gz", corpora.documents(1, 150))
    path.write_bytes(path.read_bytes()[:-2000])
    trained = train(str(path))
    (damaged,) = trained.unreadable_files
    assert damaged.path == str(path) and "cut off" in damaged.error
    assert 0 < trained.read_bytes <= damaged.position
    printed = io.StringIO()
    print_training(trained, Console(file=printed, width=80))
    assert f"{path} cannot be read from {damaged.position:,} on" in printed.getvalue()


@pytest.mark.parametrize(
    ("name", "options", "fact"),
    [
        ("nothing-*.jsonl", {}, "nothing-"),
        ("web/a.jsonl.gz", {"text_field": "content"}, "--text"),
        ("web/a.jsonl.gz", {"pattern": "gpt3"}, "Did you mean 'gpt2'"),
    ],
)
def test_train_tokenizer_from_files_refuses_in_words(folder, name, options, fact):
    with pytest.raises(UserError, match=fact):
        train(f"{folder}/{name}", **options)


@pytest.mark.slow
def test_cli_tokenizer_train_writes_a_tokenizer_once_and_prints_the_table(folder, tmp_path):
    command = ["tokenizer", "train", f"{folder}/web/*", "--vocab-size", "300", "--output"]
    done = datapipe([*command, str(tmp_path / "own.json"), "--sample", "30kB", "--pattern", "llama3", "--eos", "</s>"])
    assert done.returncode == 0, done.stderr
    assert Encoder(tmp_path / "own.json").eos_token == "</s>"
    assert "tokenizer of 300 ids" in " ".join(done.stdout.split())
    for output in (tmp_path / "own.json", "/proc/own.json"):  # known before the work
        assert datapipe([*command, str(output)]).returncode == 2
