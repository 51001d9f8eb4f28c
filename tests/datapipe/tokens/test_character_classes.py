"""The classes of characters are those of the engine of `tokenizers`, for every code point there is."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from datapipe.tokens.character_classes import CLASSES, NUM_CODES, ask_engine, engine_classes
from datapipe.tokens.published_patterns import GPT2

pytestmark = pytest.mark.medium

DIGIT = 1 << len(CLASSES)
CODES = np.array([code for code in range(NUM_CODES) if not 0xD800 <= code < 0xE000])
ASSIGNED = CODES[(CODES < 0x40000) | (CODES // 0x1000 == 0xE0)]


def held_by(expression: str, text: str) -> np.ndarray:
    """Which characters match, one at a time."""
    found = pre_tokenizers.Split(Regex(expression), "removed", invert=True).pre_tokenize_str(text)
    places = [place for _, (start, stop) in found for place in range(start, stop)]
    held = np.zeros(len(text), bool)
    held[places] = True
    return held


def test_engine_classes_well_known_characters_are_in_theirs_alone():
    expected = {"A": r"\p{Lu}", "ǅ": r"\p{Lt}", "ß": r"\p{Ll}", "ʰ": r"\p{Lm}", "中": r"\p{Lo}", "\u0301": r"\p{M}"}
    expected |= {"½": r"\p{N}", "_": r"\p{P}", "€": r"\p{S}", "\x85": r"\s"}
    table = engine_classes()
    for character, name in expected.items():
        assert table[ord(character)] & (DIGIT - 1) == 1 << CLASSES.index(name), character
    assert np.bitwise_count(table & (DIGIT - 1)).max() == 1


def test_engine_classes_are_kept_and_read_again(tmp_path, monkeypatch):
    before = engine_classes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    engine_classes.cache_clear()
    asked = engine_classes()
    engine_classes.cache_clear()
    assert np.array_equal(asked, engine_classes())
    assert np.array_equal(asked, before)
    assert len(list((tmp_path / "datapipe").iterdir())) == 1


@pytest.mark.slow
def test_engine_classes_code_points_equal_single_matches():
    """All of the planes that have characters, and one in a hundred of the others."""
    codes = np.union1d(ASSIGNED, CODES[::100])
    text = "".join(map(chr, codes))
    table = engine_classes()[codes]
    for bit, name in enumerate(CLASSES):
        assert np.array_equal(table >> bit & 1 == 1, held_by(name, text)), name
    letters = sum(1 << CLASSES.index(rf"\p{{{kind}}}") for kind in ("Lu", "Lt", "Ll", "Lm", "Lo"))
    assert np.array_equal(table & letters != 0, held_by(r"\p{L}", text))
    others = letters | 1 << CLASSES.index(r"\p{N}") | 1 << CLASSES.index(r"\s")
    assert np.array_equal(table & others == 0, held_by(r"[^\s\p{L}\p{N}]", text))
    assert np.array_equal(table & 1 << CLASSES.index(r"\s") == 0, held_by(r"\S", text))


@pytest.mark.slow
def test_engine_classes_every_code_point_equals_asking_about_all():
    assert np.array_equal(engine_classes(), ask_engine((range(0xD800), range(0xE000, NUM_CODES))))


@pytest.mark.slow
def test_engine_classes_every_digit_is_what_digits_cuts_out():
    text = "".join(f"a{chr(code)}a" for code in ASSIGNED)
    pieces = pre_tokenizers.Digits(individual_digits=True).pre_tokenize_str(text)
    alone = {text[start] for _, (start, stop) in pieces if stop - start == 1}
    alone -= {"a"}
    assert alone == {chr(code) for code in ASSIGNED if engine_classes()[code] & DIGIT}


@pytest.mark.slow
def test_byte_level_splits_as_oniguruma_does_at_every_code_point():
    """`ByteLevel` has the GPT-2 pattern built in; it must be the same engine, with the same classes."""
    built_in = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Split(Regex(GPT2), "isolated")
    for shape in ("{0}", " {0}a1", "!{0} "):
        for codes in np.array_split(ASSIGNED, 20):  # `ByteLevel` takes minutes for a text of a megabyte and many pieces
            text = "".join(shape.format(chr(code)) for code in codes)
            found, expected = (step.pre_tokenize_str(text) for step in (built_in, split))
            assert {at for _, at in found} ^ {at for _, at in expected} == set()
