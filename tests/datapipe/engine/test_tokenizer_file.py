"""The user's tokenizer: where it is read, what is refused before anything runs, and what is told of its special tokens."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from rich.console import Console

from datapipe.config import Mixture, load_mixture
from datapipe.engine.prepare import prepare
from datapipe.engine.tokenizer_file import UsersTokenizer, users_tokenizer
from datapipe.errors import UserError
from datapipe.plan.compile import compile_plan
from datapipe.report.plan_view import plan_view
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


@pytest.mark.parametrize("make", [tokenizer_files.unigram, tokenizer_files.byte_level])
def test_tokenizer_that_adds_a_begin_of_text_is_told(make, tmp_path):
    found = read(tmp_path, make(added="<s> $A"))
    assert told(found).startswith(
        "the post-processor of the tokenizer puts '<s>' before a text, and documents begin with their text."
    )
    assert told(found).endswith('To write it, add `bos: "<s>"`.')
    assert "documents end with '</s>'" in found.notes
    found = read(tmp_path, make(added="<s> $A"), bos="<s>")
    assert told(found) == ""
    assert "documents begin with '<s>' and end with '</s>'" in found.notes


def test_tokenizer_that_adds_other_tokens_is_told(tmp_path):
    found = read(tmp_path, tokenizer_files.unigram(added="<s> $A </s>"))
    assert "puts '<s>' before a text" in told(found)
    assert "behind" not in told(found)  # documents end with it
    assert "the post-processor of the tokenizer, which does not run, adds '<s>' before and '</s>' behind a text" in found.notes
    found = read(tmp_path, tokenizer_files.unigram(added="<s> <unk> $A <s>"), bos="<s>")
    assert "puts '<s>' '<unk>' before a text, and documents begin with '<s>'. A model" in told(found)
    assert "puts '<s>' behind a text, and documents end with '</s>'. `eos` names another token." in told(found)
    assert told(read(tmp_path, tokenizer_files.unigram())) == ""


def test_tokenizer_whose_folder_names_other_tokens_is_told(tmp_path):
    config = tokenizer_files.config(bos_token={"content": "<s>"}, eos_token="<unk>", add_bos_token=True)
    found = read(tmp_path, tokenizer_files.unigram(), config)
    assert "tokenizer_config.json puts '<s>' before a text (add_bos_token), and documents begin with their text." in told(found)
    assert "tokenizer_config.json names '<unk>' as eos_token, and documents end with '</s>'." in told(found)
    assert "tokenizer_config.json names bos_token '<s>' and eos_token '<unk>'" in found.notes
    found = read(tmp_path, tokenizer_files.unigram(), config, bos="<s>", eos="</s>")
    assert told(found) == ""
    found = read(tmp_path, tokenizer_files.unigram(), tokenizer_files.config(bos_token="<s>", eos_token="</s>"))
    assert told(found) == ""


@pytest.mark.parametrize("config", [b"{", b"[]", b'{"bos_token": 3, "eos_token": null}', b"[" * 100_000])
def test_tokenizer_with_a_configuration_that_says_nothing_is_taken(config, tmp_path):
    assert told(read(tmp_path, tokenizer_files.unigram(), config)) == ""


def test_tokenizer_without_a_known_end_names_that_of_its_folder(tmp_path):
    with pytest.raises(UserError, match=r"cannot infer the end.*tokenizer_config\.json names '\[SEP\]' as eos_token"):
        read(tmp_path, tokenizer_files.words(), tokenizer_files.config(eos_token="[SEP]"))
    assert read(tmp_path, tokenizer_files.words(), eos="[SEP]").content


def test_tokenizer_that_lacks_bytes_is_refused_where_it_is_named(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.path: .*: 2 bytes have no token: 0x71 'q', 0x7a 'z', and"):
        prepare(mixture_of(tmp_path, path=str(written(tmp_path, tokenizer_files.byte_level(without="qz")))))


def written(folder: Path, content: bytes) -> Path:
    path = folder / "lossy.json"
    path.write_bytes(content)
    return path


def test_tokenizer_folder_without_a_file_says_how_to_make_one(tmp_path):
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(UserError, match=r"found a folder without tokenizer\.json.*save_pretrained"):
        users_tokenizer(mixture_of(tmp_path, path=str(tmp_path)))
    with pytest.raises(UserError, match=r"cannot read the tokenizer .*none: "):
        users_tokenizer(mixture_of(tmp_path, path=str(tmp_path / "none")))


def test_plan_shows_the_tokens_around_documents(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_files.unigram(added="<s> $A"))
    mixture = mixture_of(tmp_path, path=f"{tmp_path}/", bos="<s>")
    request = prepare(mixture)
    console = Console(file=io.StringIO(), width=200)
    console.print(plan_view(mixture, request, compile_plan(request, lambda fingerprint: None)))
    shown = console.file.getvalue()
    assert "documents begin with '<s>' and end with '</s>'" in shown
    assert "adds '<s>' before a text" in shown


@pytest.mark.slow
def test_tokenizer_folder_in_a_store_is_read(tmp_path):
    with object_store("models") as query:
        filesystem, _ = pafs.FileSystem.from_uri(f"s3://models/{query}")
        files = {"tokenizer.json": tokenizer_files.unigram(), "tokenizer_config.json": tokenizer_files.config(eos_token="<s>")}
        for name, content in files.items():
            with filesystem.open_output_stream(f"models/mine/{name}", compression=None) as stream:
                stream.write(content)
        for path in ("s3://models/mine", "s3://models/mine/"):
            found = users_tokenizer(mixture_of(tmp_path, path=f"{path}{query}"))
            assert "tokenizer_config.json names '<s>' as eos_token" in told(found)
        with pytest.raises(UserError, match="cannot read the tokenizer"):
            users_tokenizer(mixture_of(tmp_path, path=f"s3://models/none{query}"))


@pytest.mark.slow
@pytest.mark.needs("huggingface_hub")
def test_tokenizer_folder_on_the_hub_is_read(tmp_path):
    with fake_hub() as hub:
        hub.commit({"mine/tokenizer.json": tokenizer_files.unigram(added="<s> $A"), "mine/tokenizer_config.json": b"{}"})
        (tmp_path / "a.jsonl").write_text('{"text": "the dog"}\n')
        (tmp_path / "m.yaml").write_text(
            f"name: t\noutput: out\nsources: {{a: {{path: a.jsonl}}}}\ntokenizer: {{path: 'hf://datasets/{REPOSITORY}/mine'}}\n"
        )
        ours = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
        done = run_process(["plan", "m.yaml"], cwd=tmp_path, env={**os.environ, **ours})
    assert done.returncode == 0, done.stderr
    assert "puts '<s>' before a text" in " ".join((done.stdout + done.stderr).split())
