"""Runs over archives: columns that later stages use, pages that crash their parser, and the same shards on any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datapipe.inspect.documents import DocumentQuery, Inspector
from tests.support import runs
from tests.support.pages import PARAGRAPHS, article
from tests.support.web_archives import packed, response

pytestmark = [pytest.mark.needs("fastwarc", "resiliparse", "trafilatura"), pytest.mark.medium]

OWN = "tests.stages.extract.own_extractors"
PAGES = {
    "plain": article("<p>A plain page.</p>" + PARAGRAPHS, "<title>Plain</title>"),
    "legacy": article("<p>Größe und Übermut</p>" + PARAGRAPHS, "<title>Über</title>"),
    "noai": article("<p>Not for machines.</p>" + PARAGRAPHS, "<meta name=robots content=noai>"),
    "deep": "<div>" * 1_500 + PARAGRAPHS,
    "empty": " \n",
    "script": "<script>x</script>",
}
"""Pages at the addresses http://e.org/0, …; `legacy` is sent as ISO-8859-1."""


def _mixture(folder: Path, stages: str, pages: dict[str, str]) -> Path:
    charsets = {"legacy": "iso-8859-1"}
    records = [
        response(
            page.encode(charsets.get(name, "utf-8")), number, content_type=f"text/html; charset={charsets.get(name, 'utf-8')}"
        )
        for number, (name, page) in enumerate(pages.items())
    ]
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in/pages.warc.gz").write_bytes(packed(records))
    source = f"  web: {{path: '{folder}/in/*.warc.gz', keep: [url, charset]}}"
    return runs.write_mixture(folder, source, f"stages: [{stages}]", "tokenizer: none\nmax_quarantined: 100%\n")


def _documents(output: Path) -> list[dict[str, Any]]:
    files = sorted((output / "documents/web").glob("*.parquet"))
    return sorted((row for file in files for row in pq.read_table(file).to_pylist()), key=lambda row: row["url"])


def test_run_drops_pages_by_rules_and_later_stages_use_the_columns(tmp_path: Path) -> None:
    stages = "extract.html, {filter.field: {field: robots, drop_matching: noai}}"
    done = runs.run_mixture(_mixture(tmp_path, stages, PAGES), output=tmp_path / "out", make_engine=runs.InProcess)
    assert done.report["sources"]["web"]["documents"]["dropped"] == {
        "extract.html:empty_page": 1,
        "extract.html:no_main_text": 1,
        "extract.html:too_deep": 1,
        "filter.field:matching": 1,
    }
    plain, legacy = _documents(tmp_path / "out")
    assert "Größe und Übermut" in legacy["text"]
    assert (legacy["title"], plain["title"]) == ("Über", "Plain")
    assert "html" not in plain
    assert done.report["sources"]["web"]["counts"]["extract.html:by_resiliparse"] == 3


@pytest.mark.slow
def test_run_isolates_the_page_that_kills_its_parser(tmp_path: Path) -> None:
    pages = {**PAGES, "crash": article("<p>please kill the parser</p>" + PARAGRAPHS)}
    mixture = _mixture(tmp_path, f"{{extract.html: {{engine: '{OWN}:Crashes'}}}}", pages)
    done = runs.run_mixture(mixture, output=tmp_path / "out", overrides=["execution.on_crash=quarantine"])
    [lost] = Inspector.open(str(tmp_path / "out")).find(DocumentQuery(outcome="quarantined", count=9))
    assert "SIGKILL" in lost.error
    assert [row["url"].rpartition("/")[2] for row in _documents(tmp_path / "out")] == ["0", "1", "2", "5"]
    assert done.report["sources"]["web"]["documents"]["quarantined"] == 1
