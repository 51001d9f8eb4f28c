"""Documents that are pages: what may stand before extraction, and what a run makes of them."""

from __future__ import annotations

from pathlib import Path

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


def _mixture(folder: Path, stages: str) -> Path:
    source = f"  web: {{path: '{folder}/in/*', format: text, keep: [mime]}}"
    return runs.write_mixture(folder, source, f"stages: [{stages}]", "tokenizer: none\nmax_quarantined: 100%\n")


def _run(folder: Path, stages: str) -> runs.Finished:
    return runs.run_mixture(_mixture(folder, stages), make_engine=runs.InProcess)


def test_pages_become_texts_and_leave_by_a_rule_of_the_extraction_or_alone_where_it_fails(folder: Path) -> None:
    (folder / "in/bad.html").write_bytes(b"<p>raise " + b"x" * 5000)
    done = _run(folder, "{filter.field: {field: mime, keep: [text/html]}}, own_pages:Extract, {filter.length: {min_chars: 9}}")
    report = done.report["sources"]["web"]
    documents = report["documents"]
    assert (documents["read"], documents["kept"], documents["quarantined"]) == (10, 8, 1)
    assert documents["dropped"] == {"own_pages:Extract:empty_page": 1}
    assert report["counts"]["read:requests"] == 20
    assert report["counts"]["own_pages:Extract:tags"] == 8 * 9 + 1
    inspector = Inspector.open(done.mixture.output)
    kept = inspector.find(DocumentQuery(outcome="kept", count=9))
    assert sorted((seen.text or "")[:18] for seen in kept) == [f"the text of page {number}" for number in range(8)]
    [bad] = inspector.find(DocumentQuery(outcome="quarantined", count=9))
    assert bad.path == "bad.html"


def test_pages_end_with_extraction_and_columns_that_it_adds_stay(folder: Path) -> None:
    _run(folder, "own_pages:Extract")
    [written] = (folder / "out/documents/web").glob("*.parquet")
    table = pq.read_table(written)
    assert "html" not in table.column_names
    assert set(table.column("title").to_pylist()) == {"<p>t"}
    assert set(table.column("mime").to_pylist()) == {"text/html"}


def test_estimate_takes_texts_for_a_tenth_of_the_pages(folder: Path) -> None:
    (folder / "in/0.html").write_text("<p>" + "x" * (8 << 20))
    sizes = []
    for stages in ("own_pages:Extract", "own_pages:Extract, {filter.length: {min_chars: 1}}"):
        request, plan = planned(load_mixture(_mixture(folder, stages)), None)
        sizes.append(estimate(request, plan, {}).bytes)
    assert sizes[0] == sizes[1] < 2 * EXTRACTED * (8 << 20)


@pytest.mark.parametrize(
    ("stages", "facts"),
    [
        ("", ["web", "0.html", "extract.html"]),
        ("{filter.url: {domains: [a.org]}}", ["web", "0.html", "extract.html"]),
        ("filter.length", ["filter.length reads the text", "0.html", "extract.html"]),
        ("filter.length, own_pages:Extract", ["filter.length reads the text", "Put own_pages:Extract before it"]),
        ("dedup.exact, own_pages:Extract", ["dedup.exact reads the text"]),
        ("own_pages:Extract, {own_pages:Extract: {as: again}}", ["again takes pages"]),
        ("{own_pages:Extract: {mode: tag}}", ["mode: tag"]),
    ],
)
def test_plan_refuses_stages_that_would_lack_a_text(folder: Path, stages: str, facts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        prepare(load_mixture(_mixture(folder, stages)))
    assert [fact for fact in facts if fact not in str(caught.value)] == []


@pytest.mark.parametrize(("options", "is_told"), [("{}", True), ("{phone_regions: [GB]}", False), ("{kinds: [email]}", False)])
def test_plan_tells_of_phones_in_pages_that_do_not_keep_their_url(folder: Path, options: str, is_told: bool) -> None:
    request = prepare(load_mixture(_mixture(folder, f"own_pages:Extract, {{redact.pii: {options}}}")))
    assert [warning.kind for warning in request.warnings] == ["without_url"] * is_told


def test_plan_refuses_extraction_where_there_are_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "build_reader", lambda use, where="": Text())
    with pytest.raises(UserError, match=r"own_pages:Extract .* hold texts: 0\.html"):
        prepare(load_mixture(_mixture(folder, "own_pages:Extract")))


@pytest.mark.parametrize(
    ("stages", "cause"), [("own_pages:Forgets", "no column 'text'"), ("own_pages:Reads, own_pages:Extract", "no text yet")]
)
def test_stages_that_break_the_contract_of_pages_are_told(folder: Path, stages: str, cause: str) -> None:
    with pytest.raises(DatapipeError, match=cause):
        _run(folder, stages)
