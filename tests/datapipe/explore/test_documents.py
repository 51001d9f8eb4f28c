"""What `inspect` finds: documents by every name, evaluation sets, and what only one of two outputs keeps."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from datapipe.cli.explore import inspect
from datapipe.errors import DatapipeError, UserError
from datapipe.explore.comparison import NOT_READ, membership, rule_changes
from datapipe.explore.contamination import contamination
from datapipe.explore.documents import Inspector
from datapipe.metrics import MAX_QUARANTINE_REASONS, DocumentCounts, TaskMetrics
from datapipe.report.report import write_report
from datapipe.stage.findings import MOST_OF_DOCUMENT
from datapipe.storage.root import Root
from tests.support import corpora, reports, runs
from tests.support.command_line import datapipe
from tests.support.evaluation_files import FILLER, SHORT, TINY, WINDMILL, write

pytestmark = pytest.mark.medium

ROWS = [
    *({"id": f"kept-{number}", "text": f"a text of some words, number {number}"} for number in range(6)),
    {"id": "short", "text": "word"},
    {"id": "copy", "text": "a text of some words, number 3"},
    {"id": "hates", "text": "I do not like it, not at all, not one word"},
    {"id": "twice", "text": "too"},
    {"id": "twice", "text": "few"},
]
FUNCTIONS = """
def picky(record):
    if "do not like" in record["text"]:
        raise ValueError(f"I do not like number {len(record['text'])}")
    return True
"""


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inspector:
    (tmp_path / "picky_functions.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    corpora.write_jsonl(tmp_path / "web.jsonl", ROWS)
    stages = "stages: [filter.length: {min_words: 3}, 'picky_functions:picky', dedup.exact]"
    tail = "tokenizer: none\nmax_quarantined: 50%\n"
    done = runs.run_mixture(
        runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", stages, tail), make_engine=runs.InProcess
    )
    return Inspector.open(done.mixture.output)


def test_an_id_of_several_documents_names_them_and_one_of_none_reports_it(output: Inspector) -> None:
    with pytest.raises(UserError, match=r"'twice': 2 documents have this id: web/web\.jsonl:\d+, web/web\.jsonl:\d+\."):
        output.find_document("twice")
    with pytest.raises(UserError, match="No document has it as its id"):
        output.find_document("nobody")
    dropped = output.find(outcome="dropped", count=9)
    assert sorted(document["own_id"] for document in dropped) == ["copy", "short", "twice", "twice"]


def test_rows_of_every_sequence_length_are_in_shards_of_the_output_and_can_be_counted_alone(tmp_path: Path) -> None:
    corpora.write_jsonl(tmp_path / "web.jsonl", ROWS)
    tail = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: [32, 64]}\n"
    done = runs.run_mixture(
        runs.write_mixture(tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", "stages: [dedup.exact]", tail),
        make_engine=runs.InProcess,
    )
    inspector = Inspector.open(done.mixture.output)
    rows = inspector.database.rows("select distinct shard from packed")
    listed = [row["shard"] for row in rows]
    assert {path.partition("shards/")[0] for path in listed} == {"", "length-64/"}
    assert all((Path(done.mixture.output) / path).is_file() for path in listed)
    counts = inspector.database.rows("select sequence_length, sum(tokens) as tokens from packed group by all order by all")
    assert inspector.snapshot is not None
    lengths = (inspector.snapshot, *inspector.snapshot.further)
    assert [tuple(row.values()) for row in counts] == [
        (length.sequence_length, sum(shard.tokens for shard in length.shards)) for length in lengths
    ]


def test_reasons_of_one_kind_are_counted_together_and_there_are_not_too_many() -> None:
    counts = DocumentCounts()
    for number in range(50):
        counts.quarantine("read", f"Traceback …\nline {number:,} has 1.5 fields, 3_000 wanted.")
    assert counts.quarantine_reasons == {"read: line N has N fields, N wanted": 50}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        counts.quarantine("my:Stage", f"KeyError: {letter}")
    assert len(counts.quarantine_reasons) == MAX_QUARANTINE_REASONS + 1
    assert counts.quarantine_reasons["my:Stage: other errors"] == 26 - (MAX_QUARANTINE_REASONS - 1)
    metrics = TaskMetrics(document_counts=counts)
    assert TaskMetrics.from_json(metrics.to_json()) == metrics


def test_the_error_about_too_many_in_quarantine_counts_them_by_reason_and_shows_the_most_frequent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picky_more.py").write_text('def doc(record):\n    return record["text"].words\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web.jsonl").write_bytes(b"broken\n" + corpora.jsonl(ROWS))
    path = runs.write_mixture(
        tmp_path, f"  web: {{path: {tmp_path}/web.jsonl}}", "stages: ['picky_more:doc']", "tokenizer: none"
    )
    with pytest.raises(DatapipeError) as error:
        runs.run_mixture(path, make_engine=runs.InProcess)
    text = str(error.value)
    assert f"{len(ROWS) + 1} of {len(ROWS) + 1} documents quarantined (100.00%)" in text
    assert "'str' object has no attribute 'words'" in text and f"({len(ROWS)}); read: " in text
    assert "The first, by picky_more:doc: web/web.jsonl:7: AttributeError" in text


THIRTEEN = " ".join(WINDMILL["question"].split()[:13])
TEXTS = [
    FILLER,
    f"{FILLER}{THIRTEEN} {FILLER}",
    f"{WINDMILL['question']} {SHORT['question']} {SHORT['answer']}",
    f"{FILLER}and no more",
]


def _run(folder: Path, stages: str, texts: list[str] = TEXTS) -> runs.Finished:
    corpora.write_jsonl(folder / "web.jsonl", [{"text": text, "id": f"d{number}"} for number, text in enumerate(texts)])
    source = f"  web: {{path: {folder}/web.jsonl, id: id}}"
    path = runs.write_mixture(folder, source, f"stages: [{stages}]", "tokenizer: none\nexecution: {split_bytes: 1KiB}\n")
    return runs.run_mixture(path, make_engine=runs.InProcess)


def _shown(output: str, **options: Any) -> dict[str, Any]:
    return contamination(Inspector.open(output), "", 10, **options).model_dump(mode="json")


def _against(folder: Path) -> str:
    return write(folder / "village.jsonl", [WINDMILL, SHORT, TINY, {"id": "clean", "question": "a b c d e f g h i j k l m n"}])


def test_contamination_of_a_run_is_reported_by_benchmark_item_and_document(tmp_path: Path) -> None:
    finished = _run(tmp_path, f"decontaminate.ngram: {{against: [{_against(tmp_path)}]}}")
    shown = _shown(finished.mixture.output)
    [counts] = shown["lists"]
    assert counts == {
        "stage": "decontaminate.ngram",
        "name": "village",
        "entries": 4,
        "contaminated": 2,
        "undetectable": 1,
        "clean": 1,
    }
    items = {entry["entry"]: entry["documents"] for entry in shown["contaminated"]}
    assert items == {"windmill": 2, "short": 1}
    assert shown["undetectable"] == {"village": ["tiny"]}
    outcomes = {document["outcome"]: document["findings"] for document in shown["documents"]}
    assert [finding["entry"] for finding in outcomes["dropped"]] == ["windmill", "short"]
    [cut] = outcomes["cut"]
    assert TEXTS[1].encode()[cut["start"] : cut["stop"]].decode() == THIRTEEN.rstrip(",")


def test_contamination_survives_the_evaluation_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _against(tmp_path)
    output = _run(tmp_path, f"decontaminate.ngram: {{against: [{path}], profile: strict, mode: tag}}").mixture.output
    Path(path).unlink()
    inspect(output, contaminated=True, source="web", count=1)
    printed = capsys.readouterr().out
    assert "contaminated: village:short, village:windmill" in printed
    assert "the evaluation files are gone or have changed" in printed
    write(Path(path), [WINDMILL, SHORT])
    shown = _shown(output)
    assert (shown["lists"][0]["contaminated"], shown["undetectable"]) == (2, None)
    assert {document["outcome"] for document in shown["documents"]} == {"tagged"}


def test_output_of_any_run_can_be_scanned_for_evaluation_files(tmp_path: Path) -> None:
    finished = _run(tmp_path, "filter.length: {min_words: 100}")
    path = _against(tmp_path)
    with pytest.raises(UserError, match="no stage of this run searched for evaluation sets"):
        _shown(finished.mixture.output)
    shown = _shown(finished.mixture.output, against=[path])
    assert [(counts["contaminated"], counts["clean"]) for counts in shown["lists"]] == [(1, 2)]
    assert [document["outcome"] for document in shown["documents"]] == ["kept"]


def test_findings_of_a_document_are_bounded_and_no_item_is_lost(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(14 * 90)]
    items = [{"id": str(number), "question": " ".join(words[14 * number : 14 * number + 14])} for number in range(90)]
    text = " ".join(words)
    path = write(tmp_path / "many.jsonl", items)
    finished = _run(tmp_path, f"decontaminate.ngram: {{against: [{path}], profile: strict}}", [text, text, "clean"])
    shown = _shown(finished.mixture.output)
    assert shown["lists"][0]["contaminated"] == 90
    sizes = sorted(len(document["findings"]) for document in shown["documents"])
    assert sizes in ([MOST_OF_DOCUMENT, 90], [90, 90])  # in one task, or in two


_COMPARED_TAIL = """
tokenizer: none
max_quarantined: 50%
execution: {split_bytes: 8KiB, bucket_bytes: 16KiB}
"""


def _write_lengths(folder: Path) -> list[int]:
    rng = random.Random(3)
    lengths = [rng.randrange(10, 400) for _ in range(300)]
    (folder / "web").mkdir()
    lines = [json.dumps({"text": "y" * length}) for length in lengths] + ["no JSON"]
    (folder / "web/a.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "web/b.jsonl").write_text(json.dumps({"text": "z" * 300}) + "\n")
    return lengths


def _compared(folder: Path, name: str, min_chars: int, pattern: str = "*.jsonl", extra: str = "") -> Inspector:
    stages = f"stages:\n  - filter.length: {{min_chars: {min_chars}}}\n{extra}"
    source = f"  web: {{path: {folder}/web/{pattern}}}\n"
    path = runs.write_mixture(folder, source, stages, _COMPARED_TAIL, f"{name}.yaml")
    run = runs.run_mixture(path, output=folder / name, make_engine=runs.InProcess)
    write_report(Root(str(folder / name)), run.summary)
    return Inspector.open(str(folder / name))


@pytest.mark.slow
def test_documents_of_one_output_alone_have_the_reason_of_the_other(tmp_path: Path) -> None:
    lengths = _write_lengths(tmp_path)
    loose = _compared(tmp_path, "loose", 50)
    strict = _compared(tmp_path, "strict", 200, "a.jsonl", "  - dedup.exact\n")

    found = membership(loose, strict)

    lost = Counter({NOT_READ: 1, "filter.length:too_few_chars": sum(50 <= length < 200 for length in lengths)})
    kept = [length for length in lengths if length >= 200]
    lost["dedup.exact:duplicate"] = len(kept) - len(set(kept))
    only = found.only_first
    assert only.reasons == dict(lost.most_common())
    assert only.documents == lost.total()
    assert (found.both, found.only_second.documents) == (len(set(kept)), 0)
    assert [name.startswith("web/b.jsonl:") for name in only.sample[NOT_READ]] == [True]
    swapped = membership(strict, loose)
    assert (swapped.only_first, swapped.only_second) == (found.only_second, only)


@pytest.mark.slow
def test_comparison_with_a_run_that_failed_reports_it(tmp_path: Path) -> None:
    _write_lengths(tmp_path)
    for name in ("one", "other"):
        _compared(tmp_path, name, 100)
    outputs = [str(tmp_path / name) for name in ("one", "other")]
    assert "failed" not in datapipe(["report", *outputs]).stdout
    report = tmp_path / "other/report.json"
    failed = json.loads(report.read_text()) | {"status": "failed", "problem": "s3://KEY:SECRET@bucket/a: the disk is full"}
    report.write_text(json.dumps(failed))
    told = datapipe(["report", *outputs]).stdout
    assert "B failed" in told and "SECRET" not in told


def test_the_rule_that_moved_most_comes_first() -> None:
    def rule(threshold: float, passed: int, failed: int) -> dict:
        bins = [[0.0, 1.0, 0, failed], [1.0, 2.0, passed, 0]]
        counts = {"threshold": threshold, "passed": passed, "failed": failed}
        return {**reports.rule(), **counts, "bins": [each for each in bins if any(each[2:])]}

    none = reports.report(measured={})
    first = reports.report(measured={"web": {"f": {"a": rule(1, 9, 1), "b": rule(1, 9, 1), "c": rule(1, 5, 5)}}})
    second = reports.report(measured={"web": {"f": {"a": rule(1, 9, 1), "b": rule(1, 6, 4), "d": rule(1, 1, 9)}}})

    changes = rule_changes(first, second)

    assert [change.rule for change in changes] == ["d", "c", "b"]
    assert changes[0].failed == (None, 0.9)
    assert changes[2].failed == (0.1, 0.4)
    assert changes[2].medians == (1 + 4 / 9, 1 + 1 / 6)
    assert rule_changes(first, none) and not rule_changes(none, none)


def test_packed_rows_have_the_cell_of_their_documents(tmp_path: Path) -> None:
    rows = [{"text": f"word {number} " * (5 + number % 40), "topic": "abc"[number % 3]} for number in range(90)]
    corpora.write_jsonl(tmp_path / "web.jsonl", rows)
    split = "{by: [topic], repeat: {b: 1.5}}"
    sources = f"  web: {{path: {tmp_path}/web.jsonl, keep: [topic], split: {split}}}\n  books: {{path: {tmp_path}/web.jsonl}}"
    tail = "tokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: [32, 64]}\nshards: {target_bytes: 16KiB}\n"
    tail += "validation: 0.1\n"
    done = runs.run_mixture(runs.write_mixture(tmp_path, sources, "", tail), make_engine=runs.InProcess)
    query = (
        "select documents.source, split, topic, cell, count(distinct key) as documents from packed join documents using (key) "
        "group by all order by all"
    )
    found = [tuple(row.values()) for row in Inspector.open(done.mixture.output).database.rows(query)]
    assert sum(documents for *_, documents in found) == 180
    assert {row[:4] for row in found} == {
        *(("books", split, None, None) for split in ("train", "validation")),
        *(("web", split, topic, topic if split == "train" else None) for topic in "abc" for split in ("train", "validation")),
    }
