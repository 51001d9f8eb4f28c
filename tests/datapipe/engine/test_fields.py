"""Fields that the mixture names and the input lacks, and documents that are pages before their extraction: reported before
anything runs."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config import catalogue, load_mixture
from datapipe.engine import attempts
from datapipe.engine.prepare import prepare
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.explore.documents import Inspector
from datapipe.steps.costs import EXTRACTED
from datapipe.steps.estimate import estimate
from datapipe.steps.request import Request
from stages.read.text import Text
from tests.support import corpora, runs
from tests.support.page_reader import Pages

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: none\n"
_TRAINED = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}\n"
_BY_DOI = "dedup.exact: {by: field, field: doi}"
_URL = "filter.url: {domains: [b.org]}"
_TAGGED = "filter.length: {min_words: 2, mode: tag, as: len}"


def _rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"the text number {n}", "url": f"a.org/{n}", "meta": {"date": "2024-01-01"}, **more} for n in range(count)]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines, or a table of Parquet, by its ending."""
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        corpora.write_jsonl(path, rows)


def _mixture(folder: Path, source: str, *stages: str, tail: str = _TRAINED) -> Path:
    return runs.write_mixture(folder, f"  web: {{path: {folder}/in/*, {source}}}", f"stages: [{', '.join(stages)}]", tail)


def _run(folder: Path, source: str, *stages: str, tail: str = _TAIL, **options: Any) -> runs.Finished:
    return runs.run_mixture(_mixture(folder, source, *stages, tail=tail), make_engine=runs.InProcess, **options)


def _prepared(folder: Path, source: str, *stages: str) -> Request:
    return prepare(load_mixture(_mixture(folder, source, *stages)))


def _refused(folder: Path, source: str, *stages: str) -> str:
    with pytest.raises(UserError) as caught:
        _prepared(folder, source, *stages)
    assert not (folder / "out").exists()
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A source of three records with text, url and meta.date."""
    _write(tmp_path / "in/a.jsonl", _rows(3))
    return tmp_path


STRATA = "strata: {by: %s, bounds: [2]}"


@pytest.mark.parametrize(
    ("source", "stage", "facts"),
    [
        ("text: txt", "", [":5: sources.web.text", "Did you mean 'text'?", "text, url, meta, meta.date"]),
        ("keep: [ulr]", "dedup.exact: {by: field, field: ulr}", ["sources.web.keep", "'url'?", "dedup.exact (field)"]),
        ("keep: [ulr]", "dedup.exact: {keep: {highest: ulr}}", ["dedup.exact (keep: {highest: ulr})"]),
        ("keep: [ulr]", "dedup.minhash: {keep: [source_order, {latest: ulr}]}", ["(keep: {latest: ulr})"]),
        ("id: id", _URL, ["filter.url (field)", "no column 'url'"]),
        ("keep: [url]", "dedup.exact: {by: field, field: urll}", ["dedup.exact (field)", "no column 'urll'", "'url'?"]),
        (f"keep: [date], {STRATA % 'date'}", "", ["sources.web.keep", "'date'"]),
        (f"keep: [url], {STRATA % 'urls'}", "", [":5: sources.web.strata.by: documents have no column 'urls'", "'url'?"]),
        (f"keep: [url], {STRATA % 'url'}", "", ["sources.web.strata.by", "'a.org/0'"]),
        ("id: id", "{TAGGED}, dedup.exact: {keep: {highest: len.words}}", ["no column 'len.words'"]),
        (STRATA % "copies", "dedup.exact: {size_column: sizes}", ["no column 'copies'"]),
        ("check_fields: false", _BY_DOI, ["no column 'doi'"]),  # no record can help
    ],
)
def test_field_that_no_record_has_is_refused_with_its_place_and_the_nearest(folder: Path, source, stage, facts) -> None:
    message = _refused(folder, source, *([stage.replace("{TAGGED}", _TAGGED)] if stage else []))
    assert [fact for fact in facts if fact not in message] == []


@pytest.mark.parametrize(
    ("source", "stages", "warned"),
    [
        ("id: id", (_TAGGED, "dedup.exact: {keep: {highest: len.value}}"), []),
        ("id: id", (_TAGGED, "dedup.exact: {keep: {highest: len.too_few_words}}"), []),
        (STRATA % "copies", ("dedup.exact: {size_column: copies}",), []),
        ("keep: [ulr, url, meta.date]", (), ["Did you mean 'url'?"]),  # nothing decides by it
        (f"keep: [url], check_fields: false, {STRATA % 'url'}", (), ["no numbers"]),
    ],
)
def test_fields_that_are_there_or_that_nothing_decides_by_are_not_refused(folder: Path, source, stages, warned) -> None:
    warnings = list(map(str, _prepared(folder, source, *stages).warnings))
    assert [fact in warning for fact, warning in zip(warned, warnings, strict=True)] == [True] * len(warned)


@pytest.mark.parametrize("values", [[1, "n/a", None], ["0.5"], [None, None]])
def test_fields_of_strata_with_a_number_or_no_value_yet_are_left_to_the_run(tmp_path: Path, values: list[Any]) -> None:
    _write(tmp_path / "in/a.jsonl", [{"text": "a text", "score": value} for value in values])
    assert _prepared(tmp_path, f"keep: [score], {STRATA % 'score'}").warnings == ()


def test_fields_of_late_files_and_late_lines_or_of_nulls_are_found(tmp_path: Path) -> None:
    for number in range(40):
        _write(tmp_path / f"in/{number:02}.jsonl", _rows(20, **({"doi": "x"} if number >= 30 else {})))
    assert _prepared(tmp_path, "keep: [doi]", _BY_DOI).warnings == ()
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    _write(tmp_path / "in/a.jsonl", [*_rows(500), *_rows(1, doi=None, rare={"deep": 1})])
    assert _prepared(tmp_path, "keep: [doi, rare.deep]", _BY_DOI).warnings == ()
    without, with_field = corpora.jsonl(_rows(1)), corpora.jsonl(_rows(1, doi="x"))
    (tmp_path / "in/a.jsonl").write_bytes(without * 50_000 + with_field * 20_000)  # the first 5 MB lack the field
    assert _prepared(tmp_path, "keep: [doi]", _BY_DOI).warnings == ()


def test_fields_of_parquet_are_those_of_the_schema(tmp_path: Path) -> None:
    _write(tmp_path / "in/a.parquet", [{"text": "a b c", "a.b": 1, "meta": {"by": {"name": "x"}}, "doi": None}])
    assert _prepared(tmp_path, "keep: [a.b, meta.by.name, doi]", _BY_DOI).warnings == ()
    message = _refused(tmp_path, "keep: [meta.by.nam]", "dedup.exact: {by: field, field: meta.by.nam}")
    assert "Did you mean 'meta.by.name'?" in message
    assert "text, a.b, meta, meta.by, meta.by.name, doi" in message


def test_fields_are_not_searched_where_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    hostile = {
        "a.jsonl": b"no json\n\x00\xff\n" + b'{"text":' + b"[" * 100_000 + b"\n",
        "b.jsonl.gz": b"no gzip",
        "c.jsonl": b"",
        "e.jsonl": b"[]\n1\nnull\n",
    }
    for name, content in hostile.items():
        (tmp_path / "in" / name).write_bytes(content)
    assert _prepared(tmp_path, "keep: [url]", _URL).warnings == ()
    (tmp_path / "in/f.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": "a", "ulr": "b"}).encode()))
    assert "(1 of 5 files: f.jsonl.gz)" in _refused(tmp_path, "keep: [url]", _URL)


def test_fields_that_are_searched_and_listed_are_bounded(tmp_path: Path) -> None:
    for number in range(100):
        _write(tmp_path / f"in/{number:02}.jsonl", _rows(2))
    assert "(16 of 100 files: 00.jsonl, 06.jsonl, 12.jsonl, …)" in _refused(tmp_path, "text: x")
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    _write(tmp_path / "in/a.jsonl", [{f"field {number}": 1 for number in range(5000)}])
    message = _refused(tmp_path, "text: x")
    assert "field 29" in message and "field 30" not in message


@pytest.mark.parametrize(
    ("writes", "column", "is_refused"),
    [
        ("    writes = ('quality',)\n", "quality", False),
        ("    writes = ('quality',)\n", "qualities", True),
        ("", "qualities", False),  # it may write the column: the first batch will tell
    ],
)
def test_columns_of_earlier_stages_exist(folder: Path, monkeypatch: pytest.MonkeyPatch, writes, column, is_refused) -> None:
    module = f"own_{folder.name}".replace("-", "_")
    own = f"class Own(Map):\n{writes}    def process(self, batch): ...\n"
    (folder / f"{module}.py").write_text(f"from datapipe.stage import Map\n\n{own}")
    monkeypatch.syspath_prepend(folder)
    stages = (f"{module}:Own", f"dedup.exact: {{keep: {{highest: {column}}}}}")
    if is_refused:
        assert f"no column '{column}'" in _refused(folder, "id: id", *stages)
        assert f"no column '{column}'" in _refused(folder, "id: id", stages[1], stages[0])
    else:
        assert _prepared(folder, "id: id", *stages).warnings == ()


def test_run_where_a_field_that_decides_is_null_in_every_document_stops_unless_there_is_a_limit(tmp_path: Path) -> None:
    _write(tmp_path / "in/a.jsonl", _rows(60, doi=None))
    unused = _run(tmp_path, "keep: [ulr]", output=tmp_path / "unused").report
    [told] = [warning for warning in unused["warnings"] if "field" in warning]
    assert (told["kind"], told["source"], told["field"]) == ("null_field", "web", "ulr")
    with pytest.raises(UserError, match=r"'doi' is null in every document.* dedup.exact \(field\) decides by it"):
        _run(tmp_path, "keep: [doi, url]", _BY_DOI)
    limited = _run(tmp_path, "keep: [doi, url]", _BY_DOI, output=tmp_path / "few", limit=30)
    assert [warning.kind for warning in limited.warnings] == ["limited", "null_field"]
    with pytest.raises(DatapipeError, match=r"60 of 60 documents quarantined .*'txt'"):
        _run(tmp_path, "text: txt, check_fields: false")
    _write(tmp_path / "in/b.jsonl", _rows(1, doi="x"))
    assert _run(tmp_path, "keep: [doi, url]", _BY_DOI).warnings == []


@pytest.mark.parametrize("num_bad", [8, 1])
def test_run_whose_first_task_is_wholly_quarantined_stops_then_unless_it_is_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bad: int
) -> None:
    """Each file is a task; the first ones hold lists for texts."""
    for number in range(8):
        rows = _rows(200)
        _write(tmp_path / f"in/{number}.jsonl", [{**row, "text": [row["text"]]} for row in rows] if number < num_bad else rows)
    tail, watcher = f"{_TAIL}execution: {{split_bytes: 8KiB}}\n", runs.Watcher()
    if num_bad == 1:
        documents = _run(tmp_path, "keep: [url]", tail=f"{tail}max_quarantined: 20%\n").report["sources"]["web"]["documents"]
        assert (documents["read"], documents["quarantined"]) == (1600, 200)
        return
    monkeypatch.setattr(attempts, "LONGEST_WAIT_S", 0.0)  # each record is a commit of its own
    for _ in range(2):  # the record of the first task stays, so the next run runs none
        with pytest.raises(DatapipeError, match="first tasks read are quarantined"):
            _run(tmp_path, "keep: [url]", tail=tail, watcher=watcher)
        assert len(watcher.records) == 1


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_fields_with_dots_in_their_keys_are_found(tmp_path: Path, ending: str) -> None:
    rows = [{"text": "x", "doc.text": f"the text number {n}", "a.b": f"k{n}", "meta": {"c.d": 1}} for n in range(3)]
    _write(tmp_path / f"in/a.{ending}", rows)
    assert "text, doc.text, a.b, meta. " in _refused(tmp_path, "text: meta.c.d")  # not meta.c.d, which no name reaches
    done = _run(tmp_path, "text: doc.text, keep: [a.b]", "dedup.exact: {by: field, field: a.b}")
    assert done.report["total"]["documents"]["kept"] == 3


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_fields_that_only_later_records_have_are_refused_with_a_way_on(tmp_path: Path, ending: str) -> None:
    """16 places are probed; of 40 files, one between them has the field."""
    for number in range(40):
        _write(tmp_path / f"in/{number:02}.{ending}", _rows(3, **({"doi": str(number)} if number == 1 else {})))
    message = _refused(tmp_path, "keep: [doi]", _BY_DOI)
    assert "(16 of 40 files" in message
    assert "check_fields: false" in message
    unchecked = "keep: [doi], check_fields: false"
    (warning,) = map(str, _prepared(tmp_path, unchecked, _BY_DOI).warnings)
    assert "dedup.exact (field) decides by it." in warning
    assert _run(tmp_path, unchecked, _BY_DOI).report["total"]["documents"]["kept"] >= 3


OWN_PAGES = """
from typing import ClassVar

import numpy as np
import pyarrow as pa
from datapipe.stage import Filter, FilterResult, Rule
from datapipe.stage.segmentation.words import words


class Extract(Filter):
    extracts: ClassVar[bool] = True
    writes: ClassVar[tuple[str, ...]] = ("title",)
    counts: ClassVar[tuple[str, ...]] = ("tags",)

    def rules(self):
        return [Rule(name="empty_page", limit=1)]

    def process(self, batch):
        html_pages = batch.html.to_pylist()
        assert not any(b"raise" in page for page in html_pages)
        texts = pa.array([page.decode().removeprefix("<p>") for page in html_pages], pa.string())
        is_empty = np.array([not text for text in texts.to_pylist()], bool)
        columns = {"text": texts, "title": pa.array([page[:4].decode() for page in html_pages], pa.string())}
        columns["tags"] = pa.array([page.count(b"<") for page in html_pages], pa.int64())
        return FilterResult.first_failing(len(html_pages), [(is_empty * 1.0, is_empty)], columns)


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
        words(batch)
"""


@pytest.fixture
def html_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_pages.py").write_text(OWN_PAGES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue, "build_reader", lambda use, where="": Pages())
    (tmp_path / "in").mkdir()
    for number in range(8):
        (tmp_path / f"in/{number}.html").write_text(f"<p>the text of page {number} " * 9)
    (tmp_path / "in/empty.html").write_text("<p>")
    return tmp_path


def _of_pages(html_pages: Path, stages: str) -> Path:
    source = f"  web: {{path: '{html_pages}/in/*', format: text, keep: [mime]}}"
    return runs.write_mixture(html_pages, source, f"stages: [{stages}]", "tokenizer: none\nmax_quarantined: 100%\n")


def _run_pages(html_pages: Path, stages: str) -> runs.Finished:
    return runs.run_mixture(_of_pages(html_pages, stages), make_engine=runs.InProcess)


def test_pages_become_texts_and_leave_by_a_rule_of_the_extraction_or_alone_where_it_fails(html_pages: Path) -> None:
    (html_pages / "in/bad.html").write_bytes(b"<p>raise " + b"x" * 5000)
    done = _run_pages(
        html_pages, "{filter.field: {field: mime, keep: [text/html]}}, own_pages:Extract, {filter.length: {min_chars: 9}}"
    )
    report = done.report["sources"]["web"]
    documents, counts = report["documents"], report["counts"]
    assert (documents["read"], documents["kept"], documents["quarantined"]) == (10, 8, 1)
    assert documents["dropped"] == {"own_pages:Extract:empty_page": 1}
    assert (counts["read:requests"], counts["own_pages:Extract:tags"]) == (20, 8 * 9 + 1)
    [bad] = Inspector.open(done.mixture.output).find(outcome="quarantined", count=9)
    assert bad["path"] == "bad.html"
    [written] = (html_pages / "out/documents/web").glob("*.parquet")
    table = pq.read_table(written)
    assert "html" not in table.column_names
    columns = [set(table.column(name).to_pylist()) for name in ("title", "mime")]
    assert columns == [{"<p>t"}, {"text/html"}]
    assert sorted(text[:18] for text in table.column("text").to_pylist()) == [f"the text of page {n}" for n in range(8)]


def test_estimate_takes_texts_for_a_tenth_of_the_pages(html_pages: Path) -> None:
    (html_pages / "in/0.html").write_text("<p>" + "x" * (8 << 20))
    sizes = []
    for stages in ("own_pages:Extract", "own_pages:Extract, {filter.length: {min_chars: 1}}"):
        request, plan = planned(load_mixture(_of_pages(html_pages, stages)), None)
        sizes.append(estimate(request, plan, {}).bytes)
    assert sizes[0] == sizes[1] < 2 * EXTRACTED * (8 << 20)


@pytest.mark.parametrize(
    ("reader", "stages", "facts"),
    [
        (Pages, "", ["web", "0.html", "extract.html"]),
        (Pages, "{filter.url: {domains: [a.org]}}", ["web", "0.html", "extract.html"]),
        (Pages, "filter.length", ["filter.length reads the text", "0.html", "extract.html"]),
        (Pages, "filter.length, own_pages:Extract", ["filter.length reads the text", "Put own_pages:Extract before it"]),
        (Pages, "dedup.exact, own_pages:Extract", ["dedup.exact reads the text"]),
        (Pages, "own_pages:Extract, {own_pages:Extract: {as: again}}", ["again takes pages"]),
        (Pages, "{own_pages:Extract: {mode: tag}}", ["mode: tag"]),
        (Text, "own_pages:Extract", ["own_pages:Extract", "hold texts: 0.html"]),
    ],
)
def test_plan_refuses_stages_that_would_lack_a_text_or_a_page(html_pages: Path, monkeypatch, reader, stages, facts) -> None:
    monkeypatch.setattr(catalogue, "build_reader", lambda use, where="": reader())
    with pytest.raises(UserError) as caught:
        prepare(load_mixture(_of_pages(html_pages, stages)))
    assert [fact for fact in facts if fact not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("stages", "cause"), [("own_pages:Forgets", "no column 'text'"), ("own_pages:Reads, own_pages:Extract", "no text yet")]
)
def test_stages_that_break_the_contract_of_pages_are_reported(html_pages: Path, stages: str, cause: str) -> None:
    with pytest.raises(DatapipeError, match=cause):
        _run_pages(html_pages, stages)
