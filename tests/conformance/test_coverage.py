"""The digest of a stage covers every module that the stage runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datapipe.config import StageUse, catalogue
from datapipe.records.source_code import code_of_class
from datapipe.stage import Filter, Map, StageContext
from datapipe.stage.documents import PAGE_FIELDS, DocumentBatch
from datapipe.stage.global_stage import Global
from datapipe.steps.reduce import ReduceTask
from stages.filter.language import bundled_model
from tests.support.executed import executed
from tests.support.global_stages import batch_of, reduce_all

PROSE = (
    "It was the best of times, it was the worst of times, and those who have been there say that it is to be seen with "
    "their own eyes.\nOn the next day the people of the town came to the square to be told of what they have to do, and "
    "that was that.\n\n* a list\n* of two\n\nWrite to jane.doe@mail.example.net or 8.8.8.8, call +49 30 901820. Read more..."
)

pytestmark = pytest.mark.medium
TEXTS = ["", PROSE, PROSE, f"{PROSE}\n{PROSE}", PROSE.upper(), "x = 1\nif x:\n    print('y')\n", "\u4f60\u597d \u00e9\u0301 12"]

NEEDING = (
    *("decontaminate.ngram", "extract.chat", "filter.classifier", "filter.field"),
    *("filter.license", "filter.sample", "filter.toxicity", "filter.url", "join.repository"),
)
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
    ("filter.sample", {"share": "50%"}),
    ("join.repository", {"group_by": "repository"}),
    ("filter.url", {"field": "text", "domains": ["8.8.8.8"], "hard_words": ["was"], "soft_words": ["the"], "urls": ["a.b/c"]}),
    *(("filter.gopher_quality", {"profile": profile}) for profile in ("datatrove", "dclm")),
    *(("filter.gopher_repetition", {"profile": profile}) for profile in ("datatrove", "dclm")),
    *(("extract.chat", {"messages": ["messages"], "template": name}) for name in ("chatml", "llama3", "harmony")),
    ("extract.html", {"engine": "fallback", "beyond": "plain_text", "detector": "chardetng"}),
    ("filter.gopher_quality", {"language": "de"}),
    ("filter.fineweb_quality", {"profile": "paper"}),
    ("filter.fineweb_quality", {"language": "zh"}),
    ("dedup.minhash", {"shingle": "char", "threshold": 0.7}),
    ("dedup.minhash", {"shingle": "dictionary"}),
    ("decontaminate.ngram", {"against": [ITEMS], "words": "dictionary"}),
    ("dedup.minhash", {"verify": "none"}),
    ("dedup.lines", {"unit": "three_sentences"}),
]


def _use(name: str, options: dict[str, Any]) -> Any:
    return catalogue.build_stage(StageUse(name=name, alias=name, options=options, where=""))


def _ran(stage: Filter | Map | Global, name: str) -> set[str]:
    """The modules of datapipe and stages that run while the stage is opened and processes batches."""
    batches = [batch_of(TEXTS), batch_of(TEXTS, 2)]
    if stage.takes_json:
        batches = [_as_conversations(batch) for batch in batches]
    if isinstance(stage, Filter) and stage.extracts:
        batches = [_as_pages(batch) for batch in batches]
    if name == "join.repository":
        batches = [batch.with_columns({key: pa.array([*"aabbccd"]) for key in ("repository", "path")}) for batch in batches]
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


def _as_conversations(batch: DocumentBatch) -> DocumentBatch:
    """The documents as questions with an answer; one has none."""
    answers = [*([{"role": "assistant", "content": "An answer."}] for _ in TEXTS[1:]), []]
    asked = [[{"role": "user", "content": text}, *answer] for text, answer in zip(TEXTS, answers)]
    texts = pa.array([json.dumps({"messages": turns}) for turns in asked], pa.large_string())
    return batch.with_columns({"text": texts})


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
    in_memory = code_of_class(ReduceTask).modules if isinstance(stage, Global) else frozenset[str]()  # of `reduce_all`
    assert ran - code_of_class(type(stage)).modules - in_memory == set()
