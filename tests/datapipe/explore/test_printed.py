"""Clusters on a terminal and in a log: what differs is marked, what is missing is reported, and long texts are cut."""

import io
from typing import Any

import pytest
from rich.console import Console

from datapipe.explore.differences import ALIGNED_WORDS, COMPARED_CHARS
from datapipe.explore.printed import print_clusters

_SHARED = " ".join(f"word{number}" for number in range(40))


def _clusters(*clusters: dict[str, Any], width: int = 160, terminal: bool = False, full: bool = False) -> str:
    stream = io.StringIO()
    color = "truecolor" if terminal else None
    print_clusters(clusters, Console(file=stream, width=width, force_terminal=terminal, color_system=color), full)
    return stream.getvalue()


def _cluster_of(survivor: str | None, *dropped: str | None, later: str | None = None, **fields: Any) -> dict[str, Any]:
    """A cluster as `find_clusters` returns it."""
    document = {"document": "web/a.jsonl:7", "run": None}
    return {
        "stage": "dedup.minhash",
        "survivor": {**document, "text": survivor, "no_text": "an index holds no texts", "dropped_later_by": later},
        "dropped": 1,
        "similarity": {"min": 0.75, "max": 0.75},
        "shingles": {"size": 5, "unit": "word"},
        "members": [{**document, "text": text, "similarity": 0.75} for text in dropped],
        **fields,
    }


_CATS = _cluster_of(f"{_SHARED} cats {_SHARED}", f"{_SHARED} dogs {_SHARED}")


def test_clusters_in_a_log_stand_below_each_other_with_marks():
    printed = _clusters(_CATS)
    lines = printed.splitlines()
    assert any(line.strip().startswith("stays") and "word39 [-cats-] word0" in line for line in lines)
    assert any(line.strip().startswith("dropped") and "word39 {+dogs+} word0" in line for line in lines)
    assert "only in the surviving text 1 of 81 words, only in the dropped text 1 of 81 words" in printed
    assert "\x1b" not in printed


def test_clusters_on_a_terminal_are_coloured():
    printed = _clusters(_CATS, width=80, terminal=True)
    assert "\x1b[1;32m[-cats-]" in printed and "\x1b[1;31m{+dogs+}" in printed


def test_clusters_report_hidden_documents_and_a_survivor_that_was_dropped_later():
    printed = _clusters(
        _cluster_of("a b", "a c", dropped=1001, similarity={"min": 0.72, "max": 0.9}, later="dedup.lines:too_much_removed")
    )
    assert "1,001 documents dropped in favour of one, measured 0.72 to 0.9" in printed
    assert "and 1,000 more documents (--members shows them)" in printed
    assert "dropped by a later stage: dedup.lines:too_much_removed" in printed
    parts = [f"number {number} {'x' * number} {_SHARED}" for number in range(5)]
    many = _clusters(_cluster_of(" ".join(parts), " ".join(part.replace("number", "count") for part in parts)))
    assert "and 2 shorter passages that differ" in many
    whole = _clusters(_cluster_of(" ".join(parts), " ".join(part.replace("number", "count") for part in parts)), full=True)
    assert whole.count("{+count+}") == 5


_LONG = " ".join(f"new{number}" for number in range(500))
_MANY = " ".join(f"{number}" for number in range(ALIGNED_WORDS + 1))


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        pytest.param(_cluster_of("a text", "a text"), ["the same text"], id="same"),
        pytest.param(_cluster_of("a text", "A text."), ["the same words; white space"], id="same-words"),
        pytest.param(_cluster_of("a text", None), ["a text", "(no text: its file is missing"], id="dropped-gone"),
        pytest.param(_cluster_of(None, "a text"), ["an index holds no texts", "a text"], id="survivor-gone"),
        pytest.param(_cluster_of("z" * COMPARED_CHARS, f"{'z' * COMPARED_CHARS} b"), ["the first 1,000,000 char"], id="long"),
        pytest.param(_cluster_of(f"a {_MANY} b", f"c {_MANY} d"), ["begin at the first difference"], id="not-aligned"),
        pytest.param(_cluster_of("a b", "a c", similarity=None), ["dropped in favour of one, not measured"], id="not-measured"),
        pytest.param(
            _cluster_of(_SHARED, f"{_SHARED} {_LONG}"),
            ["word39 {+new0 new1", "new20 … (462 words) … new483", "new499+}"],
            id="words-cut",
        ),
        pytest.param(_cluster_of(_SHARED, f"{_SHARED} {'z' * 5000}"), ["characters) … zzz"], id="characters-cut"),
    ],
)
def test_clusters_report_what_is_the_same_missing_not_compared_and_cut(cluster: dict[str, Any], told: list[str]):
    printed = " ".join(_clusters(cluster).split())
    assert all(part in printed for part in told)
    assert len(printed) < 2000


def test_whole_texts_of_clusters_are_not_cut_also_where_there_is_nothing_to_compare_with():
    for cluster in (_cluster_of(_SHARED, f"{_SHARED} {_LONG}"), _cluster_of(None, f"{_SHARED}\n{_LONG}")):
        printed = _clusters(cluster, full=True)
        assert all(f"new{number}" in printed for number in range(500))
