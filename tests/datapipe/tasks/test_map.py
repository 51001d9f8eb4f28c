"""What a map task does around its stages: filters that edit, filters that tag, and the limit."""

from __future__ import annotations

import json

import pytest

from datapipe.errors import DatapipeError
from datapipe.inspect.documents import DocumentQuery, Inspector
from tests.support import runs

WORDS = "Those who have been there say that it is to be seen with their own eyes, and the people of the town came to see it.\n"
TEXTS = [f"{WORDS * 3}Please write to jane{n}.doe@mail.org today or never.\nno end mark here\n" for n in range(12)]


@pytest.fixture
def source(tmp_path):
    lines = [json.dumps({"text": f"{n} {text}", "url": "https://a.org" if n else None}) for n, text in enumerate(TEXTS)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return f"  web:\n    path: {tmp_path}/a.jsonl\n    keep: [url]\n"


def _run(folder, source, stages, name, **options):
    tail = runs.TAIL.replace("validation: 5%", "max_quarantined: 100%")
    path = runs.write_mixture(folder, source, f"stages:\n{stages}", tail, name=f"{name}.yaml")
    return runs.run_mixture(path, output=folder / name, make_engine=runs.InProcess, **options)


def test_filters_that_edit_or_tag_count_apart_and_change_what_is_kept(tmp_path, source):
    stages = "  - filter.c4_quality: {min_sentences: 1}\n  - redact.pii: {as: tagging, mode: tag, max_hits: 0}\n"
    done = _run(tmp_path, source, f"{stages}  - filter.url: {{domains: [b.org]}}\n", "tagged")
    edited = _run(tmp_path, source, "  - redact.pii\n", "edited")
    report = done.report["sources"]["web"]
    assert report["documents"]["kept"] == 12
    assert {name: count for name, count in report["counts"].items() if count} == {
        "filter.c4_quality:lines_without_end_mark": 12,
        "tagging (tag):email": 12,
        "filter.url:without_url": 1,
    }
    counts = edited.report["sources"]["web"]["counts"]
    assert {name: count for name, count in counts.items() if count} == {"redact.pii:email": 12}
    for run, has_mail, has_line in ((done, True, False), (edited, False, True)):
        seen = Inspector.open(run.mixture.output).find(DocumentQuery(outcome="kept", count=12))
        assert {("@mail.org" in (one.text or ""), "no end mark" in (one.text or "")) for one in seen} == {(has_mail, has_line)}


def test_limit_counts_what_cannot_be_read(tmp_path, source):
    stages = "  - filter.length: {min_chars: 1}\n"
    lines = [json.dumps({"text": [text]}) for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DatapipeError, match=r"no document is left.*3 are in quarantine"):
        _run(tmp_path, source, stages, "limited", limit=3)
    assert len(Inspector.open(str(tmp_path / "limited")).find(DocumentQuery(outcome="quarantined", count=100))) == 3


OWN = """
from datapipe.stage import Map


class Counts(Map):
    def process(self, batch):
        return {"counted": batch.words_by("english").lengths[: batch.num_docs] * 0}
"""


def test_stage_that_uses_a_segmentation_that_nothing_declares_fails_the_run(tmp_path, source, monkeypatch):
    (tmp_path / "own_counts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DatapipeError, match="own_counts:Counts uses `english_words` of a batch, but its fing"):
        _run(tmp_path, source, "  - own_counts:Counts\n", "own")
