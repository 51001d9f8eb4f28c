"""Texts are cut exactly as `tokenizers` cuts them, by every published pattern, in linear time."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.tokens.published_patterns import PATTERNS
from tests.oracles.pretokens import ATOMS, NAMED, SPACES, hard_texts, pretoken_ends, reference
from tests.support import kernel_table

WORDS = [
    "",
    "Hello world, it's 2024!",
    "I'LL we'Ve they'rE DON'T it'ſ o'clock ''s 's ' 't'T 'x",
    "'ſ 'ſſ x'ſ X'SX'sx HTTP'S naïve'll",
    "HTTPServer camelCase iPhone McDonald ÉCOLE ǅungla AʰB 中A A中b 中AB AB中 \u0301ABC \u0301abc A\u0301BC \u0301",
    "1 12 123 1234 12345 a1b22c333 ٣٤٥٦٧ ⅧⅨ½ 1\ufe0f\u20e3 x² 𝟘𝟙𝟚𝟛 \U00016ac0 \U0001e4f0\U0001e4f1",
    "path/to//file.txt\n//\n/\r\n/* x */ #!/bin/sh\n\n!\n/a",
    "カタカナ・テスト ー中文，你好。一龥龦 ゛゜ か\u3099き \u3040\u3097 A中文B 12中34",
    "\x01\x02a \x03 \x04\x05中\x06カ\u200b\u200c\u200dx \ufeffabc \u00adx\ue000\ue001 \u0378\u0378",
    "!abc !!abc .Net \\alpha{x} _foo __bar__ $x @y `z` ~ “q” «r» —s",
    "👩\u200d👩\u200d👧 🇫🇷 👍🏽! ☺\ufe0f don’t",
]
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
    num_pieces = PATTERNS[NAMED[name]].cut(offsets, np.frombuffer(b"".join(encoded), np.uint8), ends)
    parts = np.split(ends[:num_pieces], np.searchsorted(ends[:num_pieces], offsets[1:-1], "right"))
    return [(part - start).tolist() for part, start in zip(parts, offsets[:-1], strict=True)]


@pytest.mark.parametrize("name", NAMED)
def test_cut_hard_texts_equals_tokenizers(name):
    splitter, texts = reference(NAMED[name]), [*WORDS, *RUNS, *SPACED, *hard_texts(np.random.default_rng(7), 500)]
    for text, ends in zip(texts, cut(name, texts), strict=True):
        assert ends == pretoken_ends(splitter, text), text


atoms = st.sampled_from([atom for _, group in ATOMS for atom in group]) | st.characters(codec="utf-8")


@given(texts=st.lists(st.lists(atoms), max_size=3))
@settings(deadline=None)
def test_cut_any_text_equals_tokenizers(texts):
    joined = ["".join(atoms) for atoms in texts] + [""]
    for name, expressions in NAMED.items():
        assert cut(name, joined) == [pretoken_ends(reference(expressions), text) for text in joined]


@pytest.mark.parametrize("name", NAMED)
def test_cut_any_bytes_ends_every_document(name):
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, 30, 400)
    lengths[::50] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    data = generator.integers(0, 256, offsets[-1], dtype=np.uint8)
    data[generator.random(len(data)) < 0.5] |= 0xC0  # many characters that are cut off
    ends = np.zeros(len(data), np.int64)
    num_pieces = PATTERNS[NAMED[name]].cut(offsets, data, ends)
    assert (np.diff(ends[:num_pieces]) > 0).all()
    assert ends[0] > 0
    assert set(offsets[1:].tolist()) - {0} <= set(ends[:num_pieces].tolist())


LONG = [" ", "\n", " \n", "   \n   ", "a", "A", "中A", "\u0301", "1", "!", "'", "/\n", "\x01", "カ・"]


@pytest.mark.slow
@pytest.mark.skipif(kernel_table.RUNS_AS_PYTHON, reason="times compiled kernels")
@pytest.mark.parametrize("name", ["gpt2-0", "gpt2-3", "cl100k-4", "cl100k-11", "o200k-12", "deepseek-14"])
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
        PATTERNS[NAMED[name]].cut(np.array([0, len(text)]), data, ends)
        taken.append(time.thread_time() - started)
    return min(taken)


REAL = {
    "prose/cleaneval_web.jsonl.zst": "text",
    "prose/rust_book.jsonl.zst": "text",
    "prose/arxiv_latex.jsonl.zst": "text",
    "lang/lingua_sentences.jsonl.zst": "text",
    "lang/udhr.jsonl.zst": "text",
    "html/mozilla_readability.jsonl.zst": "html",
    "code/codexglue_trans_train.java.txt.zst": None,
}


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("path", REAL)
@pytest.mark.parametrize(
    "name", ["gpt2-0", "gpt2-3", "cl100k-4", "cl100k-5", "cl100k-7", "o200k-12", "o200k-13", "deepseek-14"]
)
def test_cut_real_texts_equals_tokenizers(real_data, name, path):
    texts = read(real_data / path, REAL[path])
    splitter = reference(NAMED[name])
    for text, ends in zip(texts, cut(name, texts), strict=True):
        assert ends == pretoken_ends(splitter, text), text[:80]


def read(path: Path, key: str | None) -> list[str]:
    """The texts of a file, about 2 MB of them."""
    with zstandard.open(path, "rt", encoding="utf-8") as stream:
        lines = stream.readlines()
    texts = [json.loads(line)[key] for line in lines] if key else ["".join(lines)]
    step = max(sum(map(len, texts)) // 2_000_000, 1)
    return texts[::step]
