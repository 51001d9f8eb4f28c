"""Documents that are pages: what may stand before extraction, and what a run makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from datapipe import catalogue
from datapipe.config import load_mixture
from datapipe.engine.prepare import prepare
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.inspect.documents import DocumentQuery, Inspector
from datapipe.plan.estimate import EXTRACTED, estimate
from stages.read.text import Text
from tests.support import runs
from tests.support.page_reader import Pages

pytestmark = pytest.mark.medium

OWN = """
from typing import ClassVar

import numpy as np
import pyarrow as pa
from datapipe.stage import Filter, FilterResult, Rule


class Extract(Filter):
    extracts: ClassVar[bool] = True
    writes: ClassVar[tuple[str, ...]] = ("title",)
    counts: ClassVar[tuple[str, ...]] = ("tags",)

    def rules(self):
        return [Rule(name="empty_page", limit=1)]

    def process(self, batch):
        pages = batch.html.to_pylist()
        assert not any(b"raise" in page for page in pages)
        texts = pa.array([page.decode().removeprefix("<p>") for page in pages], pa.string())
        is_empty = np.array([not text for text in texts.to_pylist()], bool)
        columns = {"text": texts, "title": pa.array([page[:4].decode() for page in pages], pa.string())}
        columns["tags"] = pa.array([page.count(b"<") for page in pages], pa.int64())
        return FilterResult.first_failing(len(pages), [(is_empty * 1.0, is_empty)], columns)


class Forgets(Extract):
    def process(self, batch):
        result = super().process(batch)
        del result.columns["text"]
        return result


class Reads(Filter):
    before_text: ClassVar[bool] = True

    def rules(self):
        return []

    def process(self, batch):
        batch.words
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_pages.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue, "build_reader", lambda use, where="": Pages())
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / f"in/{number}.html").write_text(f"<p>the text of page {number} " * 9)
    (tmp_path / "in/empty.html").write_text("<p>")
    return tmp_path


_TAIL = runs.TAIL.replace("validation: 5%", "max_quarantined: 100%")


def _mixture(folder: Path, stages: str, tail: str = _TAIL) -> Path:
    source = f"  web: {{path: '{folder}/in/*', format: text, keep: [mime]}}"
    return runs.write_mixture(folder, source, f"stages: [{stages}]", tail)


def _run(folder: Path, stages: str) -> Any:
    return runs.run_mixture(_mixture(folder, stages), output=folder / "out", make_engine=runs.InProcess)


def test_pages_become_texts_and_leave_by_a_rule_of_the_extraction(folder: Path) -> None:
    done = _run(folder, "{filter.field: {field: mime, keep: [text/html]}}, own_pages:Extract, {filter.length: {min_chars: 9}}")
    report = done.report["sources"]["web"]
    assert (report["documents"]["read"], report["documents"]["kept"]) == (9, 8)
    assert report["documents"]["dropped"] == {"own_pages:Extract:empty_page": 1}
    assert report["counts"]["read:requests"] == 18
    assert report["counts"]["own_pages:Extract:tags"] == 8 * 9 + 1
    kept = Inspector.open(done.mixture.output).find(DocumentQuery(outcome="kept", count=9))
    assert sorted((seen.text or "")[:18] for seen in kept) == [f"the text of page {number}" for number in range(8)]


def test_pages_end_with_extraction_and_columns_that_it_adds_stay(folder: Path) -> None:
    path = _mixture(folder, "own_pages:Extract", "tokenizer: none\n")
    runs.run_mixture(path, output=folder / "out", make_engine=runs.InProcess)
    [written] = (folder / "out/documents/web").glob("*.parquet")
    table = pq.read_table(written)
    assert "html" not in table.column_names
    assert set(table.column("title").to_pylist()) == {"<p>t"}
    assert set(table.column("mime").to_pylist()) == {"text/html"}


def test_page_that_fails_its_extraction_is_quarantined_alone_with_its_beginning(folder: Path) -> None:
    (folder / "in/bad.html").write_bytes(b"<p>raise " + b"x" * 5000)
    done = _run(folder, "own_pages:Extract")
    counts = done.report["sources"]["web"]["documents"]
    assert (counts["read"], counts["kept"], counts["quarantined"]) == (10, 8, 1)
    [bad] = Inspector.open(done.mixture.output).find(DocumentQuery(outcome="quarantined", count=9))
    assert bad.path == "bad.html"


def test_estimate_takes_texts_for_a_tenth_of_the_pages(folder: Path) -> None:
    (folder / "in/0.html").write_text("<p>" + "x" * (8 << 20))
    sizes = []
    for stages in ("own_pages:Extract", "own_pages:Extract, {filter.length: {min_chars: 1}}"):
        request, plan = planned(load_mixture(_mixture(folder, stages, "tokenizer: none\n"), (), str(folder / "out")), None)
        sizes.append(estimate(request, plan, {}).bytes)
    assert sizes[0] == sizes[1] < 2 * EXTRACTED * (8 << 20)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("", "web: the documents of 0.html are pages. Add the stage extract.html."),
        ("{filter.url: {domains: [a.org]}}", "web: the documents of 0.html are pages. Add the stage extract.html."),
        ("filter.length", "filter.length reads the text, and documents of 0.html are pages there. Put extract.html before it."),
        ("filter.length, own_pages:Extract", "are pages there. Put own_pages:Extract before it."),
        ("dedup.exact, own_pages:Extract", "dedup.exact reads the text, and documents of 0.html are pages there."),
        (
            "own_pages:Extract, {own_pages:Extract: {as: again}}",
            "again takes pages, and own_pages:Extract has made texts of them. Leave one out.",
        ),
        ("{own_pages:Extract: {mode: tag}}", "mode: tag keeps documents unchanged, and this stage makes their text."),
    ],
)
def test_plan_refuses_stages_that_would_lack_a_text(folder: Path, stages: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare(load_mixture(_mixture(folder, stages)))
    assert message in str(caught.value)


@pytest.mark.parametrize(("options", "is_told"), [("{}", True), ("{phone_regions: [GB]}", False), ("{kinds: [email]}", False)])
def test_plan_tells_of_phones_in_pages_that_do_not_keep_their_url(folder: Path, options: str, is_told: bool) -> None:
    request = prepare(load_mixture(_mixture(folder, f"own_pages:Extract, {{redact.pii: {options}}}")))
    texts = [warning.text for warning in request.warnings if warning.kind == "without_url"]
    assert len(texts) == is_told
    assert all("redact.pii takes the country of phone numbers" in text and "Add `keep: [url]`" in text for text in texts)


def test_plan_refuses_extraction_where_there_are_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "build_reader", lambda use, where="": Text())
    with pytest.raises(UserError, match=r"own_pages:Extract makes texts of pages, and .* hold texts: 0\.html"):
        prepare(load_mixture(_mixture(folder, "own_pages:Extract")))


def test_stages_that_break_the_contract_of_pages_are_told(folder: Path) -> None:
    with pytest.raises(DatapipeError, match="returned no column 'text'"):
        _run(folder, "own_pages:Forgets")
    with pytest.raises(DatapipeError, match="documents are pages here and have no text yet"):
        _run(folder, "own_pages:Reads, own_pages:Extract")
