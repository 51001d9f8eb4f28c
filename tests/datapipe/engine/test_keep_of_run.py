"""Whole runs with a global stage: who survives across sources, and what stops a run that drops too much."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from datapipe.errors import DatapipeError, UserError
from datapipe.exchange.partitions import read_documents
from datapipe.metrics import TaskMetrics
from datapipe.report.screen import print_full
from datapipe.storage import Root
from tests.support import corpora, runs

_TAIL = """
tokenizer: {train: {vocab_size: 300, sample_bytes: 1MiB}}
pack: {sequence_length: 64}
execution: {split_bytes: 1MiB, bucket_bytes: 1MiB}
"""


def _mixture(folder: Path, options: str, sources: tuple[str, str] = ("web", "books"), name: str = "mixture.yaml") -> Path:
    """Sources of 40 documents of which 30 are in both; of each some differ in length by spaces at the end alone."""
    listed = ""
    for source in sources:
        padded = "  " if source == "books" else ""
        own = 50 if source == "books" else 60
        documents = [f"the shared text number {n}, said in many words{padded}" for n in range(30)]
        documents += [f"a text number {own + n} of its own" for n in range(10)]
        if not (folder / f"{source}.jsonl").exists():
            corpora.write_jsonl(folder / f"{source}.jsonl", [{"text": text} for text in documents])
        listed += f"  {source}: {{path: {folder}/{source}.jsonl}}\n"
    stages = f"stages:\n  - dedup.exact: {{normalize: whitespace_case, {options}}}\n"
    return runs.write_mixture(folder, listed, stages, _TAIL, name)


def _dropped(finished: runs.Finished) -> dict[str, int]:
    report = finished.report["sources"]
    return {name: sum(entry["documents"]["dropped"].values()) for name, entry in report.items()}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        ("longest", {"web": 30, "books": 0}),
        ("[source_order, longest]", {"web": 0, "books": 30}),
        ("[{source_order: [books]}, shortest]", {"web": 30, "books": 0}),
    ],
)
def test_run_keeps_the_document_that_the_policy_prefers(tmp_path: Path, keep: str, expected: dict[str, int]) -> None:
    finished = runs.run_mixture(_mixture(tmp_path, f"keep: {keep}"), make_engine=runs.InProcess)
    assert _dropped(finished) == expected


@pytest.mark.slow
def test_run_with_sources_in_another_order_keeps_those_of_the_first_now(tmp_path: Path) -> None:
    first = runs.run_mixture(_mixture(tmp_path, "keep: source_order"), make_engine=runs.InProcess)
    turned = _mixture(tmp_path, "keep: source_order", sources=("books", "web"), name="turned.yaml")
    second = runs.run_mixture(turned, make_engine=runs.InProcess)
    assert (_dropped(first), _dropped(second)) == ({"web": 0, "books": 30}, {"books": 0, "web": 30})


def test_run_with_an_unknown_source_in_the_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"source_order names 'book', which is not a source.*Did you mean 'books'"):
        runs.run_mixture(_mixture(tmp_path, "keep: {source_order: [book]}"), make_engine=runs.InProcess)


@pytest.mark.medium
def test_run_that_drops_too_much_of_a_source_stops_and_goes_on_when_it_may(tmp_path: Path) -> None:
    with pytest.raises(DatapipeError) as caught:
        runs.run_mixture(_mixture(tmp_path, "max_dropped: 70%"), make_engine=runs.InProcess)
    told = str(caught.value)
    assert "dedup.exact dropped 30 of 40 documents (75.00%); max_dropped allows 70.00%" in told
    assert f"datapipe inspect {tmp_path}/out --clusters dedup.exact`" in told
    allowed = runs.run_mixture(_mixture(tmp_path, "max_dropped: 75%"), make_engine=runs.InProcess)
    assert not [step for step in allowed.watcher.steps if "/read" in step or "dedup" in step]


@pytest.mark.medium
def test_run_that_drops_exactly_what_it_may_goes_on(tmp_path: Path) -> None:
    """29 of 100 documents, where 0.29 * 100 is below 29."""
    texts = [f"the text number {number}" for number in range(71)]
    corpora.write_jsonl(tmp_path / "web.jsonl", [{"text": text} for text in texts + texts[:29]])
    stages = "stages:\n  - dedup.exact: {max_dropped: 29%}\n"
    path = runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}\n", stages, _TAIL)
    assert _dropped(runs.run_mixture(path, make_engine=runs.InProcess)) == {"web": 29}


@pytest.mark.medium
def test_run_that_drops_too_much_warns_once_for_each_source_where_it_is_told_to(tmp_path: Path) -> None:
    finished = runs.run_mixture(_mixture(tmp_path, "max_dropped: 0.1, on_excess: warn"), make_engine=runs.InProcess)
    [warning] = [warning for warning in finished.report["warnings"] if warning["kind"] == "excess_drops"]
    assert (warning["source"], warning["stage"], warning["dropped"], warning["read"]) == ("books", "dedup.exact", 30, 40)
    assert f"List the duplicates with `datapipe inspect {tmp_path}/out --clusters dedup.exact`" in warning["text"]
    assert [line for line in finished.watcher.lines if "warning" in line] == []
    assert sum(_dropped(finished).values()) == 30
    report = json.loads(json.dumps(finished.report))
    [excess] = report["excesses"]
    assert (excess["source"], excess["stage"], excess["dropped"], excess["read"]) == ("books", "dedup.exact", 30, 40)
    console = Console(file=io.StringIO(), width=200)
    print_full(report, console)
    printed = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert printed.count("warning: source 'books': dedup.exact dropped 30 of 40 documents (75.00%)") == 1


@pytest.mark.medium
def test_run_within_its_limits_reports_no_excess_and_cuts_have_no_clusters_to_look_at(tmp_path: Path) -> None:
    path = _mixture(tmp_path, "max_dropped: 75%")
    assert runs.run_mixture(path, make_engine=runs.InProcess).report["excesses"] == []
    path.write_text(
        path.read_text().replace(
            "dedup.exact: {normalize: whitespace_case, max_dropped: 75%}", "dedup.lines: {max_dropped: 1%}"
        )
    )
    with pytest.raises(DatapipeError, match=r"max_dropped allows 1.00%. .*--dropped dedup.lines`"):
        runs.run_mixture(path, make_engine=runs.InProcess)


@pytest.mark.medium
def test_run_sources_with_limits_of_their_own_still_meet(tmp_path: Path) -> None:
    path = _mixture(tmp_path, "keep: source_order")
    text = path.read_text().replace("books.jsonl}", "books.jsonl, stages: [dedup.exact: {STAGE, max_dropped: 80%}]}")
    path.write_text(text.replace("STAGE", "normalize: whitespace_case, keep: source_order"))
    assert _dropped(runs.run_mixture(path, make_engine=runs.InProcess)) == {"web": 0, "books": 30}
    path.write_text(path.read_text().replace("80%", "70%"))
    with pytest.raises(DatapipeError, match=r"source 'books': dedup.exact dropped 30 of 40"):
        runs.run_mixture(path, make_engine=runs.InProcess)


@pytest.mark.medium
def test_run_goes_by_fields_that_the_source_keeps(tmp_path: Path) -> None:
    rows = [
        {"text": "one page", "url": "http://www.a.org/x/", "score": 1, "date": "2024-01-01"},
        {"text": "as it was later", "url": "https://a.org/x?utm_source=y", "score": 0.5, "date": "2024-05"},
        {"text": "no address", "url": None, "score": None},
        {"text": "none either"},
        {"text": "another page that stays and fills the tokenizer with words", "url": "b.org", "score": 7, "date": ""},
    ]
    corpora.write_jsonl(tmp_path / "web.jsonl", rows * 3)
    sources = f"  web: {{path: {tmp_path}/web.jsonl, keep: [url, score, date]}}\n"
    for keep, kept in (("{highest: score}", "one page"), ("[{latest: date}, {highest: score}]", "as it was later")):
        stages = f"stages:\n  - dedup.exact: {{by: field, field: url, normalize: url, keep: {keep}}}\n"
        path = runs.write_mixture(tmp_path, sources, stages, _TAIL)
        finished = runs.run_mixture(path, output=tmp_path / kept[:3], make_engine=runs.InProcess)
        record = next(one for step in finished.plan.of_kind("map")[1:] for one in step.records)
        texts = [
            text
            for output in record.of("documents")
            for batch in read_documents(Root(finished.mixture.output), (output,), TaskMetrics())
            for text in batch.texts.to_pylist()
        ]
        assert sorted(texts) == sorted([kept, rows[4]["text"], *["no address", "none either"] * 3])


@pytest.mark.parametrize("share", ["50", "x%", "150%", "-1%"])
def test_run_share_that_is_none_is_refused(tmp_path: Path, share: str) -> None:
    with pytest.raises(UserError, match="max_dropped"):
        runs.run_mixture(_mixture(tmp_path, f"max_dropped: {share}"), make_engine=runs.InProcess)
