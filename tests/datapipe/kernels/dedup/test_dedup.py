"""Folded texts, words, hashes and components of the dedup kernels, beyond the cases of the kernel table."""

import hashlib
import random
import sys
import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.dedup import text_hashes as buckets
from datapipe.kernels.dedup.case_folding import GROWTH, MOST_MARKS, Folding, fold_texts, text_folding, word_folding
from datapipe.kernels.dedup.components import connected_components
from datapipe.kernels.dedup.word_characters import ALONE, IGNORED, LETTER, MARK, NUMBER, UNASSIGNED, known_classes, word_table
from tests.oracles import case_folding as case_folding_oracle
from tests.oracles import dedup as dedup_oracle

HARD = (
    "aÉ\u0301\u0323\u0345\u0328\u0331ῇ각\u1100\u1161\u11a8가Σςßǰΐİ\u093c\u094d中ガ\u3099ชาก่\u00ad\u200b\u200d\u034f\u00a0 .B9"
)
BYTES = b"\x80\xc3\xa9\xe2\x80\x99\xff\xf0aB c\x00"


def _characters(all_below: int, step: int) -> list[str]:
    """Every character below a code, and of those from it on one in `step`."""
    codes = [*range(all_below), *range(all_below, sys.maxunicode + 1, step)]
    return [chr(code) for code in codes if not 0xD800 <= code < 0xE000]


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
    chosen = _characters(0x20000, 97)  # no letter has a case behind plane 1
    texts = [character.encode() for character in chosen]
    folded = _folded(texts, text_folding())
    assert folded == [case_folding_oracle.folded(text) for text in texts]
    assert max(len(after) / len(before) for after, before in zip(folded, texts)) <= GROWTH


@pytest.mark.slow
def test_fold_case_characters_are_in_words_as_their_category_declares() -> None:
    """All characters up to Hiragana and every eleventh of the others, in all surroundings."""
    around = "{0} a{0}b中{0}文 \u0301{0} sixteen letters or more{0}and as many again"
    chosen = _characters(0x3100, 11)
    texts = [around.format(character).encode() for character in chosen]
    assert _words(texts) == [case_folding_oracle.words(text) for text in texts]


@pytest.mark.medium
def test_fold_case_strings_of_marks_jamo_and_broken_bytes_equal_the_oracle() -> None:
    texts = _strings(seed=1, num=3000)
    assert _folded(texts, text_folding()) == [case_folding_oracle.folded(text) for text in texts]
    assert _words(texts) == [case_folding_oracle.words(text) for text in texts]


@pytest.mark.medium
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


@pytest.mark.parametrize("order", ["ascending", "descending", "shuffled", "halves"])
def test_connected_components_chain_of_100_000_is_one(order: str) -> None:
    links = np.arange(99_999)
    if order == "descending":
        links = links[::-1]
    elif order == "shuffled":
        links = np.random.default_rng(1).permutation(links)
    elif order == "halves":  # joins runs of 2, then of 4, then of 8, ...: the deepest trees that a union can make
        links = links[np.argsort([(number + 1) & -(number + 1) for number in links.tolist()], kind="stable")]
    assert not connected_components(100_000, links, links + 1).any()


def _hash(texts: list[str]) -> list[tuple[int, int]]:
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    hashes, digests = np.empty(len(texts), np.uint64), np.empty(len(texts), np.uint64)
    with np.errstate(over="ignore"):
        buckets.hash_texts(offsets, data, hashes, digests)
    return list(zip(hashes.tolist(), digests.tolist(), strict=True))


def _squeeze(texts: list[str]) -> list[str]:
    offsets, data = columns.text_buffers(pa.array(texts, pa.large_string()))
    out_offsets, out = np.empty(len(texts) + 1, np.int64), np.empty(len(data), np.uint8)
    buckets.squeeze_space(offsets, data, out_offsets, out)
    return columns.texts_from(out_offsets, out[: out_offsets[-1]]).to_pylist()


def test_hash_texts_near_equal_texts_differ_in_both_halves() -> None:
    texts = ["\0" * length for length in range(200)] + ["a" * place + "b" + "a" * (99 - place) for place in range(100)]
    found = _hash(texts)
    assert len({hashed for hashed, _ in found}) == len(texts)
    assert len({digest for _, digest in found}) == len(texts)


def test_squeeze_space_every_character_is_space_as_in_python() -> None:
    texts = [f"a{chr(code)}b" for code in range(0x3100) if not 0xD800 <= code < 0xE000]
    texts += ["", " ", "\u3000\u2003", " a\t\n b ", "é\u00a0", "\u00a0é", "x\u1680", "末\u3000尾", chr(sys.maxunicode)]
    assert _squeeze(texts) == [dedup_oracle.squeeze_space(text) for text in texts]


_CLASSES = {"L": LETTER, "N": NUMBER, "M": MARK}


@pytest.mark.medium
def test_known_classes_are_those_of_the_unicode_database() -> None:
    """A later database knows more characters, and the same of those that were known."""
    categories = [unicodedata.category(chr(code)) for code in range(sys.maxunicode + 1)]
    expected = np.array([UNASSIGNED if name == "Cn" else _CLASSES.get(name[0], 0) for name in categories], np.uint8)
    known = known_classes() != UNASSIGNED
    assert np.array_equal(known_classes()[known], expected[known])
    assert known.sum() == 284_278
    if unicodedata.unidata_version == "14.0.0":
        assert np.array_equal(known_classes(), expected)


KINDS = {
    "“”‘’‚„«»‹›–—―…•·†‡§¶©®™€£¥°±×÷№¿¡、。，！（）「」《》・～\u00a0\u2002\u2009\u202f\u3000\u0085\ufffd": 0,
    "aZéßжΩאعককガ한ªµ𝒜": LETTER,
    "中日あのช": LETTER | ALONE,
    "\u0301\u094d\u0e31\u3099\u093f": MARK,
    "07٣५²½Ⅷ": NUMBER,
    "\u00ad\u200b\u200c\u200d\u200e\u2060\ufe0f\ufeff\U000e0101": IGNORED,
}


@pytest.mark.parametrize("characters", KINDS)
def test_word_table_characters_end_words_make_them_or_are_ignored(characters: str) -> None:
    assert [one for one in characters if word_table()[ord(one)] != KINDS[characters]] == []
