"""Duplicate lines: which units are equal, and what is left. `test_cuts.py` compares the bytes with brute force."""

from __future__ import annotations

import json
import random
from unicodedata import combining, normalize

import pytest
import zstandard

from stages.dedup.lines import Lines
from tests.support.cut_texts import cut_from, parts_kept, spans_cut
from tests.support.global_stages import batch_of, opened

units = pytest.mark.parametrize("unit", ["line", "paragraph", "three_sentences"])


def _opened(**options: object) -> Lines:
    return opened(Lines.model_validate(options))


def _left(texts: list[str], **options: object) -> list[str]:
    batch = batch_of(texts)
    return ["".join(parts) for parts in parts_kept(spans_cut(_opened(**options), [batch]), batch)]


CAFE = "Die Straße zum Café 1984"
MENUS = ["Menu\n\nOne.\n", "Home\nmenu!\n\nTwo.\n", "MENU\nThree, 1 of 9\n\nthree 2 of 8"]
FOUR = ["One. Two! Three? Four.", "Zero. Two! Three? Four. Five.", "Two! Three? Else. Four."]
SIGNS = ["---\na\n---\n", "---\nb\n***\n"]
CHINESE = ["中文。再一句。又一句。", "前言。中文。再一句。又一句。"]
THREE = {"unit": "three_sentences"}
CASES: list[tuple[dict[str, object], list[str], list[str]]] = [
    # case, normal form, spaces and digits are not compared
    ({}, [CAFE, "DIE STRASSE ZUM CAFÉ, 1999!"], [CAFE, ""]),
    ({}, [CAFE, "Die Strasse\u00a0zum\u2003Cafe\u0301 – 2001", "die ſtraße zum café 1234"], [CAFE, "", ""]),
    ({}, ["ΣΊΣΥΦΟΣ", "Σίσυφος", "σισυφος"], ["ΣΊΣΥΦΟΣ", "", "σισυφος"]),
    ({}, ["x² = 1", "x\u00b2 = 4", "x\u00b2 = ४", "x² = ４"], ["x² = 1", "", "", ""]),
    ({}, ["x² = 1", "x2 = 1", "x³ = 1", "x① = 1", "x₂ = 1"], ["x² = 1", "x2 = 1", "x³ = 1", "x① = 1", "x₂ = 1"]),
    # a folded character counts once
    ({"min_length": 3}, ["ßé", "ßé"], ["ßé", "ßé"]),
    ({"min_length": 2}, ["ßé", "ßé"], ["ßé", ""]),
    # the first by key is kept, and blank lines are cut with their line
    ({}, MENUS, ["Menu\n\nOne.\n", "Home\nTwo.\n", "Three, 1 of 9\n\n"]),
    ({"normalize": "none"}, MENUS, MENUS),
    ({"keep": "none"}, MENUS, ["One.\n", "Home\nTwo.\n", ""]),
    ({"min_length": 5}, MENUS, ["Menu\n\nOne.\n", "Home\nmenu!\n\nTwo.\n", "MENU\nThree, 1 of 9\n\n"]),
    (THREE, FOUR, [FOUR[0], "Zero. Five.", FOUR[2]]),
    ({}, SIGNS, SIGNS),
    ({}, ["", "", " \n "], ["", "", " \n "]),
    (THREE, CHINESE, [CHINESE[0], "前言。"]),
]


@pytest.mark.parametrize(("options", "texts", "expected"), CASES)
def test_lines_said_before_are_cut(options: dict[str, object], texts: list[str], expected: list[str]) -> None:
    assert _left(texts, **options) == expected


@pytest.mark.parametrize("invisible", "\u00ad\u200b\u200c\u200d\u2060\ufeff\ufe0f\u034f")
def test_lines_invisible_characters_are_not_compared(invisible: str) -> None:
    changed = f"{invisible}ca{invisible}fe{invisible}\u0301 {invisible} noir{invisible}"
    assert _left(["café noir", changed]) == ["café noir", ""]
    assert _left(["café noir", changed], normalize="none") == ["café noir", changed]


EQUIVALENT = "각가\u11a8\u1100\u1161\u11a8\u1161힣a\u0301éệ\u0323\u0345\u0f73\u0958\u0bca\u00ad\u200b,. ß²Α٣\u0301"


def _reordered(text: str, rng: random.Random) -> str:
    """A text that Unicode holds to be equal: neighbouring marks of different combining classes change places."""
    characters = list(normalize(rng.choice(["NFC", "NFD"]), text))
    for _ in range(3):
        for left, right in zip(range(len(characters)), range(1, len(characters))):
            classes = combining(characters[left]), combining(characters[right])
            if all(classes) and classes[0] != classes[1] and rng.random() < 0.5:
                characters[left], characters[right] = characters[right], characters[left]
    return "".join(characters)


@pytest.mark.medium
@units
def test_lines_canonically_equivalent_texts_are_equal(unit: str) -> None:
    for seed in range(80):
        rng = random.Random(seed)
        text = "Eins. Zwei! " + "".join(rng.choices(EQUIVALENT, k=rng.randint(1, 24))) + ". Drei."
        other, min_length = _reordered(text, rng), rng.randint(1, 12)
        assert normalize("NFD", other) == normalize("NFD", text)
        both = [_left([text, changed], unit=unit, min_length=min_length) for changed in (text, other)]
        assert both[0] == [text, both[0][1]]
        assert both[1] == [text, "" if both[0][1] == "" else other], (text, other)


def test_lines_sentences_that_a_cut_brought_together_are_none() -> None:
    texts = ["Two. Three. Four.", "One. Two. Three. Four. Five. Six.", "One. Five. Six."]
    stage, batch = _opened(unit="three_sentences"), batch_of(texts)
    cut = cut_from(spans_cut(stage, [batch]), batch)
    assert cut.texts.to_pylist() == [texts[0], "One. Five. Six.", texts[2]]
    assert spans_cut(stage, [cut]) == {}
    assert spans_cut(stage, [batch_of(cut.texts.to_pylist())]) != {}


def test_lines_removed_share_limit_is_the_option() -> None:
    assert _opened(max_removed_share=0.25).removed_share_limit() == 0.25


def test_lines_hashes_are_pinned() -> None:
    """Changing these hashes makes every earlier run's rows worthless: a breaking change."""
    (row,) = _opened().emit(batch_of(["Call me Ishmael."]))["units"].to_pylist()
    assert (row["hash"], row["digest"], row["start"], row["size"]) == (14442756389976022463, 5278431907498196812, 0, 16)


@pytest.mark.slow
@units
def test_lines_one_document_of_50_mb_is_linear(unit: str) -> None:
    text = "".join(f"Sentence {number % 1000:b}. " + "\n" * (number % 7 == 0) for number in range(2_600_000))
    rows = _opened(unit=unit, normalize="none").emit(batch_of([text]))["units"]
    assert len(text) > 50_000_000
    assert rows.num_rows >= 1


@pytest.mark.real
def test_lines_cs336_fixture_is_as_expected(real_data) -> None:
    """Their rule removes every copy of a line that occurs more than once."""

    def read(name: str) -> list[str]:
        with zstandard.open(real_data / f"dedup/cs336_documents_{name}.jsonl.zst", "rt", encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in lines]

    assert _left(read("with_line_duplicates"), normalize="none", keep="none") == read("line_deduplicated")
