"""Fields that the mixture names and the input lacks: told before anything runs, with the fields that there are."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config import load_mixture
from datapipe.engine import fields
from datapipe.engine.prepare import Listing, prepare
from datapipe.engine.run import planned
from datapipe.errors import DatapipeError, UserError
from datapipe.plan.request import Request
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = "tokenizer: {train: {vocab_size: 300, sample_bytes: 1MiB}}\npack: {sequence_length: 64}\n"
_DEDUP = "dedup.exact: {by: field, field: FIELD}"


def _rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"text": f"the text number {n}", "url": f"a.org/{n}", "meta": {"date": "2024-01-01"}, **more} for n in range(count)]


def _mixture(folder: Path, source: str, stages: Sequence[str] = (), tail: str = _TAIL) -> Path:
    return runs.write_mixture(folder, f"  web: {{path: {folder}/in/*, {source}}}", f"stages: [{', '.join(stages)}]", tail)


def _prepared(folder: Path, source: str, *stages: str) -> Request:
    return prepare(load_mixture(_mixture(folder, source, stages)))


def _refused(folder: Path, source: str, *stages: str) -> str:
    with pytest.raises(UserError) as caught:
        _prepared(folder, source, *stages)
    assert not (folder / "out").exists()
    return str(caught.value)


def test_fields_text_that_no_record_has_is_refused_with_the_fields_that_exist(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    message = _refused(tmp_path, "text: txt")
    assert message == (
        f"{tmp_path}/mixture.yaml:5: sources.web.text: none of the 3 records looked at has the field 'txt' (1 of 1 file: "
        "a.jsonl). Did you mean 'text'? They have the fields text, url, meta, meta.date. "
        "Write the name of the field with the text. If records further on have it, set check_fields: false for the source."
    )


@pytest.mark.parametrize(
    ("stage", "asked_by"),
    [
        (_DEDUP.replace("FIELD", "ulr"), "dedup.exact (field)"),
        ("filter.url: {field: ulr, domains: [b.org]}", "filter.url (field)"),
        ("dedup.exact: {keep: {highest: ulr}}", "dedup.exact (keep: {highest: ulr})"),
        ("dedup.minhash: {keep: [source_order, {latest: ulr}]}", "dedup.minhash (keep: {latest: ulr})"),
    ],
)
def test_fields_kept_that_no_record_has_and_a_stage_decides_by_are_refused(tmp_path: Path, stage: str, asked_by: str) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    message = _refused(tmp_path, "keep: [ulr]", stage)
    assert "sources.web.keep: none of the 3 records looked at has the field 'ulr'" in message
    assert f"Did you mean 'url'? They have the fields text, url, meta, meta.date. {asked_by} decides by it." in message


def test_fields_of_strata_are_looked_for(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3, score=1))
    strata = "strata: {by: scores, bounds: [2]}"
    assert "Did you mean 'score'?" in _refused(tmp_path, f"keep: [scores], {strata}")
    not_kept = _refused(tmp_path, f"keep: [score], {strata}")
    assert "sources.web.strata.by: documents have no column 'scores'. Did you mean 'score'?" in not_kept
    assert _prepared(tmp_path, "keep: [score], strata: {by: score, bounds: [2]}").warnings == ()


def test_fields_of_strata_that_hold_no_number_are_refused(tmp_path: Path) -> None:
    strata = "strata: {by: url, bounds: [2]}"
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    assert "sources.web.strata.by: the field 'url' holds no numbers in the 3 records looked at, but 'a.org/0'." in _refused(
        tmp_path, f"keep: [url], {strata}"
    )
    (warning,) = map(str, _prepared(tmp_path, f"keep: [url], check_fields: false, {strata}").warnings)
    assert "holds no numbers" in warning


@pytest.mark.parametrize("values", [[1, "n/a", None], ["0.5"], [None, None]])
def test_fields_of_strata_with_a_number_or_no_value_yet_are_left_to_the_run(tmp_path: Path, values: list[Any]) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", [{"text": "a text", "score": value} for value in values])
    assert _prepared(tmp_path, "keep: [score], strata: {by: score, bounds: [2]}").warnings == ()


def test_fields_that_a_stage_decides_by_and_nothing_keeps_are_refused(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    url = "filter.url: {domains: [b.org]}"
    assert "filter.url (field): documents have no column 'url'. The input has the field: name it under `keep`." in (
        _refused(tmp_path, "id: id", url)
    )
    missing = _refused(tmp_path, "keep: [url]", _DEDUP.replace("FIELD", "urll"))
    assert (
        "dedup.exact (field): documents have no column 'urll'. Did you mean 'url'? The input has the fields url, text"
        in missing
    )


def test_fields_kept_that_nothing_decides_by_are_a_warning(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    (warning,) = map(str, _prepared(tmp_path, "keep: [ulr, url, meta.date]").warnings)
    assert "sources.web.keep: none of the 3 records looked at has the field 'ulr'" in warning
    assert "Did you mean 'url'?" in warning


def test_fields_that_are_null_or_in_one_record_alone_are_there(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", [*_rows(500), *_rows(1, doi=None, rare={"deep": 1})])
    assert _prepared(tmp_path, "keep: [doi, rare.deep]", _DEDUP.replace("FIELD", "doi")).warnings == ()


@pytest.mark.medium
def test_fields_of_late_files_and_late_lines_are_found(tmp_path: Path) -> None:
    for number in range(40):
        corpora.write_jsonl(tmp_path / f"in/{number:02}.jsonl", _rows(20, **({"doi": "x"} if number >= 30 else {})))
    assert _prepared(tmp_path, "keep: [doi]", _DEDUP.replace("FIELD", "doi")).warnings == ()
    for file in (tmp_path / "in").iterdir():
        file.unlink()
    rows = [*_rows(50_000), *_rows(20_000, doi="x")]  # the first 5 MB lack the field
    corpora.write_jsonl(tmp_path / "in/a.jsonl", rows)
    assert _prepared(tmp_path, "keep: [doi]", _DEDUP.replace("FIELD", "doi")).warnings == ()


def test_fields_of_parquet_are_those_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    table = pa.table({"text": ["a b c"], "a.b": [1], "meta": [{"date": "2024", "by": {"name": "x"}}], "url": pa.nulls(1)})
    pq.write_table(table, tmp_path / "in/a.parquet")
    request = _prepared(tmp_path, "keep: [a.b, meta.by.name, url]", _DEDUP.replace("FIELD", "url"))
    assert request.warnings == ()
    message = _refused(tmp_path, "keep: [meta.by.nam]", _DEDUP.replace("FIELD", "meta.by.nam"))
    assert (
        "Did you mean 'meta.by.name'? They have the fields text, a.b, meta, meta.date, meta.by, meta.by.name, url." in message
    )


def test_fields_of_text_files_are_none_but_the_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("one text")
    assert "They have no fields beside the text." in _refused(tmp_path, "keep: [url]", "filter.url: {domains: [b.org]}")


def test_fields_are_not_looked_for_where_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    hostile = {
        "a.jsonl": b"no json\n\x00\xff\n" + b'{"text":' + b"[" * 100_000 + b"\n",
        "b.jsonl.gz": b"no gzip",
        "c.jsonl": b"",
        "d.parquet": b"PAR1 no footer PAR1",
        "e.jsonl": b"[]\n1\nnull\n",
    }
    for name, content in hostile.items():
        (tmp_path / "in" / name).write_bytes(content)
    (tmp_path / "in/d.parquet").unlink()
    assert _prepared(tmp_path, "keep: [url]", "filter.url: {domains: [b.org]}").warnings == ()
    (tmp_path / "in/f.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": "a", "ulr": "b"}).encode()))
    assert "(1 of 5 files: f.jsonl.gz)" in _refused(tmp_path, "keep: [url]", "filter.url: {domains: [b.org]}")


def test_fields_of_many_names_are_not_all_listed(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", [{f"field {number}": 1 for number in range(5000)}])
    message = _refused(tmp_path, "text: x")
    assert "field 29, and " in message
    assert "field 30" not in message


def test_fields_look_is_bounded(tmp_path: Path) -> None:
    assert fields.MOST_SPLITS == 16
    for number in range(100):
        corpora.write_jsonl(tmp_path / f"in/{number:02}.jsonl", _rows(2))
    assert "none of the 32 records looked at has the field 'x' (16 of 100 files: 00.jsonl, 06.jsonl, 12.jsonl, …)" in (
        _refused(tmp_path, "text: x")
    )


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
def test_columns_of_earlier_stages_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes, column, is_refused) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    module = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(_OWN.replace("WRITES", writes))
    monkeypatch.syspath_prepend(tmp_path)
    stages = (f"{module}:Own", f"dedup.exact: {{keep: {{highest: {column}}}}}")
    if is_refused:
        assert f"documents have no column '{column}'" in _refused(tmp_path, "id: id", *stages)
        assert f"documents have no column '{column}'" in _refused(tmp_path, "id: id", stages[1], stages[0])
    else:
        assert _prepared(tmp_path, "id: id", *stages).warnings == ()


def test_columns_of_tags_and_clusters_exist(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    tagged = "filter.length: {min_words: 2, mode: tag, as: len}"
    for column in ("len.value", "len.too_few_words"):
        assert _prepared(tmp_path, "id: id", tagged, f"dedup.exact: {{keep: {{highest: {column}}}}}").warnings == ()
    assert "no column 'len.words'" in _refused(tmp_path, "id: id", tagged, "dedup.exact: {keep: {highest: len.words}}")
    strata = "strata: {by: copies, bounds: [2]}"
    assert _prepared(tmp_path, strata, "dedup.exact: {size_column: copies}").warnings == ()
    assert "no column 'copies'" in _refused(tmp_path, strata, "dedup.exact: {size_column: sizes}")


# ------------------------------------------------------------------------------------------------ while a run reads


def test_run_and_plan_tell_the_warnings(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(60))
    mixture = _mixture(tmp_path, "keep: [ulr]")
    request, _ = planned(load_mixture(mixture))
    assert [(warning.kind, warning.details["field"]) for warning in request.warnings] == [("missing_field", "ulr")]
    done = runs.run_mixture(mixture, make_engine=runs.InProcess)
    [told] = [warning for warning in done.report["warnings"] if warning["kind"] in ("missing_field", "null_field")]
    assert (told["kind"], told["source"], told["field"]) == ("null_field", "web", "ulr")
    assert "the field 'ulr' is null in every document of the source. Did you mean 'url'? The first records have" in told["text"]


def test_run_where_a_field_that_decides_is_null_in_every_document_stops(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(60, doi=None))
    mixture = _mixture(tmp_path, "keep: [doi, url]", [_DEDUP.replace("FIELD", "doi")])
    with pytest.raises(UserError, match=r"the field 'doi' is null in every document.* dedup.exact \(field\) decides by it"):
        runs.run_mixture(mixture, make_engine=runs.InProcess)
    limited = runs.run_mixture(mixture, output=tmp_path / "few", limit=30, make_engine=runs.InProcess)
    assert [line for line in limited.told if "null in every document" in line] != []


def test_run_where_one_document_has_the_field_goes_on(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(60, doi=None))
    corpora.write_jsonl(tmp_path / "in/b.jsonl", _rows(1, doi="x"))
    mixture = _mixture(tmp_path, "keep: [doi]", [_DEDUP.replace("FIELD", "doi")])
    told = runs.run_mixture(mixture, make_engine=runs.InProcess).told
    assert not [line for line in told if "null in every document" in line]


def _of_many_tasks(folder: Path, num_bad: int) -> Path:
    """Files of which the first ones hold lists for texts, each file a task."""
    for number in range(8):
        rows = _rows(200)
        bad = [{**row, "text": [row["text"]]} for row in rows]
        corpora.write_jsonl(folder / f"in/{number}.jsonl", bad if number < num_bad else rows)
    return _mixture(folder, "keep: [url]", tail=f"{_TAIL}execution: {{split_bytes: 8KiB}}\n")


@pytest.mark.medium
def test_run_whose_first_task_is_wholly_quarantined_stops_then(tmp_path: Path) -> None:
    watcher = runs.Watcher()
    mixture = _of_many_tasks(tmp_path, num_bad=8)
    for _ in range(2):  # the record of the first task stays, so the next run runs none
        with pytest.raises(
            DatapipeError, match=r"all [\d,]+ records that its first tasks read are quarantined.*'text' is of ty"
        ):
            runs.run_mixture(mixture, make_engine=runs.InProcess, watcher=watcher)
        assert len(watcher.records) == 1


@pytest.mark.slow
def test_run_whose_first_task_is_wholly_quarantined_within_the_limit_goes_on(tmp_path: Path) -> None:
    mixture = _of_many_tasks(tmp_path, num_bad=1)
    finished = runs.run_mixture(mixture, overrides=["max_quarantined=20%"], make_engine=runs.InProcess)
    documents = finished.report["sources"]["web"]["documents"]
    assert (documents["read"], documents["quarantined"]) == (1600, 200)


def test_parquet_without_a_footer_is_told_by_the_plan_as_an_unreadable_file(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    (tmp_path / "in/b.parquet").write_bytes(b"PAR1 no footer PAR1")
    message = _refused(tmp_path, "id: id")
    assert message.startswith(
        f"{tmp_path}/mixture.yaml:5: sources.web.path: source 'web': 1 input file cannot be read whole: "
        "b.parquet from 0 on: the Parquet file is damaged: "
    )
    assert "max_unreadable_files allows 0. Replace the files, `exclude` them" in message
    assert ".." not in message
    allowed = load_mixture(_mixture(tmp_path, "id: id", tail=f"{_TAIL}max_unreadable_files: 1\n"))
    assert ["b.parquet from 0 on" in line for line in map(str, prepare(allowed).warnings)] == [True]
    done = runs.run_mixture(_mixture(tmp_path, "id: id", tail=f"{_TAIL}max_unreadable_files: 1\nmax_quarantined: 50%\n"))
    (told,) = done.report["unreadable_files"]
    assert "b.parquet from 0 on" in told["text"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_with_dots_in_their_keys_are_found(tmp_path: Path, kind: str) -> None:
    rows = [{"text": "x", "doc.text": f"the text number {n}", "a.b": f"k{n}", "meta": {"c.d": 1}} for n in range(3)]
    if kind == "jsonl":
        corpora.write_jsonl(tmp_path / "in/a.jsonl", rows)
    else:
        (tmp_path / "in").mkdir()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in/a.parquet")
    source = "text: doc.text, keep: [a.b]"
    assert _prepared(tmp_path, source, _DEDUP.replace("FIELD", "a.b")).warnings == ()
    message = _refused(tmp_path, "text: meta.c.d")
    assert "They have the fields text, doc.text, a.b, meta. " in message  # not meta.c.d, which no name reaches
    done = runs.run_mixture(_mixture(tmp_path, source, [_DEDUP.replace("FIELD", "a.b")]))
    assert done.report["total"]["documents"]["kept"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_fields_that_only_later_records_have_are_refused_with_a_way_on(tmp_path: Path, kind: str) -> None:
    """16 places are looked at; of 40 files, one between them has the field."""
    (tmp_path / "in").mkdir()
    for number in range(40):
        rows = _rows(3, **({"doi": str(number)} if number == 1 else {}))
        if kind == "jsonl":
            corpora.write_jsonl(tmp_path / f"in/{number:02}.jsonl", rows)
        else:
            pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"in/{number:02}.parquet")
    stage = _DEDUP.replace("FIELD", "doi")
    message = _refused(tmp_path, "keep: [doi]", stage)
    assert "has the field 'doi' (16 of 40 files" in message
    assert message.endswith("If records further on have it, set check_fields: false for the source.")
    (warning,) = map(str, _prepared(tmp_path, "keep: [doi], check_fields: false", stage).warnings)
    assert "has the field 'doi'" in warning
    assert "dedup.exact (field) decides by it." in warning
    done = runs.run_mixture(_mixture(tmp_path, "keep: [doi], check_fields: false", [stage]))
    assert done.report["total"]["documents"]["kept"] >= 3


@pytest.mark.slow
def test_fields_that_no_record_has_fail_the_run_once_all_are_read(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    stage = _DEDUP.replace("FIELD", "doi")
    with pytest.raises(UserError, match="the field 'doi' is null in every document of the source"):
        runs.run_mixture(_mixture(tmp_path, "keep: [doi], check_fields: false", [stage]))
    with pytest.raises(DatapipeError, match=r"3 of 3 documents quarantined .* field 'txt' is missing or null"):
        runs.run_mixture(_mixture(tmp_path, "text: txt, check_fields: false"))
    with pytest.raises(UserError, match="documents have no column 'doi'"):  # no record can help
        _prepared(tmp_path, "check_fields: false", stage)


def test_listing_of_inputs_tells_after_a_second_and_then_less_and_less_often() -> None:
    now, told = [0.0], list[str]()
    listing = Listing(told.append, lambda: now[0])
    for _ in range(200):
        now[0] += 0.125  # exact in floats
        listing.add("web")
    counts = [int(line.partition(": ")[2].partition(" ")[0]) for line in told]
    assert counts == [9, 19, 39, 79, 159]
    assert told[0] == "  listing input files: 9 found, now of web …"


def test_listing_of_inputs_that_takes_no_second_tells_nothing(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "in/a.jsonl", _rows(3))
    told: list[str] = []
    prepare(load_mixture(_mixture(tmp_path, "keep: [url]")), None, told.append)
    assert told == []
