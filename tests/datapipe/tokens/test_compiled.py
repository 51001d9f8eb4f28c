"""Encoding by kernels gives the ids of `tokenizers`, or leaves the text to it and says why."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers

from datapipe.tokens import Encoder
from datapipe.tokens.patterns import PATTERNS
from datapipe.tokens.training import train_tokenizer
from tests.oracles.pretokens import hard_texts

SAMPLE = [
    "The people of the town don't come; they've said 12,345 things in 2024! It's naïve, Don’t you think?\n\n" * 3,
    "def run(x):\n    return x + 1\n\n\tif a == b:  # run \r\n        pass\n" * 5,
    "漢字とカナ と ひらがな。 Привет, мир! नमस्ते दुनिया 😀👩‍👩‍👧 é\u0301 ",
]


@lru_cache(maxsize=16)
def _trained(pattern: str) -> bytes:
    return train_tokenizer([pa.array(SAMPLE * 4, pa.large_string())], 420, pattern=pattern)


def _with(content: bytes, **changes: object) -> bytes:
    return json.dumps(json.loads(content) | changes).encode()


def _added(content: bytes, *tokens: AddedToken) -> bytes:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.add_tokens(list(tokens))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer.to_str().encode()


@lru_cache(maxsize=16)
def _both(content: bytes) -> tuple[Encoder, Tokenizer]:
    tokenizer = Tokenizer.from_buffer(content)
    tokenizer.encode_special_tokens = True
    return Encoder(content), tokenizer


def assert_equal_ids(content: bytes, texts: list[str]) -> Encoder:
    encoder, tokenizer = _both(content)
    ids, offsets = encoder.encode(pa.array(texts, pa.large_string()))
    expected = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    for text, start, stop, one in zip(texts, offsets[:-1], offsets[1:], expected, strict=True):
        assert ids[start:stop].tolist() == one.ids, text[:200]
    return encoder


@pytest.mark.medium
@pytest.mark.parametrize("pattern", PATTERNS)
def test_compiled_hard_texts_have_the_ids_of_tokenizers(pattern: str) -> None:
    texts = [*hard_texts(np.random.default_rng(5), 800), *SAMPLE, "", " ", "\n" * 50]
    assert assert_equal_ids(_trained(pattern), texts).fallback_reason == ""


characters = st.sampled_from("the'sSſ 12\n\r\t漢é\u0301😀.,_") | st.characters(codec="utf-8")


@pytest.mark.medium
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(sorted(PATTERNS)), st.lists(st.text(characters, max_size=60), max_size=5))
def test_compiled_any_text_has_the_ids_of_tokenizers(pattern: str, texts: list[str]) -> None:
    assert_equal_ids(_trained(pattern), texts)


def test_compiled_added_tokens_and_normal_form_are_as_in_tokenizers() -> None:
    spaces = [AddedToken(" " * length, normalized=True, special=False) for length in (2, 4, 8)]
    marks = [AddedToken("|||IP|||", special=False), AddedToken("<|x|>", special=True), AddedToken("<|", special=False)]
    content = _added(_trained("gpt2"), *spaces, *marks)
    texts = ["a" + " " * n + "b" for n in range(12)]
    texts += ["|||IP||| ||IP|||", "<|x|> <| x|>", "e\u0301 é  \u1100\u1161", "<|endoftext|>"]
    assert assert_equal_ids(content, [*texts, *SAMPLE]).fallback_reason == ""


LONG = ["a" * 30_000, "ab" * 20_000, " " * 5_000, "\n" * 5_000, "é" * 9_000, "x" * 41, "x" * 63 + " " + "y" * 64]


def test_compiled_long_words_have_the_ids_of_tokenizers() -> None:
    assert_equal_ids(_trained("gpt2"), [text for word in LONG for text in (word, f"the {word} of", word)])


@pytest.mark.medium
def test_compiled_cache_that_overflows_changes_no_id() -> None:
    encoder, rng = Encoder(_trained("gpt2")), np.random.default_rng(1)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 40)))) for _ in range(100_000)]
    texts = pa.array([" ".join(words), " ".join(words[:50])], pa.large_string())
    ids, offsets = encoder.encode(texts)
    fresh, _ = Encoder(_trained("gpt2")).encode(texts.slice(1))
    assert ids[offsets[1] :].tolist() == fresh.tolist()


def test_compiled_tokenizer_that_is_not_known_is_left_to_the_library_with_the_reason() -> None:
    content = _with(_trained("gpt2"), normalizer={"type": "Lowercase"})
    assert "Lowercase" in assert_equal_ids(content, SAMPLE).fallback_reason
    lonely = AddedToken("the", single_word=True, normalized=False)
    assert "'the'" in assert_equal_ids(_added(_trained("gpt2"), lonely), SAMPLE).fallback_reason


def test_compiled_ignore_merges_takes_whole_pieces() -> None:
    settings_ = json.loads(_trained("llama3"))
    settings_["model"]["ignore_merges"] = True
    settings_["model"]["vocab"]["Ġpeople"] = len(settings_["model"]["vocab"])
    assert assert_equal_ids(json.dumps(settings_).encode(), [*SAMPLE, "the people peoples"]).fallback_reason == ""


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([{"id": 9000, "content": "people"}], "9000 in the file, and 420"),
        ([{"id": 3, "content": "people"}], "3 in the file"),
        ([{"id": 9000, "content": "the"}], "9000 in the file"),
        ([{"id": 421, "content": "people"}, {"id": 420, "content": "town"}], "421 in the file"),
        ([{"id": 420, "content": "people", "special": True}, {"id": 421, "content": "people"}], "twice"),
        ([{"id": 0, "content": "<|endoftext|>"}], "twice"),
        ([{"id": 9000, "content": "people", "special": True}], ""),
    ],
)
def test_compiled_added_tokens_that_tokenizers_numbers_otherwise_are_left_to_it(
    tokens: list[dict[str, object]], reason: str
) -> None:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content = json.loads(_trained("gpt2"))
    content["added_tokens"] += [flags | token for token in tokens]
    encoder = assert_equal_ids(json.dumps(content).encode(), [*SAMPLE, "people<|endoftext|>the town"])
    assert reason in encoder.fallback_reason
    assert bool(reason) == bool(encoder.fallback_reason)


def test_compiled_version_line_among_merges_is_passed_over() -> None:
    content = json.loads(_trained("gpt2"))
    content["model"]["merges"] = ["#version: 0.2", *(" ".join(pair) for pair in content["model"]["merges"])]
    assert assert_equal_ids(json.dumps(content).encode(), SAMPLE).fallback_reason == ""


@pytest.mark.real
@pytest.mark.parametrize("name", ["gpt2", "gpt-neox-olmo"])
@pytest.mark.parametrize("corpus", ["prose/dj_stack_exchange", "lang/udhr", "prose/rust_book", "code/codexglue_concode_dev"])
def test_compiled_real_texts_have_the_ids_of_tokenizers(real_data: Path, name: str, corpus: str) -> None:
    with zstandard.open(real_data / "tokenizers" / name / "tokenizer.json.zst", "rb") as stream:
        content = stream.read()
    with zstandard.open(real_data / f"{corpus}.jsonl.zst", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    assert assert_equal_ids(content, [row.get("text") or row["code"] for row in rows][:400]).fallback_reason == ""
