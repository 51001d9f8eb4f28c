"""The user's tokenizer: where it is read, what is refused before anything runs, and what is told of its special tokens."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from datapipe.config import Mixture, load_mixture
from datapipe.engine.prepare import prepare
from datapipe.engine.tokenizer_file import UsersTokenizer, users_tokenizer
from datapipe.errors import UserError
from datapipe.plan.compile import compile_plan
from datapipe.report.plan_view import plan_view
from datapipe.storage import Root
from tests.support import tokenizer_files
from tests.support.cli_processes import run as run_process
from tests.support.fake_hub import REPOSITORY, fake_hub
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
def test_tokenizer_that_would_begin_or_end_documents_otherwise_is_told(tmp_path, content, config, options, warned, noted):
    found = read(tmp_path, content, config, **options)
    assert [fact for fact in warned if fact not in told(found)] == []
    assert bool(told(found)) == bool(warned)
    notes = " | ".join(found.notes)
    assert [fact for fact in noted if fact not in notes] == []


def test_tokenizer_that_ends_as_the_post_processor_ends_texts_is_not_told_of_the_end(tmp_path):
    assert "behind" not in told(read(tmp_path, UNIGRAM(added="<s> $A </s>")))


ENDS_IN_SEP = {"tokenizer.json": tokenizer_files.words(), "tokenizer_config.json": tokenizer_files.config(eos_token="[SEP]")}


@pytest.mark.parametrize(
    ("files", "path", "cause"),
    [
        (ENDS_IN_SEP, "", r"\[SEP\]"),
        ({"tokenizer.json": BYTE_LEVEL(without="qz")}, "", "2 bytes have no token: 0x71 'q', 0x7a 'z'"),
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


def test_plan_shows_the_tokens_around_documents(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(UNIGRAM(added="<s> $A"))
    mixture = mixture_of(tmp_path, path=f"{tmp_path}/", bos="<s>")
    request = prepare(mixture)
    shown = io.StringIO()
    Console(file=shown, width=200).print(plan_view(mixture, request, compile_plan(request, lambda fingerprint: None)))
    assert "documents begin with '<s>' and end with '</s>'" in shown.getvalue()


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


@pytest.mark.slow
@pytest.mark.needs("huggingface_hub")
def test_tokenizer_folder_on_the_hub_is_read(tmp_path):
    with fake_hub() as hub:
        hub.commit({"mine/tokenizer.json": UNIGRAM(added="<s> $A"), "mine/tokenizer_config.json": b"{}"})
        mixture = mixture_of(tmp_path, path=f"hf://datasets/{REPOSITORY}/mine")
        (tmp_path / "m.yaml").write_text(mixture.resolved_yaml())
        ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        done = run_process(["plan", "m.yaml"], cwd=tmp_path, env={**os.environ, **ours})
    assert done.returncode == 0, done.stderr
    assert "puts '<s>' before a text" in " ".join((done.stdout + done.stderr).split())
