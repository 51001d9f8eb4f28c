"""What `inspect` finds of one document, by every name that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from datapipe.errors import DatapipeError, UserError
from datapipe.inspect.documents import DocumentQuery, Inspector
from datapipe.metrics import MAX_QUARANTINE_REASONS, DocumentCounts
from tests.support import corpora, runs

ROWS = [
    *({"id": f"kept-{number}", "text": f"a text of some words, number {number}"} for number in range(6)),
    {"id": "short", "text": "word"},
    {"id": "copy", "text": "a text of some words, number 3"},
    {"id": "hates", "text": "I do not like it, not at all, not one word"},
    {"id": "twice", "text": "too"},
    {"id": "twice", "text": "few"},
]
STAGES = """
from datapipe.stage import Filter, FilterResult

def picky(record):
    if "do not like" in record["text"]:
        raise ValueError(f"I do not like number {len(record['text'])}")
    return True
"""


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inspector:
    (tmp_path / "picky_functions.py").write_text(STAGES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    corpora.write_jsonl(tmp_path / "web.jsonl", ROWS)
    stages = "stages: [filter.length: {min_words: 3}, 'picky_functions:picky', dedup.exact]"
    tail = "tokenizer: none\nmax_quarantined: 50%\n"
    done = runs.run_mixture(
        runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", stages, tail), make_engine=runs.InProcess
    )
    return Inspector.open(done.mixture.output)


@pytest.mark.medium
def test_an_id_of_several_documents_names_them_and_one_of_none_says_so(output: Inspector) -> None:
    with pytest.raises(UserError, match=r"'twice': 2 documents have this id: web/web\.jsonl:\d+, web/web\.jsonl:\d+\."):
        output.find_document("twice")
    with pytest.raises(UserError, match="No document has it as its id"):
        output.find_document("nobody")
    dropped = output.find(DocumentQuery(outcome="dropped", count=9))
    assert sorted(document.own_id for document in dropped) == ["copy", "short", "twice", "twice"]


def test_reasons_of_one_kind_are_counted_together_and_there_are_not_too_many() -> None:
    counts = DocumentCounts()
    for number in range(50):
        counts.quarantine("read", f"Traceback …\nline {number:,} has 1.5 fields, 3_000 wanted.")
    assert counts.quarantine_reasons == {"read: line N has N fields, N wanted": 50}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        counts.quarantine("my:Stage", f"KeyError: {letter}")
    assert len(counts.quarantine_reasons) == MAX_QUARANTINE_REASONS + 1
    assert counts.quarantine_reasons["my:Stage: other errors"] == 26 - (MAX_QUARANTINE_REASONS - 1)
    assert DocumentCounts.from_json(counts.to_json()) == counts


@pytest.mark.medium
def test_the_error_about_too_many_in_quarantine_counts_them_by_reason_and_shows_the_most_frequent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picky_more.py").write_text('def doc(record):\n    return record["text"].words\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    corpora.write_jsonl(tmp_path / "web.jsonl", ROWS)
    with (tmp_path / "web.jsonl").open("r+") as stream:
        content = stream.read()
        stream.seek(0)
        stream.write("broken\n" + content)
    path = runs.write_mixture(
        tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", "stages: ['picky_more:doc']", "tokenizer: none"
    )
    with pytest.raises(DatapipeError) as error:
        runs.run_mixture(path, make_engine=runs.InProcess)
    text = str(error.value)
    assert f"{len(ROWS) + 1} of {len(ROWS) + 1} documents quarantined (100.00%)" in text
    assert "'str' object has no attribute 'words'" in text and f"({len(ROWS)}); read: " in text
    assert "The first, by picky_more:doc: web/web.jsonl:7: AttributeError" in text
