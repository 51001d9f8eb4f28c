"""The encoder: long documents, facts about files, and files that are refused. Its ids are compared in `test_compiled.py`."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from datapipe.errors import UserError
from datapipe.tokens import Encoder
from datapipe.tokens import encoder as encoder_module
from datapipe.tokens.training import train_tokenizer

WORDS = ["the", "of", "and", "to", "in", "that", "it's", "we'll", "don't", "naïve", "café", "漢字", "Don’t", "x1", "3.14"]
WORDS += ["12345", "foo_bar(a,", "b);", "I'm", "state-of-the-art", "def run(x):\n    return x + 1\n\n\tif a == b:  # x \r\n"]


def prose(num_bytes: int) -> str:
    rng, parts, size = random.Random(1), [], 0
    while size < num_bytes:
        parts.append(rng.choice(WORDS) + rng.choice([" ", " ", " ", ", ", ". ", "\n\n", "  "]))
        size += len(parts[-1].encode())
    return "".join(parts)


def column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    return train_tokenizer([column(prose(80_000))], 340, pattern="cl100k")


def changed(content: bytes, model: dict[str, Any] | None = None, **settings: Any) -> bytes:
    file = json.loads(content)
    return json.dumps({**file, "model": {**file["model"], **(model or {})}, **settings}).encode()


def with_token(content: bytes, token: str, number: int) -> bytes:
    return changed(content, {"vocab": {**json.loads(content)["model"]["vocab"], token: number}})


def ids_of(encoder: Encoder, *texts: str) -> list[list[int]]:
    ids, offsets = encoder.encode(column(*texts))
    return [ids[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:])]


def assert_as_tokenizers(content: bytes, *texts: str) -> None:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = True
    assert ids_of(Encoder(content), *texts) == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "CHUNK_BYTES", 16 << 10)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("pattern", ["gpt2", "o200k"])
def test_encode_long_document_equals_encoding_it_whole(pattern):
    content = train_tokenizer([column(prose(20_000))], 340, pattern=pattern)
    assert_as_tokenizers(content, "a b", prose(100_000), "")
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(["  ", "of the", "return"])
    assert_as_tokenizers(tokenizer.to_str().encode(), prose(50_000) + "e\u0301")


@pytest.mark.usefixtures("short_chunks")
def test_encode_long_document_of_word_crossing_pattern_stays_whole():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # words may join
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(["a b " * 50], trainer)
    assert_as_tokenizers(tokenizer.to_str().encode(), "a b " * 20_000)


def test_encode_takes_the_rows_of_a_slice_and_no_nulls(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    ids, offsets = encoder.encode(column("skip", "of and", "").slice(1))
    assert ids.tolist() == ids_of(encoder, "of and")[0]
    assert offsets.tolist() == [0, len(ids), len(ids)]
    ids, offsets = encoder.encode(column())
    assert (len(ids), offsets.tolist()) == (0, [0])
    with pytest.raises(UserError):
        encoder.encode(pa.array(["a", None], pa.large_string()))


def test_encoder_truncation_padding_and_dropout_of_file_are_off(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    encoder, plain = Encoder(changed(tokenizer.to_str().encode(), {"dropout": 0.9})), Encoder(tokenizer_json)
    assert ids_of(encoder, prose(300)) == ids_of(plain, prose(300))
    assert encoder.fingerprint == plain.fingerprint


def test_encoder_fingerprint_ignores_spacing_and_order_and_nothing_else(tokenizer_json):
    settings = json.loads(tokenizer_json)
    turned = json.dumps(dict(reversed(settings.items())), indent=3).encode()
    fewer = changed(tokenizer_json, {"merges": settings["model"]["merges"][:-1]})
    assert Encoder(turned).fingerprint == Encoder(tokenizer_json).fingerprint
    assert Encoder(turned).to_json() == Encoder(tokenizer_json).to_json()
    assert Encoder(fewer).fingerprint != Encoder(tokenizer_json).fingerprint


def test_encoder_facts_describe_the_vocabulary(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    assert (encoder.vocab_size, encoder.eos_id, encoder.eos_token) == (340, 0, "<|endoftext|>")
    assert encoder.id_type == pa.uint16()
    assert encoder.encode(column("a"))[0].dtype == np.uint16
    encoder = Encoder(with_token(tokenizer_json, "far", 70_000))
    assert (encoder.vocab_size, encoder.id_type) == (70_001, pa.uint32())
    assert encoder.encode(column("a"))[0].dtype == np.uint32


def test_encoder_of_a_file_a_folder_and_a_pickle_is_the_same(tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    encoder = Encoder(tokenizer_json, eos="<|endoftext|>")
    for again in (pickle.loads(pickle.dumps(encoder)), Encoder(tmp_path / "tokenizer.json"), Encoder(tmp_path)):
        assert again.fingerprint == encoder.fingerprint
        assert ids_of(again, "of the") == ids_of(encoder, "of the")


@pytest.mark.parametrize("name", ["</s>", "<eos>", "<|end_of_text|>"])
def test_encoder_well_known_end_of_text_is_found(name):
    assert Encoder(train_tokenizer([column("a b")], 257, eos=name)).eos_token == name


def test_encoder_unknown_end_of_text_asks_for_it(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(changed(tokenizer_json, added_tokens=[]))
    tokenizer.add_special_tokens([AddedToken("[END]")])
    content = tokenizer.to_str().encode()
    with pytest.raises(UserError, match=r"\[END\]"):
        Encoder(content)
    assert Encoder(content, eos="[END]").eos_id == 340


@pytest.mark.parametrize("eos", ["<endoftext>", "the", "Ġthe", "a"])
def test_encoder_eos_that_is_no_token_or_that_text_spells_is_refused(tokenizer_json, eos):
    with pytest.raises(UserError, match="eos: "):
        Encoder(tokenizer_json, eos=eos)


BEGIN = b'{"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": '


@pytest.mark.parametrize("depth", [60, 900, 200_000])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"type":"Sequence","pretokenizers":[', b"]}")])
def test_encoder_deeply_nested_file_is_a_user_error(depth, begin, end):
    with pytest.raises(UserError):
        Encoder(BEGIN + begin * depth + end * depth + b"}")


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"model": {"type": "NoSuch"}}'])
def test_encoder_bad_content_is_a_user_error(content):
    with pytest.raises(UserError):
        Encoder(content)


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": [{"id": 1 << 70, "content": "x"}]},
        {"added_tokens": ["</s>"]},
        {"added_tokens": {"a": 1}},
        {"model": {"type": "BPE", "vocab": {"a": 1 << 40}, "merges": []}},
        {"model": {"type": "BPE", "vocab": ["a"], "merges": []}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}},
        {"model": {"type": "BPE", "vocab": {"a": 0, "": 1}, "continuing_subword_prefix": "##", "merges": [["a", ""]]}},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 1 << 30}},
        {"model": {"type": "Unigram", "vocab": [["a", float("nan")]], "unk_id": 0}},
        {"model": {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1}, "unk_token": "none"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
)
def test_encoder_absurd_setting_is_a_user_error(tokenizer_json, changes):
    with pytest.raises(UserError):
        Encoder(json.dumps({**json.loads(tokenizer_json), **changes}).encode())


def test_encoder_id_beyond_32_bits_is_a_user_error(tokenizer_json):
    with pytest.raises(UserError, match="far"):
        Encoder(with_token(tokenizer_json, "far", (1 << 32) - 1))


def test_encoder_unknown_text_that_becomes_end_of_text_is_refused(tokenizer_json):
    vocabulary = {token: number for token, number in json.loads(tokenizer_json)["model"]["vocab"].items() if "z" not in token}
    with pytest.raises(UserError, match="0x7a"):
        Encoder(changed(tokenizer_json, {"unk_token": "<|endoftext|>", "vocab": vocabulary, "merges": []}))


def test_encoder_file_that_is_absent_or_of_absurd_size_is_a_user_error(tokenizer_json, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"none\.json"):
        Encoder(tmp_path / "none.json")
    monkeypatch.setattr(encoder_module, "LARGEST_FILE", 1000)
    with pytest.raises(UserError):
        Encoder(tokenizer_json)


@pytest.mark.slow
def test_encode_then_fork_warns_of_nothing(tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    program = (
        "import os, sys, pyarrow as pa; from datapipe.tokens import Encoder; "
        "Encoder(sys.argv[1]).encode(pa.array(['a b'] * 1000, pa.large_string())); pid = os.fork(); "
        "os._exit(0) if pid == 0 else os.waitpid(pid, 0)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "tokenizer.json")], capture_output=True, check=True)
    assert done.stderr == b""


@pytest.mark.real
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-olmo"])
def test_encode_novels_with_published_tokenizers_equals_whole(real_data, name):
    content = pa.CompressedInputStream(str(real_data / f"tokenizers/{name}/tokenizer.json.zst"), "zstd").read()
    lines = pa.CompressedInputStream(str(real_data / "prose/novels.jsonl.zst"), "zstd").read().splitlines()
    texts = [json.loads(line)["text"] for line in lines[:3]]
    assert_as_tokenizers(content, *texts, "".join(texts))  # the last one is above 1 MB
