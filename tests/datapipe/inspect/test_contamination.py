"""`datapipe inspect --contamination`: what a run found of evaluation sets, and what other files find in its documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datapipe.cli.inspect import inspect
from datapipe.errors import UserError
from datapipe.inspect.contamination import contamination
from datapipe.inspect.documents import Inspector
from datapipe.stage.findings import MOST_OF_DOCUMENT
from tests.support import corpora, runs
from tests.support.evaluation_files import FILLER, SHORT, TINY, WINDMILL, write

pytestmark = pytest.mark.medium

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
    return json.loads(json.dumps(contamination(Inspector.open(output), "", 10, **options).to_json()))


def _against(folder: Path) -> str:
    return write(folder / "village.jsonl", [WINDMILL, SHORT, TINY, {"id": "clean", "question": "a b c d e f g h i j k l m n"}])


def test_contamination_of_a_run_is_told_by_benchmark_item_and_document(tmp_path: Path) -> None:
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


def test_command_prints_json_and_names_what_belongs_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = _run(tmp_path, "filter.length: {min_words: 1}").mixture.output
    inspect(output, contaminated=True, against=[_against(tmp_path)], as_json=True)
    shown = json.loads(capsys.readouterr().out)["contamination"]
    assert [counts["contaminated"] for counts in shown["lists"]] == [2]
    inspect(output, contaminated=True, against=[_against(tmp_path)], count=1, full=True)
    assert "undetectable: village:tiny" in capsys.readouterr().out
    with pytest.raises(UserError, match="--against goes with --contamination"):
        inspect(output, against=["x.jsonl"])
    with pytest.raises(UserError, match="expected one of"):
        inspect(output, contaminated=True, kept=True)
