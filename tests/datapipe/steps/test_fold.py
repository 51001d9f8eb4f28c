"""Folds of what tasks measured: the report, the tokenizer and the warnings are those of the files themselves."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datapipe.records.outputs import TableFile
from datapipe.report.report import measured_parts
from datapipe.report.summary import tokenizer_figures
from datapipe.steps import fold
from datapipe.steps.fold import FoldMetrics, fewest
from datapipe.steps.measuring import Measured
from datapipe.storage.root import Root
from tests.support import corpora, runs

pytestmark = pytest.mark.medium

_TAIL = """
validation: 20%
tokenizer: {train: {vocab_size: 300, sample_bytes: 64KiB}}
pack: {sequence_length: 64}
execution: {check_disk: false}
"""


def _run(folder: Path, files: int, output: str) -> runs.Finished:
    for number in range(files):
        corpora.write_jsonl(folder / f"web/{number:02}.jsonl", corpora.documents(number % 3, 20, exact=0.3))
    longest = max((document["text"] for document in corpora.documents(1, 20)), key=len)
    corpora.write_jsonl(folder / "items.jsonl", [{"id": "longest", "question": longest}])
    against = f"decontaminate.ngram: {{against: [{folder}/items.jsonl], mode: tag}}"
    stages = f"stages: [filter.length: {{min_words: 30}}, filter.gopher_quality, {against}, dedup.exact]"
    mixture = runs.write_mixture(folder, f"  web: {{path: {folder}/web/*.jsonl}}\n", stages, _TAIL)
    size = max(file.stat().st_size for file in (folder / "web").iterdir())
    overrides = [f"execution.split_bytes={size}"]
    return runs.run_mixture(mixture, output=folder / output, overrides=overrides, make_engine=runs.InProcess)


def _summed(run: runs.Finished) -> dict[str, Any]:
    """What the report sums up from files of the tasks."""
    root, plan = Root(str(run.mixture.output)), run.plan.with_earlier()
    measured = Measured(
        root=root,
        steps=plan.of_kind("map"),
        name_of=bytes.hex,
        files_of=lambda step, name: fewest(plan, step, name, TableFile),
    )
    return {**measured_parts(measured), "tokenizer": tokenizer_figures(root, plan)}


@pytest.mark.slow
def test_the_report_and_the_tokenizer_are_the_same_with_and_without_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = _run(tmp_path, 13, "whole")
    assert not whole.plan.of_kind("fold")
    monkeypatch.setattr(fold, "MOST_FILES", 3)
    folded = _run(tmp_path, 13, "folded")
    assert folded.checksums == whole.checksums
    assert folded.snapshot == whole.snapshot
    found = _summed(folded)
    assert found == _summed(whole)
    assert any(rule.borderline.kept for rule in found["measured"]["web"]["filter.gopher_quality"].values())
    assert found["contamination"][0].contaminated == 1
    assert found["clusters"]["dedup.exact"].clusters > 5
    assert found["tokenizer"].unused.count > 0
    names = {step.id for step in folded.plan.of_kind("fold")}
    assert {"web/read.fold-1", "web/read.fold-2", "web/sample.fold-2", "web/tokenize.fold-2"} <= names
    for step in folded.plan.of_kind("map"):
        assert len(step.records) == 13
        assert len(fewest(folded.plan, step, "measured", TableFile)) <= 2


@pytest.mark.slow
def test_files_of_tasks_that_no_fold_knows_are_read_beside_those_of_folds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As after files were added: folds of the first files know nothing of the tasks of the others, or the other way round."""
    monkeypatch.setattr(fold, "MOST_FILES", 4)
    plan = _run(tmp_path, 9, "out").plan
    (step,) = [each for each in plan.of_kind("map") if each.id == "web/read"]
    assert len(fewest(plan, step, "measured", TableFile)) == 3
    folds, added = fewest(plan, step, "measured", TableFile), replace(step.records[0], fingerprint="added")
    for records, files in (
        ((*step.records, added), (*folds, *added.of("measured"))),
        ((added, *step.records), (*added.of("measured"), *folds)),
        (step.records[:6], (folds[0], *step.outputs("measured")[4:6])),  # the second fold knows tasks that this plan has not
        (step.records[1:], step.outputs("measured")[1:4] + folds[1:]),
    ):
        assert fewest(plan, replace(step, records=records), "measured", TableFile) == files


def test_groups_are_of_records_in_order_and_an_empty_kind_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fold, "MOST_FILES", 4)
    run = _run(tmp_path, 9, "out")
    (step,) = [each for each in run.plan.of_kind("fold") if each.id == "web/tokenize.fold-1"]
    tokenized = run.plan.of_kind("tokenize")[0]
    starts = [tokenized.records[start].fingerprint for start in (0, 4, 8)]
    assert [*step.numbers(FoldMetrics)] == [*map(FoldMetrics, (4, 4, 1), starts)]
