"""Duplicate lines: the bytes that are cut, compared with brute force."""

from __future__ import annotations

import json
import random
from itertools import accumulate
from unicodedata import combining, normalize

import pytest
import zstandard

from stages.dedup.lines import Lines
from tests.oracles import text_units as oracle
from tests.support.cut_texts import (
    bytes_cut,
    cut_from,
    of_documents,
    parts_kept,
    seeds,
    spans_cut,
    spans_cut_against,
    spans_cut_by_source,
    with_cut_points,
)
from tests.support.global_stages import batch_of, opened

units = pytest.mark.parametrize("unit", ["line", "paragraph", "three_sentences"])


def _opened(**options: object) -> Lines:
    return opened(Lines.model_validate(options))


def _left(texts: list[str], **options: object) -> list[str]:
    batch = batch_of(texts)
    return ["".join(parts) for parts in parts_kept(spans_cut(_opened(**options), [batch]), batch)]


def _by_force(texts: list[str], unit: str, normalize: str, min_length: int, keep: str) -> list[set[int]]:
    """Bytes to cut from each text: every unit is compared with every other."""
    found = [(document, one) for document, text in enumerate(texts) for one in oracle.units(text, unit, normalize, min_length)]
    hashes = [hashed for _, (_, _, hashed) in found]
    gone: list[set[int]] = [set() for _ in texts]
    for number, (document, (start, stop, hashed)) in enumerate(found):
        if hashes.count(hashed) > 1 if keep == "none" else hashes.index(hashed) < number:
            gone[document].update(range(start, stop))
    return gone


def _corpus(seed: int) -> list[str]:
    rng = random.Random(seed)
    pieces = [
        "a.",
        "a b",
        "A, b!",
        "1 x",
        "2 x",
        "",
        " ",
        "中文。",
        "中文。再",
        "é? É",
        "e\u0301 ß",
        "SS. 각",
        "\u1100\u1161\u11a8",
    ]
    pieces += ["a\u0323\u0301", "ạ\u200b\u0301²", "á\u0323", "\n", "\n\n", "  \n", " ", ". ", "-", "\u3000"]
    return ["".join(rng.choices(pieces, k=rng.randint(0, 14))) for _ in range(rng.randint(1, 9))]


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


@units
@pytest.mark.parametrize("seed", seeds(10, 25))
def test_lines_random_corpora_equal_brute_force(unit: str, seed: int) -> None:
    texts, rng = _corpus(seed), random.Random(seed)
    normalize, keep, min_length = rng.choice(["none", "ccnet"]), rng.choice(["first", "none"]), rng.choice([1, 1, 3])
    stage = _opened(unit=unit, normalize=normalize, keep=keep, min_length=min_length)
    cut = rng.randint(0, len(texts))
    batches = [batch_of(texts[cut:], first=cut), batch_of(texts[:cut])]
    found = spans_cut(stage, batches, num_buckets=rng.choice([1, 3]), chunk_rows=rng.choice([0, 1, 2]))
    assert bytes_cut(found, batch_of(texts).keys.to_pylist()) == _by_force(texts, unit, normalize, min_length, keep)


@units
@pytest.mark.parametrize("seed", seeds(5, 20))
def test_lines_against_an_earlier_run_equal_one_run_that_prefers_its_source(unit: str, seed: int) -> None:
    texts, rng = _corpus(seed) + _corpus(seed + 100), random.Random(seed)
    cut, keep = rng.randint(1, len(texts)), rng.choice(["source_order", "none"])
    old, new = [batch_of(texts[:cut], source=2)], [batch_of(texts[cut:], source=1)]  # by key the new ones would come first
    stage, pieces = _opened(unit=unit, keep=keep), {"num_buckets": 3, "chunk_rows": rng.choice([0, 1, 2])}
    found = spans_cut_against(stage, old, new, **pieces)
    keys = new[0].keys.to_pylist()
    assert set(found) <= set(keys)
    one_run = spans_cut_by_source(stage, [old, new], **pieces)
    assert found == {key: spans for key, spans in one_run.items() if key in keys}
    expected = _by_force(texts, unit, "ccnet", 1, "none" if keep == "none" else "first")
    assert bytes_cut(found, keys) == expected[cut:]


@units
@pytest.mark.parametrize("seed", seeds(5, 20))
def test_lines_cut_point_ends_a_document(unit: str, seed: int) -> None:
    rng = random.Random(seed)
    batch, parts = with_cut_points(_corpus(seed) + _corpus(seed + 100), rng)
    found = spans_cut(_opened(unit=unit), [batch.slice(1, batch.num_docs), batch.slice(0, 1)], num_buckets=3)
    expected = _by_force([text for *_, text in parts], unit, "ccnet", 1, "first")
    assert bytes_cut(found, batch.keys.to_pylist()) == of_documents(expected, parts)


@units
@pytest.mark.parametrize("seed", seeds(5, 20))
def test_lines_second_pass_finds_nothing(unit: str, seed: int) -> None:
    rng = random.Random(seed)
    said = ["One. ", "Two. ", "Three.\n", "Four.\n\n", "- ", "五。"]
    stage, batch = _opened(unit=unit), batch_of(["".join(rng.choices(said, k=rng.randint(0, 25))) for _ in range(9)])
    cut = cut_from(spans_cut(stage, [batch]), batch)
    assert cut.text_bytes < batch.text_bytes
    assert spans_cut(stage, [cut]) == {}


def test_lines_sentences_that_a_cut_brought_together_are_none() -> None:
    texts = ["Two. Three. Four.", "One. Two. Three. Four. Five. Six.", "One. Five. Six."]
    stage, batch = _opened(unit="three_sentences"), batch_of(texts)
    cut = cut_from(spans_cut(stage, [batch]), batch)
    assert cut.texts.to_pylist() == [texts[0], "One. Five. Six.", texts[2]]
    assert spans_cut(stage, [cut]) == {}
    assert spans_cut(stage, [batch_of(cut.texts.to_pylist())]) != {}


def test_lines_of_a_document_that_was_in_the_earlier_run_go() -> None:
    batch = batch_of(["One.\nTwo.\n"])
    assert spans_cut_against(_opened(), [batch], [batch]) == {batch.keys[0].as_py(): [(0, 10)]}


def test_lines_first_text_of_a_line_does_not_depend_on_batches_and_buckets() -> None:
    texts = ["\n".join(random.Random(seed).choices(["a", "b", "c 1", "C 2", "d"], k=6)) for seed in range(40)]
    whole = spans_cut(_opened(), [batch_of(texts)])
    starts = list(accumulate([1, 7, 0, 20], initial=0))
    parts = [batch_of(texts[start:stop], first=start) for start, stop in zip(starts, [*starts[1:], 40])]
    assert spans_cut(_opened(), parts[::-1], num_buckets=7, chunk_rows=3) == whole


@units
def test_lines_copies_of_a_page_leave_one(unit: str) -> None:
    page = "The page. It has four. Sentences in it.\nAnd a second line. So it goes on."
    batch = batch_of([page] * 5_000)
    assert set(spans_cut(_opened(unit=unit), [batch])) == set(batch.keys.to_pylist()[1:])


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
