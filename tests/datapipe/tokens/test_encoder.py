"""The encoder: ids exactly as Hugging Face tokenizers gives them, whatever the file or the length of the document."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from datapipe.errors import UserError
from datapipe.tokens import Encoder
from datapipe.tokens import encoder as encoder_module
from datapipe.tokens.training import train_tokenizer

WORDS = ["the", "of", "and", "to", "in", "that", "it's", "we'll", "don't", "naïve", "café", "漢字", "Don’t", "x1", "3.14"]
WORDS += ["12345", "foo_bar(a,", "b);", "I'm", "state-of-the-art"]
CODE = "def {0}(x):\n    return x + {1}\n\n\tif a == b:  # {0} \r\n        pass\n"


def prose(num_bytes: int, seed: int = 1) -> str:
    rng, parts, size = random.Random(seed), [], 0
    while size < num_bytes:
        parts.append(rng.choice(WORDS) + rng.choice([" ", " ", " ", ", ", ". ", "\n\n", "  "]))
        size += len(parts[-1].encode())
    return "".join(parts)


def code(num_bytes: int) -> str:
    rng, parts, size = random.Random(2), [], 0
    while size < num_bytes:
        parts.append(CODE.format(rng.choice(["run", "get_x", "f"]), rng.randrange(10_000)))
        size += len(parts[-1])
    return "".join(parts)


def column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


@pytest.fixture(scope="module", params=["gpt2", "cl100k", "o200k"])
def tokenizer_json(request) -> bytes:
    return train_tokenizer([column(prose(60_000), code(20_000))], 340, pattern=request.param)


def changed(content: bytes, **settings) -> bytes:
    return json.dumps({**json.loads(content), **settings}).encode()


def reference(content: bytes) -> Tokenizer:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = True
    return tokenizer


@cache
def both(content: bytes) -> tuple[Encoder, Tokenizer]:
    return Encoder(content), reference(content)


def ids_of(encoder: Encoder, *texts: str) -> list[list[int]]:
    ids, offsets = encoder.encode(column(*texts))
    return [ids[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:])]


@given(texts=st.lists(st.text(max_size=40), max_size=6))
@settings(deadline=None)
def test_encode_any_texts_equals_tokenizers(tokenizer_json, texts):
    encoder, tokenizer = both(tokenizer_json)
    assert ids_of(encoder, *texts) == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("write", [prose, code])
def test_encode_long_document_equals_encoding_it_whole(tokenizer_json, write, monkeypatch):
    monkeypatch.setattr(encoder_module, "CHUNK_BYTES", 64 << 10)
    text = write(400_000)
    whole = reference(tokenizer_json).encode(text, add_special_tokens=False).ids
    ids, offsets = Encoder(tokenizer_json).encode(column("a b", text, ""))
    assert np.array_equal(ids[offsets[1] : offsets[2]], whole)
    assert len(offsets) == 4
    assert offsets[3] == offsets[2]


@pytest.mark.slow
def test_encode_long_document_with_normalizer_and_added_tokens_equals_whole(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(["  ", "of the", "return"])
    content = tokenizer.to_str().encode()
    text = prose(1_060_000) + code(10_000) + "e\u0301"
    assert ids_of(Encoder(content), text) == [reference(content).encode(text, add_special_tokens=False).ids]


@pytest.mark.medium
def test_encode_long_document_of_word_crossing_pattern_stays_whole():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # words may join
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(["a b " * 50], trainer)
    text = "a b " * 300_000
    content = tokenizer.to_str().encode()
    assert ids_of(Encoder(content), text) == [reference(content).encode(text, add_special_tokens=False).ids]


def test_encode_spelled_out_special_token_is_text(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    assert encoder.eos_id not in ids_of(encoder, f"to {encoder.eos_token} in")[0]


def test_encode_slice_of_texts_uses_its_own_rows(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    ids, offsets = encoder.encode(column("skip", "of and", "").slice(1))
    assert ids.tolist() == ids_of(encoder, "of and")[0]
    assert offsets.tolist() == [0, len(ids), len(ids)]


def test_encode_no_texts_gives_no_ids(tokenizer_json):
    ids, offsets = Encoder(tokenizer_json).encode(column())
    assert (len(ids), offsets.tolist()) == (0, [0])


def test_encode_null_text_is_refused(tokenizer_json):
    with pytest.raises(UserError, match="1 null"):
        Encoder(tokenizer_json).encode(pa.array(["a", None], pa.large_string()))


def test_encoder_truncation_padding_and_dropout_of_file_are_off(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=9)
    settings = json.loads(tokenizer.to_str())
    settings["model"]["dropout"] = 0.9
    encoder, plain = Encoder(json.dumps(settings).encode()), Encoder(tokenizer_json)
    assert ids_of(encoder, prose(300)) == ids_of(plain, prose(300))
    assert encoder.fingerprint == plain.fingerprint


@pytest.mark.medium
def test_encoder_fingerprint_ignores_spacing_and_order_and_nothing_else(tokenizer_json):
    settings = json.loads(tokenizer_json)
    turned = json.dumps(dict(reversed(settings.items())), indent=3).encode()
    settings["model"]["merges"].pop()
    assert Encoder(turned).fingerprint == Encoder(tokenizer_json).fingerprint
    assert Encoder(turned).to_json() == Encoder(tokenizer_json).to_json()
    assert Encoder(json.dumps(settings).encode()).fingerprint != Encoder(tokenizer_json).fingerprint


def test_encoder_facts_describe_the_vocabulary(tokenizer_json):
    encoder = Encoder(tokenizer_json)
    assert (encoder.vocab_size, encoder.eos_id, encoder.eos_token) == (340, 0, "<|endoftext|>")
    assert encoder.id_type == pa.uint16()
    assert encoder.encode(column("a"))[0].dtype == np.uint16


def test_encoder_added_token_far_out_widens_the_ids(tokenizer_json):
    settings = json.loads(tokenizer_json)
    settings["model"]["vocab"]["far"] = 70_000
    encoder = Encoder(json.dumps(settings).encode())
    assert (encoder.vocab_size, encoder.id_type) == (70_001, pa.uint32())
    assert encoder.encode(column("a"))[0].dtype == np.uint32


def test_encoder_pickled_encodes_the_same(tokenizer_json):
    encoder = Encoder(tokenizer_json, eos="<|endoftext|>")
    again = pickle.loads(pickle.dumps(encoder))
    assert again.fingerprint == encoder.fingerprint
    assert ids_of(again, "of the") == ids_of(encoder, "of the")


def test_encoder_path_reads_the_file(tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    assert Encoder(tmp_path / "tokenizer.json").fingerprint == Encoder(tokenizer_json).fingerprint


@pytest.mark.parametrize("name", ["</s>", "<eos>", "<|end_of_text|>"])
def test_encoder_well_known_end_of_text_is_found(name):
    assert Encoder(train_tokenizer([column("a b")], 257, eos=name)).eos_token == name


def test_encoder_unknown_end_of_text_asks_for_it(tokenizer_json):
    tokenizer = Tokenizer.from_buffer(changed(tokenizer_json, added_tokens=[]))
    tokenizer.add_special_tokens([AddedToken("[END]")])
    content = tokenizer.to_str().encode()
    with pytest.raises(UserError, match=r"Give `eos:`.*\[END\]"):
        Encoder(content)
    assert Encoder(content, eos="[END]").eos_id == 340


def test_encoder_eos_not_in_vocabulary_suggests_one(tokenizer_json):
    with pytest.raises(UserError, match=r"Did you mean '<\|endoftext\|>'"):
        Encoder(tokenizer_json, eos="<endoftext>")


@pytest.mark.parametrize("eos", ["the", "Ġthe", "a"])
def test_encoder_eos_that_text_spells_is_refused(tokenizer_json, eos):
    with pytest.raises(UserError, match="eos: the tokenizer encodes some text"):
        Encoder(tokenizer_json, eos=eos)


def test_encoder_unknown_text_that_becomes_end_of_text_is_refused(tokenizer_json):
    settings = json.loads(tokenizer_json)
    vocabulary = {token: number for token, number in settings["model"]["vocab"].items() if "z" not in token}
    settings["model"] |= {"unk_token": "<|endoftext|>", "vocab": vocabulary, "merges": []}
    with pytest.raises(UserError, match=r"eos: the unknown token is '<\|endoftext\|>', too, and 1 byte has no token: 0x7a 'z'"):
        Encoder(json.dumps(settings).encode())


@pytest.mark.medium
def test_encoder_text_without_a_token_is_a_user_error(tokenizer_json):
    model = {"type": "WordLevel", "vocab": {"a": 0, "<|endoftext|>": 1}, "unk_token": "none"}
    with pytest.raises(UserError, match="words outside its vocabulary have no token, and there is no unknown token"):
        Encoder(changed(tokenizer_json, model=model))


def test_encoder_huge_id_is_a_user_error(tokenizer_json):
    settings = json.loads(tokenizer_json)
    settings["model"]["vocab"]["far"] = (1 << 32) - 1
    with pytest.raises(UserError, match="'far' has id 4294967295"):
        Encoder(json.dumps(settings).encode())


def test_encoder_content_that_tokenizers_panics_on_is_a_user_error(tokenizer_json):
    settings = json.loads(tokenizer_json)
    settings["model"] |= {"continuing_subword_prefix": "##", "merges": [["a", ""]]}
    settings["model"]["vocab"][""] = 400
    with pytest.raises(UserError, match=r"Expected a tokenizer\.json"):
        Encoder(json.dumps(settings).encode())


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"model": {"type": "NoSuch"}}'])
def test_encoder_bad_content_is_a_user_error(content):
    with pytest.raises(UserError, match=r"Expected a tokenizer\.json"):
        Encoder(content)


@pytest.mark.parametrize("depth", [60, 120, 300, 900, 3_000, 200_000])
@pytest.mark.parametrize(("begin", "end"), [(b"[", b"]"), (b'{"type":"Sequence","pretokenizers":[', b"]}")])
def test_encoder_deeply_nested_file_is_a_user_error(depth, begin, end):
    content = b'{"model": {"type": "BPE", "vocab": {}, "merges": []}, "pre_tokenizer": ' + begin * depth + end * depth + b"}"
    with pytest.raises(UserError, match="tokenizer: "):
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
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 1 << 30}},
        {"model": {"type": "Unigram", "vocab": [["a", float("nan")]], "unk_id": 0}},
        {"model": {}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    ],
)
def test_encoder_absurd_setting_is_a_user_error(tokenizer_json, changes):
    with pytest.raises(UserError, match=r"Expected a tokenizer\.json"):
        Encoder(changed(tokenizer_json, **changes))


def test_encoder_file_of_absurd_size_is_a_user_error(tokenizer_json, monkeypatch):
    monkeypatch.setattr(encoder_module, "LARGEST_FILE", 1000)
    with pytest.raises(UserError, match=r"expected a tokenizer\.json of at most 1,000"):
        Encoder(tokenizer_json)


def test_encoder_folder_reads_its_file(tokenizer_json, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json)
    assert Encoder(tmp_path).fingerprint == Encoder(tokenizer_json).fingerprint


def test_encoder_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"none\.json: No such file"):
        Encoder(tmp_path / "none.json")


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
    texts.append("".join(texts))  # above 1 MB
    tokenizer = reference(content)
    assert ids_of(Encoder(content), *texts) == [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
