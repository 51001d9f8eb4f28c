"""The tables compared with the Unicode database, for every code point."""

from __future__ import annotations

import random
import sys
import unicodedata
from typing import Literal

import numpy as np
import pytest

from datapipe.kernels.text.normalize import find_unstable
from datapipe.kernels.text.unicode_classes import (
    REPLACEMENT,
    class_table,
    composition_table,
    decode,
    decode_before,
    plain_sizes,
    stable_table,
)
from tests.oracles.words import characters, kind

Form = Literal["NFC", "NFKC", "NFD", "NFKD"]
FORMS: tuple[Form, ...] = ("NFC", "NFKC", "NFD", "NFKD")


@pytest.mark.medium
def test_class_table_every_code_point_has_its_class() -> None:
    classes = [kind(chr(code)) for code in range(sys.maxunicode + 1)]
    assert np.array_equal(class_table(), np.array(classes, np.uint8))


MOVING = (
    "eé\u0301\u0323\u093c\u0928\u094d\u09c7\u09be\u09cb\u0bc6\u0bbe\u1100\u1161\u11a8가각か\u3099中\u00adÅ\u212b\u0f71\u0f72 a"
)


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


USUAL = ["école près", "Bọn trẻ đi", "अच्छा विद्यार्थी", "হেঁটে বাড়ি ফিরল", "வீட்டிற்கு நடந்து", "학교에서", "ガラス"]


@pytest.mark.parametrize("text", USUAL)
def test_find_unstable_usual_text_of_a_language_is_stable(text: str) -> None:
    data, out = np.frombuffer(unicodedata.normalize("NFC", text).encode(), np.uint8), np.ones(1, np.uint8)
    ends = np.array([len(data)])
    find_unstable(np.zeros(1, np.int64), ends, ends, data, composition_table(), plain_sizes(), out)
    assert out[0] == 0


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
    pairs = [unicodedata.normalize("NFD", chr(code)) for code in range(sys.maxunicode + 1)]
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
ENDS_ILL_FORMED = [b"a\x80", b"\xe2\x80", b"\xbf\xbf\xbf\xbf\xbf", b"\xc0\x80", b"\xe4\xb8\xad\x80", b"\xff"]


@pytest.mark.parametrize("text", [*(text.encode() for text in WELL_FORMED), *ILL_FORMED])
def test_decode_gives_characters_and_one_replacement_for_each_ill_formed_byte(text: bytes) -> None:
    data, offset, seen = np.frombuffer(text, np.uint8), 0, []
    while offset < len(text):
        code, size = decode(data, offset, len(text))
        seen.append((code, size))
        offset += size
    assert seen == [(ord(character), size) for _, character, size in characters(text)]


@pytest.mark.parametrize("text", WELL_FORMED)
def test_decode_before_gives_the_characters_from_the_last(text: str) -> None:
    data, stop, seen = np.frombuffer(text.encode(), np.uint8), len(text.encode()), []
    while stop > 0:
        code, size = decode_before(data, stop, 0)
        seen.append(chr(code))
        stop -= size
    assert "".join(reversed(seen)) == text


def test_decode_before_an_ill_formed_byte_or_a_start_inside_a_character_is_a_replacement() -> None:
    for text in ENDS_ILL_FORMED:
        assert decode_before(np.frombuffer(text, np.uint8), len(text), 0) == (REPLACEMENT, 1)
    assert decode_before(np.frombuffer("中".encode(), np.uint8), 3, 1) == (REPLACEMENT, 1)
