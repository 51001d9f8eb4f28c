"""Words that ICU's dictionaries cut, beside those of icu4py's own iterator, one run of characters at a time."""

import re

import numpy as np
import pytest
from icu4py.breakers import WordBreaker

from datapipe.kernels.text.icu_breaks import BLOCK, ENDS, JOINS, LONGEST_RUN, RUN, find_breaks, script_table
from datapipe.kernels.text.spaced_words import find_spaced_words, spaced_texts
from datapipe.kernels.text.words import Words, find_words
from tests.oracles import texts as texts_oracle

PARTS = re.findall(
    r"\S+",
    "東京都に住むカタカナー々〆 이것은 然而这样的处理也衍生了一些问题 ภาษาไทยเขียนไม่เว้นวรรค ພາສາລາວບໍ່ມີຍະຫວ່າງ "
    "ភាសាខ្មែរគ្មានដកឃ្លា မြန်မာဘာသာစကားသည် བོད་ཡིག་ནི་ 𠀀𠀁字 が\u200bか\u3099 葛\U000e0100城 ｶﾞｷﾞ ๆ ฯ า ། 。 、 「 word don't 3.5 २ é "
    "e\u0301 U.S. 🫶 ๓๔ 二〇二四 \u200b \u200d \u0e31",
)


def buffers(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """The texts somewhere inside a larger buffer."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([3, *map(len, encoded)])
    return offsets, np.frombuffer(b"\xe6\x97\xa5" + b"".join(encoded) + "本".encode(), np.uint8)


def pieces(chunk: str) -> list[str]:
    """The words of text without white space."""
    words, run, is_cut = list[str](), "", True
    for character in [*chunk, ""]:
        kind = script_table()[ord(character)] if character else 0
        if kind == RUN or (kind == JOINS and run):
            run += character
            continue
        for start in range(0, len(run), LONGEST_RUN):
            words += WordBreaker(run[start : start + LONGEST_RUN], "en")
        if (kind == ENDS and run) or not (run or is_cut):
            words[-1] += character
            is_cut = kind == ENDS and bool(run)
        elif character:
            words.append(character)
            is_cut = False
        run = ""
    return words


def assert_words(texts: list[str]) -> None:
    offsets, data = buffers(texts)
    found = find_spaced_words(find_words(offsets, data), offsets, data)
    expected = [[word for chunk in text.split() for word in pieces(chunk)] for text in texts]
    assert words_of(found, data) == expected
    for row, word in enumerate(word for text in expected for word in text):
        span = texts_oracle.words(word.encode())[0]
        assert (found.lengths[row], found.hashes[row], found.chars[row], found.flags[row]) == tuple(span[1:])
    spaced = spaced_texts(found, offsets, data)
    out = [spaced.data[start:stop].tobytes().decode() for start, stop in zip(spaced.offsets, spaced.offsets[1:])]
    assert [text.split() for text in out] == expected
    assert ["".join(text.split()) for text in out] == ["".join(text.split()) for text in texts]
    again = find_words(spaced.offsets, spaced.data)
    np.testing.assert_array_equal(spaced.positions_before(again.starts), found.starts)
    np.testing.assert_array_equal(spaced.positions_before(again.starts + again.lengths), found.starts + found.lengths)


def words_of(words: Words, data: np.ndarray) -> list[list[str]]:
    spans = [data[start : start + size].tobytes().decode() for start, size in zip(words.starts, words.lengths)]
    return [spans[first:stop] for first, stop in zip(words.doc_offsets, words.doc_offsets[1:])]


@pytest.mark.parametrize("seed", range(20))
def test_words_of_mixed_scripts_are_those_of_icu_in_each_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    blanks = ["", "", "", " ", "\n", "，"]
    texts = ["".join(rng.choice(PARTS) + rng.choice(blanks) for _ in range(rng.integers(0, 12))) for _ in range(40)]
    assert_words(["", *texts, ""])


@pytest.mark.medium
def test_words_of_runs_longer_than_what_icu_gets_at_once() -> None:
    run = "".join(np.random.default_rng(1).choice(list("中文字典分词𠀀的了在"), LONGEST_RUN + 100)).replace("𠀀", "")
    run = run[: LONGEST_RUN - 50] + run[: LONGEST_RUN - 50]
    assert_words([run, "字" * (BLOCK - 1) + "。" + "中文" * 3, "ไทย" * BLOCK])


def test_words_of_an_example() -> None:
    offsets, data = buffers(["in 東京都に住む。 2024年", "ภาษาไทย(ไทย)", "བོད་ཡིག་ 葛\U000e0100城 no cut", ""])
    found = words_of(find_spaced_words(find_words(offsets, data), offsets, data), data)
    assert found == [
        ["in", "東京", "都", "に", "住む", "。", "2024", "年"],
        ["ภาษา", "ไทย", "(", "ไทย", ")"],
        ["བོད་", "ཡིག་", "葛\U000e0100", "城", "no", "cut"],
        [],
    ]


def test_bytes_that_are_no_utf8_belong_to_no_run() -> None:
    data = np.frombuffer(b"\xe6\x97" + "日本語".encode() + b"\xe6\x97\xff" + "日".encode(), np.uint8)
    breaks = find_breaks(np.array([0, len(data)]), data)
    assert sorted(set(breaks.tolist())) == [2, 11, 14, 17]
