"""Outputs of runs that ended early, of object stores, and what is said of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from datapipe.browse.lookup import making
from datapipe.browse.output import BrowsedOutput
from tests.support import browsed, corpora
from tests.support.browsed import EMAIL, Browsed
from tests.support.finished import finish
from tests.support.object_store import object_store


@pytest.mark.medium
def test_what_is_missing_of_a_whole_run_is_said_without_the_message_of_its_error(copied: Browsed) -> None:
    copy = copied.folder / "out"
    report = json.loads((copy / "report.json").read_bytes())
    (copy / "report.json").write_text(json.dumps({**report, "status": "failed", "problem": f"cannot take {EMAIL}"}))
    notes = browsed.browse(copy).get("output")["notes"]
    assert len(notes) == 1
    assert notes[0].startswith("The last run failed; `datapipe report` says why.")
    (copy / "report.json").unlink()
    shutil.rmtree(copy / "snapshots")
    (copy / "snapshot.json").unlink()
    opened = browsed.browse(copy)
    told = opened.get("output")
    assert [note.split(",")[0] for note in told["notes"]] == [
        "No snapshot is published yet. Documents that some step has still to decide about are not shown.",
        "There is no report.json",
    ]
    assert (told["snapshot"], told["has_tokens"], told["documents"]) == (None, False, 67)
    assert told["cluster_stages"] == ["dedup.exact", "dedup.minhash"]
    kept = opened.listed(fate="kept", source="web")[0]
    assert opened.get("document", kept["key"])["parts"]
    short = opened.get("borderline", source="plain", stage="filter.length", rule="too_few_words")
    assert [row["value"] for row in short["dropped"]] == [4, 3, 2, 1]


@pytest.mark.medium
def test_an_output_on_an_object_store_is_browsed_through_the_cache_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "cache_home", lambda: tmp_path / "cache")
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"id": f"doc-{n}", "text": "word " * n} for n in range(1, 10)])
    with object_store("bucket") as query:
        path = tmp_path / "mixture.yaml"
        stages = "[filter.length: {min_words: 5}]"
        sources = f"sources:\n  web: {{path: '{tmp_path}/a.jsonl', stages: {stages}}}"
        path.write_text(f"name: test\noutput: 's3://bucket/out{query}'\n{sources}\ntokenizer: none\n")
        output = BrowsedOutput.open(finish(path).mixture.output)
        opened = Browsed(tmp_path, browsed.Api(output, making.look_up(output, lambda *told: None)))
        assert [row["id"] for row in opened.listed(fate="dropped")] == [f"doc-{n}" for n in range(1, 5)]
        [kept] = opened.get("lookup", q="doc-7")["documents"]
        assert "".join(part["text"] for part in opened.get("document", kept["key"])["parts"]) == "word " * 7
        assert [line for line in opened.get("search", q="word word", limit=9)["lines"] if "hit" in line]
        assert list((tmp_path / "cache/browse").glob("*/documents.lookup"))
