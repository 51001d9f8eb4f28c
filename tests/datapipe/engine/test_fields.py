"""Fields that the mixture names and the input lacks: told before anything runs, with the fields that there are."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.engine.prepare import Listing, prepare
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.plan.request import Request
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: none\n"
_TRAINED = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}\n"
_BY_DOI = "dedup.exact: {by: field, field: doi}"
_URL = "filter.url: {domains: [b.org]}"


def _rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"the text number {n}", "url": f"a.org/{n}", "meta": {"date": "2024-01-01"}, **more} for n in range(count)]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines, or a table of Parquet, as the ending says."""
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
    ("source", "stage", "place", "facts"),
    [
        ("text: txt", "", ":5: sources.web.text", ["'txt'", "Did you mean 'text'?", "text, url, meta, meta.date"]),
        ("keep: [ulr]", "dedup.exact: {by: field, field: ulr}", "sources.web.keep", ["'ulr'", "'url'?", "dedup.exact (field)"]),
        ("keep: [ulr]", "filter.url: {field: ulr, domains: [b.org]}", "sources.web.keep", ["'url'?", "filter.url (field)"]),
        ("keep: [ulr]", "dedup.exact: {keep: {highest: ulr}}", "sources.web.keep", ["dedup.exact (keep: {highest: ulr})"]),
        ("keep: [ulr]", "dedup.minhash: {keep: [source_order, {latest: ulr}]}", "sources.web.keep", ["(keep: {latest: ulr})"]),
        ("id: id", _URL, "filter.url (field)", ["no column 'url'", "`keep`"]),
        ("keep: [url]", "dedup.exact: {by: field, field: urll}", "dedup.exact (field)", ["no column 'urll'", "'url'?"]),
        (f"keep: [date], {STRATA % 'date'}", "", "sources.web.keep", ["'date'"]),
        (f"keep: [url], {STRATA % 'urls'}", "", "sources.web.strata.by", ["no column 'urls'", "'url'?"]),
        (f"keep: [url], {STRATA % 'url'}", "", "sources.web.strata.by", ["no numbers", "'a.org/0'"]),
    ],
)
def test_field_that_no_record_has_is_refused_with_its_place_and_the_nearest(
    folder: Path, source: str, stage: str, place: str, facts: list[str]
) -> None:
    message = _refused(folder, source, *([stage] if stage else []))
    assert place in message
    assert [fact for fact in facts if fact not in message] == []


@pytest.mark.parametrize("values", [[1, "n/a", None], ["0.5"], [None, None]])
def test_fields_of_strata_with_a_number_or_no_value_yet_are_left_to_the_run(tmp_path: Path, values: list[Any]) -> None:
    _write(tmp_path / "in/a.jsonl", [{"text": "a text", "score": value} for value in values])
    assert _prepared(tmp_path, f"keep: [score], {STRATA % 'score'}").warnings == ()


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        ("keep: [ulr, url, meta.date]", ["'ulr'", "Did you mean 'url'?"]),
        (f"keep: [url], check_fields: false, {STRATA % 'url'}", ["no numbers"]),
    ],
)
def test_fields_that_nothing_decides_by_or_that_are_not_checked_are_a_warning(
    folder: Path, source: str, facts: list[str]
) -> None:
    (warning,) = map(str, _prepared(folder, source).warnings)
    assert [fact for fact in facts if fact not in warning] == []


def test_fields_that_are_null_or_in_one_record_alone_are_there(tmp_path: Path) -> None:
    _write(tmp_path / "in/a.jsonl", [*_rows(500), *_rows(1, doi=None, rare={"deep": 1})])
    assert _prepared(tmp_path, "keep: [doi, rare.deep]", _BY_DOI).warnings == ()


def test_fields_of_late_files_and_late_lines_are_found(tmp_path: Path) -> None:
    for number in range(40):
        _write(tmp_path / f"in/{number:02}.jsonl", _rows(20, **({"doi": "x"} if number >= 30 else {})))
    assert _prepared(tmp_path, "keep: [doi]", _BY_DOI).warnings == ()
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    without, with_field = corpora.jsonl(_rows(1)), corpora.jsonl(_rows(1, doi="x"))
    (tmp_path / "in/a.jsonl").write_bytes(without * 50_000 + with_field * 20_000)  # the first 5 MB lack the field
    assert _prepared(tmp_path, "keep: [doi]", _BY_DOI).warnings == ()


def test_fields_of_parquet_are_those_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"text": ["a b c"], "a.b": [1], "meta": [{"date": "2024", "by": {"name": "x"}}], "doi": pa.nulls(1)})
    pq.write_table(table, tmp_path / "in/a.parquet")
    assert _prepared(tmp_path, "keep: [a.b, meta.by.name, doi]", _BY_DOI).warnings == ()
    message = _refused(tmp_path, "keep: [meta.by.nam]", "dedup.exact: {by: field, field: meta.by.nam}")
    assert "Did you mean 'meta.by.name'?" in message
    assert "text, a.b, meta, meta.date, meta.by, meta.by.name, doi" in message


def test_fields_are_not_looked_for_where_nothing_can_be_read(tmp_path: Path) -> None:
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


def test_fields_that_are_looked_for_and_listed_are_bounded(tmp_path: Path) -> None:
    for number in range(100):
        _write(tmp_path / f"in/{number:02}.jsonl", _rows(2))
    assert "none of the 32 records looked at has the field 'x' (16 of 100 files: 00.jsonl, 06.jsonl, 12.jsonl, …)" in (
        _refused(tmp_path, "text: x")
    )
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    _write(tmp_path / "in/a.jsonl", [{f"field {number}": 1 for number in range(5000)}])
    message = _refused(tmp_path, "text: x")
    assert "field 29, and " in message
    assert "field 30" not in message


_OWN = """
import pyarrow as pa

from datapipe.stage import Map


class Own(Map):
    WRITES

    def process(self, batch):
        return {"quality": pa.array([len(text) for text in batch.texts.to_pylist()])}
"""


@pytest.mark.parametrize(
    ("writes", "column", "is_refused"),
    [
        ('writes = ("quality",)', "quality", False),
        ('writes = ("quality",)', "qualities", True),
        ("", "qualities", False),  # it may write the column: the first batch will tell
    ],
)
def test_columns_of_earlier_stages_exist(folder: Path, monkeypatch: pytest.MonkeyPatch, writes, column, is_refused) -> None:
    module = f"own_{folder.name}".replace("-", "_")
    (folder / f"{module}.py").write_text(_OWN.replace("WRITES", writes))
    monkeypatch.syspath_prepend(folder)
    stages = (f"{module}:Own", f"dedup.exact: {{keep: {{highest: {column}}}}}")
    if is_refused:
        assert f"no column '{column}'" in _refused(folder, "id: id", *stages)
        assert f"no column '{column}'" in _refused(folder, "id: id", stages[1], stages[0])
    else:
        assert _prepared(folder, "id: id", *stages).warnings == ()


def test_columns_of_tags_and_clusters_exist(folder: Path) -> None:
    tagged = "filter.length: {min_words: 2, mode: tag, as: len}"
    for column in ("len.value", "len.too_few_words"):
        assert _prepared(folder, "id: id", tagged, f"dedup.exact: {{keep: {{highest: {column}}}}}").warnings == ()
    assert "no column 'len.words'" in _refused(folder, "id: id", tagged, "dedup.exact: {keep: {highest: len.words}}")
    assert _prepared(folder, STRATA % "copies", "dedup.exact: {size_column: copies}").warnings == ()
    assert "no column 'copies'" in _refused(folder, STRATA % "copies", "dedup.exact: {size_column: sizes}")


# ------------------------------------------------------------------------------------------------ while a run reads


def test_run_and_plan_tell_the_warnings(tmp_path: Path) -> None:
    _write(tmp_path / "in/a.jsonl", _rows(60))
    request, _ = planned(load_mixture(_mixture(tmp_path, "keep: [ulr]")))
    assert [(warning.kind, warning.details["field"]) for warning in request.warnings] == [("missing_field", "ulr")]
    warnings = _run(tmp_path, "keep: [ulr]").report["warnings"]
    [told] = [warning for warning in warnings if warning["kind"] in ("missing_field", "null_field")]
    assert (told["kind"], told["source"], told["field"]) == ("null_field", "web", "ulr")
    assert "Did you mean 'url'?" in told["text"]


def test_run_where_a_field_that_decides_is_null_in_every_document_stops_unless_there_is_a_limit(tmp_path: Path) -> None:
    _write(tmp_path / "in/a.jsonl", _rows(60, doi=None))
    with pytest.raises(UserError, match=r"'doi' is null in every document.* dedup.exact \(field\) decides by it"):
        _run(tmp_path, "keep: [doi, url]", _BY_DOI)
    limited = _run(tmp_path, "keep: [doi, url]", _BY_DOI, output=tmp_path / "few", limit=30)
    assert [warning.kind for warning in limited.warnings] == ["limited", "null_field"]
    _write(tmp_path / "in/b.jsonl", _rows(1, doi="x"))
    assert _run(tmp_path, "keep: [doi, url]", _BY_DOI).warnings == []


@pytest.mark.parametrize("num_bad", [8, 1])
def test_run_whose_first_task_is_wholly_quarantined_stops_then_unless_it_is_within_the_limit(
    tmp_path: Path, num_bad: int
) -> None:
    """Each file is a task; the first ones hold lists for texts."""
    for number in range(8):
        rows = _rows(200)
        bad = [{**row, "text": [row["text"]]} for row in rows]
        _write(tmp_path / f"in/{number}.jsonl", bad if number < num_bad else rows)
    tail = f"{_TAIL}execution: {{split_bytes: 8KiB}}\n"
    if num_bad == 1:
        documents = _run(tmp_path, "keep: [url]", tail=f"{tail}max_quarantined: 20%\n").report["sources"]["web"]["documents"]
        assert (documents["read"], documents["quarantined"]) == (1600, 200)
        return
    watcher = runs.Watcher()
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
    """16 places are looked at; of 40 files, one between them has the field."""
    for number in range(40):
        _write(tmp_path / f"in/{number:02}.{ending}", _rows(3, **({"doi": str(number)} if number == 1 else {})))
    message = _refused(tmp_path, "keep: [doi]", _BY_DOI)
    assert "(16 of 40 files" in message
    assert "check_fields: false" in message
    unchecked = "keep: [doi], check_fields: false"
    (warning,) = map(str, _prepared(tmp_path, unchecked, _BY_DOI).warnings)
    assert "dedup.exact (field) decides by it." in warning
    assert _run(tmp_path, unchecked, _BY_DOI).report["total"]["documents"]["kept"] >= 3


def test_fields_that_no_record_has_and_are_not_checked_fail_the_run_once_all_are_read(folder: Path) -> None:
    with pytest.raises(UserError, match="'doi' is null in every document"):
        _run(folder, "keep: [doi], check_fields: false", _BY_DOI)
    with pytest.raises(DatapipeError, match=r"3 of 3 documents quarantined .*'txt'"):
        _run(folder, "text: txt, check_fields: false")
    with pytest.raises(UserError, match="no column 'doi'"):  # no record can help
        _prepared(folder, "check_fields: false", _BY_DOI)


def test_listing_of_inputs_tells_after_a_second_and_then_less_and_less_often() -> None:
    now, told = [0.0], list[str]()
    listing = Listing(told.append, lambda: now[0])
    for _ in range(200):
        now[0] += 0.125  # exact in floats
        listing.add("web")
    assert [int(line.partition(": ")[2].partition(" ")[0]) for line in told] == [9, 19, 39, 79, 159]
