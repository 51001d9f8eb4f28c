"""Clusters where something is missing: texts, similarities, stages. Differences between two texts.

Which clusters there are: tests/conformance/test_exploring.py.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from datapipe.errors import UserError
from datapipe.explore import differences
from datapipe.explore.clusters import find_clusters
from datapipe.explore.differences import CONTEXT_WORDS, Difference, difference
from datapipe.explore.documents import Inspector
from tests.oracles import case_folding as oracle
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 1MiB}}
pack: {sequence_length: 64}
execution: {split_bytes: 8KiB, bucket_bytes: 1MiB}
"""

_STAGES = """
stages:
  - filter.length: {min_words: 5}
  - dedup.exact: {normalize: whitespace_case}
  - dedup.minhash
  - dedup.exact: {by: field, field: id, as: same_id}
  - dedup.lines: {min_length: 9999}
"""

_COPIES = {"web": 40, "books": 20}


@pytest.fixture(scope="module")
def output(tmp_path_factory) -> Path:
    """12 texts in two sources: copies that differ in case, and near duplicates that differ in a few words."""
    folder = tmp_path_factory.mktemp("duplicates")
    rng = random.Random(7)
    texts = [corpora.prose(rng, 150) for _ in range(12)]
    listed = ""
    for source, copies in _COPIES.items():
        rows = [{"text": rng.choice([text, text.upper()])} for text in rng.choices(texts, k=copies)]
        rows += [{"text": corpora.near_duplicate(rng, rng.choice(texts))} for _ in range(10)]
        rows += [{"text": "too short"}, {"text": corpora.prose(rng, 60)}]
        corpora.write_jsonl(folder / f"{source}.jsonl", rows)
        listed += f"  {source}: {{path: {folder}/{source}.jsonl}}\n"
    runs.run_mixture(runs.write_mixture(folder, listed, _STAGES, _TAIL), make_engine=runs.InProcess)
    return folder / "out"


def _find(output: Path, stage: str, **options) -> list[dict[str, Any]]:
    return list(find_clusters(Inspector.open(str(output)), stage=stage, **options))


def _source(document: dict[str, Any]) -> str:
    return document["document"].partition("/")[0]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stage": "dedup.minhsh"}, "Did you mean 'dedup.minhash'"),
        ({"stage": "same_id"}, "no document of this output was dropped in favour of another"),
        ({"stage": "same_id", "source": "web"}, "no document of source 'web' was dropped in favour of another"),
        ({"stage": "dedup.exact:repeated"}, "no document of this output was dropped in favour of another"),
        ({"stage": "dedup.lines"}, "--dropped dedup.lines"),
        ({"stage": "filter.length"}, "has no clusters"),
        ({"stage": "all", "source": "boks"}, "Did you mean 'books'"),
    ],
)
def test_clusters_that_do_not_exist_are_the_users_error(output: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        find_clusters(Inspector.open(str(output)), **options)


@pytest.mark.slow
def test_clusters_of_missing_files_have_no_texts(output: Path) -> None:
    before = _find(output, "dedup.exact", count=99, members=99)
    hidden = (output.parent / "books.jsonl").rename(output.parent / "away")
    try:
        after = _find(output, "dedup.exact", count=99, members=99)
    finally:
        hidden.rename(output.parent / "books.jsonl")
    assert [cluster["survivor"]["document"] for cluster in after] == [cluster["survivor"]["document"] for cluster in before]
    for cluster in after:
        survivor = cluster["survivor"]
        for document in (survivor, *cluster["members"]):
            assert (document["text"] is None) == (_source(document) == "books")
        assert survivor["no_text"] == ("its file is missing or has changed" if _source(survivor) == "books" else None)


def _marked(result: Difference) -> list[tuple[list[str], list[str]]]:
    """The differing segments of each passage, in both texts."""
    return [
        tuple([segment.text.strip() for segment in side if segment.differs] for side in (passage.first, passage.second))
        for passage in result.passages
    ]


def _numbered(start: int, stop: int) -> str:
    return " ".join(f"word{number}" for number in range(start, stop))


@pytest.mark.slow
def test_clusters_of_a_stage_that_sources_give_different_options_are_found_by_its_name(tmp_path: Path) -> None:
    listed = ""
    for source, options in (("web", "{keep: longest}"), ("books", "{normalize: whitespace_case}")):
        corpora.write_jsonl(tmp_path / f"{source}.jsonl", [{"text": f"a text of {source}, {n % 5}"} for n in range(10)])
        listed += f"  {source}: {{path: {tmp_path}/{source}.jsonl, stages: [dedup.exact: {options}]}}\n"
    runs.run_mixture(runs.write_mixture(tmp_path, listed, "", "tokenizer: none"), make_engine=runs.InProcess)
    clusters = _find(tmp_path / "out", "dedup.exact", count=99)
    assert Counter(_source(cluster["survivor"]) for cluster in clusters) == {"web": 5, "books": 5}
    [of_web] = {cluster["stage"] for cluster in clusters if _source(cluster["survivor"]) == "web"}
    assert {_source(cluster["survivor"]) for cluster in _find(tmp_path / "out", of_web, count=99)} == {"web"}
    for reason, sources in (("dedup.exact", {"web", "books"}), (of_web, {"web"})):
        found = Inspector.open(str(tmp_path / "out")).find("dropped", reason=reason, count=99)
        assert {document["source"] for document in found} == sources


def test_difference_marks_the_words_that_differ_with_some_around_them():
    first = f"{_numbered(0, 50)} the cat sat {_numbered(50, 100)}"
    second = f"{_numbered(0, 50)} the dog sat {_numbered(50, 100)}"
    result = difference(first, second)
    assert _marked(result) == [(["cat"], ["dog"])]
    assert result.passages[0].first[0].text.split() == [*_numbered(50 - CONTEXT_WORDS + 1, 50).split(), "the"]
    assert not result.passages[0].begins
    assert (result.words, result.only) == ((103, 103), (1, 1))
    assert result.in_common == 94 / 104  # 99 5-grams each, of which 5 hold the word


def test_difference_in_distant_words_gives_a_passage_for_each():
    middle = _numbered(0, 100)
    result = difference(f"begins here {middle} ends", f"starts here {middle} ends {_numbered(200, 203)}")
    assert _marked(result) == [(["begins"], ["starts"]), ([], [_numbered(200, 203)])]
    assert [(passage.begins, passage.ends) for passage in result.passages] == [(True, False), (False, True)]
    assert [passage.differing for passage in result.passages] == [2, 3]


def test_difference_counts_each_occurrence_of_a_folded_word():
    result = difference("One two, two! three", "one: TWO three four", (2, "word"))
    assert (result.words, result.only) == ((4, 4), (1, 1))
    assert result.in_common == 2 / 4  # one two, two three | two two, three four
    same = difference("It's  here.", "it s HERE")
    assert not same.passages
    assert not same.is_equal
    assert same.in_common == 1.0
    assert difference("a b", "a b").is_equal


def test_difference_signs_spaces_case_and_normal_form_are_no_difference():
    result = difference("Don't stop - the caf\u00e9's house", "DON’T\u00a0STOP — the cafe\u0301’s hou\u00adse", (2, "word"))
    assert not result.passages
    assert (result.words, result.in_common) == ((7, 7), 1.0)
    assert _marked(difference("a — b c", "a – d c")) == [(["b"], ["d"])]


def test_difference_words_are_those_that_signatures_are_made_of():
    text = "Don’t pay 3,50 €: naïve Ærger ΣΊΣΥΦΟΣ 太郎 ชาก่ ガ\u3099 हिन्दी co\u00adop \u0301 각각"
    words = [text[start:stop] for start, stop in differences.word_spans(text)]
    folded = [oracle.words(word.encode()) for word in words]
    assert [parts[0] for parts in folded if parts] == oracle.words(text.encode())


def test_difference_in_a_script_without_spaces_marks_characters():
    result = difference("我们今天去学校读书", "我们今天去公园读书")
    assert _marked(result) == [(["学校"], ["公园"])]


def test_difference_with_whole_texts_gives_back_every_character():
    rng = random.Random(5)
    for _ in range(200):
        texts = ["".join(rng.choices(["a", "b", "C", " ", "\n", ", ", "字", "é"], k=rng.randint(0, 40))) for _ in range(2)]
        result = difference(*texts, context=None)
        if not result.passages or not all(result.words):
            continue
        [passage] = result.passages
        assert ["".join(segment.text for segment in side) for side in (passage.first, passage.second)] == texts
        assert passage.begins
        assert passage.ends


def test_difference_of_long_texts_is_bounded_and_reports_it(monkeypatch):
    monkeypatch.setattr(differences, "COMPARED_CHARS", 2000)
    monkeypatch.setattr(differences, "ALIGNED_WORDS", 50)
    common = _numbered(0, 100)
    assert difference(common, f"{common} more").is_aligned
    result = difference(f"{common} a {_numbered(100, 140)} b {common}", f"{common} x {_numbered(100, 140)} y {common}")
    assert (result.is_whole, result.is_aligned) == (True, True)  # 42 words between the common beginning and end
    apart = difference(f"a {_numbered(0, 90)} b", f"x {_numbered(0, 90)} y")
    assert not apart.is_aligned
    assert _marked(apart) == [(["a"], ["x"])]
    assert not apart.passages[0].ends
    long = difference(_numbered(0, 400), _numbered(0, 401))
    assert (long.is_whole, long.passages) == (False, ())
