"""Clusters where something is missing: texts, similarities, stages. Which there are: tests/conformance/test_looking.py."""

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
from datapipe.inspect.documents import DocumentQuery, Inspector
from datapipe.inspect.duplicates import Cluster, ClusterQuery, find_clusters
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


def _find(output: Path, stage: str, **options) -> list[Cluster]:
    return list(find_clusters(Inspector.open(str(output)), ClusterQuery(stage=stage, **options)))


def _positions(clusters: list[Cluster]) -> list[tuple[str, int]]:
    return [(cluster.survivor.source, cluster.survivor.position) for cluster in clusters]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stage": "dedup.minhsh"}, "Did you mean 'dedup.minhash'"),
        ({"stage": "same_id"}, "no document was dropped in favour of another"),
        ({"stage": "same_id", "source": "web"}, "no document of source 'web' was dropped in favour of another"),
        ({"stage": "dedup.exact:repeated"}, "no document was dropped in favour of another"),
        ({"stage": "dedup.lines"}, "--dropped dedup.lines"),
        ({"stage": "filter.length"}, "has no clusters"),
        ({"stage": "all", "source": "boks"}, "Did you mean 'books'"),
    ],
)
def test_clusters_that_do_not_exist_are_the_users_error(output: Path, options: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        find_clusters(Inspector.open(str(output)), ClusterQuery(**options))


def test_clusters_that_do_not_exist_yet_are_reported_for_a_stopped_run(output: Path) -> None:
    inspector = Inspector.open(str(output))
    steps = tuple(step for step in inspector.steps if (step.kind, step.source) != ("tokenize", "web"))
    stopped = dataclasses.replace(inspector, steps=steps)
    for source, so_far in (("web", " yet; the run is not complete"), ("books", ""), ("", " yet; the run is not complete")):
        with pytest.raises(UserError, match=rf"was dropped in favour of another{so_far}\. "):
            find_clusters(stopped, ClusterQuery(stage="same_id", source=source))


def test_clusters_of_missing_files_have_no_texts(output: Path) -> None:
    before = _find(output, "dedup.exact", count=99, members=99)
    hidden = (output.parent / "books.jsonl").rename(output.parent / "away")
    try:
        after = _find(output, "dedup.exact", count=99, members=99)
    finally:
        hidden.rename(output.parent / "books.jsonl")
    assert _positions(after) == _positions(before)
    for cluster in after:
        for document in (cluster.survivor, *(member.document for member in cluster.members)):
            assert (document.text is None) == (document.source == "books")
        assert cluster.no_text == ("its file is missing or has changed" if cluster.survivor.source == "books" else "")


def test_clusters_of_a_stage_that_sources_give_different_options_are_found_by_its_name(tmp_path: Path) -> None:
    listed = ""
    for source, options in (("web", "{empty: never}"), ("books", "{normalize: whitespace_case}")):
        corpora.write_jsonl(tmp_path / f"{source}.jsonl", [{"text": f"a text of {source}, {n % 5}"} for n in range(10)])
        listed += f"  {source}: {{path: {tmp_path}/{source}.jsonl, stages: [dedup.exact: {options}]}}\n"
    runs.run_mixture(runs.write_mixture(tmp_path, listed, "", _TAIL), make_engine=runs.InProcess)
    clusters = _find(tmp_path / "out", "dedup.exact", count=99)
    assert Counter(cluster.survivor.source for cluster in clusters) == {"web": 5, "books": 5}
    [stage] = {cluster.stage for cluster in clusters if cluster.survivor.source == "web"}
    assert stage.startswith("dedup.exact@")
    assert _positions(_find(tmp_path / "out", stage, count=99)) == _positions(
        [cluster for cluster in clusters if cluster.stage == stage]
    )
    inspector = Inspector.open(str(tmp_path / "out"))
    for requested, sources in (
        ("dedup.exact", {"web", "books"}),
        ("dedup.exact:duplicate", {"web", "books"}),
        (stage, {"web"}),
    ):
        query = DocumentQuery(outcome="dropped", reason=requested, count=99)
        assert {document.source for document in inspector.find(query)} == sources
        assert {cluster.survivor.source for cluster in _find(tmp_path / "out", requested, count=99)} == sources
    with pytest.raises(UserError, match=r"no document was dropped for 'dedup'"):
        inspector.find(DocumentQuery(outcome="dropped", reason="dedup"))


def test_clusters_of_a_stage_of_other_sources_only_are_said_to_be_theirs(tmp_path: Path) -> None:
    listed = ""
    for source, stages in (("web", "[dedup.exact]"), ("notes", "[dedup.exact, dedup.url: {field: id}]"), ("books", "[]")):
        corpora.write_jsonl(tmp_path / f"{source}.jsonl", [{"text": f"a text of {source}, {n % 5}"} for n in range(10)])
        listed += f"  {source}: {{path: {tmp_path}/{source}.jsonl, stages: {stages}}}\n"
    listed = listed.replace("dedup.url: {field: id}", "dedup.exact: {by: field, field: id, as: same_id}")
    runs.run_mixture(runs.write_mixture(tmp_path, listed, "", _TAIL), make_engine=runs.InProcess)
    for requested, owners in (("dedup.exact", "web, notes"), ("dedup.exact:duplicate", "web, notes"), ("same_id", "notes")):
        with pytest.raises(UserError, match=rf"'{requested}' is no stage of source 'books'\. It is a stage of {owners}\. "):
            _find(tmp_path / "out", requested, source="books")
    with pytest.raises(UserError, match=r"no stage 'dedup.exat' in this output"):
        _find(tmp_path / "out", "dedup.exat", source="books")


def test_clusters_and_members_without_a_similarity_come_last_of_those_least_alike(output: Path, monkeypatch) -> None:
    """Drops with NaN as their similarity, as a stage that does not verify candidates writes them."""
    before = _find(output, "dedup.minhash", count=99, members=99, least_alike=True)
    greatest = sorted(cluster.members[-1].similarity or 0 for cluster in before)
    hidden = greatest[len(greatest) // 2]
    assert greatest[0] < hidden

    def unmeasured(*arguments):
        for batch in read_table(*arguments):
            if "value" not in batch.schema.names:
                yield batch
                continue
            values = batch.column("value").to_numpy()
            column = batch.schema.get_field_index("value")
            yield batch.set_column(column, "value", pa.array(np.where(values < hidden, np.nan, values), from_pandas=False))

    monkeypatch.setattr("datapipe.inspect.duplicates.read_table", unmeasured)
    after = _find(output, "dedup.minhash", count=99, members=99, least_alike=True)
    assert {(cluster.survivor, cluster.dropped) for cluster in after} == {
        (cluster.survivor, cluster.dropped) for cluster in before
    }
    firsts = [cluster.members[0].similarity for cluster in after]
    measured = [first for first in firsts if first is not None]
    assert 0 < len(measured) < len(firsts)
    assert firsts == sorted(measured) + [None] * (len(firsts) - len(measured))
    for cluster in after:
        known = [member.similarity for member in cluster.members if member.similarity is not None]
        assert [member.similarity for member in cluster.members] == sorted(known) + [None] * (cluster.dropped - len(known))
        assert cluster.similarity == ((min(known), max(known)) if known else None)
    assert _find(output, "dedup.minhash", count=2, members=1, least_alike=True) == [
        dataclasses.replace(cluster, members=cluster.members[:1]) for cluster in after[:2]
    ]
