"""Stages that see some of the documents: they treat these as if there were no others, which pass unchanged, and are counted."""

import datetime
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from datapipe.config.stage_use import parse_stage
from datapipe.engine.binding import bind
from datapipe.errors import UserError
from datapipe.stage.when import When
from tests.support import corpora, runs
from tests.support.global_stages import batch_of

Row = dict[str, Any]
COLUMNS = {
    "language": pa.array(["ja", "de", None, "zh", ""]).dictionary_encode(),
    "quality": pa.array([3, 5, 1, None, 2]),
    "score": pa.array(["0.5", "none", "7", None, " 2 "]),
    "is_new": pa.array([True, False, None, True, False]),
    "date": pa.array([datetime.date(2024, 5, day) for day in range(1, 6)]),
    "tags": pa.array([["a"]] * 5),
}
CONDITIONS: list[tuple[Row, list[int]]] = [
    ({"language": ["ja", "zh"]}, [0, 3]),
    ({"language": "de"}, [1]),
    ({"language": "!= ja"}, [1, 3, 4]),  # a document without a language is not seen
    ({"language": ["en"]}, []),
    ({"quality": ">= 3"}, [0, 1]),
    ({"quality": 3}, [0]),
    ({"quality": "> 1, <= 3"}, [0, 4]),
    ({"score": "> 0.4, != 7"}, [0, 4]),
    ({"is_new": True}, [0, 3]),
    ({"date": ">= 2024-05-04"}, [3, 4]),
    ({"date": "2024-05-02"}, [1]),
    ({"language": ["ja", "de"], "quality": "< 5"}, [0]),
]


@pytest.mark.parametrize(("when", "rows"), CONDITIONS)
def test_documents_are_seen_by_their_values(when: Row, rows: list[int]) -> None:
    assert When.of(when).rows(batch_of(["text"] * 5, **COLUMNS), "stage").nonzero()[0].tolist() == rows


@pytest.mark.parametrize(
    ("when", "text"),
    [
        ({"lang": "ja"}, r"stage \(when\): documents have no column 'lang'. Did you mean 'language'"),
        ({"tags": "a"}, r"stage \(when\): the column 'tags' holds list"),
        ({"date": "> 3"}, "Expected dates"),
        ({"quality": "> 2024-05-04"}, "a limit is a date"),
    ],
)
def test_columns_that_have_no_such_values_are_refused(when: Row, text: str) -> None:
    with pytest.raises(UserError, match=text):
        When.of(when).rows(batch_of(["text"] * 5, **COLUMNS), "stage")


@pytest.mark.parametrize("when", [{}, [], "ja", {"language": []}, {"language": None}, {"quality": ">= high"}, {"q": {"a": 1}}])
def test_conditions_that_say_nothing_are_refused(when: Any) -> None:
    with pytest.raises(ValueError, match=r"found .*, expected"):
        parse_stage({"filter.length": {"min_chars": 3, "when": when}})


def test_a_condition_is_written_back_and_enters_the_digest() -> None:
    plain, other = ({"filter.length": {"min_chars": 3, "when": {"language": code}}} for code in ("ja", "zh"))
    uses = [parse_stage({"filter.length": {"min_chars": 3}}), parse_stage(plain), parse_stage(other)]
    assert uses[1].to_data() == plain
    assert uses[1].options == uses[0].options
    assert len({bind(use).digest for use in uses}) == 3


def halves(record: Row) -> Row:
    """Fails for every seventh document."""
    return {"halves": record["rank"] // (record["rank"] % 7 and 2)}


halves.columns = {"halves": int}  # type: ignore[attr-defined]

SEEN, TAIL = ("ja", "zh"), "max_quarantined: 20%\ntokenizer: none\nexecution: {split_bytes: 8KiB, bucket_bytes: 16KiB}\n"


def _documents() -> list[Row]:
    """Documents of three languages and none, some of them copies of others, and a part without any that is seen."""
    rng, rows = random.Random(3), list[Row]()
    for number in range(600):
        text = rng.choice(rows)["text"] if rows and rng.random() < 0.3 else corpora.prose(rng, rng.randint(2, 60))
        language = rng.choice([*SEEN, "de", None]) if number > 150 else "de"
        rows.append({"id": f"{number}", "text": f" {text} ", "language": language, "rank": number, "score": rng.random()})
    return rows


NOT_SEEN = {"source": "web", "copies": 1}
"""The values of new columns in documents that a stage has not seen, where they are not null."""


def _run(folder: Path, rows: Sequence[Row], stage: Row) -> tuple[list[Row], Row]:
    """The documents that are left, without what depends on their place in a file, and the counts."""
    corpora.write_jsonl(folder / "web.jsonl", rows)
    source = f"  web: {{path: {folder}/web.jsonl, keep: [language, rank, score]}}"
    path = runs.write_mixture(folder, source, f"stages: [{json.dumps(stage)}]", TAIL)
    run = runs.run_mixture(path, make_engine=runs.InProcess)
    files = [Path(run.mixture.output, file.path) for file in run.snapshot.shards]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    left = [{name: "nan" if str(value) == "nan" else value for name, value in row.items()} for row in rows]
    return sorted(left, key=lambda row: row["rank"]), run.report["sources"]["web"]


STAGES: dict[str, Row] = {
    "filter.length": {"min_words": 20},
    "filter.gopher_quality": {"min_words": 20, "mode": "tag"},
    "normalize.unicode": {},
    "filter.language": {"keep": [], "write": True, "mode": "tag"},
    "tests.support.function_stages:scores": {},
    f"{__name__}:halves": {},
    "tests.support.ranked_stages:ByScore": {"keep_share": "1/3"},
    "dedup.exact": {"size_column": "copies"},
    "dedup.substring": {"length": 8},
}


@pytest.mark.medium
@pytest.mark.parametrize("name", STAGES)
def test_a_stage_decides_about_the_documents_that_it_sees_as_if_there_were_no_others(tmp_path: Path, name: str) -> None:
    rows = _documents()
    seen, others = ([row for row in rows if (row["language"] in SEEN) == is_seen] for is_seen in (True, False))
    alone, counts_alone = _run(tmp_path / "alone", seen, {name: {**STAGES[name], "as": "some"}})
    left, counts = _run(tmp_path / "some", rows, {name: {**STAGES[name], "as": "some", "when": {"language": list(SEEN)}}})
    new = alone[0].keys() - rows[0].keys()
    passed = [{**row, **{column: NOT_SEEN.get(column) for column in new}} for row in others]
    assert left == sorted([*alone, *passed], key=lambda row: row["rank"])
    for fate in ("dropped", "quarantined"):
        assert counts["documents"][fate] == counts_alone["documents"][fate]
    assert counts["documents"]["read"] == 600
    assert counts["counts"]["some:outside_when"] == len(others)


def test_a_column_that_no_document_has_ends_the_run_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"filter.length \(when\): documents have no column 'lang'.*'language'"):
        _run(tmp_path, _documents()[:3], {"filter.length": {"min_chars": 3, "when": {"lang": "ja"}}})


@pytest.mark.parametrize("stage", ["extract.html", "join.repository: {group_by: repo, path: path, separators: [a, b]}"])
def test_stages_that_make_the_texts_of_all_are_refused(stage: str) -> None:
    name, _, options = stage.partition(": ")
    given = {"group_by": "repo", "path": "path", "separators": ["a", "b"]} if options else {}
    with pytest.raises(UserError, match=rf"{name}: when: the stage makes the texts of all documents"):
        bind(parse_stage({name: {**given, "when": {"language": "ja"}}}))
