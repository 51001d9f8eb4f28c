"""Words, sentences and tables of characters, beyond the cases of the kernel table."""

import random
import sys
import tracemalloc
import unicodedata
from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.kernels.text.english_words import find_english_words
from datapipe.kernels.text.marks import ALNUM, CAPITAL, DIGIT, LARGE, SMALL, WHITE, mark_table
from datapipe.kernels.text.normalize import find_unstable
from datapipe.kernels.text.sentences import count_sentences
from datapipe.kernels.text.unicode_classes import class_table, composition_table, decode, plain_sizes, stable_table
from datapipe.kernels.text.words import find_words
from tests.oracles.texts import characters, kind

WORDS = """
350¦°¦F¦. 20¦°¦c¦. °¦C He said ''¦so¦''¦. (¦so¦): (¦yes¦)¦; (¦no¦)¦! 10 Gb¦/¦s¦, 5 b¦/¦s
500 e.¦Kr¦. er cf.[p.12¦] <¦p¦>¦Mr. Müller</p¦> it¦d. (¦i¦m. Jana¦) [¦e.g.¦, so¦] w/o¦, and/or¦.
he¦’s (¦it¦’s¦) 'em¦’ ab¦.¦,c so|¦. xy¦.¦, une année¦.¦Étienne год¦.¦Жизнь год.жизнь
www.é.fr/a-b.É www¦.¦Éa¦.¦É a¦-¦é б¦-¦в და-და न¦-¦न ท-ท წელი. ปี. है¦. 年¦. ѣ. ё¦. ǅ¦-¦a aǅ. Ɂ¦,¦b
a¦♥¦♥¦b¦♥ love🫶 love¦🙂 5¦км/ч 7¦мг¦. 3¦كم 5¦US$ C$¦5 (^_^) <3 :-))) <space> \\n 🙂¦.com me@x.é x.y1
"""
"""Texts of spaCy, with a mark where it cuts a word off without white space."""


@pytest.mark.parametrize("chunk", WORDS.split())
def test_english_words_are_cut_as_spacy_cuts_them(chunk: str) -> None:
    offsets, data = columns.text_buffers(pa.array([chunk.replace("¦", "")], pa.large_string()))
    with np.errstate(over="ignore"):
        words = find_english_words(find_words(offsets, data), data)
    spans = zip(words.starts.tolist(), words.lengths.tolist(), strict=True)
    assert [data[start : start + length].tobytes().decode() for start, length in spans] == chunk.split("¦")


@pytest.mark.parametrize(
    ("mark", "method"), [(WHITE, str.isspace), (CAPITAL, str.isupper), (DIGIT, str.isdigit), (ALNUM, str.isalnum)]
)
def test_mark_table_agrees_with_str_for_every_character(mark: int, method: Callable[[str], bool]) -> None:
    expected = np.array([method(chr(code)) for code in range(sys.maxunicode + 1)])
    assert np.flatnonzero(((mark_table() & mark) != 0) != expected).tolist() == []


def test_mark_table_letters_are_small_and_large_as_spacy_lists_them() -> None:
    expected = {"éж": SMALL, "ÉЖ": LARGE, "中": SMALL | LARGE, "ǅგ5.": 0}
    for characters_of_kind, marks in expected.items():
        assert {int(mark_table()[ord(one)]) & (SMALL | LARGE) for one in characters_of_kind} == {marks}


SENTENCES = {
    1: (
        "год.жизнь идёт | see www.Éa.fr/x.Éb now | წელი. მეორე | ปี. ที่ | 文句。次の文。 | ä. and ü. are letters | "
        "a weight in $B$. Again | forward--Mr. Elton came | forward---Mr. Elton came | well☺.com is one | "
        "see http://a♥b.com/x☺.y now | a full♥Mr. Elton, a 9♥p.m. tea | a part of °.C. and so"
    ),
    2: (
        "a new year.Étienne came in. | a new year.Etienne came in. | une année.École finie | see www.é.É now | "
        "यह है. वह है. | 文句。 次の文。 | a.b.Ǆ x. Y | so.“Élan” it is | 25 °C. The end | a weight in $A$. Again | "
        "forward.--Mr. Elton came | forward----Mr. Elton came | é—Mr. Elton, é.—Mr. Elton | (25 °c.) the end | x.é.Ü. Z | "
        "it was 5°. Then | bought from Acme™. Then | love it ♥. Then | love it♥.” Then | (a card of Visa®.) Then | "
        "all ©★🎉. Then ☺! | warm: 5°c. Then | warm: 5°C.♥ then | cold: x♥5°K.♥y z | the unit 5㎏.New it | well…5☺.… so"
    ),
    3: ("год.Жизнь идёт. Да | it cost US$. C$. Both"),
}
"""Lines by the number of their sentences."""


@pytest.mark.parametrize(
    ("number", "line"), [(number, line) for number in SENTENCES for line in SENTENCES[number].split(" | ")]
)
def test_sentences_are_counted_as_spacy_counts_them(number: int, line: str) -> None:
    offsets, data = columns.text_buffers(pa.array([line], pa.large_string()))
    with np.errstate(over="ignore"):
        counted = count_sentences(offsets[:-1].copy(), np.diff(offsets).astype(np.int32), np.ones(1, bool), data)
    assert counted.tolist() == [number]


Form = Literal["NFC", "NFKC", "NFD", "NFKD"]
FORMS: tuple[Form, ...] = ("NFC", "NFKC", "NFD", "NFKD")


@pytest.mark.medium
def test_class_table_every_code_point_has_its_class() -> None:
    classes = [kind(chr(code)) for code in range(sys.maxunicode + 1)]
    assert np.array_equal(class_table(), np.array(classes, np.uint8))


MOVING = (
    "eé\u0301\u0323\u093c\u0928\u094d\u09c7\u09be\u09cb\u0bc6\u0bbe\u1100\u1161\u11a8가각か\u3099中\u00adÅ\u212b\u0f71\u0f72 a"
)


@pytest.mark.medium
def test_find_unstable_other_spans_are_in_nfc_wherever_they_stand() -> None:
    rng, num_stable = random.Random(1), 0
    for _ in range(20_000):
        text = "".join(rng.choices(MOVING, k=rng.randint(0, 6)))
        stop = rng.randint(0, len(text))
        data, bounds = np.frombuffer(text.encode(), np.uint8), np.array([0, len(text[:stop].encode()), len(text.encode())])
        out = np.zeros(1, np.uint8)
        find_unstable(bounds[:1], bounds[1:2], bounds[2:], data, composition_table(), plain_sizes(), out)
        if not out[0]:
            num_stable += 1
            assert unicodedata.normalize("NFC", "e\u09c7\u1100" + text).startswith("e\u09c7\u1100" + text[:stop])
    assert num_stable > 2_000


@pytest.mark.medium
@pytest.mark.parametrize("form", FORMS)
def test_stable_table_texts_of_stable_characters_are_in_the_form(form: Form) -> None:
    rng = random.Random(form)
    stable = np.flatnonzero(stable_table(form)).tolist()
    for _ in range(3000):
        text = "".join(map(chr, rng.choices(stable, k=10)))
        assert unicodedata.normalize(form, text) == text


@pytest.mark.medium
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_stable_table_no_stable_character_joins_the_one_before(form: Form) -> None:
    pairs = [unicodedata.normalize("NFD", chr(code)) for code in range(0x30000)]  # none behind plane 2 decomposes
    pairs += [unicodedata.normalize("NFC", pair[:-1]) + pair[-1] for pair in pairs]
    joining = {pair[-1] for pair in pairs if len(pair) == 2 and len(unicodedata.normalize("NFC", pair)) == 1}
    assert {"\u0301", "\u1161", "\u11c2"} < joining
    assert not any(stable_table(form)[ord(second)] for second in joining)


@pytest.mark.medium
def test_stable_table_unknown_characters_are_not_stable() -> None:
    unknown = [code for code in range(0x40000) if unicodedata.category(chr(code)) == "Cn"]
    assert not stable_table("NFC")[unknown].any()


WELL_FORMED = ["aé中😀", "\ud7ff\ue000\uffff", "\x00\x7f\x80\u07ff\u0800\U00010000\U0010ffff", "\ufffd😀"]
ILL_FORMED = [b"\x80", b"\xc3", b"\xe2\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xffa\xfe"]


@pytest.mark.parametrize("text", [*(text.encode() for text in WELL_FORMED), *ILL_FORMED])
def test_decode_gives_characters_and_one_replacement_for_each_ill_formed_byte(text: bytes) -> None:
    data, offset, seen = np.frombuffer(text, np.uint8), 0, []
    while offset < len(text):
        code, size = decode(data, offset, len(text))
        seen.append((code, size))
        offset += size
    assert seen == [(ord(character), size) for _, character, size in characters(text)]


@pytest.fixture(autouse=True)
def _uncompiled_kernels_may_wrap():
    with np.errstate(over="ignore"):
        yield


def test_find_words_one_huge_word_takes_no_room_by_bytes() -> None:
    offsets, data = columns.text_buffers(pa.array(["x" * 200_000], pa.large_string()))
    find_words(offsets, data)  # compiled, and the class table built
    tracemalloc.start()
    try:
        assert find_words(offsets, data).chars.tolist() == [200_000]
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()
