"""Near duplicates: which documents match, which survive, and the effect of the options."""

from __future__ import annotations

from itertools import product
from unicodedata import normalize

import numpy as np
import pytest

from datapipe.errors import UserError
from stages.dedup._banding import counting_probability, match_probability
from stages.dedup.minhash import Minhash
from tests.support import minhash_pairs
from tests.support.global_stages import batch_of, dropped, opened, reduce_all, row_of


def _opened(seed: int = 1, **options: object) -> Minhash:
    return opened(Minhash.model_validate(options), "dedup.minhash", seed)


def _text(seed: int, num_words: int = 300) -> list[str]:
    return [f"w{number}" for number in np.random.default_rng(seed).integers(0, 50_000, num_words)]


def _family(seed: int) -> list[str]:
    """A text, the same with one word changed, with its case and punctuation changed, and longer by two words."""
    words = _text(seed)
    changed = [*words[:150], "other", *words[151:]]
    return [" ".join(words), " ".join(changed), ", ".join(words).upper() + "!", " ".join([*words, "and", "more"])]


def test_minhash_families_of_near_duplicates_keep_one_each() -> None:
    texts = _family(1) + _family(2) + [" ".join(_text(3)), " ".join(_text(4))]
    assert dropped(_opened(), texts) == {1: 0, 2: 0, 3: 0, 5: 4, 6: 4, 7: 4}


@pytest.mark.parametrize(("keep", "survivor"), [("first", 0), ("longest", 2), ("shortest", 0)])
def test_minhash_keep_policy_chooses_the_survivor(keep: str, survivor: int) -> None:
    assert set(dropped(_opened(keep=keep), _family(5)).values()) == {survivor}


def test_minhash_keep_random_depends_on_the_seed_alone() -> None:
    families = [text for seed in range(10, 20) for text in _family(seed)]
    first, second = (dropped(_opened(seed=seed, keep="random"), families) for seed in (1, 2))
    assert first == dropped(_opened(seed=1, keep="random"), families)
    assert first != second
    assert len(first) == len(second) == 30


WORDLESS = ["", "!!", " \n", "12 13", "12, 13.", "1 2 3 4 5 6", "1 2 3 4 5 6", "a b", "A, b", "a b c d e f", "a b c d e f!"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {4: 3, 6: 5, 8: 7, 10: 9}),
        ({"short": "never"}, {6: 5, 10: 9}),
        ({"empty": "meet"}, {1: 0, 2: 0, 4: 3, 6: 5, 8: 7, 10: 9}),
        ({"only_digits": "never"}, {8: 7, 10: 9}),
        ({"short": "never", "empty": "meet", "only_digits": "never"}, {1: 0, 2: 0, 10: 9}),
        ({"bands": 1, "rows": 4}, {4: 3, 6: 5, 8: 7, 10: 9}),
    ],
)
def test_minhash_documents_that_say_little_go_by_their_rule(options: dict[str, object], expected: dict[int, int]) -> None:
    stage = _opened(**options)
    assert dropped(stage, WORDLESS) == expected


def _chinese(seed: int) -> str:
    drawn = np.random.default_rng(seed).integers(0x4E00, 0x9000, 400)
    return "".join(chr(code) + ("，" if number % 17 == 0 else "") for number, code in enumerate(drawn.tolist()))


def test_minhash_by_character_finds_near_duplicates_without_spaces() -> None:
    text, other = _chinese(1), _chinese(2)
    changed = text[:200] + "変" + text[201:]
    broken = text[:100] + "\n" + text[100:300] + " " + text[300:]
    texts = [text, changed, broken, other]
    assert dropped(_opened(shingle="char"), texts) == {1: 0, 2: 0}
    assert dropped(_opened(), texts) == {1: 0, 2: 0}  # each character is a word
    assert dropped(_opened(shingle="char"), ["日本", "日 本", "本日", "日本語", "日本。"]) == {1: 0, 4: 0}


SENTENCE = "Don't stop: the \"old\" house - built in 1901 - stands where my grand-parents' café was, isn't that so?"
PLAIN = "Le café déjà vu coûte 3 € à l'hôtel où Ægir et Œdipe dînent, et Straße ist kein naïver Name für Κύριος Σίσυφος."


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (SENTENCE, SENTENCE.replace("'", "’").replace(' "', " “").replace('"', "”").replace(" - ", " – ")),
        (SENTENCE, SENTENCE.replace(" - ", "—").replace("'", "‘")),
        (SENTENCE, SENTENCE.replace(" ", "\u00a0")),
        (SENTENCE, SENTENCE.replace(" ", "\u2009\u3000").upper()),
        (SENTENCE, SENTENCE.replace("grand", "gr\u00adand").replace("house", "hou\u200dse\ufe0f").replace("é", "e\u0301")),
        (SENTENCE, SENTENCE.replace("o", "o\u200b").replace("a", "\u2060a\u200c").replace(" ", " \ufeff")),
        (PLAIN, PLAIN.upper()),
        (PLAIN, PLAIN.lower()),
        (PLAIN, normalize("NFD", PLAIN).upper()),
    ],
)
def test_minhash_signs_spaces_case_and_normal_form_are_not_compared(text: str, changed: str) -> None:
    assert dropped(_opened(min_similarity=1.0), [text, changed]) == {1: 0}


@pytest.mark.parametrize("texts", [["resume a b c d e", "résumé a b c d e"], ["क का कि की कु कू", "क क क क क क"]])
def test_minhash_words_of_other_letters_or_marks_differ(texts: list[str]) -> None:
    assert dropped(_opened(min_similarity=1.0), texts) == {}


def test_minhash_notes_show_the_curves_of_matches_and_of_verified_pairs() -> None:
    first, similarities, *curves = _opened(bands=2, rows=1, min_similarity=0.75).notes()
    assert all(number in first for number in ("2 bands", "1 rows", "0.29"))
    met, counted = ([one.rstrip("%") for one in curve[10:].split()] for curve in curves)
    at_half = similarities.split()[1:].index("0.5")
    assert (float(met[at_half]), float(counted[at_half])) == (75, 25)  # of two coins one, or both
    assert _opened(bands=2, rows=1, verify="none").notes() == (first, similarities, curves[0])
    assert any("threshold: 0.5" in line for line in _opened().notes())
    assert not any("threshold" in line for line in _opened(threshold=0.5).notes())


@pytest.mark.parametrize(("bands", "rows", "least"), [(3, 2, 0.5), (3, 2, 2 / 3), (2, 3, 0.6), (1, 4, 0.1), (4, 1, 0.75)])
def test_minhash_counting_probability_equals_the_sum_over_all_outcomes(bands: int, rows: int, least: float) -> None:
    falls = np.array(list(product([0, 1], repeat=bands * rows)))  # (2 ** num_perm, num_perm)
    counted = falls.reshape(-1, bands, rows).all(2).any(1) & (falls.mean(1).round(6) >= round(least, 6))
    heads = falls[counted].sum(1)
    for similarity in (0.0, 0.3, 0.8, 1.0):
        expected = float((similarity**heads * (1 - similarity) ** (bands * rows - heads)).sum())
        assert counting_probability(similarity, bands, rows, round(least, 6)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.medium
@pytest.mark.parametrize(("bands", "rows"), [(14, 8), (20, 5), (40, 2)])
@pytest.mark.parametrize("shingle", ["word", "char"])
def test_minhash_pairs_match_as_often_as_the_curve_says(bands: int, rows: int, shingle: str) -> None:
    """Within four standard deviations of as many coins, at each similarity; a row more or less in a band is far outside."""
    stage, num_pairs = _opened(bands=bands, rows=rows, ngram=1, shingle=shingle), 300
    for shared in (24, 48, 72, 96, 108, 120):
        batch = batch_of(minhash_pairs.pairs(shared, 120, num_pairs, seed=shared, shingle=shingle))
        met = minhash_pairs.share_matched(stage.emit(batch)["bands"], num_pairs)
        expected = match_probability(shared / 120, bands, rows)
        assert abs(met - expected) <= 4 * np.sqrt(expected * (1 - expected) / num_pairs) + 0.5 / num_pairs


@pytest.mark.parametrize("shared", [12, 60, 96])
def test_minhash_minima_agree_as_often_as_the_similarity_and_independently(shared: int) -> None:
    """112 permutations of 300 pairs: a bias of one part in a hundred shows, and so do dependent permutations."""
    texts, similarity = minhash_pairs.pairs(shared, 120, 300, seed=shared, ngram=5), shared / 120
    signed = _opened().emit(batch_of(texts))["signatures"].column("signature").to_pylist()
    minima = np.frombuffer(b"".join(signed), np.uint32).reshape(300, 2, 112)
    same = minima[:, 0] == minima[:, 1]  # (num_pairs, num_perm) bool
    spread = similarity * (1 - similarity)
    assert abs(same.mean() - similarity) <= 4 * np.sqrt(spread / same.size)
    assert abs(same.mean(1).var() * 112 / spread - 1) <= 4 * np.sqrt(2 / 300)  # of the estimates, one a pair
    assert abs(same.mean(0).var() * 300 / spread - 1) <= 4 * np.sqrt(2 / 112)  # of the permutations: none is worse than others


@pytest.mark.medium
def test_minhash_pairs_are_dropped_as_often_as_bands_and_estimate_say() -> None:
    """The whole stage with its defaults, on 5-grams: the share of pairs of which one document is dropped."""
    num_pairs = 200
    for shared in (72, 80, 84, 90, 96, 108):
        found = dropped(_opened(), minhash_pairs.pairs(shared, 120, num_pairs, seed=shared, ngram=5))
        assert all(survivor == document - 1 for document, survivor in found.items())
        expected = counting_probability(shared / 120, 14, 8, 0.719)
        assert abs(len(found) / num_pairs - expected) <= 4 * np.sqrt(expected * (1 - expected) / num_pairs) + 0.5 / num_pairs


def test_minhash_rows_are_documents_by_bands_in_order() -> None:
    stage, batch = _opened(bands=3, rows=2), batch_of(["a b c d e", "a b", "", "b c d e f g"])
    rows = stage.emit(batch)["bands"]
    assert [row_of(key) for key in rows.column("key").to_pylist()] == [0, 0, 0, 1, 3, 3, 3]


def test_minhash_rows_of_a_text_are_pinned() -> None:
    """Changing these hashes makes every earlier run's signatures worthless: a breaking change."""
    rows = _opened(bands=2, rows=3).emit(batch_of(["Call me Ishmael, some years ago", "never mind"]))["bands"]
    assert rows.column("hash").to_pylist() == [16462863794123311122, 16814233213356597642, 17878405009042051988]


@pytest.mark.parametrize(("threshold", "num_perm"), [(0.5, None), (0.7, None), (0.9, 256)])
def test_minhash_threshold_chooses_bands_and_rows_that_match_there(threshold: float, num_perm: int | None) -> None:
    bands, rows = Minhash(threshold=threshold, num_perm=num_perm).banding()
    assert bands * rows <= (num_perm or 112)
    assert abs((1 / bands) ** (1 / rows) - threshold) < 0.1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold": 0.8, "bands": 20}, "bands"),
        ({"num_perm": 128}, "112"),
        ({"threshold": 1.0}, "threshold"),
        ({"ngram": 0}, "ngram"),
        ({"verify": "none", "min_similarity": 0.8}, "min_similarity"),
    ],
)
def test_minhash_options_that_contradict_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Minhash.model_validate(options)


def test_minhash_threshold_out_of_reach_is_refused() -> None:
    with pytest.raises(UserError, match="2 permutations"):
        _opened(threshold=0.99, num_perm=2)


def test_minhash_unverified_drops_carry_no_measure() -> None:
    drops = reduce_all(_opened(bands=20, rows=5, verify="none"), [batch_of(["a b c d e f"] * 2)])["drops"]
    assert drops.num_rows == 1 and np.isnan(drops.column("value")[0].as_py())
