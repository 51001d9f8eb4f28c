"""Clusters as `datapipe inspect` prints them: side by side on a wide terminal, below each other with marks elsewhere."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from datapipe.report.inspecting.clusters import print_clusters

_SHARED = " ".join(f"word{number}" for number in range(40))


@dataclass
class Document:
    text: str | None
    label: str = "a.jsonl:7"
    source: str = "web"


@dataclass
class Member:
    document: Document
    similarity: float | None = 0.75


@dataclass
class Cluster:
    survivor: Document
    members: list[Member]
    dropped: int = 1
    stage: str = "dedup.minhash"
    dropped_later_by: str = ""
    similarity: tuple[float, float] | None = (0.75, 0.75)
    shingles: tuple = (5, "word")
    no_text: str = "an index holds no texts"


def _printed(*clusters: Cluster, width: int = 160, terminal: bool = False, full: bool = False) -> str:
    stream = io.StringIO()
    color = "truecolor" if terminal else None
    print_clusters(clusters, Console(file=stream, width=width, force_terminal=terminal, color_system=color), full)
    return stream.getvalue()


def _cluster(survivor: str | None, *dropped: str | None, **fields) -> Cluster:
    return Cluster(Document(survivor), [Member(Document(text, "b.jsonl")) for text in dropped], **fields)


_CATS = _cluster(f"{_SHARED} cats {_SHARED}", f"{_SHARED} dogs {_SHARED}")


def test_clusters_in_a_log_stand_below_each_other_with_marks():
    printed = _printed(_CATS)
    lines = printed.splitlines()
    assert any(line.strip().startswith("stays") and "word39 [-cats-] word0" in line for line in lines)
    assert any(line.strip().startswith("dropped") and "word39 {+dogs+} word0" in line for line in lines)
    assert "only in the surviving text 1 of 81 words, only in the dropped text 1 of 81 words" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(("width", "together"), [(160, True), (80, False)])
def test_clusters_on_a_terminal_stand_side_by_side_where_it_is_wide_enough(width: int, together: bool):
    lines = _printed(_CATS, width=width, terminal=True).splitlines()
    assert any("cats" in line and "dogs" in line for line in lines) is together
    assert any("[-" in line for line in lines) is not together


def test_clusters_report_hidden_documents_and_a_survivor_that_was_dropped_later():
    printed = _printed(
        _cluster("a b", "a c", dropped=1001, similarity=(0.72, 0.9), dropped_later_by="dedup.lines:too_much_removed")
    )
    assert "1,001 documents dropped in favour of one, measured 0.72 to 0.9" in printed
    assert "and 1,000 more documents (--members shows them)" in printed
    assert "dropped by a later stage: dedup.lines:too_much_removed" in printed
    parts = [f"number {number} {'x' * number} {_SHARED}" for number in range(5)]
    many = _printed(_cluster(" ".join(parts), " ".join(part.replace("number", "count") for part in parts)))
    assert "and 3 shorter passages that differ" in many
    whole = _printed(_cluster(" ".join(parts), " ".join(part.replace("number", "count") for part in parts)), full=True)
    assert whole.count("{+count+}") == 5


def test_clusters_report_equal_and_missing_texts_in_a_line():
    printed = _printed(_cluster("the text", "the text", "The text.", None), _cluster(None, "the text"))
    assert "the same text\n" in printed
    assert "the same words; white space, punctuation or case differ" in printed
    assert printed.count("(no text: its file is missing or has changed)") == 1
    without = _printed(_cluster(None, "the text of a file " * 30))
    assert "(no text to compare with: an index holds no texts)" in without
    assert "the text of a file the" in without
    assert "in common:" not in without
    assert "… (" in without
    assert "2 clusters, 4 removals shown; 1 with the same text; 1 with n-grams in common from 1 to 1, median 1" in printed


def test_clusters_report_how_many_words_of_the_middle_are_cut():
    added = " ".join(f"new{number}" for number in range(500))
    printed = " ".join(_printed(_cluster(_SHARED, f"{_SHARED} {added}")).split())
    assert "word39 {+new0 new1" in printed
    assert "new11+} … (468 words) … {+new480 new481" in printed
    assert "new499+}" in printed
    unbroken = " ".join(_printed(_cluster(_SHARED, f"{_SHARED} {'z' * 5000}")).split())
    assert "characters) … {+zzz" in unbroken
    assert unbroken.count("z") < 300
    whole = _printed(_cluster(_SHARED, f"{_SHARED} {added}"), full=True)
    assert all(f"new{number}" in whole for number in range(500))


def test_clusters_without_a_similarity_are_not_measured():
    unmeasured = Cluster(Document("a b"), [Member(Document("a c"), None)], similarity=None)
    printed = _printed(unmeasured)
    assert "dropped in favour of one, not measured" in printed
    assert "characters  not measured\n" in printed
    assert "nan" not in printed
    assert "measured: " not in printed
    assert "measured: " in _printed(unmeasured, _CATS)
