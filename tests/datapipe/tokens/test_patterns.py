"""The patterns: each cuts as published, and the mixture file knows them all."""

from __future__ import annotations

import json
from typing import get_args

import pyarrow as pa
import pytest

from datapipe.config.tokenizer_spec import PatternName
from datapipe.tokens.patterns import PATTERNS, splitter
from datapipe.tokens.training import train_tokenizer

CL100K = [["It", "'s"], ["DON", "'T"], ["in", "Ġ", "123", "4"], ["theHTMLPage"], ["a", "/Ċ", "/b"], ["(Ċ", "x"], ["ĉx"]]
CASES = {
    "gpt2": [["It", "'s"], ["DON", "'", "T"], ["in", "Ġ1234"], ["theHTMLPage"], ["a", "/", "Ċ", "/", "b"], ["(", "Ċ", "x"]],
    "cl100k": CL100K,
    "llama3": CL100K,
    "qwen2": [*CL100K[:2], ["in", "Ġ", "1", "2", "3", "4"], *CL100K[3:]],
    "o200k": [["It's"], ["DON'T"], ["in", "Ġ", "123", "4"], ["the", "HTMLPage"], ["a", "/Ċ/", "b"], ["(Ċ", "x"], ["ĉx"]],
}
TEXTS = ["It's", "DON'T", "in 1234", "theHTMLPage", "a/\n/b", "(\nx", "\tx"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_cuts_as_published(pattern):
    for text, words in zip(TEXTS, CASES[pattern]):
        assert [word for word, _ in splitter(pattern).pre_tokenize_str(text)] == words


@pytest.mark.parametrize("pattern", PATTERNS)
def test_pattern_in_a_trained_tokenizer_is_that_of_the_table(pattern):
    content = train_tokenizer([pa.array(["a b a b"], pa.large_string())], 260, pattern=pattern)
    *splits, byte_level = json.loads(content)["pre_tokenizer"]["pretokenizers"]
    assert [split["pattern"]["Regex"] for split in splits] == PATTERNS[pattern]
    assert (byte_level["type"], byte_level["use_regex"]) == ("ByteLevel", False)


def test_patterns_of_the_mixture_file_are_those_of_the_table():
    assert get_args(PatternName) == tuple(PATTERNS)
