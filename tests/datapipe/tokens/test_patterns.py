"""Texts are cut exactly as `tokenizers` cuts them, by every pattern; long texts are cut, and words are counted."""

import time
from collections import Counter
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from datapipe.config.tokenizer_spec import PatternName
from datapipe.kernels.tokens.pretokens import GPT2
from datapipe.tokens import patterns
from datapipe.tokens import word_counts as module
from datapipe.tokens.patterns import FAMILIES, NUM_CODES, PATTERNS, ask_engine, class_table, splitter
from datapipe.tokens.vocabulary import byte_alphabet
from datapipe.tokens.word_counts import LONGEST_WORD, WordCounts, counted_words
from tests.oracles.pretokens import ATOMS, SPACES, hard_texts, pretoken_ends, reference
from tests.support import kernel_table
from tests.support.tokenizer_files import counted

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


def test_patterns_of_the_mixture_file_are_those_of_the_table():
    assert get_args(PatternName) == tuple(PATTERNS)


RUNS = [
    before + run + after
    for before in ("", "a", "1", "!", "中", "\x01")
    for run in (" ", "  ", "\n", " \n", "\n ", "\n\n  ", "  \n\n", " \r\n \t", "\t\t", "\u3000\u3000", "\x85 ", "\xa0", "\x1c ")
    for after in ("", "a", "1", "!", "中", "'s", "\x01", "\u0301")
]
SPACED = [f"{one}{other}x{one} {other}\n{one}" for one in SPACES for other in SPACES]


def cut(name: str, texts: list[str]) -> list[list[int]]:
    """Where the pieces of each text end, all texts given at once."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    ends = np.empty(offsets[-1], np.int64)
    num_pieces = patterns.cut(name, offsets, np.frombuffer(b"".join(encoded), np.uint8), ends)
    parts = np.split(ends[:num_pieces], np.searchsorted(ends[:num_pieces], offsets[1:-1], "right"))
    return [(part - start).tolist() for part, start in zip(parts, offsets[:-1], strict=True)]


@pytest.mark.parametrize("name", PATTERNS)
def test_cut_hard_texts_equals_tokenizers(name):
    splitter, texts = reference(name), [*RUNS, *SPACED, *hard_texts(np.random.default_rng(7), 500)]
    for text, ends in zip(texts, cut(name, texts), strict=True):
        assert ends == pretoken_ends(splitter, text), text


atoms = st.sampled_from([atom for _, group in ATOMS for atom in group]) | st.characters(codec="utf-8")


@given(texts=st.lists(st.lists(atoms), max_size=3))
@settings(deadline=None)
def test_cut_any_text_equals_tokenizers(texts):
    joined = ["".join(atoms) for atoms in texts] + [""]
    for name in PATTERNS:
        assert cut(name, joined) == [pretoken_ends(reference(name), text) for text in joined]


@pytest.mark.parametrize("name", PATTERNS)
def test_cut_any_bytes_ends_every_document(name):
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, 30, 400)
    lengths[::50] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = generator.integers(0, 256, offsets[-1], dtype=np.uint8)
    data[generator.random(len(data)) < 0.5] |= 0xC0  # many characters that are cut off
    ends = np.zeros(len(data), np.int64)
    num_pieces = patterns.cut(name, offsets, data, ends)
    assert (np.diff(ends[:num_pieces]) > 0).all()
    assert ends[0] > 0
    assert set(offsets[1:].tolist()) - {0} <= set(ends[:num_pieces].tolist())


LONG = [" ", "\n", " \n", "   \n   ", "a", "A", "中A", "\u0301", "1", "!", "'", "/\n", "\x01", "カ・"]


@pytest.mark.slow
@pytest.mark.skipif(kernel_table.RUNS_AS_PYTHON, reason="times compiled kernels")
@pytest.mark.parametrize("name", ["gpt2", "cl100k", "o200k"])
def test_cut_one_long_run_takes_linear_time(name):
    """Twenty times as much takes some twenty times as long; a quadratic kernel takes four hundred times."""
    for run in LONG:
        for frame in ("{0}", "a{0}b", " {0} "):
            short, long = (frame.format(run * (size // len(run))).encode() for size in (50_000, 1_000_000))
            assert seconds(name, long) < 100 * seconds(name, short) + 0.02, (run, frame)


def seconds(name: str, text: bytes) -> float:
    """The least of three."""
    data, ends, taken = np.frombuffer(text, np.uint8), np.zeros(len(text), np.int64), []
    for _ in range(3):
        started = time.thread_time()
        patterns.cut(name, np.array([0, len(text)]), data, ends)
        taken.append(time.thread_time() - started)
    return min(taken)


CODES = np.array([code for code in range(NUM_CODES) if not 0xD800 <= code < 0xE000])
ASSIGNED = CODES[(CODES < 0x40000) | (CODES // 0x1000 == 0xE0)]


def held_by(expression: str, text: str) -> np.ndarray:
    """Which characters match, one at a time."""
    found = pre_tokenizers.Split(Regex(expression), "removed", invert=True).pre_tokenize_str(text)
    places = [place for _, (start, stop) in found for place in range(start, stop)]
    held = np.zeros(len(text), bool)
    held[places] = True
    return held


@pytest.mark.slow
def test_class_tables_are_kept_and_read_again(tmp_path, monkeypatch):
    before = class_table(GPT2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for _ in range(2):
        class_table.cache_clear()
        assert np.array_equal(class_table(GPT2), before)
    assert len(list((tmp_path / "datapipe").iterdir())) == 1


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_class_tables_equal_single_matches_and_asking_about_all_code_points(family):
    """Matches of all of the planes that have characters, and one in a hundred of the others."""
    codes = np.union1d(ASSIGNED, CODES[::100])
    text = "".join(map(chr, codes))
    for bit, expression in FAMILIES[family].items():
        assert np.array_equal(class_table(family)[codes] & bit != 0, held_by(expression, text)), expression
    assert np.array_equal(class_table(family), ask_engine(family, (range(0xD800), range(0xE000, NUM_CODES))))


@pytest.mark.slow
def test_byte_level_splits_as_oniguruma_does_at_every_code_point():
    """`ByteLevel` has the GPT-2 pattern built in; it must be the same engine, with the same classes."""
    built_in = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Split(Regex(PATTERNS["gpt2"]), "isolated")
    for shape in ("{0}", " {0}a1", "!{0} "):
        for codes in np.array_split(ASSIGNED, 20):  # `ByteLevel` takes minutes for a text of a megabyte and many pieces
            text = "".join(shape.format(chr(code)) for code in codes)
            found, expected = (step.pre_tokenize_str(text) for step in (built_in, split))
            assert {at for _, at in found} ^ {at for _, at in expected} == set()


ALPHABET = byte_alphabet()


def _column(*texts: str) -> pa.Array:
    return pa.array(texts, pa.large_string())


def _counts(table: pa.Table) -> dict[bytes, int]:
    assert len(set(table["word"].to_pylist())) == len(table)
    return dict(zip(table["word"].to_pylist(), table["count"].to_pylist()))


@given(st.lists(st.text(max_size=60), max_size=8), st.sampled_from(sorted(PATTERNS)))
def test_any_texts_have_the_words_of_tokenizers(texts, pattern):
    split = splitter(pattern)
    spelled = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    expected = {bytes(ALPHABET[letter] for letter in word): count for word, count in spelled.items()}
    assert _counts(counted([_column(*texts)], pattern)) == expected


def test_counts_do_not_depend_on_arrays_slices_and_sums(monkeypatch):
    texts = [f"the {number % 7} words of a text {'x' * (number % 5)}, {number}\n" for number in range(300)]
    texts += ["".join(texts), "漢字 の " * 50]
    whole = _counts(counted([_column(*texts)], "gpt2"))
    monkeypatch.setattr(module, "_MOST_UNSUMMED", 3)
    monkeypatch.setattr(module, "_SLICE_BYTES", 64)
    assert counted([_column("", "")], "gpt2").schema == module.COUNTED
    words = WordCounts()
    for text in texts:
        for part in counted_words(_column("not counted", text).slice(1), "gpt2"):
            words.add(part)
    assert _counts(words.total()) == whole
    assert sum(len(word) * count for word, count in whole.items()) == sum(len(text.encode()) for text in texts)
    assert len([*counted_words(_column(texts[-2]), "gpt2")]) > len(texts[-2]) // 200


@pytest.mark.parametrize("letter", ["a", "é", "漢", "𝒂"])
def test_a_long_word_counts_as_pieces_that_end_where_characters_do(letter):
    word = "b" + letter * LONGEST_WORD
    found = _counts(counted([_column(f"x {word} {word}")], "gpt2"))
    pieces = {piece: count for piece, count in found.items() if len(piece) > 1}
    assert all(len(piece) <= LONGEST_WORD and piece.decode() for piece in pieces)
    assert sum(len(piece) * count for piece, count in found.items()) == len(f"x {word} {word}".encode())
    assert min(pieces.values()) == 2
