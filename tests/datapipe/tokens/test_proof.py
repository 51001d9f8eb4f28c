"""The proof of a tokenizer: fastokens encodes where its ids are those of `tokenizers`, and nowhere else."""

import json
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from tokenizers import AddedToken, Tokenizer, normalizers

from datapipe.errors import EncodingError, UserError
from datapipe.machine.cache import write_checked
from datapipe.tokens import Encoder, engines, proof, tiktoken
from datapipe.tokens.engines import FASTOKENS, TOKENIZERS
from datapipe.tokens.patterns import PATTERNS
from tests.oracles.pretokens import hard_texts
from tests.support import tokenizer_files
from tests.support.tokenizer_files import train_tokenizer

SAMPLE = [
    "The people of the town don't come; they've said 12,345 things in 2024! It's naïve, Don’t you think?\n\n" * 3,
    "def run(x):\n    return x + 1\n\n\tif a == b:  # run \r\n        pass\n" * 5,
    "漢字とカナ と ひらがな。 Привет, мир! नमस्ते दुनिया 😀👩‍👩‍👧 é\u0301 ",
]


@cache
def trained(pattern: str = "gpt2") -> bytes:
    return train_tokenizer([pa.array(SAMPLE * 4, pa.large_string())], 420, pattern=pattern)


def column(texts: list[str]) -> pa.Array:
    return pa.array(texts, pa.large_string())


def assert_ids_of_tokenizers(content: bytes, texts: list[str]) -> Encoder:
    encoder, tokenizer = Encoder(content), Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = True
    ids, offsets = encoder.encode(column(texts))
    expected = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for text, start, stop, one in zip(texts, offsets[:-1], offsets[1:], expected, strict=True):
        assert ids[start:stop].tolist() == one.ids, text[:200]
    return encoder


@pytest.mark.medium
@pytest.mark.parametrize("pattern", PATTERNS)
def test_proof_of_a_trained_tokenizer_chooses_fastokens(pattern):
    texts = [*hard_texts(np.random.default_rng(5), 800), *SAMPLE, "", " ", "\n" * 50, "\0a\0"]
    encoder = assert_ids_of_tokenizers(trained(pattern), texts)
    assert (encoder.proof.choice.library, encoder.proof.choice.reason) == (FASTOKENS, "")


FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
END = "<|endoftext|>"


def with_added(*tokens: dict[str, Any]) -> dict[str, Any]:
    settings = json.loads(trained())
    settings["added_tokens"] += [FLAGS | token for token in tokens]
    return settings


def with_model(**changes: Any) -> dict[str, Any]:
    settings = json.loads(trained())
    return {**settings, "model": {**settings["model"], **changes}}


def with_gap(num_ids: int = 7) -> dict[str, Any]:
    settings = with_model(ignore_merges=True)
    settings["model"]["vocab"]["Ġpeople"] = len(settings["model"]["vocab"]) + num_ids
    return settings


def with_version_line() -> dict[str, Any]:
    merges = json.loads(trained())["model"]["merges"]
    return with_model(merges=["#version: 0.2", *(" ".join(pair) for pair in merges)])


@pytest.mark.medium
@pytest.mark.parametrize(
    "settings",
    [
        with_added({"id": 9000, "content": "people"}),
        with_added({"id": 3, "content": "people"}),
        with_added({"id": 421, "content": "people"}, {"id": 420, "content": "town"}),
        with_added({"id": 420, "content": "people", "single_word": True}, {"id": 421, "content": "  ", "normalized": True}),
        with_added({"id": 420, "content": "people", "special": True}),
        with_gap(),
        with_version_line(),
        json.loads(trained()) | {"normalizer": {"type": "Lowercase"}},
    ],
)
def test_proof_passes_with_the_ids_that_tokenizers_gives(settings):
    encoder = assert_ids_of_tokenizers(json.dumps(settings).encode(), [*SAMPLE, f"people{END}the town people peoples  x"])
    assert encoder.proof.choice.reason == ""


POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


def possessive() -> dict[str, Any]:
    settings = deepcopy(json.loads(trained()))
    settings["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = POSSESSIVE
    return settings


@pytest.mark.medium
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (json.dumps(possessive()).encode(), "it encodes "),
        (
            json.dumps(
                with_added({"id": 420, "content": "people", "special": True}, {"id": 421, "content": "people"})
            ).encode(),
            "it encodes ",
        ),
        (tokenizer_files.unigram(), "cannot load the tokenizer"),
        (tokenizer_files.words(), "cannot load the tokenizer"),
        (json.dumps(with_gap(4_000_000)).encode(), "go up to 4000"),
        (json.dumps(json.loads(trained()) | {"normalizer": {"type": "NFKC"}}).encode(), "normalizer type: NFKC"),
    ],
)
def test_proof_that_fails_leaves_the_tokenizer_to_the_reference_with_the_reason(content, reason):
    encoder = Encoder(content, eos="[SEP]" if b"[SEP]" in content else None)
    choice = encoder.proof.choice
    assert choice.library == TOKENIZERS
    assert reason in choice.reason
    assert choice.reason in choice.words
    assert encoder.proof.mb_per_s > 0
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = True
    assert encoder.encode(column(["the dog 12345 people"]))[0].tolist() == tokenizer.encode("the dog 12345 people").ids


@pytest.mark.medium
def test_proof_refuses_a_bpe_that_makes_control_tokens_of_their_spelling():
    vocabulary = {END: 0, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}}
    model = {"type": "BPE", "byte_fallback": True, "vocab": vocabulary, "merges": []}
    content = json.dumps({"model": model, "added_tokens": [FLAGS | {"id": 0, "content": END, "special": True}]}).encode()
    encoder = assert_ids_of_tokenizers(content, [END, f"a {END}", "a <0x0A> b"])
    assert encoder.proof.choice.library == TOKENIZERS
    assert f"it encodes '{END}' to [0]" in encoder.proof.choice.reason


def test_battery_holds_every_token_that_looks_like_a_control_token():
    texts = {*proof.battery(with_added({"id": 420, "content": "<tool>"}, {"id": 421, "content": "plain"}))}
    for token in (END, "<tool>", "plain"):
        assert {token, f" {token}", f"word{token}word"} <= texts
    pieces = with_model(vocab={"<0x0A>": 0, "[MASK]": 1, "a": 2}, merges=[])
    assert {"word<0x0A>word", "[MASK]"} <= {*proof.battery(pieces)}
    assert "wordaword" not in {*proof.battery(pieces)}


def test_battery_holds_every_code_point_of_the_planes_with_most_scripts_and_is_the_same_each_time():
    texts = [*proof.battery(json.loads(trained()))]
    assert {*map(ord, "".join(texts))} >= {code for code in range(0x40000) if not 0xD800 <= code < 0xE000}
    assert texts == [*proof.battery(json.loads(trained()))]


NO_PROOFS = [b"{", b"null", b"{}", b'{"choice": null, "mb_per_s": 1}', b'{"choice": {"library": "tokenizers"}, "mb_per_s": 1}']


@pytest.mark.slow
def test_proof_is_kept_for_the_tokenizer_its_markers_and_the_versions(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    content = tokenizer_files.byte_level()
    first = Encoder(content).proof
    monkeypatch.setattr(proof, "battery", lambda _: iter(["one text"]))
    assert Encoder(content).proof == first
    [kept] = (tmp_path / "datapipe" / "encoders").iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert Encoder(content).proof.choice.battery != first.choice.battery
    for data in NO_PROOFS:
        write_checked(kept, data)
        assert Encoder(content).proof.choice.battery != first.choice.battery
    others = [Encoder(content, bos="<s>"), Encoder(trained())]
    assert all(other.proof.choice.battery != first.choice.battery for other in others)
    monkeypatch.setattr(proof, "installed_version", lambda library: "9.9")
    assert Encoder(content).proof.choice == replace(others[0].proof.choice, version="9.9")


def test_encoder_of_another_version_refuses():
    choice = replace(Encoder(tokenizer_files.byte_level()).proof.choice, version="0.0.1")
    with pytest.raises(UserError, match=r"fastokens 0\.0\.1, and this process has"):
        Encoder(tokenizer_files.byte_level(), choice=choice).encode(column(["a"]))


class Failing:
    """A tokenizer of `tokenizers` that ends with an exception."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def encode_batch_fast(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt(), SystemExit()])
def test_engine_blames_no_text_for_other_ends(error):
    failing: Any = Failing(error)
    with pytest.raises(type(error)):
        engines.Reference(failing).encode(["a text"])


def test_encode_bytes_that_are_not_utf8_is_an_error_of_the_text():
    texts = pa.LargeStringArray.from_buffers(2, pa.py_buffer(np.array([0, 1, 3])), pa.py_buffer(b"a\xed\xa0"))
    with pytest.raises(EncodingError, match="UTF-8"):
        Encoder(tokenizer_files.byte_level()).encode(texts)


def test_encode_added_tokens_and_normal_form_are_as_in_tokenizers():
    tokenizer = Tokenizer.from_buffer(trained())
    spaces = [AddedToken(" " * length, normalized=True, special=False) for length in (2, 4, 8)]
    tokenizer.add_tokens([*spaces, AddedToken("|||IP|||"), AddedToken("<|x|>", special=True), AddedToken("<|")])
    tokenizer.normalizer = normalizers.NFC()
    texts = [*("a" + " " * n + "b" for n in range(12)), "|||IP||| ||IP|||", "<|x|> <| x|>", "e\u0301 é  \u1100\u1161", END]
    assert_ids_of_tokenizers(tokenizer.to_str().encode(), [*texts, *SAMPLE])


LONG = ["a" * 30_000, "ab" * 20_000, " " * 5_000, "\n" * 5_000, "é" * 9_000, "x" * 41, "x" * 63 + " " + "y" * 64]


def test_encode_long_words_is_as_in_tokenizers():
    assert_ids_of_tokenizers(trained(), [text for word in LONG for text in (word, f"the {word} of", word)])


def _published(folder: Path, name: str) -> bytes:
    with zstandard.open(folder / "tokenizers" / name, "rb") as stream:
        content = stream.read()
    return tiktoken.convert(content) if tiktoken.is_rank_file(content) else content


@pytest.mark.real
@pytest.mark.parametrize("name", ["gpt2/tokenizer.json.zst", "gpt-neox-olmo/tokenizer.json.zst", "cl100k_base.tiktoken.zst"])
@pytest.mark.parametrize("corpus", ["prose/dj_stack_exchange", "lang/udhr", "prose/rust_book", "code/codexglue_concode_dev"])
def test_encode_real_texts_with_published_tokenizers_is_by_fastokens(real_data: Path, name: str, corpus: str) -> None:
    with zstandard.open(real_data / f"{corpus}.jsonl.zst", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    texts = [row.get("text") or row["code"] for row in rows][:400]
    assert assert_ids_of_tokenizers(_published(real_data, name), texts).proof.choice.reason == ""
