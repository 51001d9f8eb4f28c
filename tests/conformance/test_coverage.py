"""Digests cover every module that runs: those that a stage or a task executes are in its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.config import StageUse, catalogue
from datapipe.kernels import import_runtime
from datapipe.stage import Filter, Map, Stage, StageContext
from datapipe.stage.documents import PAGE_FIELDS, DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.steps import fingerprint, runs
from datapipe.steps.run_task import run_task
from datapipe.steps.work import MapTask, MergeTask, ReduceTask, Task
from stages.filter.language import bundled_model
from tests.support.executed import executed
from tests.support.global_stages import batch_of, reduce_all
from tests.support.runs import InProcess, run_mixture, write_mixture

PROSE = (
    "It was the best of times, it was the worst of times, and those who have been there say that it is to be seen with "
    "their own eyes.\nOn the next day the people of the town came to the square to be told of what they have to do, and "
    "that was that.\n\n* a list\n* of two\n\nWrite to jane.doe@mail.example.net or 8.8.8.8, call +49 30 901820. Read more..."
)

pytestmark = pytest.mark.medium
TEXTS = ["", PROSE, PROSE, f"{PROSE}\n{PROSE}", PROSE.upper(), "x = 1\nif x:\n    print('y')\n", "\u4f60\u597d \u00e9\u0301 12"]

NEEDING = ("decontaminate.ngram", "filter.classifier", "filter.field", "filter.license", "filter.toxicity", "filter.url")
"""Stages that are refused without options."""

ITEMS = str(Path(__file__).with_name("evaluation_items.jsonl"))

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in catalogue.stage_names() if name not in NEEDING),
    *(("decontaminate.ngram", {"against": [ITEMS], "profile": profile}) for profile in ("gpt3", "strict", "coverage")),
    ("filter.classifier", {"model": str(bundled_model()), "label": "en", "max_chars": 100, "keep_share": "20%"}),
    ("filter.classifier", {"models": {"one": str(bundled_model())}, "label": "de", "combine": "mean", "write_each": True}),
    ("filter.toxicity", {"model": str(bundled_model()), "label": "de"}),
    ("filter.toxicity", {"lists": {"python": __file__}, "mode": "tag", "write": True}),
    ("filter.field", {"field": "text", "drop": ["word"], "keep_matching": "."}),
    ("filter.field", {"field": "text", "min_value": 1, "missing": "keep"}),
    ("filter.license", {"field": "text", "allowed": ["mit OR isc"]}),
    ("filter.url", {"field": "text", "domains": ["8.8.8.8"], "hard_words": ["was"], "soft_words": ["the"], "urls": ["a.b/c"]}),
    *(("filter.gopher_quality", {"profile": profile}) for profile in ("datatrove", "dclm")),
    *(("filter.gopher_repetition", {"profile": profile}) for profile in ("datatrove", "dclm")),
    ("extract.html", {"engine": "fallback", "beyond": "plain_text", "detector": "chardetng"}),
    ("filter.gopher_quality", {"language": "de"}),
    ("filter.fineweb_quality", {"profile": "paper"}),
    ("filter.fineweb_quality", {"language": "zh"}),
    ("dedup.minhash", {"shingle": "char", "threshold": 0.7}),
    ("dedup.minhash", {"verify": "none"}),
    ("dedup.lines", {"unit": "three_sentences"}),
]


def _use(name: str, options: dict[str, Any]) -> Any:
    return catalogue.build_stage(StageUse(name=name, alias=name, options=options, where=""))


def _ran(stage: Filter | Map | Global, name: str) -> set[str]:
    """The modules of datapipe and stages that run while the stage is opened and processes batches."""
    batches = [batch_of(TEXTS), batch_of(TEXTS, 2)]
    if isinstance(stage, Filter) and stage.extracts:
        batches = [_as_pages(batch) for batch in batches]
    with executed() as ran:
        stage.open(StageContext(name=name, seed=1))
        if isinstance(stage, Global):
            stage.exchanges()
            for at_once in (True, False):
                reduce_all(stage, batches, at_once=at_once)
        else:
            stage.process(batches[0])
    if not isinstance(stage, Global):
        filtered = batches[0].filter(np.arange(len(TEXTS)) % 2 == 0)  # copies segmentations that are computed already
        with executed() as ran_again:
            stage.process(filtered)
        ran |= ran_again
    return ran


def _as_pages(batch: DocumentBatch) -> DocumentBatch:
    """The documents before extraction; one nests too deeply, one declares no charset that it has."""
    pages = [f"<html><head><title>A page</title></head><body><article><p>{text}</p></article>" for text in TEXTS]
    html = [page.encode() for page in (*pages[:-2], pages[-2] + "<div>" * 2000)] + [pages[-1].encode("gb18030")]
    place = batch.record.schema.get_field_index("text")
    return DocumentBatch(batch.record.set_column(place, PAGE_FIELDS[2], pa.array(html, pa.large_binary())))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda value: value if isinstance(value, str) else "-".join(value))
def test_stage_runs_only_what_its_digest_covers(name: str, options: dict[str, Any]):
    stage = _use(name, options)
    ran = _ran(stage, name)
    assert any(executed_name.startswith("stages.") for executed_name in ran)
    in_memory = fingerprint.code_of("reduce").modules if isinstance(stage, Global) else frozenset[str]()  # of `reduce_all`
    assert ran - catalogue.code_of(stage).modules - in_memory == set()


class CoverageEngine(InProcess):
    """Runs tasks, and records executed modules that neither their kind nor their stages cover."""

    kinds: set[str]
    missing: set[tuple[str, str]]

    def next_attempt(self, timeout_s: float) -> Any:
        task: Task = self.tasks[0][0]
        with executed() as ran:
            ended = super().next_attempt(timeout_s)
        kind = type(task).__name__.removesuffix("Task").lower()
        self.kinds.add(kind)
        covered = fingerprint.code_of(kind).modules.union(*(catalogue.code_of(stage).modules for stage in _stages_of(task)))
        self.missing.update((kind, name) for name in ran - covered - {run_task.__module__, import_runtime.__module__})
        return ended


def _stages_of(task: Task) -> list[Stage]:
    if isinstance(task, MapTask):
        bound = [*task.stages, *(stage for stage in (task.emit, task.cut) if stage is not None)]
        return [*(stage.stage for stage in bound), *(split.reader for split in task.inputs)]
    # a merge asks the stage for the schema of its rows; the files, which are named by content, have the same one
    return [task.stage.stage] if isinstance(task, ReduceTask | MergeTask) else []


def test_tasks_run_only_what_their_digests_cover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [{"text": f"{text} {number % 7}", "rank": number % 5, "score": number % 7} for number in range(20) for text in TEXTS]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"no": "text"}]))
    sources = f"  web: {{path: {tmp_path}/a.jsonl, keep: [rank, score], strata: {{by: rank, bounds: [2]}}}}"
    stages = "stages: [normalize.unicode, filter.gopher_quality: {mode: tag}, filter.length: {max_chars: 2000}, dedup.exact, "
    stages += "tests.support.ranked_stages:ByScore: {keep_share: 9/10}, "
    stages += "dedup.minhash: {cluster_column: cluster, size_column: size}, dedup.lines, redact.pii]"
    tail = "validation: 5%\nmax_quarantined: 50%\ntokenizer: {train: {vocab_size: 300}}\npack: {sequence_length: 64}\n"
    tail += "execution: {bucket_bytes: 16KiB, split_bytes: 16KiB}"
    monkeypatch.setattr(runs, "MOST_RUNS", 2)
    engine = CoverageEngine
    engine.kinds, engine.missing = set(), set()
    run_mixture(write_mixture(tmp_path, sources, stages, tail), make_engine=engine)
    assert engine.kinds >= {"map", "reduce", "merge", "gather", "rank", "narrow", "sample", "train", "tokenize", "pack"}
    assert sorted(engine.missing) == []
