"""Encoding by kernels gives the ids of `tokenizers`; files that are not known exactly are left to it, with the reason."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from datapipe.tokens import Encoder
from datapipe.tokens.patterns import PATTERNS
from datapipe.tokens.published_patterns import DEEPSEEK, GPT2, HAN_RUNS, PARTIAL, QWEN35, THREES, Flags
from datapipe.tokens.published_patterns import PATTERNS as PUBLISHED
from datapipe.tokens.recognition import Recognised, recognise
from datapipe.tokens.training import train_tokenizer
from tests.oracles.pretokens import NAMED, hard_texts, pretoken_ends, reference

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


@pytest.mark.medium
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


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
END = {"id": 256, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": True}
END["normalized"] = False


def split(expression: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def file(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of the bytes alone, as a dictionary."""
    model = {"type": "BPE", "vocab": {byte: n for n, byte in enumerate(pre_tokenizers.ByteLevel.alphabet())}, "merges": []}
    plain = {"normalizer": None, "pre_tokenizer": {**BYTES, "use_regex": True}, "added_tokens": [END], "model": model}
    return {**plain, **changes}


def model(**changes: Any) -> dict[str, Any]:
    return {**file()["model"], **changes}


def known(settings: dict[str, Any]) -> Recognised:
    recognised, reason = recognise(settings)
    assert recognised is not None, reason
    return recognised


def step_of(expression: str) -> dict[str, Any]:
    return split(expression) if expression[0] != "<" else {"type": "Digits", "individual_digits": True}


@pytest.mark.parametrize("name", NAMED)
def test_recognise_file_written_by_tokenizers_is_the_pattern(name):
    tokenizer = Tokenizer(models.BPE(vocab=file()["model"]["vocab"], merges=[]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([reference(NAMED[name]), byte_level])
    recognised, expected = known(json.loads(tokenizer.to_str())), PUBLISHED[NAMED[name]]
    assert (recognised.family, recognised.flags) == (expected.family, expected.flags)


@pytest.mark.parametrize("name", [name for name, expressions in NAMED.items() if not PARTIAL & {expressions[-1]}])
def test_recognise_inverse_of_removed_cuts_as_tokenizers_does(name):
    """OLMo 2 and the converted GPT-4 are written so."""
    *first, last = NAMED[name]
    recognised = known(file(pre_tokenizer=sequence(*map(step_of, first), split(last, "Removed", True), BYTES)))
    splitter = pre_tokenizers.Sequence([reference(tuple(first)), pre_tokenizers.Split(Regex(last), "removed", invert=True)])
    text = "It's 12345\x01\u200b\ue000\u0378 中文!\n\n  x  \n "
    ends = np.zeros(200, np.int64)
    data = np.frombuffer(text.encode(), np.uint8)
    assert ends[: recognised.cut(np.array([0, len(data)]), data, ends)].tolist() == pretoken_ends(splitter, text)


def test_recognise_line_ends_in_an_expression_may_be_characters():
    """DeepSeek writes them so."""
    steps = [split(part.replace(r"\r", "\r").replace(r"\n", "\n")) for part in (THREES, HAN_RUNS, DEEPSEEK)]
    assert known(file(pre_tokenizer=sequence(*steps, BYTES))).family == "deepseek"


def test_recognise_facts_of_the_file_are_in_the_record():
    one = known(file(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}, model=model(ignore_merges=True)))
    assert (one.family, one.flags, one.normalizer, one.ignore_merges) == ("gpt2", Flags(), "NFC", True)
    (token,) = one.added
    assert {name: getattr(token, name) for name in END} == END


def test_recognise_old_files_and_those_of_few_bytes():
    """GPT-2's has no type of the model and no `use_regex`; GPT-NeoX's has no tokens of bytes that no text holds."""
    untyped = model()
    del untyped["type"]
    old = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    assert known(file(model=untyped, pre_tokenizer=old)).family == "gpt2"
    vocabulary = {byte: number for byte, number in file()["model"]["vocab"].items() if byte not in "ÀÁõö÷øùúûüýþÿ"}
    assert known(file(model=model(vocab=vocabulary))).family == "gpt2"
    assert known(file(normalizer={"type": "Sequence", "normalizers": []})).normalizer is None


WITHOUT_A_BYTE = {byte: number for byte, number in file()["model"]["vocab"].items() if byte != "Ġ"}
NORMALIZERS = [{"type": "NFC"}, {"type": "NFKC"}]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("ByteLevel as its last step", {"pre_tokenizer": None}),
    ("ByteLevel as its last step", {"pre_tokenizer": split(GPT2)}),
    ("ByteLevel as its last step", {"pre_tokenizer": sequence(BYTES, BYTES)}),
    ("[]", {"pre_tokenizer": BYTES}),
    ("no known tokenizer", {"pre_tokenizer": sequence(split(GPT2 + "|x"), BYTES)}),
    ("no known tokenizer", {"pre_tokenizer": sequence(split(HAN_RUNS), split(THREES), BYTES)}),
    ("no known tokenizer", {"pre_tokenizer": sequence(split(QWEN35), {**BYTES, "use_regex": True})}),
    ("add_prefix_space", {"pre_tokenizer": {**BYTES, "add_prefix_space": True}}),
    ("string", {"pre_tokenizer": sequence({**split(""), "pattern": {"String": GPT2}}, BYTES)}),
    ("Removed", {"pre_tokenizer": sequence(split(GPT2, "Removed"), BYTES)}),
    ("MergedWithNext", {"pre_tokenizer": sequence(split(GPT2, "MergedWithNext"), BYTES)}),
    ("Removed", {"pre_tokenizer": sequence(split(THREES), split(HAN_RUNS), split(DEEPSEEK, "Removed", True), BYTES)}),
    ("individual_digits", {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False}, BYTES)}),
    ("Punctuation", {"pre_tokenizer": sequence({"type": "Punctuation", "behavior": "Contiguous"}, BYTES)}),
    ("case", {"pre_tokenizer": {**BYTES, "case": "smart"}}),
    ("Lowercase", {"normalizer": {"type": "Lowercase"}}),
    ("NFC, NFKC", {"normalizer": {"type": "Sequence", "normalizers": NORMALIZERS}}),
    ("greedy", {"added_tokens": [{**END, "greedy": True}]}),
    ("model", {"model": {"type": "Unigram", "vocab": [], "unk_id": 0}}),
    ("BPE", {"model": {"type": "WordPiece", "vocab": {}}}),
    ("end_of_word_suffix", {"model": model(end_of_word_suffix="</w>")}),
    ("byte_fallback", {"model": model(byte_fallback=True)}),
    ("temperature", {"model": model(temperature=1)}),
    ("1 bytes", {"model": model(vocab=WITHOUT_A_BYTE)}),
]


@pytest.mark.parametrize(("fact", "changes"), CHANGES)
def test_recognise_what_is_not_known_gives_the_reason(fact, changes):
    recognised, reason = recognise(deepcopy(file(**changes)))
    assert recognised is None
    assert fact in str(reason)


@pytest.mark.real
@pytest.mark.parametrize(("path", "normalizer"), [("gpt2", None), ("gpt-neox-olmo", "NFC")])
def test_recognise_published_files(real_data: Path, path, normalizer):
    with zstandard.open(real_data / "tokenizers" / path / "tokenizer.json.zst", "rt", encoding="utf-8") as stream:
        recognised = known(json.load(stream))
    assert (recognised.family, recognised.flags, recognised.normalizer) == ("gpt2", Flags(), normalizer)
