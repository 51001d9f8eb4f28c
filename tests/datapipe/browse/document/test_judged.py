"""Dropped documents as `inspect` shows them: what the deciding stage got, and what it detected."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.support import corpora, runs
from tests.support.command_line import datapipe
from tests.support.finished import finish
from tests.support.pages import article
from tests.support.web_archives import response

pytestmark = pytest.mark.medium

_GERMAN = "Der Zug fährt heute nicht, weil es in der Nacht zu viel geschneit hat und niemand die Gleise geräumt hat. " * 8
_ENGLISH = "The train does not run today, because it snowed too much in the night and nobody cleared the tracks. " * 8


def _shown(folder: Path, source: str, stages: str, *options: str) -> tuple[str, dict[str, dict]]:
    """What is printed of the documents of a run, and the same as JSON by reason."""
    mixture = runs.write_mixture(folder, f"  web:\n    path: {folder}/{source}\n", f"stages:\n{stages}", "tokenizer: none")
    finish(mixture)
    printed = datapipe(["inspect", str(folder / "out"), *options]).stdout
    told = json.loads(datapipe(["inspect", str(folder / "out"), *options, "--json"]).stdout)["documents"]
    return printed, {each["reason"]: each for each in told}


def test_page_is_shown_with_the_text_and_the_columns_that_the_filter_judged(tmp_path: Path) -> None:
    pages = [article(f"<p>{text}</p>") for text in (_ENGLISH, _GERMAN, "Too short.")]
    records = [response(page.encode(), number) for number, page in enumerate(pages)]
    (tmp_path / "a.warc.gz").write_bytes(b"".join(map(gzip.compress, records)))
    stages = "  - extract.html\n  - filter.length: {min_words: 20}\n  - filter.language: {keep: [en]}\n"
    printed, shown = _shown(tmp_path, "*.warc.gz\n    keep: [url]", stages, "--dropped", "all")
    german, short = shown["filter.language:language"], shown["filter.length:too_few_words"]
    assert "geschneit" in german["text"] and "Too short." in short["text"]
    assert "<" not in german["text"] + short["text"]
    assert german["columns"]["url"] == "http://e.org/1"
    assert german["columns"]["language"] == "de"
    assert "(as the stage got it)" in printed and "<article>" not in printed
    assert "language: de" in printed


def test_documents_are_shown_with_kept_fields_and_what_stages_wrote(tmp_path: Path) -> None:
    rows = [{"text": text, "place": place} for text, place in ((_ENGLISH, "north"), (_GERMAN, "south"))]
    corpora.write_jsonl(tmp_path / "a.jsonl", rows)
    stages = "  - filter.language: {keep: [en, de], write: true}\n  - filter.length: {max_words: 155}\n"
    printed, shown = _shown(tmp_path, "a.jsonl\n    keep: [place]", stages, "--dropped", "all")
    [dropped] = shown.values()
    assert (dropped["columns"]["place"], dropped["columns"]["language"]) == ("south", "de")
    assert "(as it was read)" in printed
    printed = datapipe(["inspect", str(tmp_path / "out"), "--kept"]).stdout
    assert "place: north, language: en" in printed


def test_document_whose_file_is_gone_is_shown_without_them(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "a.jsonl", [{"text": "a b"}, {"text": _ENGLISH}])
    _shown(tmp_path, "a.jsonl", "  - filter.length: {min_words: 5}\n", "--dropped", "all")
    (tmp_path / "a.jsonl").unlink()
    told = datapipe(["inspect", str(tmp_path / "out"), "--dropped", "all"])
    assert (told.returncode, "no text" in told.stdout) == (0, True)
