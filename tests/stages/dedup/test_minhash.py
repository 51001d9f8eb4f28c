"""Near duplicates: which documents match, which pairs are verified, which survive, and the effect of the options."""

from collections import defaultdict
from itertools import combinations, product
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pytest

from datapipe import columns
from datapipe.errors import UserError
from stages.dedup._banding import counting_probability
from stages.dedup._verified import BANDS
from stages.dedup.exact import Exact
from stages.dedup.minhash import Minhash
from tests.benchmarks.dedup_quality import clusters
from tests.oracles import components as oracle
from tests.support import labelled_duplicates, minhash_pairs
from tests.support.global_stages import batch_of, dropped, exchanged, opened, reduce_all, row_of


def _opened(seed: int = 1, **options: object) -> Minhash:
    return opened(Minhash.model_validate(options), "dedup.minhash", seed)


def _text(seed: int, num_words: int = 300) -> list[str]:
    return [f"w{number}" for number in np.random.default_rng(seed).integers(0, 50_000, num_words)]


def _family(seed: int) -> list[str]:
    """A text, the same with one word changed, with its case and punctuation changed, and longer by two words."""
    words = _text(seed)
    changed = [*words[:150], "other", *words[151:]]
    return [" ".join(words), " ".join(changed), ", ".join(words).upper() + "!", " ".join([*words, "and", "more"])]


WORDLESS = ["", "!!", " \n", "12 13", "12, 13.", "1 2 3 4 5 6", "1 2 3 4 5 6", "a b", "A, b", "a b c d e f", "a b c d e f!"]
FAMILY = _family(5)


def _chinese(seed: int) -> str:
    drawn = np.random.default_rng(seed).integers(0x4E00, 0x9000, 400)
    return "".join(chr(code) + ("，" if number % 17 == 0 else "") for number, code in enumerate(drawn.tolist()))


CHINESE, OTHER = _chinese(1), _chinese(2)
NEAR = [CHINESE, CHINESE[:200] + "変" + CHINESE[201:], CHINESE[:100] + "\n" + CHINESE[100:300] + " " + CHINESE[300:], OTHER]
SENTENCE = "Don't stop: the \"old\" house - built in 1901 - stands where my grand-parents' café was, isn't that so?"
PLAIN = "Le café déjà vu coûte 3 € à l'hôtel où Ægir et Œdipe dînent, et Straße ist kein naïver Name für Κύριος Σίσυφος."
SAME: dict[str, list[str]] = {  # signs, spaces, case and normal form are not compared
    SENTENCE: [
        SENTENCE.replace("'", "’").replace(' "', " “").replace('"', "”").replace(" - ", " – "),
        SENTENCE.replace(" - ", "—").replace("'", "‘"),
        SENTENCE.replace(" ", "\u00a0"),
        SENTENCE.replace(" ", "\u2009\u3000").upper(),
        SENTENCE.replace("grand", "gr\u00adand").replace("house", "hou\u200dse\ufe0f").replace("é", "e\u0301"),
        SENTENCE.replace("o", "o\u200b").replace("a", "\u2060a\u200c").replace(" ", " \ufeff"),
    ],
    PLAIN: [PLAIN.upper(), PLAIN.lower(), normalize("NFD", PLAIN).upper()],
}
ALL: dict[str, object] = {"min_similarity": 1.0}


@pytest.mark.parametrize(
    ("options", "texts", "expected"),
    [
        ({}, _family(1) + _family(2) + _family(3)[:1] + _family(4)[:1], {1: 0, 2: 0, 3: 0, 5: 4, 6: 4, 7: 4}),
        ({"keep": "first"}, FAMILY, {1: 0, 2: 0, 3: 0}),
        ({"keep": "longest"}, FAMILY, {0: 2, 1: 2, 3: 2}),
        ({"keep": "shortest"}, FAMILY, {1: 0, 2: 0, 3: 0}),
        # documents that say little
        ({}, WORDLESS, {4: 3, 6: 5, 8: 7, 10: 9}),
        ({"bands": 1, "rows": 4}, WORDLESS, {4: 3, 6: 5, 8: 7, 10: 9}),
        # scripts without spaces
        ({"shingle": "char"}, NEAR, {1: 0, 2: 0}),
        ({}, NEAR, {1: 0, 2: 0}),  # each character is a word
        ({"shingle": "char"}, ["日本", "日 本", "本日", "日本語", "日本。"], {1: 0, 4: 0}),
        ({"shingle": "dictionary"}, NEAR, {1: 0, 2: 0}),
        (
            {"shingle": "dictionary"},
            ["東京都。", "東京 都", "東 京都", "東京x都", "東京Xの", "「東京 Ｘ都」", "東京x。都"],
            {1: 0, 6: 3},
        ),
        *((ALL, [text, changed], {1: 0}) for text, changes in SAME.items() for changed in changes),
        (ALL, ["resume a b c d e", "résumé a b c d e"], {}),
        (ALL, ["क का कि की कु कू", "क क क क क क"], {}),
    ],
)
def test_minhash_near_duplicates_keep_one(options: dict[str, object], texts: list[str], expected: dict[int, int]) -> None:
    assert dropped(_opened(**options), texts) == expected


def test_minhash_keep_random_depends_on_the_seed_alone() -> None:
    families = [text for seed in range(10, 20) for text in _family(seed)]
    first, second = (dropped(_opened(seed=seed, keep="random"), families) for seed in (1, 2))
    assert first == dropped(_opened(seed=1, keep="random"), families)
    assert first != second
    assert len(first) == len(second) == 30


@pytest.mark.medium
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
def test_minhash_pairs_are_dropped_as_often_as_bands_and_estimate_declare() -> None:
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


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_minhash_threshold_chooses_bands_and_rows_that_match_there(threshold: float) -> None:
    bands, rows = Minhash(threshold=threshold).banding()
    assert bands * rows <= 112
    assert abs((1 / bands) ** (1 / rows) - threshold) < 0.1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"threshold": 0.8, "bands": 20}, "bands"),
        ({"threshold": 1.0}, "threshold"),
        ({"ngram": 0}, "ngram"),
        ({"verify": "none", "min_similarity": 0.8}, "min_similarity"),
        ({"threshold": 0.99}, "112 permutations"),
    ],
)
def test_minhash_options_that_contradict_or_are_out_of_reach_are_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises((ValueError, UserError), match=named):
        _opened(**options)


def test_minhash_unverified_drops_carry_no_measure() -> None:
    drops = reduce_all(_opened(bands=20, rows=5, verify="none"), [batch_of(["a b c d e f"] * 2)])["drops"]
    assert drops.num_rows == 1 and np.isnan(drops.column("value")[0].as_py())


# ------------------------------------------------------------------------------------------------ verified pairs


def _families(seed: int, num_families: int, num_members: int, shared: int, drift: float = 0.0) -> list[str]:
    """Texts of 300 words, the first `shared` the same in all, of which each has a few others; shuffled.

    Args:
        drift: how often a member takes its own words on to the next.
    """
    generator, texts = np.random.default_rng(seed), []
    for family in range(num_families):
        words = [f"s{number}" for number in range(shared)] + [f"f{family}w{number}" for number in range(300 - shared)]
        for _ in range(num_members):
            changed = list(words)
            for at in np.flatnonzero(generator.random(300) < 0.01):
                changed[at] = f"m{generator.integers(1 << 40)}"
            texts.append(" ".join(changed))
            words = changed if generator.random() < drift else words
    return [texts[number] for number in generator.permutation(len(texts))]


def _signatures(stage: Minhash, emitted: dict[str, pa.RecordBatch]) -> dict[int, np.ndarray]:
    rows = emitted["signatures"]
    return {row_of(row["key"]): np.frombuffer(row["signature"], np.uint32) for row in rows.to_pylist()}


def _all_pairs(stage: Minhash, emitted: dict[str, pa.RecordBatch], num_docs: int) -> dict[int, int]:
    """Document -> survivor where every pair of every bucket is compared."""
    signed, buckets = _signatures(stage, emitted), defaultdict(set)
    for row in emitted["bands"].to_pylist():
        buckets[row["hash"]].add(row_of(row["key"]))
    matches = {pair for members in buckets.values() for pair in combinations(sorted(members), 2)}
    similar = [(a, b) for a, b in matches if round(float(np.mean(signed[a] == signed[b])), 6) >= stage.least_similarity()]
    return oracle.survivors(num_docs, similar, [0] * num_docs)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("families", "options"),
    [
        ((1, 40, 3, 190), {"min_similarity": 0.8}),
        ((2, 8, 20, 190), {"bands": 20, "rows": 5, "min_similarity": 0.8}),
        ((3, 12, 12, 0, 0.5), {}),
        ((4, 12, 12, 0, 0.5), {"min_similarity": 0.9}),
    ],
)
def test_verified_drops_are_those_of_all_pairs_or_nearly(families: tuple[Any, ...], options: dict[str, object]) -> None:
    stage, texts = _opened(**options), _families(*families)
    emitted = dict(stage.emit(batch_of(texts)))
    expected = _all_pairs(stage, emitted, len(texts))
    found = dropped(stage, texts)
    cluster = [expected.get(number, number) for number in range(len(texts))]
    assert all(cluster[one] == cluster[survivor] for one, survivor in found.items())  # nothing that all pairs would keep apart
    assert len(expected) > 50
    assert len(found) >= 0.98 * len(expected)


def test_verified_document_unlike_the_center_of_its_star_is_found() -> None:
    """0 and 1 match 2 and 3 in a bucket by chance; 3 is similar to 2, and the center of the star is 0."""
    stage = _opened()
    family, other = _families(5, 1, 2, 0), _families(6, 2, 2, 0)[2:]
    texts = [*family, *other]
    emitted = dict(stage.emit(batch_of(texts)))
    keys = emitted["signatures"].column("key")
    emitted["bands"] = pa.RecordBatch.from_arrays([pa.array(np.full(4, 9, np.uint64)), keys], schema=BANDS)
    drops = exchanged(stage, {name: [rows] for name, rows in emitted.items()})["drops"].to_pylist()
    assert {row_of(row["key"]): row_of(row["survivor"]) for row in drops} == _all_pairs(stage, emitted, 4)
    assert len(drops) == 2


def test_verified_matches_by_chance_drop_documents_only_without_verification() -> None:
    texts = _families(7, 2, 1, 150)
    assert dropped(_opened(bands=100, rows=1, verify="none"), texts) == {1: 0}
    assert dropped(_opened(bands=100, rows=1, min_similarity=0.8), texts) == {}


def test_verified_value_is_the_greatest_similarity_measured() -> None:
    stage, texts = _opened(), _families(8, 1, 3, 0)
    batch = batch_of(texts)
    signed = _signatures(stage, dict(stage.emit(batch)))
    drops = reduce_all(stage, [batch])["drops"].to_pylist()
    assert len(drops) == 2
    for row in drops:
        one = row_of(row["key"])
        likeness = [float(np.mean(signed[one] == signed[other])) for other in range(3) if other != one]
        assert row["value"] in [round(number, 4) for number in likeness]
        assert row["value"] >= stage.least_similarity()


@pytest.mark.medium
@pytest.mark.parametrize("keep", ["first", "longest", "random"])
def test_verified_survivors_do_not_depend_on_buckets_or_the_way_of_joining(keep: str) -> None:
    stage, texts = _opened(keep=keep, size_column="copies"), _families(9, 6, 8, 100, 0.5)
    whole = reduce_all(stage, [batch_of(texts)])
    parts = [batch_of(texts[at : at + 7], first=at) for at in range(0, len(texts), 7)]
    for num_buckets in (1, 4, 13):
        found = reduce_all(stage, parts[::-1], num_buckets=num_buckets, at_once=False)
        assert found["drops"].equals(whole["drops"])
        assert _sizes(found) == _sizes(whole)
    assert sum(_sizes(whole).values()) == whole["drops"].num_rows


def _sizes(final: dict[str, pa.RecordBatch]) -> dict[bytes, int]:
    found: dict[bytes, int] = defaultdict(int)
    for row in final["sizes"].to_pylist():
        found[row["key"]] += row["size"]
    return dict(found)


def test_verified_pairs_of_a_hot_key_are_two_a_document() -> None:
    count = 50_000
    keys = columns.make_keys(1, np.arange(count, dtype=np.uint64))
    bands = pa.RecordBatch.from_arrays([pa.array(np.full(count, 7, np.uint64)), keys], schema=BANDS)
    assert _opened().reduce("match-bands", {"bands": bands})["pairs"].num_rows == 2 * count - 3


def test_verified_least_similarity_is_that_of_the_banding_unless_given() -> None:
    given = [{}, {"threshold": 0.8}, {"bands": 20, "rows": 5}, {"threshold": 0.5, "min_similarity": 0.9}]
    assert [Minhash.model_validate(options).least_similarity() for options in given] == [0.719, 0.8, 0.5493, 0.9]


# ------------------------------------------------------------------------------------------------ labelled duplicates

FUZZY = {"bands": 42, "rows": 6, "min_similarity": 0.5}
UNVERIFIED = {"verify": "none"}
EXACT = {"normalize": "whitespace_case"}
FLOORS: list[tuple[str, type[Any], dict[str, Any], float, float, float]] = [
    ("asysd", Minhash, {}, 0.97, 0.94, 0.95),
    ("asysd", Minhash, UNVERIFIED, 0.96, 0.94, 0.95),
    ("asysd", Minhash, {"bands": 25, "rows": 10, "min_similarity": 0.7, "ngram": 2}, 0.95, 0.97, 0.96),
    ("webis_s3_gov2", Minhash, {}, 0.97, 0.62, 0.76),
    ("webis_s3_gov2", Minhash, UNVERIFIED, 0.95, 0.65, 0.78),
    ("webis_s3_gov2", Minhash, FUZZY, 0.85, 0.86, 0.86),
    ("webis_s3_gov2", Minhash, UNVERIFIED | {"bands": 32, "rows": 8}, 0.88, 0.75, 0.81),
    ("govuk_captures", Minhash, {}, 0.97, 0.99, 0.98),
    ("govuk_captures", Minhash, {"min_similarity": 0.8}, 0.99, 0.99, 0.99),
    ("ndd_100_news", Minhash, {}, 1.0, 1.0, 1.0),
    ("cs336_fuzzy", Minhash, {}, 1.0, 1.0, 1.0),
    ("pan_paraphrase", Minhash, {}, 0.85, 0.005, 0.01),
    ("dj_dedup_demo", Minhash, FUZZY | {"ngram": 2}, 1.0, 1.0, 1.0),
    ("gutenberg_editions", Minhash, {}, 1.0, 0.88, 0.93),
    ("gutenberg_editions", Minhash, FUZZY, 1.0, 0.99, 0.99),
    ("gutenberg_editions", Minhash, UNVERIFIED | {"bands": 42, "rows": 6}, 1.0, 0.99, 0.99),
    *((name, Exact, EXACT, 1.0, 0.2, 0.0) for name in ("asysd", "webis_s3_gov2", "govuk_captures")),
]
"""Set, stage, options, and the least precision, recall and F1 of pairs; the figures of `tests/benchmarks/dedup_quality.py`."""


@pytest.mark.real
@pytest.mark.parametrize(("name", "kind", "options", "precision", "recall", "f1"), FLOORS)
def test_duplicates_agree_with_people_at_least_so_far(
    real_data: Path, name: str, kind: type[Any], options: dict[str, Any], precision: float, recall: float, f1: float
) -> None:
    labelled = labelled_duplicates.labelled_set(real_data, name)
    found = labelled_duplicates.agreement(labelled, clusters(kind, options, labelled.texts))
    assert found.precision >= precision
    assert found.recall >= recall
    assert found.f1 >= f1
