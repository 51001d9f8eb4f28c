"""Which tokenizer.json files are known exactly, and why others are not."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from datapipe.tokens.published_patterns import DEEPSEEK, GPT2, HAN_RUNS, PARTIAL, PATTERNS, QWEN35, THREES, Flags
from datapipe.tokens.recognition import Recognised, recognise
from tests.oracles.pretokens import NAMED, pretoken_ends, reference

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
EOS = {"id": 256, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": True}
EOS["normalized"] = False


def split(expression: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior, "invert": invert}


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def file(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of the bytes alone, as a dictionary."""
    model = {"type": "BPE", "vocab": {byte: n for n, byte in enumerate(pre_tokenizers.ByteLevel.alphabet())}, "merges": []}
    plain = {"normalizer": None, "pre_tokenizer": {**BYTES, "use_regex": True}, "added_tokens": [EOS], "model": model}
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
    recognised, expected = known(json.loads(tokenizer.to_str())), PATTERNS[NAMED[name]]
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
    assert {name: getattr(token, name) for name in EOS} == EOS


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
    ("greedy", {"added_tokens": [{**EOS, "greedy": True}]}),
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
