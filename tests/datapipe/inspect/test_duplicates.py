"""Clusters of duplicates found again in a finished output: which ones, whole, in the same order each time."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from datapipe.errors import UserError
from datapipe.exchange.partitions import read_table
from datapipe.inspect.documents import Looker, Wanted
from datapipe.inspect.duplicates import Cluster, WantedClusters, find_clusters
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
    """12 texts, of each copies that differ in case and near ones that differ in a few words, over two sources."""
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


def _found(output: Path, stage: str, **options) -> list[Cluster]:
    return list(find_clusters(Looker(str(output)), WantedClusters(stage=stage, **options)))


def _places(clusters: list[Cluster]) -> list[tuple[str, int]]:
    return [(one.survivor.source, one.survivor.place) for one in clusters]


def test_clusters_hold_every_document_that_was_dropped_for_another(output: Path) -> None:
    clusters = _found(output, "dedup.exact", count=99, members=99)
    texts = Counter()
    for cluster in clusters:
        assert cluster.dropped == len(cluster.members)
        assert cluster.likeness == (1.0, 1.0)
        assert {(one.document.text or "").lower() for one in cluster.members} == {(cluster.survivor.text or "").lower()}
        texts[(cluster.survivor.text or "").lower()] += 1 + cluster.dropped
    assert len(texts) == len(clusters) <= 12
    dropped = sum(one.dropped for one in clusters)
    assert dropped >= sum(_COPIES.values()) - 12
    assert {one.document.source for cluster in clusters for one in cluster.members} == {"web", "books"}


def test_clusters_are_the_same_each_time_and_more_of_them_hold_the_fewer(output: Path) -> None:
    for options in ({}, {"least_alike": True}):
        several = _found(output, "dedup.minhash", count=4, members=1, **options)
        all_of_them = _found(output, "dedup.minhash", count=99, members=9, **options)
        assert _places(_found(output, "dedup.minhash", count=2, **options)) == _places(several)[:2] == _places(all_of_them)[:2]
        assert [one.members[0] for one in several] == [one.members[0] for one in all_of_them[:4]]
        assert [one.dropped for one in several] == [one.dropped for one in all_of_them[:4]]


def test_clusters_least_alike_first_begin_with_the_least_likeness(output: Path) -> None:
    clusters = _found(output, "dedup.minhash", count=99, members=99, least_alike=True)
    likeness = [[one.likeness for one in cluster.members] for cluster in clusters]
    assert len(clusters) > 3
    assert likeness == [sorted(one) for one in likeness]
    assert [one[0] for one in likeness] == sorted(one[0] for one in likeness)
    assert all(cluster.likeness == (one[0], one[-1]) for cluster, one in zip(clusters, likeness))
    assert likeness[0][0] < 1
    assert all(cluster.shingles == (5, "word") for cluster in clusters)


def test_clusters_of_a_source_count_what_other_sources_lost_to_them_too(output: Path) -> None:
    whole = {(one.stage, *_places([one])): one for one in _found(output, "all", count=99, members=99)}
    assert {stage for stage, *_ in whole} == {"dedup.exact", "dedup.minhash"}
    of_books = _found(output, "all", count=99, members=99, source="books")
    expected = {name for name, one in whole.items() if any(member.document.source == "books" for member in one.members)}
    assert {(one.stage, *_places([one])) for one in of_books} == expected != set(whole)
    assert all(one == whole[one.stage, *_places([one])] for one in of_books)


def test_clusters_tell_which_survivors_a_later_stage_dropped(output: Path) -> None:
    dropped_later = {
        (member.document.source, member.document.place)
        for cluster in _found(output, "dedup.minhash", count=99, members=99)
        for member in cluster.members
    }
    exact = _found(output, "dedup.exact", count=99)
    told = {place for place, one in zip(_places(exact), exact) if one.later == "dedup.minhash:duplicate"}
    assert told == set(_places(exact)) & dropped_later
    assert all(one.later in ("", "dedup.minhash:duplicate") for one in exact)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"stage": "dedup.minhsh"},
            r"no stage 'dedup.minhsh'.* Did you mean 'dedup.minhash'\?.* dedup.exact, dedup.minhash, same_id",
        ),
        ({"stage": "same_id"}, r"no document was dropped in favour of another\. "),
        ({"stage": "same_id", "source": "web"}, r"no document of source 'web' was dropped in favour of another\. "),
        ({"stage": "dedup.exact:repeated"}, r"no document was dropped in favour of another\. "),
        ({"stage": "dedup.lines"}, r"dedup.lines cuts spans out of texts.*has no clusters.*--dropped dedup.lines"),
        ({"stage": "filter.length"}, r"filter.length judges each document alone.*has no clusters"),
        ({"stage": "all", "source": "boks"}, r"no source 'boks'.* Did you mean 'books'\?"),
    ],
)
def test_clusters_that_are_not_there_are_the_users_error(output: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_clusters(Looker(str(output)), WantedClusters(**options))


def test_clusters_that_are_not_there_yet_are_said_to_be_so_of_a_run_that_stopped(output: Path) -> None:
    looker = Looker(str(output))
    looker.steps = tuple(step for step in looker.steps if (step.kind, step.source) != ("tokenize", "web"))
    for source, so_far in (("web", ", as far as the run has come"), ("books", ""), ("", ", as far as the run has come")):
        with pytest.raises(UserError, match=rf"was dropped in favour of another{so_far}\. "):
            find_clusters(looker, WantedClusters(stage="same_id", source=source))


def test_clusters_are_shown_without_texts_that_are_gone(output: Path) -> None:
    before = _found(output, "dedup.exact", count=99, members=99)
    hidden = (output.parent / "books.jsonl").rename(output.parent / "away")
    try:
        after = _found(output, "dedup.exact", count=99, members=99)
    finally:
        hidden.rename(output.parent / "books.jsonl")
    assert _places(after) == _places(before)
    for one in after:
        for document in (one.survivor, *(member.document for member in one.members)):
            assert (document.text is None) == (document.source == "books")
        assert one.no_text == ("its file is gone or has changed" if one.survivor.source == "books" else "")


def test_clusters_of_a_stage_that_sources_give_different_options_are_found_by_its_name(tmp_path: Path) -> None:
    listed = ""
    for source, options in (("web", "{empty: never}"), ("books", "{normalize: whitespace_case}")):
        corpora.write_jsonl(tmp_path / f"{source}.jsonl", [{"text": f"a text of {source}, {n % 5}"} for n in range(10)])
        listed += f"  {source}: {{path: {tmp_path}/{source}.jsonl, stages: [dedup.exact: {options}]}}\n"
    runs.run_mixture(runs.write_mixture(tmp_path, listed, "", _TAIL), make_engine=runs.InProcess)
    clusters = _found(tmp_path / "out", "dedup.exact", count=99)
    assert Counter(one.survivor.source for one in clusters) == {"web": 5, "books": 5}
    [stage] = {one.stage for one in clusters if one.survivor.source == "web"}
    assert stage.startswith("dedup.exact@")
    assert _places(_found(tmp_path / "out", stage, count=99)) == _places([one for one in clusters if one.stage == stage])
    looker = Looker(str(tmp_path / "out"))
    for asked, sources in (("dedup.exact", {"web", "books"}), ("dedup.exact:duplicate", {"web", "books"}), (stage, {"web"})):
        assert {one.source for one in looker.look(Wanted(outcome="dropped", reason=asked, count=99))} == sources
        assert {one.survivor.source for one in _found(tmp_path / "out", asked, count=99)} == sources
    with pytest.raises(UserError, match=r"no document was dropped for 'dedup'"):
        looker.look(Wanted(outcome="dropped", reason="dedup"))


def test_clusters_of_a_stage_of_other_sources_only_are_said_to_be_theirs(tmp_path: Path) -> None:
    listed = ""
    for source, stages in (("web", "[dedup.exact]"), ("notes", "[dedup.exact, dedup.url: {field: id}]"), ("books", "[]")):
        corpora.write_jsonl(tmp_path / f"{source}.jsonl", [{"text": f"a text of {source}, {n % 5}"} for n in range(10)])
        listed += f"  {source}: {{path: {tmp_path}/{source}.jsonl, stages: {stages}}}\n"
    listed = listed.replace("dedup.url: {field: id}", "dedup.exact: {by: field, field: id, as: same_id}")
    runs.run_mixture(runs.write_mixture(tmp_path, listed, "", _TAIL), make_engine=runs.InProcess)
    for asked, owners in (("dedup.exact", "web, notes"), ("dedup.exact:duplicate", "web, notes"), ("same_id", "notes")):
        with pytest.raises(UserError, match=rf"'{asked}' is no stage of source 'books'\. It is one of {owners}\. "):
            _found(tmp_path / "out", asked, source="books")
    with pytest.raises(UserError, match=r"no stage 'dedup.exat' in this output"):
        _found(tmp_path / "out", "dedup.exat", source="books")


def test_clusters_and_members_without_a_measure_come_last_of_those_least_alike(output: Path, monkeypatch) -> None:
    """Drops with NaN for what was measured, as a stage that does not verify leaves them."""
    before = _found(output, "dedup.minhash", count=99, members=99, least_alike=True)
    greatest = sorted(one.members[-1].likeness or 0 for one in before)
    hidden = greatest[len(greatest) // 2]
    assert greatest[0] < hidden

    def unmeasured(*arguments):
        for batch in read_table(*arguments):
            if "value" not in batch.schema.names:
                yield batch
                continue
            values = batch.column("value").to_numpy()
            at = batch.schema.get_field_index("value")
            yield batch.set_column(at, "value", pa.array(np.where(values < hidden, np.nan, values), from_pandas=False))

    monkeypatch.setattr("datapipe.inspect.duplicates.read_table", unmeasured)
    after = _found(output, "dedup.minhash", count=99, members=99, least_alike=True)
    assert {(one.survivor, one.dropped) for one in after} == {(one.survivor, one.dropped) for one in before}
    firsts = [one.members[0].likeness for one in after]
    measured = [one for one in firsts if one is not None]
    assert 0 < len(measured) < len(firsts)
    assert firsts == sorted(measured) + [None] * (len(firsts) - len(measured))
    for one in after:
        known = [member.likeness for member in one.members if member.likeness is not None]
        assert [member.likeness for member in one.members] == sorted(known) + [None] * (one.dropped - len(known))
        assert one.likeness == ((min(known), max(known)) if known else None)
    assert _found(output, "dedup.minhash", count=2, members=1, least_alike=True) == [
        dataclasses.replace(one, members=one.members[:1]) for one in after[:2]
    ]
