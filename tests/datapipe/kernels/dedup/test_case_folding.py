"""Folded texts and words against Python's Unicode database, for every character and for strings of the hard ones."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from datapipe.kernels.dedup.case_folding import GROWTH, MOST_MARKS, Folding, fold_texts, text_folding, word_folding
from datapipe.kernels.dedup.word_characters import word_table
from tests.oracles import case_folding as oracle

CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
HARD = (
    "aÉ\u0301\u0323\u0345\u0328\u0331ῇ각\u1100\u1161\u11a8가Σςßǰΐİ\u093c\u094d中ガ\u3099ชาก่\u00ad\u200b\u200d\u034f\u00a0 .B9"
)
BYTES = b"\x80\xc3\xa9\xe2\x80\x99\xff\xf0aB c\x00"


def _folded(texts: Sequence[bytes], folding: Folding) -> list[bytes]:
    offsets, data = fold_texts(
        np.cumsum([0, *map(len, texts)], dtype=np.int64), np.frombuffer(b"".join(texts), np.uint8), folding
    )
    return [data[start:stop].tobytes() for start, stop in zip(offsets[:-1], offsets[1:])]


def _words(texts: Sequence[bytes]) -> list[list[bytes]]:
    return [[word for word in text.split(b"\0") if word] for text in _folded(texts, word_folding())]


def _strings(seed: int, num: int) -> list[bytes]:
    rng = random.Random(seed)
    texts = ["".join(rng.choices(HARD, k=rng.randint(0, 40))).encode() for _ in range(num)]
    return texts + [bytes(rng.choices(BYTES, k=rng.randint(0, 40))) for _ in range(num)]


@pytest.mark.medium
def test_fold_case_every_character_has_its_canonical_caseless_form() -> None:
    texts = [character.encode() for character in CHARACTERS]
    folded = _folded(texts, text_folding())
    assert folded == [oracle.folded(text) for text in texts]
    assert max(len(after) / len(before) for after, before in zip(folded, texts)) <= GROWTH


@pytest.mark.slow
def test_fold_case_characters_are_in_words_as_their_category_says() -> None:
    """All characters up to Hiragana and every eleventh of the others, in all surroundings."""
    around = "{0} a{0}b中{0}文 \u0301{0} sixteen letters or more{0}and as many again"
    chosen = CHARACTERS[:0x3100] + CHARACTERS[0x3100::11]
    texts = [around.format(character).encode() for character in chosen]
    assert _words(texts) == [oracle.words(text) for text in texts]


def test_fold_case_strings_of_marks_jamo_and_broken_bytes_equal_the_oracle() -> None:
    texts = _strings(seed=1, num=3000)
    assert _folded(texts, text_folding()) == [oracle.folded(text) for text in texts]
    assert _words(texts) == [oracle.words(text) for text in texts]


def test_fold_case_longer_rows_of_marks_than_are_ordered_keep_every_mark() -> None:
    marks = "\u0301\u0323" * (2 * MOST_MARKS)
    (folded,) = _folded([("a" + marks).encode()], text_folding())
    assert sorted(folded.decode()) == sorted("a" + marks)


def test_tables_are_the_same_on_every_version_of_python() -> None:
    """Indexes hold hashes of folded texts: where this changes, raise the version of the rows of dedup stages."""
    hasher = hashlib.sha256()
    for table in (*text_folding()[:2], *word_folding()[:2], word_table()):
        hasher.update(table.tobytes())
    assert hasher.hexdigest() == "92c6972aae78e6514838f94c52d28f8bc2cdf37649e9f5d4ebbe0462dfdb88af"
